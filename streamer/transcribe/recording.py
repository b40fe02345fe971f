"""Transcription of a whole recording: window after window, each from where the one before was heard to.

Source: openai-whisper's `transcribe.py`. What is heard, and where the next window begins, is as there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from streamer.arrays import Float32Array
from streamer.audio.constants import FRAMES_PER_SECOND, HOP_LENGTH, N_FRAMES
from streamer.events import Final, Token, Word, seconds
from streamer.settings.apply import ResolvedDecoding
from streamer.settings.table import DecodingSettings
from streamer.transcribe.features import Features, Read
from streamer.transcribe.segments import Segment
from streamer.transcribe.texts import Text, Window
from streamer.whisper.decode.window import detect_language
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.tokens.tokenizer import Tokenizer

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

    Yields one final a segment that has words, in order. `on_progress` is told how many samples are done. Raises
    ConfigError where the model does not know the language, InferenceError where the device fails and no other is left.
    """
    segments = transcribe_segments(model, audio, decoding, on_progress=on_progress, on_language=on_language)
    spoken = (segment for segment in segments if segment.words)
    for number, segment in enumerate(spoken, 1):
        # The attention may place a word a little outside of the times around it.
        segment.cut(segment.start_samples, segment.end_samples)
        yield _to_final(segment, number, decoding.settings, model.tokenizer)


def transcribe_segments(
    model: WhisperModel,
    audio: Float32Array | Read,
    decoding: ResolvedDecoding,
    *,
    on_progress: Callable[[int], None] = lambda position_samples: None,
    on_language: OnLanguage = lambda language, probabilities: None,
) -> Iterator[Segment]:
    """Transcribe a recording; see `transcribe`.

    Yields the segments that have a length and a text, with their tokens.
    """
    tokenizer = model.tokenizer
    task = decoding.settings.task
    tasks = ("transcribe", "translate") if task == "both" else (task,)
    # Raises before anything is computed, and names the only language of a model that knows one.
    language = model.choose_language(decoding.window.language, tasks[-1])
    features = Features(audio, model.dims.n_mels, pad_with_silence=decoding.pad_with_silence)
    if language == "auto" and features.n_frames:
        encoded = _encode(model, features.first_window())
        language, probabilities = model.run(lambda runtime: detect_language(runtime.decoder_of(encoded), tokenizer))
        on_language(language, probabilities)
    texts = [Text(model, decoding, language, task, features.n_samples) for task in tasks]
    for start, end in _clips(decoding.clips, features.n_frames):
        seek = start
        while seek < end:
            window = Window(seek, min(N_FRAMES, end - seek))
            encoded = _encode(model, features.window(window.begin, window.length))
            # The first text says how far the window is heard; another one is of what the first has heard.
            segments, advance = texts[0].hear(window, encoded)
            yield from segments
            for text in texts[1:] if segments else ():
                yield from text.hear(window, encoded, advance)[0]
            seek += max(1, advance)
            on_progress(min(seek * HOP_LENGTH, features.n_samples))
    on_progress(features.n_samples)


def _encode(model: WhisperModel, mel: Float32Array) -> EncodedWindow:
    return model.run(lambda runtime: runtime.encode(mel, 0))


def _to_final(segment: Segment, number: int, decoding: DecodingSettings, tokenizer: Tokenizer) -> Final:
    return Final(
        segment=number,
        start=seconds(segment.start_samples),
        end=seconds(segment.end_samples),
        text="".join(word.text for word in segment.words).strip(),
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


def _clips(timestamps: Sequence[float], n_frames: int) -> Iterator[tuple[int, int]]:
    """Yield the first frame of each clip, and the one behind the last."""
    points = [round(time * FRAMES_PER_SECOND) for time in timestamps] or [0]
    if len(points) % 2:
        points.append(n_frames)
    for start, end in zip(points[::2], points[1::2], strict=True):
        yield start, min(end, n_frames)
