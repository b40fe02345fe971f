"""Transcription of a whole recording, window after window. Source: openai-whisper's `transcribe.py`."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from streamer.arrays import Float32Array
from streamer.constants import HOP_LENGTH, N_FRAMES
from streamer.events import Final, Token, Word, seconds
from streamer.offline.batches import Decoded, decode_batch
from streamer.offline.features import Features
from streamer.offline.segments import RecordingWindow, Segment
from streamer.offline.skips import LEAST_HOLE_FRAMES, LONGEST_PIECE_FRAMES, is_trusted, repeats, skipped, split_at_holes
from streamer.offline.speech import LEAST_REST_FRAMES, SpeechFinder
from streamer.offline.texts import TaskText
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode.options import DecodeOptions
from streamer.whisper.decode.window import DecodedWindow, detect_language
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import clip_seconds
from streamer.whisper.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Called with the first sample of speech that has no text, and the one behind its last, before the segments behind it.
OnUnclear = Callable[[int, int], None]

# Called with the language that was detected, and the probability of each.
OnLanguage = Callable[[str, Mapping[str, float]], None]


def transcribe(
    model: WhisperModel,
    audio: Float32Array | Iterable[Float32Array],
    options: DecodeOptions,
    *,
    on_progress: Callable[[int], None] = lambda position_samples: None,
    on_language: OnLanguage = lambda language, probabilities: None,
    on_unclear: OnUnclear = lambda start_samples, end_samples: None,
) -> Iterator[Final]:
    """Transcribe a recording.

    audio : 16 kHz mono, shape (n_samples,), or blocks of it, which are read once and not kept
    on_progress : called with the number of samples that are done

    Yields one final for each segment that has words, in order; with the words, if `options` ask for them. Raises
    ConfigError if the model does not know the language, InferenceError if the device fails and no other is left.
    """
    segments = transcribe_segments(
        model, audio, options, on_progress=on_progress, on_language=on_language, on_unclear=on_unclear
    )
    return (final for _, final in with_finals(segments, options.settings, model.tokenizer))


def with_finals(
    segments: Iterable[Segment], decoding: DecodingSettings, tokenizer: Tokenizer
) -> Iterator[tuple[Segment, Final]]:
    """Yield each segment that has words, or a text if no words were asked for, with its final."""
    spoken = (segment for segment in segments if segment.words or not segment.timed)
    for number, segment in enumerate(spoken, 1):
        # The attention may place a word a little outside of the times around it.
        segment.cut(segment.start_samples, segment.end_samples)
        yield segment, _to_final(segment, number, decoding, tokenizer)


def transcribe_segments(
    model: WhisperModel,
    audio: Float32Array | Iterable[Float32Array],
    options: DecodeOptions,
    *,
    on_progress: Callable[[int], None] = lambda position_samples: None,
    on_language: OnLanguage = lambda language, probabilities: None,
    on_unclear: OnUnclear = lambda start_samples, end_samples: None,
    languages: Sequence[str] = (),
) -> Iterator[Segment]:
    """Yield the segments of a recording that have a length and a text, with their tokens; see `transcribe`.

    languages : that `auto` may find; empty: all
    """
    tasks = ("transcribe", "translate") if options.settings.task == "both" else (options.settings.task,)
    # Raises before anything is computed, and names the only language of a model that knows one.
    language = model.choose_language(options.settings.language, tasks[-1])
    features = Features(
        [audio] if isinstance(audio, np.ndarray) else audio,
        model.dims.n_mels,
        pad_with_silence=options.generation.silent_padding,
        clips=clip_seconds(options.settings.clip_timestamps),
        finder=SpeechFinder(options.speech) if options.speech else None,
    )
    with contextlib.closing(features):
        if language == "auto" and features.n_frames:
            encoded = _encode(model, features.first_window())
            language, probabilities = model.run(
                lambda runtime: detect_language(runtime.decoder_of(encoded), model.tokenizer, languages)
            )
            on_language(language, probabilities)
        windows = _Windows(model, features, options, language, tasks, on_unclear)
        for segments, position in windows.decode():
            yield from segments
            on_progress(position)
        on_progress(features.n_samples)
    if windows.n_filled:
        logger.info("skipped passages transcribed again: %d", windows.n_filled)


# The segments of all texts in a part of a recording, and the frame up to which it is transcribed.
Transcribed = tuple[list[Segment], int]


class _Windows:
    """Decodes the windows of a recording."""

    def __init__(
        self,
        model: WhisperModel,
        features: Features,
        options: DecodeOptions,
        language: str,
        tasks: Sequence[str],
        on_unclear: OnUnclear,
    ) -> None:
        """Begin with a text for each task."""
        self._on_unclear = on_unclear
        self._model = model
        self._features = features
        self._settings = options.settings
        self._keeps_all = options.settings.keep_failed == "last"
        n_samples = features.n_samples if features.speech is None else features.n_frames * HOP_LENGTH
        # Texts of windows that follow each other, and of those that are decoded without the text before them.
        self._texts, self._alone = (
            [TaskText(model, options, language, task, n_samples, alone=alone) for task in tasks]
            for alone in (False, True)
        )
        # Passages that were skipped and transcribed again.
        self.n_filled = 0
        # Speech of the last windows that still has no text, as segments without any.
        self._unclear: list[Segment] = []

    def decode(self) -> Iterator[Transcribed]:
        """Yield the segments of window after window, on the recording's clock."""
        speech = self._features.speech
        for segments, seek in self._decode_one_by_one() if self._settings.batch_size == 1 else self._decode_batches():
            unclear, self._unclear = self._unclear, []
            if speech is not None:
                for segment in (*segments, *unclear):
                    speech.place(segment)
            for segment in unclear:
                self._on_unclear(segment.start_samples, segment.end_samples)
            position = seek * HOP_LENGTH if speech is None else speech.position(seek)
            yield segments, min(position, self._features.n_samples)

    def _decode_one_by_one(self) -> Iterator[Transcribed]:
        features = self._features
        for begin, end in features.clips:
            while begin < end:
                full = begin + N_FRAMES
                if full < end and self._is_scrap(full, end):
                    full -= LEAST_REST_FRAMES  # so that the next window is more than a scrap
                window = RecordingWindow(begin, min(full, end) - begin)
                encoded = _encode(self._model, features.window(window.begin, window.length))
                segments, advance = _decode_texts(self._texts, window, encoded)
                begin += advance
                if window.end == end and self._is_scrap(begin, end):
                    begin = end
                yield self._fill(segments, window, begin), begin

    def _is_scrap(self, begin: int, end: int) -> bool:
        """Return whether the rest of a recording is too little for a window; openai-whisper decodes any."""
        speech = self._features.speech
        n_speech = end - begin if speech is None else int(speech.detected(begin, end).sum())
        return not self._keeps_all and n_speech < LEAST_REST_FRAMES

    def _decode_batches(self) -> Iterator[Transcribed]:
        """Decode windows that are cut at silences, several at once, each independently."""
        features, n_windows = self._features, self._settings.batch_size
        assert features.speech is not None
        if not (runtime := self._model.wake()).decoder.takes_batches:
            device = runtime.devices["decoder"]
            logger.info("%s on %s takes one window at a time", self._model.name, device)
        windows = [RecordingWindow(begin, end - begin) for begin, end in features.speech.windows()]
        for i in range(0, len(windows), n_windows):
            together = windows[i : i + n_windows]
            mels = [features.padded(window.begin, window.end) for window in together]
            decoded = decode_batch(self._model, mels, self._alone)
            for window, first in zip(together, decoded or itertools.repeat(None), strict=False):
                segments = self._decode_alone(window, first)
                yield self._fill(segments, window, window.end), window.end

    def _decode_alone(self, window: RecordingWindow, first: Decoded | None = None) -> list[Segment]:
        """Return the segments of a window that is decoded without the text before it.

        first : the window, encoded, and what the first temperature gave, if it was tried
        """
        encoded, decoded = first or (_encode(self._model, self._features.padded(window.begin, window.end)), None)
        return _decode_texts(self._alone, window, encoded, decoded)[0]

    def _fill(self, segments: list[Segment], window: RecordingWindow, seek: int) -> list[Segment]:
        """Transcribe again, alone, the speech that the segments of a window skip; return all segments.

        seek : first frame of the next window
        """
        speech = self._features.speech
        if speech is None or self._settings.allow_skips:
            return segments
        task = segments[0].task if segments else ""
        detected = speech.detected(window.begin, min(seek, window.end))
        end_of_text = self._model.tokenizer.special.end_of_text
        main = [segment for segment in segments if segment.task == task]
        explained = []
        for passage in skipped(main, detected, window.begin, end_of_text):
            first, behind = passage.begin * HOP_LENGTH, passage.end * HOP_LENGTH
            # Another text may have translated what the first one skipped.
            kept = [s for s in segments if s.task == task or not first <= s.start_samples < behind]
            # In a long passage Whisper would skip again.
            pieces = speech.cut(passage.begin, passage.end, LONGEST_PIECE_FRAMES)
            found = [s for begin, end in pieces for s in self._decode_alone(RecordingWindow(begin, end - begin))]
            found = [s for s in found if is_trusted(s, self._settings)]
            others = " ".join(s.text for s in main if s not in passage.sparse)
            if repeats(" ".join(s.text for s in found if s.task == task), others):
                explained.append(passage)
                continue
            if sum(len(s.tokens) for s in found) > sum(len(s.tokens) for s in passage.sparse):
                self.n_filled += 1
                kept = [s for s in kept if s not in passage.sparse]
                segments = [*kept, *found]
        parts = [split_at_holes(s, detected, window.begin) if s.task == task else [s] for s in segments]
        segments = sorted(itertools.chain(*parts), key=lambda s: (s.task, s.start_samples))
        main = [segment for segment in segments if segment.task == task]
        for passage in skipped(main, detected, window.begin, end_of_text):
            n_speech = detected[passage.begin - window.begin : passage.end - window.begin].sum()
            if passage not in explained and not passage.sparse and n_speech >= LEAST_HOLE_FRAMES:
                first, behind = passage.begin * HOP_LENGTH, passage.end * HOP_LENGTH
                self._unclear.append(Segment(start_samples=first, end_samples=behind, tokens=()))
        return segments


def _decode_texts(
    texts: Sequence[TaskText],
    window: RecordingWindow,
    encoded: EncodedWindow,
    decoded: Sequence[DecodedWindow | None] | None = None,
) -> Transcribed:
    """Return the segments of all texts of a window, and by how many frames to go on.

    decoded : what the first temperature gave for each text, if it was tried
    """
    firsts = decoded or [None] * len(texts)
    # The first text decides how much of the window is transcribed; the others stop there.
    segments, advance = texts[0].decode(window, encoded, decoded=firsts[0])
    for text, first in zip(texts[1:], firsts[1:], strict=True) if segments else ():
        segments += text.decode(window, encoded, advance, first)[0]
    return segments, max(1, advance)


def _encode(model: WhisperModel, mel: Float32Array) -> EncodedWindow:
    return model.run(lambda runtime: runtime.encode(mel, 0))


def _to_final(segment: Segment, number: int, decoding: DecodingSettings, tokenizer: Tokenizer) -> Final:
    return Final(
        segment=number,
        start=seconds(segment.start_samples),
        end=seconds(segment.end_samples),
        text=("".join(word.text for word in segment.words) if segment.timed else segment.text).strip(),
        words=tuple(
            Word(
                word=word.text,
                start=seconds(word.start_samples),
                end=seconds(word.end_samples),
                probability=round(word.probability, 3),
                stable=True,
                tokens=_tokens(word.tokens, probabilities, tokenizer) if decoding.token_probabilities else (),
            )
            for word, probabilities in zip(segment.words, segment.token_probabilities, strict=True)
        ),
        language=segment.language,
        no_speech_prob=round(segment.no_speech_prob, 4),
        avg_logprob=round(segment.avg_logprob, 4),
        task="translate" if decoding.task == "both" and segment.task == "translate" else "",
    )


def _tokens(tokens: Sequence[int], probabilities: Sequence[float], tokenizer: Tokenizer) -> tuple[Token, ...]:
    return tuple(
        Token(id=token, text=tokenizer.decode([token]), probability=round(probability, 3))
        for token, probability in zip(tokens, probabilities, strict=True)
    )
