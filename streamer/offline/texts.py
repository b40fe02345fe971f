"""The text of a task, window by window. Source: openai-whisper's `transcribe.py`."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from streamer.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.offline.hallucinations import first_hallucination, is_anomalous
from streamer.offline.segments import RecordingWindow, Segment, ends_with_one_time, last_end, split_segments, to_frames
from streamer.whisper.decode.fallback import compression_ratio, decode_with_fallback
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.search import TokenDecoder, drawer
from streamer.whisper.decode.window import DecodedWindow, decode_windows
from streamer.whisper.decode.word_timestamps import add_word_timestamps
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.plausible import can_be_spoken, repeats
from streamer.whisper.result import has_words

MAX_TEMPERATURE = 0.5  # above it a text is too random to be the next window's prompt


class TaskText:
    """The text of one task: a transcript or a translation, decoded window by window."""

    def __init__(
        self, model: WhisperModel, options: DecodeOptions, language: str, task: str, n_samples: int, *, alone: bool
    ) -> None:
        """Begin a text in a language, of a recording of `n_samples`.

        alone : whether each window is decoded without the text before it, and to its end
        """
        self._model = model
        self._options = options
        self._settings = options.settings
        self._n_samples = n_samples
        # Whether implausible text is kept, as openai-whisper keeps the text of the last temperature.
        self._keeps_all = options.settings.keep_failed == "last"
        half = model.dims.n_text_ctx // 2
        self._unprompted = WindowTask(
            language=language,
            task=task,
            max_tokens=options.settings.sample_len or half,
            temperature=options.temperatures[0],
        )
        self._draw = drawer(options.settings.seed)
        self._alone = alone
        self._history = PromptHistory(
            options.initial_prompt,
            model.dims.n_text_ctx,
            carried=options.settings.carry_initial_prompt or self._alone,
            conditioned=options.conditioned and not self._alone,
        )
        # End of the last word so far.
        self._last_speech_samples = 0

    def begin_to_decode(self, decoder: TokenDecoder) -> Sequence[DecodedWindow | None]:
        """Decode the windows that a decoder holds, at the first temperature; None if that draws tokens."""
        task = self._task()
        if task.temperature > 0:
            return [None] * decoder.n_windows
        return decode_windows(decoder, self._model.tokenizer, self._options, task)

    def decode(
        self,
        window: RecordingWindow,
        encoded: EncodedWindow,
        until: int | None = None,
        decoded: DecodedWindow | None = None,
    ) -> tuple[list[Segment], int]:
        """Decode a window.

        until : frames of the window behind which nothing may begin
        decoded : what the first temperature gave, if it was tried

        Returns the segments that have a length and a text, and how many frames to go on by.
        """
        decoded = self._decode(encoded, window, decoded)
        if self._is_silence(decoded):
            return [], window.length
        time_begin = self._model.tokenizer.special.timestamp_begin
        segments, advance = split_segments(decoded.tokens, time_begin, window.length, alone=self._alone)
        if until is not None:
            segments = [segment for segment in segments if segment.start_samples < until * HOP_LENGTH]
        self._describe(segments, decoded, window)
        if self._options.words:
            self._find_words(segments, decoded, window, encoded)
        if self._settings.word_timestamps and not self._alone:
            ended = ends_with_one_time(decoded.tokens, time_begin)
            segments, seek, done = self._follow_words(segments, window, window.begin + advance, ended=ended)
            advance = seek - window.begin
            if not done:
                return [], advance
        self._last_speech_samples = last_end(segments) or self._last_speech_samples
        is_text = str.strip if self._settings.keep_notes else has_words
        said = [
            segment for segment in segments if segment.start_samples != segment.end_samples and is_text(segment.text)
        ]
        end = min(window.end_samples, self._n_samples)
        for segment in said:
            # The model may write times behind the end of the recording, or of the clip.
            segment.cut(0, end)
        if not self._keeps_all:
            said = _spoken(said, window.begin_samples, end)
        trusted = decoded.temperature <= MAX_TEMPERATURE and (self._keeps_all or not decoded.failed)
        self._history.add((token for segment in said for token in segment.tokens), continued=trusted)
        return said, advance

    def _task(self) -> WindowTask:
        return dataclasses.replace(self._unprompted, prompt=self._history.prompt())

    def _decode(self, encoded: EncodedWindow, window: RecordingWindow, first: DecodedWindow | None) -> DecodedWindow:
        """Decode a window, again without its prompt if all it gets is the prompt again, or more than there is time for.

        first : what the first temperature gave, if it was tried
        """
        task = self._task()
        decoded = self._decode_with(task, encoded, first)
        if self._keeps_all or not task.prompt:
            return decoded
        text, prompt = (self._model.tokenizer.decode(list(tokens)) for tokens in (decoded.tokens, task.prompt))
        if can_be_spoken(text, window.length * HOP_LENGTH) and not repeats(text, prompt):
            return decoded
        return self._decode_with(dataclasses.replace(task, prompt=()), encoded, None)

    def _decode_with(self, task: WindowTask, encoded: EncodedWindow, first: DecodedWindow | None) -> DecodedWindow:
        tokenizer, options, draw = self._model.tokenizer, self._options, self._draw
        return self._model.run(
            lambda runtime: decode_with_fallback(
                runtime.decoder_of(encoded), tokenizer, options, task, draw=draw, first=first
            )
        )

    def _is_silence(self, decoded: DecodedWindow) -> bool:
        threshold, least = self._settings.no_speech_threshold, self._settings.logprob_threshold
        likely = least is not None and decoded.avg_logprob > least
        return threshold is not None and decoded.no_speech_prob > threshold and not likely

    def _describe(self, segments: Sequence[Segment], decoded: DecodedWindow, window: RecordingWindow) -> None:
        """Move segments from the window's clock to the recording's, and fill in their text."""
        tokenizer = self._model.tokenizer
        ratio = compression_ratio(tokenizer.decode(decoded.tokens).strip())
        for segment in segments:
            segment.start_samples += window.begin_samples
            segment.end_samples += window.begin_samples
            segment.text = tokenizer.decode(segment.tokens)
            segment.language = self._unprompted.language
            segment.task = self._unprompted.task
            segment.seek = window.begin
            segment.temperature = decoded.temperature
            segment.avg_logprob = decoded.avg_logprob
            segment.compression_ratio = ratio
            segment.no_speech_prob = decoded.no_speech_prob

    def _find_words(
        self, segments: Sequence[Segment], decoded: DecodedWindow, window: RecordingWindow, encoded: EncodedWindow
    ) -> None:
        """Give the segments their words, and the times of these if they are asked for."""
        spoken = self._model.run(
            lambda runtime: add_word_timestamps(
                runtime.decoder_of(encoded),
                self._model.tokenizer,
                segments,
                self._unprompted,
                begin_samples=window.begin_samples,
                n_samples=window.length * HOP_LENGTH,
                last_speech_samples=self._last_speech_samples,
                punctuation=(self._settings.prepend_punctuations, self._settings.append_punctuations),
            )
        )
        # Words have tokens of text alone, in their order.
        sampled = zip(decoded.tokens, decoded.log_probs, strict=True)
        for segment, found in zip(segments, spoken, strict=True):
            segment.words, segment.timed = found.words, True
            segment.token_probabilities = tuple(
                tuple(
                    next(math.exp(log_prob) for other, log_prob in sampled if other == token) for token in word.tokens
                )
                for word in found.words
            )
            if self._settings.word_timestamps:
                segment.start_samples, segment.end_samples = found.start_samples, found.end_samples

    def _follow_words(
        self, segments: list[Segment], window: RecordingWindow, seek: int, *, ended: bool
    ) -> tuple[list[Segment], int, bool]:
        """Go on from the last word instead of the last timestamp, and leave out what may be hallucinated.

        seek : frame at which the next window would begin
        ended : whether the window's text says itself that nothing follows it

        Returns the segments that stay, the frame at which the next window begins, and whether the window is done: if
        its first words may be hallucinated, it is decoded once more from there.
        """
        threshold_s = self._settings.hallucination_silence_threshold
        end = None if ended else last_end(segments)
        if end is not None and end > window.begin_samples:
            seek = to_frames(end)
        if threshold_s is None:
            return segments, seek, True
        threshold = round(threshold_s * SAMPLE_RATE)
        if end is not None and end > window.begin_samples and window.begin_samples + N_SAMPLES - end <= threshold:
            seek = window.end
        first = next((segment for segment in segments if segment.words), None)
        if first and is_anomalous(first.words) and first.start_samples - window.begin_samples > threshold:
            return [], to_frames(first.start_samples), False
        index = first_hallucination(segments, window, self._last_speech_samples, threshold)
        if index is None:
            return segments, seek, True
        seek = to_frames(max(window.begin_samples + SAMPLE_RATE, segments[index].start_samples))
        if self._n_samples - segments[index].end_samples < threshold:
            seek = to_frames(self._n_samples)
        return segments[:index], seek, True


def _spoken(segments: Sequence[Segment], begin: int, end: int) -> list[Segment]:
    """Return the segments of a window that can be spoken in the time between those beside them.

    If only a segment's own time is too short for its text, its times are wrong: it gets all of that.
    """
    spoken: list[Segment] = []
    for i, segment in enumerate(segments):
        first = spoken[-1].end_samples if spoken else begin
        last = segments[i + 1].start_samples if i + 1 < len(segments) else end
        n_samples = segment.end_samples - segment.start_samples
        if n_samples <= 0 or not can_be_spoken(segment.text, max(n_samples, last - first)):
            continue
        if not can_be_spoken(segment.text, n_samples):
            segment.start_samples, segment.end_samples = first, last
        spoken.append(segment)
    return spoken


class PromptHistory:
    """The text so far, as the prompt of the next window."""

    def __init__(self, initial: Sequence[int], n_text_ctx: int, *, carried: bool, conditioned: bool) -> None:
        """Start with an initial prompt, in each if `carried`; if `conditioned`, the text before is in it, too."""
        self._carried = carried
        self._conditioned = conditioned
        self._n_initial = len(initial)
        self._tokens = list(initial)
        # Number of the first token that may be in a prompt.
        self._begin = 0
        # Tokens in a prompt behind an initial one.
        self._room = n_text_ctx // 2 - 1 - len(initial)

    def prompt(self) -> tuple[int, ...]:
        """Return the tokens before the next window; the window keeps the newest that it has room for."""
        if not self._carried:
            return tuple(self._tokens[self._begin :])
        # An initial prompt that leaves no room is no reason to forget everything, says openai-whisper.
        newest = self._tokens[max(self._n_initial, self._begin) :][-self._room :]
        return (*self._tokens[: self._n_initial], *newest)

    def add(self, tokens: Iterable[int], *, continued: bool) -> None:
        """Add the text of a window; if it is not to be `continued`, no later prompt has it, nor what came before."""
        self._tokens.extend(tokens)
        if not self._conditioned or not continued:
            self._begin = len(self._tokens)
