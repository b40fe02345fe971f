"""Transcription of a whole recording, window after window. Source: openai-whisper's `transcribe.py`."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from streamer.arrays import Float32Array
from streamer.audio.constants import HOP_LENGTH, N_FRAMES
from streamer.events import Final, Token, Word, seconds
from streamer.settings.apply import ResolvedDecoding
from streamer.settings.table import DecodingSettings
from streamer.transcribe.batches import Decoded, decode_batch
from streamer.transcribe.features import Features, Read
from streamer.transcribe.segments import Segment
from streamer.transcribe.skips import LONGEST_PIECE_FRAMES, is_trusted, repeats, skipped
from streamer.transcribe.speech import SpeechFinder
from streamer.transcribe.texts import Text, Window
from streamer.whisper.decode.window import DecodedWindow, detect_language
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Told the language that was found, and the probability of each.
OnLanguage = Callable[[str, Mapping[str, float]], None]


def transcribe(
    model: WhisperModel,
    audio: Float32Array | Read,
    decoding: ResolvedDecoding,
    *,
    on_progress: Callable[[int], None] = lambda position_samples: None,
    on_language: OnLanguage = lambda language, probabilities: None,
) -> Iterator[Final]:
    """Transcribe a recording.

    audio : 16 kHz mono, shape (n_samples,), or what begins to read it in such blocks: it is read twice then, and never
        held as a whole

    Returns one final a segment that has words, in order; with the words, where `decoding` asks for them. `on_progress`
    is told how many samples are done. Raises ConfigError where the model does not know the language, InferenceError
    where the device fails and no other is left.
    """
    segments = transcribe_segments(model, audio, decoding, on_progress=on_progress, on_language=on_language)
    return (final for _, final in with_finals(segments, decoding.settings, model.tokenizer))


def with_finals(
    segments: Iterable[Segment], decoding: DecodingSettings, tokenizer: Tokenizer
) -> Iterator[tuple[Segment, Final]]:
    """Yield each segment that has words, or a text where no words were asked for, with its final."""
    spoken = (segment for segment in segments if segment.words or not segment.timed)
    for number, segment in enumerate(spoken, 1):
        # The attention may place a word a little outside of the times around it.
        segment.cut(segment.start_samples, segment.end_samples)
        yield segment, _to_final(segment, number, decoding, tokenizer)


def transcribe_segments(
    model: WhisperModel,
    audio: Float32Array | Read,
    decoding: ResolvedDecoding,
    *,
    on_progress: Callable[[int], None] = lambda position_samples: None,
    on_language: OnLanguage = lambda language, probabilities: None,
) -> Iterator[Segment]:
    """Yield the segments of a recording that have a length and a text, with their tokens; see `transcribe`."""
    tokenizer = model.tokenizer
    task = decoding.settings.task
    tasks = ("transcribe", "translate") if task == "both" else (task,)
    # Raises before anything is computed, and names the only language of a model that knows one.
    language = model.choose_language(decoding.window.language, tasks[-1])
    features = Features(
        audio,
        model.dims.n_mels,
        pad_with_silence=decoding.pad_with_silence,
        clips=decoding.clips,
        finder=SpeechFinder(decoding.speech) if decoding.speech else None,
    )
    speech = features.speech
    if language == "auto" and features.n_frames:
        encoded = _encode(model, features.first_window())
        language, probabilities = model.run(lambda runtime: detect_language(runtime.decoder_of(encoded), tokenizer))
        on_language(language, probabilities)
    windows = _Windows(model, features, decoding, language, tasks)
    for segments, seek in windows.decode():
        for segment in segments:
            if speech is not None:
                speech.place(segment)
            yield segment
        position = seek * HOP_LENGTH if speech is None else speech.position(seek)
        on_progress(min(position, features.n_samples))
    on_progress(features.n_samples)
    if windows.n_filled:
        passages = "passage that Whisper had skipped was"
        if windows.n_filled > 1:
            passages = "passages that Whisper had skipped were"
        logger.info("%d %s transcribed again", windows.n_filled, passages)


# The segments of all texts in a part of a recording, and the frame up to which it is transcribed.
Transcribed = tuple[list[Segment], int]


class _Windows:
    """Decodes the windows of a recording."""

    def __init__(
        self, model: WhisperModel, features: Features, decoding: ResolvedDecoding, language: str, tasks: Sequence[str]
    ) -> None:
        """Begin with a text for each task."""
        self._model = model
        self._features = features
        self._settings = decoding.settings
        n_samples = features.n_samples if features.speech is None else features.n_frames * HOP_LENGTH
        follow, alone = (
            [Text(model, decoding, language, task, n_samples, alone=alone) for task in tasks] for alone in (False, True)
        )
        # Texts of windows that follow each other, and of those that are decoded without the text before them.
        self._texts, self._alone = follow, alone
        # Passages that were skipped and transcribed again.
        self.n_filled = 0

    def decode(self) -> Iterator[Transcribed]:
        """Yield what is said in window after window."""
        return self._decode_one_by_one() if self._settings.batch_size == 1 else self._decode_batches()

    def _decode_one_by_one(self) -> Iterator[Transcribed]:
        features = self._features
        for start, end in features.clips:
            seek = start
            while seek < end:
                window = Window(seek, min(N_FRAMES, end - seek))
                encoded = _encode(self._model, features.window(window.begin, window.length))
                segments, advance = _hear(window, self._texts, encoded, [None] * len(self._texts))
                mel = features.frames(seek, seek + window.length)
                seek += advance
                yield self._fill(segments, mel, window.begin, seek), seek

    def _decode_batches(self) -> Iterator[Transcribed]:
        """Decode windows that are cut at silences, several at once, each independently."""
        features, n_windows = self._features, self._settings.batch_size
        assert features.speech is not None
        if not self._model.runtime.decoder.takes_batches:
            device = self._model.runtime.devices["decoder"]
            logger.info("%s on %s takes one window at a time", self._model.name, device)
        windows = list(features.speech.windows())
        for i in range(0, len(windows), n_windows):
            spans = windows[i : i + n_windows]
            mels = [features.frames(*span) for span in spans]
            decoded = decode_batch(self._model, [features.padded(mel, silence=True) for mel in mels], self._alone)
            for k, ((begin, end), mel) in enumerate(zip(spans, mels, strict=True)):
                segments = self._decode_alone(mel, begin, decoded[k] if decoded else None)
                yield self._fill(segments, mel, begin, end), end

    def _decode_alone(self, mel: Float32Array, begin: int, first: Decoded | None = None) -> list[Segment]:
        """Return what is said in a spectrogram of at most 30 s, shape (n_mels, n), from frame `begin` on.

        first : the spectrogram, encoded, and what the first temperature gave, if it was tried
        """
        if first is None:
            encoded = _encode(self._model, self._features.padded(mel, silence=True))
            first = encoded, [None] * len(self._alone)
        return _hear(Window(begin, mel.shape[1]), self._alone, *first)[0]

    def _fill(self, segments: list[Segment], mel: Float32Array, begin: int, seek: int) -> list[Segment]:
        """Transcribe again, alone, the speech that the segments of a window skip; return all segments.

        mel : spectrogram of the window, shape (n_mels, n); its first frame is `begin`
        seek : first frame of the next window
        """
        speech = self._features.speech
        if speech is None or self._settings.allow_skips:
            return segments
        task = segments[0].task if segments else ""
        detected = speech.detected(begin, min(seek, begin + mel.shape[1]))
        main = [segment for segment in segments if segment.task == task]
        for passage in skipped(main, detected, begin, self._model.tokenizer.special.end_of_text):
            first, behind = passage.begin * HOP_LENGTH, passage.end * HOP_LENGTH
            # Another text may have translated what the first one skipped.
            kept = [s for s in segments if s.task == task or not first <= s.start_samples < behind]
            # In a long passage Whisper would skip again.
            pieces = speech.cut(passage.begin, passage.end, LONGEST_PIECE_FRAMES)
            found = [s for a, b in pieces for s in self._decode_alone(mel[:, a - begin : b - begin], a)]
            found = [s for s in found if is_trusted(s, self._settings)]
            others = " ".join(s.text for s in main if s not in passage.sparse)
            if repeats(" ".join(s.text for s in found if s.task == task), others):
                continue
            if sum(len(s.tokens) for s in found) > sum(len(s.tokens) for s in passage.sparse):
                self.n_filled += 1
                kept = [s for s in kept if s not in passage.sparse]
                segments = sorted([*kept, *found], key=lambda s: (s.task, s.start_samples))
        return segments


def _hear(
    window: Window, texts: Sequence[Text], encoded: EncodedWindow, decoded: Sequence[DecodedWindow | None]
) -> Transcribed:
    """Return the segments of all texts of a window, and by how many frames to go on.

    decoded : what the first temperature gave for each text, if it was tried
    """
    # The first text decides how much of the window is transcribed; the others stop there.
    segments, advance = texts[0].hear(window, encoded, decoded=decoded[0])
    for text, first in zip(texts[1:], decoded[1:], strict=True) if segments else ():
        segments += text.hear(window, encoded, advance, first)[0]
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
