"""Audio of any format and container that FFmpeg reads, through PyAV: one audio track, as it is decoded.

What FFmpeg may open is named, so that a playlist in the guise of audio cannot make it read other files or addresses.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE

log = logging.getLogger(__name__)

# FFmpeg's names of what is read in containers, and in them; no decoder of pictures is among them.
FORMATS = (
    "mov,mp4,m4a,matroska,webm,aac,asf,ogg,mp3,flac,wav,aiff,amr,caf,avi,flv,mpegts,mpeg,ac3,eac3,w64,au,nistsphere,voc"
)
_CODECS = (
    "aac,aac_latm,alac,mp1float,mp2float,mp3float,mp3,opus,libopus,vorbis,libvorbis,flac,wmav1,wmav2,wmapro,wmalossless,"
    "wmavoice,ac3,eac3,dca,truehd,amrnb,amrwb,speex,gsm,gsm_ms,adpcm_ms,adpcm_ima_wav,adpcm_ima_qt,g722,g726,pcm_s16le,"
    "pcm_s16be,pcm_s24le,pcm_s24be,pcm_s32le,pcm_s32be,pcm_f32le,pcm_f32be,pcm_f64le,pcm_f64be,pcm_u8,pcm_s8,pcm_mulaw,"
    "pcm_alaw"
)

# Formats whose header says how long each track is, or the longest. Of others FFmpeg reports an estimate.
_SAY_EACH = ("flac", "mov", "aiff", "au")
_SAY_LONGEST = ("matroska", "asf")

MIN_HOLE_S = 0.1  # stamps scatter by less
MAX_HOLES_S = 21_600.0  # none lies behind this: a few bytes can claim years


class Readable(Protocol):
    """A file, or what can only be read on."""

    def read(self, n_bytes: int, /) -> bytes:
        """Return up to `n_bytes` bytes, none at the end."""
        ...


class AudioTrack:
    """An audio track, read from its beginning to its end."""

    def __init__(
        self,
        source: str | Readable,
        number: int = 1,
        *,
        block_s: float = 0.0,
        analyze_s: float = 5.0,
        options: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Open an address, a file, or what can only be read on, at its beginning.

        number : which of its audio tracks, from 1 on
        block_s : audio that is read at a time; 0: as it is coded
        analyze_s : how much of the audio FFmpeg may look at before any is read
        options : of FFmpeg, over ours, which let it open no address
        timeout_s : longest wait for an address to answer, and for more of it

        Raises ValueError if it has no audio that can be decoded.
        """
        import av  # late: it takes 20 MB and a tenth of a second

        self._av = av
        self._is_address = isinstance(source, str)
        ours = {
            "format_whitelist": FORMATS,
            "codec_whitelist": _CODECS,
            "protocol_whitelist": "none",
            "analyzeduration": str(round(analyze_s * 1e6)),
        }
        try:
            self._container = av.open(
                source, mode="r", metadata_errors="replace", options={**ours, **(options or {})}, timeout=timeout_s
            )
        except (av.FFmpegError, OSError) as error:
            raise ValueError(_reason(error)) from None
        # What ended it before its end; empty if nothing did.
        self.failure = ""
        self._frames = self._decode(number)
        try:
            self._first = self._first_frame()
        except BaseException:
            self.close()
            raise
        # Those of the first frame; others are made the same.
        self.sample_rate, self.channels = self._first.sample_rate, self._first.layout.nb_channels
        self._block_frames = round(block_s * self.sample_rate)
        # FFmpeg's name of the format, how long the audio is as far as that is known, and whether a header says so.
        self.format: str = self._container.format.name.partition(",")[0]
        stream = self._container.streams.audio[number - 1]
        known_s = float((stream.duration or 0) * (stream.time_base or 0)) or (self._container.duration or 0) / 1e6
        self.duration_s = known_s if 0 < known_s < 1e7 else None
        # Whether it is a file, and no station: how long it is, or how large, was said.
        size = self._container.size or 0
        self.is_file = self.duration_s is not None or (self.format != "hls" and 0 < size < 1 << 60)
        alone = len(self._container.streams) == 1
        self.is_announced = self.format in _SAY_EACH or (alone and self.format in _SAY_LONGEST)

    def _first_frame(self) -> Any:  # noqa: ANN401 - PyAV's
        first = next(self._frames, None)
        if first is None:
            raise ValueError(self.failure or "it has no audio that can be decoded")
        if not MIN_SAMPLE_RATE <= first.sample_rate <= MAX_SAMPLE_RATE:
            raise ValueError(f"{first.sample_rate} samples a second, not {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE}")
        if first.layout.nb_channels > MAX_CHANNELS:
            raise ValueError(f"{first.layout.nb_channels} channels, more than {MAX_CHANNELS}")
        return first

    def blocks(self) -> Iterator[Float32Array]:
        """Yield the audio, shape (n, channels), up to the end, or to the first place that cannot be read."""
        av, resampler, before = self._av, None, None
        n_s = 0.0
        for frame in itertools.chain([self._first], self._frames):
            if (missing_s := self._missing_s(frame, n_s)) > MIN_HOLE_S:
                yield from self._arrays(resampler, None)
                resampler = before = None
                block = np.zeros((self._block_frames or frame.samples, self.channels), np.float32)
                n_blocks = round(missing_s * self.sample_rate / len(block))
                yield from itertools.repeat(block, n_blocks)
                n_s += n_blocks * len(block) / self.sample_rate
            n_s += frame.samples / frame.sample_rate
            kind = (frame.format.name, frame.layout.name, frame.sample_rate)
            if kind != before:  # some coders begin with one channel, or half the rate
                yield from self._arrays(resampler, None)
                resampler = av.AudioResampler("flt", self._first.layout, self.sample_rate, self._block_frames or None)
                before = kind
            yield from self._arrays(resampler, frame)
        yield from self._arrays(resampler, None)

    def _missing_s(self, frame: Any, n_s: float) -> float:  # noqa: ANN401 - PyAV's
        """Return how much too late a frame of a file is: a track may begin late, and packets may be damaged."""
        start_us = self._container.start_time
        if self._is_address or frame.pts is None or start_us is None:
            return 0.0
        missing_s = float(frame.pts * frame.time_base) - start_us / 1e6 - n_s
        return missing_s if n_s + missing_s <= min((self._container.duration or 0) / 1e6, MAX_HOLES_S) else 0.0

    def close(self) -> None:
        """Let go of the file."""
        self._frames.close()
        self._container.close()

    def _arrays(self, resampler: Any, frame: Any) -> Iterator[Float32Array]:  # noqa: ANN401 - PyAV's
        if resampler is None:
            return
        try:
            for packed in resampler.resample(frame):
                yield packed.to_ndarray().reshape(-1, self.channels)
        except (self._av.FFmpegError, ValueError) as error:
            log.debug("audio cannot be converted: %s", error)

    def _decode(self, number: int) -> Any:  # noqa: ANN401 - a generator of PyAV's frames
        av, tracks = self._av, self._container.streams.audio
        if not tracks:
            return
        if number > len(tracks):
            raise ValueError(f"it has no audio track {number}; its last is {len(tracks)}")
        for stream in self._container.streams:
            if stream.index != tracks[number - 1].index:
                stream.discard = av.stream.Discard.all
        try:
            for packet in self._container.demux(tracks[number - 1]):
                try:
                    yield from packet.decode()
                except av.FFmpegError as error:
                    log.debug("a packet cannot be decoded: %s", error)
        except (av.FFmpegError, OSError, ValueError) as error:
            self.failure = _reason(error)
            log.debug("the audio cannot be read on: %s", self.failure)


def _reason(error: Exception) -> str:
    """Return what FFmpeg says, without the address, which may hold a password."""
    return str(getattr(error, "strerror", None) or error).partition(": '")[0] or "unknown format"
