"""What tests of audio share: a consumer that writes down what a source delivers, speech, and files of it."""

import io
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import scipy.signal
import soundfile

from streamer.arrays import Float32Array
from streamer.audio.sources.base import Source, SourceCallbacks
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from tests.waiting import WAIT_S

SPEECH = Path(__file__).parents[2] / "data" / "speech.flac"


def speech(duration_s: float = 4.0, start_s: float = 0.0) -> Float32Array:
    frames, start = int(duration_s * SAMPLE_RATE), int(start_s * SAMPLE_RATE)
    return np.asarray(soundfile.read(SPEECH, dtype="float32", start=start, frames=frames)[0])


def written(
    samples: object, sample_rate: int = SAMPLE_RATE, *, format: str = "WAV", subtype: str | None = None
) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, sample_rate, format=format, subtype=subtype)
    return file.getvalue()


def mux(
    file: Any,  # noqa: ANN401 - a path, or a file
    format: str,
    codec: str,
    *signals: np.ndarray[Any, Any],
    rate: int = 48_000,
    sample_rate: int = SAMPLE_RATE,
    layout: str = "mono",
    options: dict[str, str] | None = None,
    moved: Callable[[float], float] = lambda at_s: 0.0,
) -> None:
    """Write a track for each signal, mono or of the layout's channels; sound of the first is moved by some seconds."""
    with av.open(file, "w", format=format, options=options or {}) as container:
        streams: list[Any] = [container.add_stream(codec, rate=rate, layout=layout) for _ in signals]
        for stream in streams:
            stream.bit_rate = 128_000
            stream.codec_context.open()
        for stream, signal in zip(streams, signals, strict=True):
            sample_format = "s16" if signal.dtype == np.int16 else "flt"
            frame = av.AudioFrame.from_ndarray(
                signal.reshape(1, -1), sample_format, "mono" if signal.ndim == 1 else layout
            )
            frame.sample_rate = sample_rate
            size = stream.codec_context.frame_size or 1024
            resampler = av.AudioResampler(stream.codec_context.format, layout, rate, frame_size=size)
            for n, part in enumerate((*resampler.resample(frame), *resampler.resample(None))):
                move_s = moved(n * size / rate) if stream is streams[0] else 0.0
                part.pts, part.time_base = n * size + round(move_s * rate), Fraction(1, rate)
                container.mux(stream.encode(part))
            container.mux(stream.encode(None))


def muxed(*arguments: Any, **options: Any) -> bytes:  # noqa: ANN401 - those of `mux`
    """Return a file that `mux` writes."""
    file = io.BytesIO()
    mux(file, *arguments, **options)
    return file.getvalue()


def patched(data: bytes, position: int, new: bytes) -> bytes:
    return data[:position] + new + data[position + len(new) :]


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[first : first + size] for first in range(0, len(data), size)]


def likeness(captured: Float32Array, piece: Float32Array) -> float:
    """Return the correlation of a piece with the place in the captured audio that is most like it."""
    start = int(np.argmax(scipy.signal.correlate(captured, piece, mode="valid")))
    return float(np.corrcoef(captured[start : start + len(piece)], piece)[0, 1])


class Recorder:
    """What a source delivered, in order, with silence in place of what was lost."""

    def __init__(self) -> None:
        self.blocks: list[Float32Array] = []
        # Lengths of gaps as they were announced; and gaps: adjoining ones with one reason are one.
        self.pieces: list[int] = []
        self.gaps: list[tuple[int, str]] = []
        self.errors: list[StreamerError] = []
        self.ends: list[StreamerError | None] = []
        # "audio", "gap", "error" and "end", in the order of delivery; audio in a row counts once, and so do gaps.
        self.order: list[str] = []
        # Set at the end, and at the first audio.
        self.ended, self.heard = threading.Event(), threading.Event()
        self.callbacks = SourceCallbacks(
            on_audio=self._on_audio, on_gap=self._on_gap, on_error=self._on_error, on_end=self._on_end
        )

    @property
    def audio(self) -> Float32Array:
        return np.concatenate([np.empty(0, dtype=np.float32), *self.blocks])

    def wait_for_end(self) -> StreamerError | None:
        """Wait until the source has ended by itself; return the error it ended with."""
        assert self.ended.wait(WAIT_S)
        return self.ends[0]

    def _on_audio(self, samples: Float32Array) -> None:
        assert samples.dtype == np.float32
        assert samples.ndim == 1
        self.blocks.append(samples)
        if self.order[-1:] != ["audio"]:
            self.order.append("audio")
        self.heard.set()

    def _on_gap(self, n_samples: int, reason: Literal["overrun", "device"]) -> None:
        assert n_samples > 0
        self.pieces.append(n_samples)
        self.blocks.append(np.zeros(n_samples, dtype=np.float32))
        if self.order[-1:] == ["gap"] and self.gaps[-1][1] == reason:
            self.gaps[-1] = (self.gaps[-1][0] + n_samples, reason)
        else:
            self.gaps.append((n_samples, reason))
            self.order.append("gap")

    def _on_error(self, error: StreamerError) -> None:
        self.errors.append(error)
        self.order.append("error")

    def _on_end(self, error: StreamerError | None) -> None:
        self.ends.append(error)
        self.order.append("end")
        self.ended.set()


def played(source: Source) -> Recorder:
    recorder = Recorder()
    source.start(recorder.callbacks)
    recorder.wait_for_end()
    source.stop()
    assert len(recorder.ends) == 1
    return recorder
