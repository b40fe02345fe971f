"""Transcription of a whole recording, 30-second window after window, without streaming.

Source: the sequential long-form algorithm of openai-whisper's `transcribe.py`, in the variant of `transformers`'
`generate`: a window begins where the last timestamp of the window before it ends.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import HOP_LENGTH, N_FRAMES, N_SAMPLES_PER_TOKEN
from streamer.audio.mel import log_mel_recording
from streamer.events import Final, Word, seconds
from streamer.whisper.decoding.window import WindowOptions, decode_window, detect_language
from streamer.whisper.decoding.words import align
from streamer.whisper.model import WhisperModel

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Segment:
    """What was said between two timestamps."""

    start_samples: int
    end_samples: int
    tokens: tuple[int, ...]


def transcribe(
    model: WhisperModel,
    samples: FloatArray,
    *,
    language: str = "auto",
    task: str = "transcribe",
    on_progress: Callable[[int], None] = lambda position_samples: None,
) -> Iterator[Final]:
    """Transcribe a recording.

    samples : shape = (n_samples,), 16 kHz mono

    Yields one final a segment that has words, in order. `on_progress` is told how many samples are done. Raises
    ConfigError where the model does not know the language, InferenceError where the device fails.
    """
    if len(samples) == 0:
        return
    tokenizer = model.tokenizer
    language = tokenizer.choose_language(language, task)  # raises before anything is computed
    features = log_mel_recording(samples, model.dims.n_mels)
    n_frames = features.shape[1]
    decoder = model.runtime.decoder
    seek = 0
    number = 0
    # A short recording was padded to 30 s; what lies past its end is not looked at.
    while seek < n_frames and seek * HOP_LENGTH < len(samples):
        length = min(N_FRAMES, n_frames - seek)
        mel = np.zeros((model.dims.n_mels, N_FRAMES), dtype=np.float32)
        mel[:, :length] = features[:, seek : seek + length]
        decoder.use(model.runtime.encode(mel, 0))
        if language == "auto":
            language = detect_language(decoder, tokenizer)[0]
        options = WindowOptions(language=language, task=task, timestamps=True)
        window = decode_window(decoder, tokenizer, model.generation, options)
        segments, advance = split_segments(window.tokens, tokenizer.special.timestamp_begin, length)
        begin = seek * HOP_LENGTH
        # All of the words were said in what is not transcribed again.
        heard = min(max(advance, 1) * HOP_LENGTH, len(samples) - begin)
        spellings = [
            tokenizer.split_to_words([t for t in s.tokens if t < tokenizer.special.end_of_text], language)
            for s in segments
        ]
        words = align(decoder, tokenizer, model.generation, [w for s in spellings for w in s], options, heard)
        for segment, spelling in zip(segments, spellings, strict=True):
            mine, words = words[: len(spelling)], words[len(spelling) :]
            if not mine:
                continue
            number += 1
            # The attention may place a word a little outside of the timestamps around it.
            first = min(segment.start_samples, heard)
            last = min(max(segment.start_samples, segment.end_samples), heard)
            yield Final(
                segment=number,
                start=seconds(begin + first),
                end=seconds(begin + last),
                text="".join(text for text, _ in spelling).strip(),
                words=tuple(
                    Word(
                        word=w.text,
                        start=seconds(begin + min(max(w.start_samples, first), last)),
                        end=seconds(begin + min(max(w.end_samples, first), last)),
                        probability=round(w.probability, 3),
                        stable=True,
                    )
                    for w in mine
                ),
                language=language,
                no_speech_prob=round(window.no_speech_prob, 4),
                avg_logprob=round(window.avg_logprob, 4),
            )
        seek += max(advance, 1)
        on_progress(min(seek * HOP_LENGTH, len(samples)))


def split_segments(tokens: Sequence[int], timestamp_begin: int, length_frames: int) -> tuple[list[Segment], int]:
    """Split a window's tokens at its timestamps.

    Returns the segments, their positions in samples from the start of the window, and how many frames to go on by:
    to the last timestamp where the window was cut off in the middle of a segment, else past all of the window.
    """
    times = [token >= timestamp_begin for token in tokens]
    cuts = [i for i in range(1, len(tokens)) if times[i - 1] and times[i]]
    ends_with_one_time = times[-2:] == [False, True]

    def position(index: int) -> int:
        return (tokens[index] - timestamp_begin) * N_SAMPLES_PER_TOKEN

    start = position(0) if times[:1] == [True] else 0
    if not cuts:
        end = position(-1) if ends_with_one_time else length_frames * HOP_LENGTH
        return [Segment(start, max(start, end), tuple(tokens))], length_frames
    # The last cut is the end of what was heard whole, unless the text goes on to a timestamp of its own.
    ends = [*cuts, len(tokens)] if ends_with_one_time else cuts
    begins = [0, *ends[:-1]]
    segments = [
        Segment(position(a) if times[a] else 0, position(b - 1), tuple(tokens[a:b]))
        for a, b in zip(begins, ends, strict=True)
    ]
    return segments, length_frames if ends_with_one_time else position(cuts[-1] - 1) // HOP_LENGTH
