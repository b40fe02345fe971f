"""Speech as Ogg Opus (RFC 6716, RFC 7845), through PyAV."""

import contextlib
import io

import numpy as np

from streamer.arrays import Float32Array, Int16Array
from streamer.audio.track import AudioTrack
from streamer.constants import SAMPLE_RATE
from streamer.errors import TruncatedAudioError

BITS_PER_S = 24_000  # at most 11 MB an hour; silence takes less


def encode(samples: Int16Array) -> bytes:
    """Return 16 kHz mono audio, shape (n,), as a whole file."""
    import av  # late, as in `container`

    file = io.BytesIO()
    options = {"b": str(BITS_PER_S), "application": "voip", "compression_level": "5"}
    with av.open(file, "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=SAMPLE_RATE, options=options, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[np.newaxis], "s16", "mono")
        frame.sample_rate = SAMPLE_RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return file.getvalue()


def decode(data: bytes, n_samples: int) -> Float32Array:
    """Return the first samples of a file as 16 kHz mono, shape (n_samples,), with silence for what is missing.

    Raises ValueError if it has no audio that can be decoded.
    """
    samples = np.zeros(n_samples, dtype=np.float32)
    n_done = 0
    with contextlib.closing(AudioTrack(io.BytesIO(data))) as track, contextlib.suppress(TruncatedAudioError):
        for block in track.blocks():
            part = block[: n_samples - n_done]
            samples[n_done : n_done + len(part)] = part
            n_done += len(part)
            if n_done == n_samples:  # a few bytes can stand for hours
                break
    return samples
