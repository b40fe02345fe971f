"""Transcription of a whole recording, window after window. Source: openai-whisper's `transcribe.py`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from streamer.arrays import Float32Array
from streamer.audio.constants import FRAMES_PER_SECOND, HOP_LENGTH, N_FRAMES
from streamer.events import Final, Token, Word, seconds
from streamer.settings.apply import ResolvedDecoding
from streamer.settings.table import DecodingSettings
from streamer.transcribe.batches import Batches
from streamer.transcribe.features import Features, Read
from streamer.transcribe.segments import Segment
from streamer.transcribe.speech import SpeechFinder
from streamer.transcribe.texts import Text, Window
from streamer.whisper.decode.window import DecodedWindow, detect_language
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.tokens.tokenizer import Tokenizer

# What a window of a batch leaves unheard is heard once more where it is at least this long: one second.
LEAST_FRAMES = FRAMES_PER_SECOND

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
    n_samples = features.n_samples if speech is None else features.n_frames * HOP_LENGTH
    texts = [Text(model, decoding, language, task, n_samples) for task in tasks]
    is_alone = decoding.settings.batch_size == 1
    windows = _hear_windows(model, features, texts) if is_alone else _hear_batches(model, features, texts, decoding)
    for segments, seek in windows:
        for segment in segments:
            if speech is not None:
                speech.place(segment)
            yield segment
        position = seek * HOP_LENGTH if speech is None else speech.position(seek)
        on_progress(min(position, features.n_samples))
    on_progress(features.n_samples)


def _hear_windows(
    model: WhisperModel, features: Features, texts: Sequence[Text]
) -> Iterator[tuple[list[Segment], int]]:
    """Hear window after window; yield the segments of each, and the frame up to which all is heard."""
    for start, end in features.clips:
        seek = start
        while seek < end:
            window = Window(seek, min(N_FRAMES, end - seek))
            encoded = _encode(model, features.window(window.begin, window.length))
            segments, advance = _hear(window, texts, encoded, [None] * len(texts))
            seek += advance
            yield segments, seek


def _hear_batches(
    model: WhisperModel, features: Features, texts: Sequence[Text], decoding: ResolvedDecoding
) -> Iterator[tuple[list[Segment], int]]:
    """Hear windows that are cut at silences, several at once, each for itself; see `_hear_windows`."""
    assert features.speech is not None
    batch_size = decoding.settings.batch_size
    batches = Batches(model, batch_size, decoding.window.n_beams)
    windows = features.speech.windows()
    for i in range(0, len(windows), batch_size):
        spans = windows[i : i + batch_size]
        mels = [features.frames(*span) for span in spans]
        decoded = batches.decode([features.padded(mel, silence=True) for mel in mels], texts)
        for k, ((begin, end), mel) in enumerate(zip(spans, mels, strict=True)):
            seek, heard = begin, decoded[k] if decoded else None
            # Where the text leaves off early, the rest is heard once more.
            while seek == begin or end - seek >= LEAST_FRAMES:
                if heard is None:
                    heard = _encode(model, features.padded(mel[:, seek - begin :], silence=True)), [None] * len(texts)
                segments, advance = _hear(Window(seek, end - seek), texts, *heard)
                seek, heard = seek + advance, None
                yield segments, min(seek, end)


def _hear(
    window: Window, texts: Sequence[Text], encoded: EncodedWindow, decoded: Sequence[DecodedWindow | None]
) -> tuple[list[Segment], int]:
    """Return the segments of all texts of a window, and how many frames to go on by.

    decoded : what each text says at the first temperature, where that was tried
    """
    # The first text says how far the window is heard; another one is of what the first has heard.
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
