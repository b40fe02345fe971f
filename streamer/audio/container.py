"""Audio of any format and container that FFmpeg reads, through PyAV: a file, or one link of several, as it is decoded.

What FFmpeg may open is named, so that a playlist in the guise of audio cannot make it read other files or addresses.
"""

import contextlib
import itertools
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.links import Links
from streamer.audio.wav import mend_header, read_wav_header
from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE

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

HEAD_BYTES = 1 << 16  # in which a header is found

# The frame at the beginning of an MP3 that says how many follow it. Without one, its length is an estimate.
_MP3_LENGTH = re.compile(rb"\xff[\xe2-\xff].{2,40}(Xing|Info|VBRI)", re.DOTALL)

# Matroska's element Duration, a float. Without one, FFmpeg may guess the length from the bit rate.
_MATROSKA_LENGTH = re.compile(rb"\x44\x89[\x84\x88]")

MIN_HOLE_S = 0.1  # stamps scatter by less
MAX_HOLES_S = 21_600.0  # none lies behind this: a few bytes can claim years
MAX_S_PER_BYTE = 0.01  # nor, if no header says how long the audio is, behind this for each byte that was read


@dataclass(frozen=True, slots=True)
class Opening:
    """How FFmpeg opens what it reads."""

    # Which of the audio tracks, from 1 on.
    track: int = 1

    # Audio that is decoded at a time; 0: as it is coded.
    block_s: float = 0.1

    # How much of the audio FFmpeg may look at before any is decoded.
    analyze_s: float = 5.0

    # Longest wait for an address to answer, and for more of it; None: without limit.
    timeout_s: float | None = None

    # Options of FFmpeg, over ours, which let it open no address.
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frames:
    """Decoded audio."""

    samples: Float32Array  # shape (n, channels)
    sample_rate: int
    layout: Any  # PyAV's: which channel is for which speaker


class NoAudioError(ValueError):
    """A file, or a link of one, without any audio."""

    def __str__(self) -> str:
        return "it has no audio that can be decoded"


class Container:
    """A file, one link of several, or an address, as FFmpeg opens it; one of its audio tracks."""

    def __init__(self, source: str | Links, opening: Opening) -> None:
        """Open an address, or a link at its beginning, and decode the first frame.

        Raises NoAudioError if it has no audio, ValueError if it has none that can be decoded.
        """
        import av  # late: it takes 20 MB and a tenth of a second

        self._av: ModuleType = av
        self._opening = opening
        # An address is FFmpeg's to read.
        self._links = None if isinstance(source, str) else source
        # What keeps it from being read on; empty if nothing does.
        self.failure = ""
        # Seconds up to the end of what was decoded, or is missing.
        self.position_s = 0.0
        # Seconds of packets that could not be decoded since the last that could, and of all those before, and where
        # the first of these was.
        self.undecoded_s = 0.0
        self.lost_s = self.lost_at_s = 0.0

        head = b""
        if self._links is not None and self._links.is_file:
            head = self._links.read(HEAD_BYTES)
            self._links.header = mend_header(head)
            self._links.seek(0)
        self.wav = read_wav_header(head)
        self._file = self._opened(source)
        self._frames = self._decode()
        try:
            self._stream = self._selected()
            self._first = next(self._frames, None)
            if self._first is None:
                raise ValueError(self.failure) if self.failure else NoAudioError
        except BaseException:
            self.close()
            raise
        # How long the track is as the header says, in seconds; None if it does not. And the file's longest; 0: unknown.
        self.announced_s = self._announced_s(head)
        guessed = self.format == "matroska" and head and not _MATROSKA_LENGTH.search(head)
        self._longest_s = 0.0 if guessed else (self._file.duration or 0) / 1e6

    @property
    def format(self) -> str:
        """FFmpeg's name of the format."""
        return str(self._file.format.name.partition(",")[0])

    @property
    def n_tracks(self) -> int:
        """How many audio tracks there are."""
        return len(self._file.streams.audio)

    @property
    def known_s(self) -> float | None:
        """How long the track is as FFmpeg knows or estimates it, in seconds; None if it does not."""
        stream_s = float((self._stream.duration or 0) * (self._stream.time_base or 0))
        known_s = stream_s or (self._file.duration or 0) / 1e6
        return known_s if 0 < known_s < 1e7 else None

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second of uncompressed audio; 0 for other audio."""
        if self.wav is not None:
            return self.wav.frame_bytes * self.wav.sample_rate
        codec = self._stream.codec_context
        return (codec.bit_rate or 0) / 8 if codec.name.startswith("pcm_") else 0.0

    @property
    def is_file(self) -> bool:
        """Whether it is a file, and no station: how long it is, or how large, was said."""
        size = self._file.size or 0
        return self.known_s is not None or (self.format != "hls" and 0 < size < 1 << 60)

    def blocks(self) -> Iterator[Frames]:
        """Yield the audio up to the end, or to where it cannot be read on, with silence for what is missing in it."""
        packer: Any = None
        before = None
        for frame in itertools.chain([self._first], self._frames):
            missing_s = self._missing_s(frame)
            self.position_s += missing_s + frame.samples / frame.sample_rate
            kind = (frame.format.name, frame.layout.name, frame.sample_rate)
            if missing_s or kind != before:  # some coders begin with one channel, or half the rate
                yield from self._packed(packer, None)
                n_frames = round(self._opening.block_s * frame.sample_rate) or None
                packer, before = self._av.AudioResampler("flt", frame.layout, frame.sample_rate, n_frames), kind
                yield from _silence(missing_s, frame)
            yield from self._packed(packer, frame)
        yield from self._packed(packer, None)

    def close(self) -> None:
        """Let go of it."""
        self._frames.close()
        self._file.close()

    def _opened(self, source: str | Links) -> Any:  # noqa: ANN401 - PyAV's
        options = {
            "format_whitelist": FORMATS,
            "codec_whitelist": _CODECS,
            "protocol_whitelist": "none",
            "analyzeduration": str(round(self._opening.analyze_s * 1e6)),
            **self._opening.options,
        }
        try:
            return self._av.open(
                source, mode="r", metadata_errors="replace", options=options, timeout=self._opening.timeout_s
            )
        except (self._av.FFmpegError, OSError) as error:
            raise ValueError((self._links.failure if self._links else "") or _reason(error)) from None

    def _selected(self) -> Any:  # noqa: ANN401 - PyAV's
        """Return the track, and read no other."""
        tracks, number = self._file.streams.audio, self._opening.track
        if not tracks:
            raise NoAudioError
        if number > len(tracks):
            raise ValueError(f"it has no audio track {number}, the last is {len(tracks)}")
        for stream in self._file.streams:
            if stream.index != tracks[number - 1].index:
                stream.discard = self._av.stream.Discard.all
        return tracks[number - 1]

    def _decode(self) -> Any:  # noqa: ANN401 - a generator of PyAV's frames
        av = self._av
        try:
            for packet in self._file.demux(self._stream):
                try:
                    frames = packet.decode()
                except av.FFmpegError as error:
                    log.debug("a packet cannot be decoded: %s", error)
                    self.undecoded_s += float((packet.duration or 0) * (packet.time_base or 0))
                    continue
                if frames and self.undecoded_s:
                    self.lost_at_s = self.lost_at_s if self.lost_s else self.position_s
                    self.lost_s += self.undecoded_s
                    self.undecoded_s = 0.0
                for frame in frames:
                    _check(frame)
                    yield frame
        except (av.FFmpegError, OSError, ValueError) as error:
            self.failure = _reason(error)
            log.debug("the audio cannot be read on: %s", self.failure)

    def _announced_s(self, head: bytes) -> float | None:
        if self.wav is not None:
            return self.wav.announced_s
        says_longest = self.format in _SAY_LONGEST and len(self._file.streams) == 1
        says = self.format in _SAY_EACH or says_longest or _MP3_LENGTH.search(head)
        return self.known_s if head and says else None

    def _missing_s(self, frame: Any) -> float:  # noqa: ANN401 - PyAV's
        """Return how much too late a frame of a file is: a track may begin late, and packets may be missing."""
        start_us = self._file.start_time
        if self._links is None or frame.time is None or start_us is None:
            return 0.0
        at_s = frame.time - start_us / 1e6
        missing_s = at_s - self.position_s
        believed = at_s <= min(self._longest_s or MAX_S_PER_BYTE * self._links.n_read, MAX_HOLES_S)
        return missing_s if believed and missing_s > MIN_HOLE_S else 0.0

    def _packed(self, packer: Any, frame: Any) -> Iterator[Frames]:  # noqa: ANN401 - PyAV's
        if packer is None:
            return
        packed = []
        try:
            packed = packer.resample(frame)
        except (self._av.FFmpegError, ValueError) as error:
            log.debug("audio cannot be converted: %s", error)
        for block in packed:
            samples = block.to_ndarray().reshape(-1, block.layout.nb_channels)
            yield Frames(samples, block.sample_rate, block.layout)


def _check(frame: Any) -> None:  # noqa: ANN401 - PyAV's
    """Raise ValueError if there are too few or too many samples a second, or channels."""
    if not MIN_SAMPLE_RATE <= frame.sample_rate <= MAX_SAMPLE_RATE:
        raise ValueError(f"its sample rate is {frame.sample_rate} Hz, not {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE}")
    if frame.layout.nb_channels > MAX_CHANNELS:
        raise ValueError(f"it has {frame.layout.nb_channels} channels, more than {MAX_CHANNELS}")


def _silence(duration_s: float, frame: Any) -> Iterator[Frames]:  # noqa: ANN401 - PyAV's
    """Yield silence as long as what is missing before a frame."""
    n_frames = round(duration_s * frame.sample_rate)
    block = np.zeros((frame.sample_rate // 10, frame.layout.nb_channels), np.float32)
    while n_frames > 0:
        yield Frames(block[:n_frames], frame.sample_rate, frame.layout)
        n_frames -= len(block)


def speakers(layout: Any) -> tuple[Float32Array | None, int | None]:  # noqa: ANN401 - PyAV's
    """Return the share of each channel in FFmpeg's mix to mono, shape (channels,), and which is the centre.

    Nothing for mono and stereo, and if it is not known which speaker is which.
    """
    import av

    n_channels, names = layout.nb_channels, [channel.name for channel in layout.channels]
    if n_channels <= 2 or "NONE" in names:
        return None, None
    frame = av.AudioFrame.from_ndarray(np.eye(n_channels, dtype=np.float32).reshape(1, -1), "flt", layout)
    frame.sample_rate = MAX_SAMPLE_RATE
    with contextlib.suppress(av.FFmpegError, ValueError):
        mixed = av.AudioResampler("flt", "mono").resample(frame)
        weights = np.concatenate([part.to_ndarray().ravel() for part in mixed])
        shares = np.asarray(weights / max(np.abs(weights).sum(), 1e-9), np.float32)
        return shares, names.index("FC") if "FC" in names else None
    return None, None


def _reason(error: Exception) -> str:
    """Return what FFmpeg says, without the address, which may hold a password."""
    return str(getattr(error, "strerror", None) or error).partition(": '")[0] or "unknown format"
