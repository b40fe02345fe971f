"""Audio of any format and container that FFmpeg reads, through PyAV: one audio track, as it is decoded.

What FFmpeg may open is named, so that a playlist in the guise of audio cannot make it read other files or addresses.
"""

import itertools
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.links import Links, Readable
from streamer.audio.resample import Mixer
from streamer.audio.wav import WAV_CHUNK, is_placeholder, mend_header, read_wav_header
from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, TRUNCATED_S
from streamer.errors import TruncatedAudioError

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


class AudioTrack:
    """An audio track, read from its beginning to its end, also if the file is several, one behind another."""

    def __init__(
        self,
        source: str | Readable,
        number: int = 1,
        *,
        name: str = "the audio",
        like: tuple[int, int] | None = None,
        block_s: float = 0.0,
        analyze_s: float = 5.0,
        options: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Open an address, a file, or what can only be read on, at its beginning.

        number : which of its audio tracks, from 1 on
        name : what errors call it
        like : samples a second, and channels, that it is converted to; None: its own
        block_s : audio that is read at a time; 0: as it is coded
        analyze_s : how much of the audio FFmpeg may look at before any is read
        options : of FFmpeg, over ours, which let it open no address
        timeout_s : longest wait for an address to answer, and for more of it

        Raises ValueError if it has no audio that can be decoded.
        """
        import av  # late: it takes 20 MB and a tenth of a second

        self._av = av
        self._name = name
        self._number = number
        # An address is FFmpeg's to read.
        self._links = None if isinstance(source, str) else Links(source)
        ours = {
            "format_whitelist": FORMATS,
            "codec_whitelist": _CODECS,
            "protocol_whitelist": "none",
            "analyzeduration": str(round(analyze_s * 1e6)),
        }
        self._options = {**ours, **(options or {})}
        self._timeout_s = timeout_s

        # What keeps it from being read on; empty if nothing does.
        self._failure = ""
        # Seconds of packets that could not be decoded since the last that could, of all those before, and of what WAV
        # files hold behind what their headers announce; and where the first of each were.
        self._undecoded_s = 0.0
        self.lost_s = self.lost_at_s = 0.0
        self.ignored_s = self.ignored_at_s = 0.0
        # Seconds that were yielded, and those at which the link should end; None if no header says.
        self._found_s = 0.0
        self._announced_s: float | None = None

        self._first = self._begin(source if isinstance(source, str) else self._links)
        # Those of the first frame; others are made the same. Speakers whose places are known are mixed.
        layout = self._first.layout
        own: tuple[int, int] = (self._first.sample_rate, 1 if self._speakers(layout) else layout.nb_channels)
        self.sample_rate, self.channels = like or own
        self._block_frames = round(block_s * self.sample_rate)
        # FFmpeg's name of the format, how many audio tracks it has, and seconds as far as they are known.
        self.format: str = self._container.format.name.partition(",")[0]
        self.n_tracks = len(self._container.streams.audio)
        self.duration_s = self._announced_s or self._known_s()
        # Whether it is a file, and no station: how long it is, or how large, was said.
        size = self._container.size or 0
        self.is_file = self.duration_s is not None or (self.format != "hls" and 0 < size < 1 << 60)

    def blocks(self) -> Iterator[Float32Array]:
        """Yield the audio, shape (n, channels).

        Raises TruncatedAudioError behind the last block if that is not the end of the audio.
        """
        going_on = True
        while going_on:
            for block in self._link():
                self._found_s += len(block) / self.sample_rate
                yield block
            going_on = self._next()
        if self._announced_s is not None and self._announced_s - self._found_s > TRUNCATED_S:
            raise TruncatedAudioError(self._name, self._found_s, self._announced_s)
        if self._failure:
            raise TruncatedAudioError(self._name, self._found_s, reason=self._failure)

    def close(self) -> None:
        """Let go of the file."""
        self._frames.close()
        self._container.close()

    def _begin(self, source: str | Links | None) -> Any:  # noqa: ANN401 - PyAV's
        """Open the first link from here on that has audio; return its first frame. Raises ValueError."""
        assert source is not None
        while True:
            try:
                return self._open(source)
            except _NoAudioError:
                if isinstance(source, str) or source.skip() is None or not source.next():
                    raise

    def _open(self, source: str | Links) -> Any:  # noqa: ANN401 - PyAV's
        head = b""
        if isinstance(source, Links) and source.is_file:
            head = source.read(HEAD_BYTES)
            source.header = mend_header(head)
            source.seek(0)
        try:
            self._container = self._av.open(
                source, mode="r", metadata_errors="replace", options=self._options, timeout=self._timeout_s
            )
        except (self._av.FFmpegError, OSError) as error:
            raise ValueError(self._links.failure if self._links and self._links.failure else _reason(error)) from None
        self._frames = self._decode()
        try:
            first = next(self._frames, None)
            if first is None:
                raise ValueError(self._failure) if self._failure else _NoAudioError
            if not MIN_SAMPLE_RATE <= first.sample_rate <= MAX_SAMPLE_RATE:
                raise ValueError(
                    f"its sample rate is {first.sample_rate} Hz, not {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE}"
                )
            if first.layout.nb_channels > MAX_CHANNELS:
                raise ValueError(f"it has {first.layout.nb_channels} channels, more than {MAX_CHANNELS}")
        except BaseException:
            self.close()
            raise
        self._read_head(head)
        return first

    def _read_head(self, head: bytes) -> None:
        """Note what the header of a link says of its length."""
        container = self._container
        format, alone = container.format.name.partition(",")[0], len(container.streams) == 1
        says = format in _SAY_EACH or (alone and format in _SAY_LONGEST) or _MP3_LENGTH.search(head)
        self._wav = read_wav_header(head)
        known_s = self._wav.announced_s if self._wav is not None else self._known_s() if head and says else None
        self._announced_s = self._found_s + known_s if known_s is not None else None
        self._link_from_s = self._found_s
        # Seconds that the file's longest track has; 0 if that is unknown.
        guessed = format == "matroska" and head and not _MATROSKA_LENGTH.search(head)
        self._longest_s = 0.0 if guessed else (container.duration or 0) / 1e6

    def _known_s(self) -> float | None:
        stream = self._container.streams.audio[self._number - 1]
        known_s = float((stream.duration or 0) * (stream.time_base or 0)) or (self._container.duration or 0) / 1e6
        return known_s if 0 < known_s < 1e7 else None

    def _link(self) -> Iterator[Float32Array]:
        """Yield the audio of a link, shape (n, channels), up to its end, or to where it cannot be read on."""
        av, resampler, mixer, before = self._av, None, None, None
        n_s = 0.0
        for frame in itertools.chain([self._first], self._frames):
            if (missing_s := self._missing_s(frame, n_s)) > MIN_HOLE_S:
                yield from self._arrays(resampler, mixer, None)
                resampler = before = None
                block = np.zeros((self._block_frames or frame.samples, self.channels), np.float32)
                n_blocks = round(missing_s * self.sample_rate / len(block))
                yield from itertools.repeat(block, n_blocks)
                n_s += n_blocks * len(block) / self.sample_rate
            n_s += frame.samples / frame.sample_rate
            kind = (frame.format.name, frame.layout.name, frame.sample_rate)
            if kind != before:  # some coders begin with one channel, or half the rate
                yield from self._arrays(resampler, mixer, None)
                resampler = av.AudioResampler("flt", frame.layout, self.sample_rate, self._block_frames or None)
                n_channels = frame.layout.nb_channels
                mixed = n_channels != self.channels
                mixer = Mixer(self.sample_rate, n_channels, *self._speakers(frame.layout)) if mixed else None
                before = kind
            yield from self._arrays(resampler, mixer, frame)
        yield from self._arrays(resampler, mixer, None)

    def _next(self) -> bool:
        """Go on to the next link that has audio, and say whether there is one."""
        if self._undecoded_s > TRUNCATED_S:
            self._failure = self._failure or "it cannot be decoded"
        if self._links is None or self._failure:
            return False
        self._end_link(self._links)
        self._failure = self._links.failure
        if self._failure or not self._links.next():
            return False
        self.close()
        self._undecoded_s = 0.0
        try:
            self._first = self._begin(self._links)
        except _NoAudioError:
            return False
        except ValueError as error:
            self._failure = str(error)
            return False
        return True

    def _end_link(self, links: Links) -> None:
        """Read over what is behind the audio of a link, and see what its header's length is worth."""
        n_bytes = links.skip()
        if (wav := self._wav) is None:
            codec = self._container.streams.audio[self._number - 1].codec_context
            bytes_per_s = (codec.bit_rate or 0) / 8 if codec.name.startswith("pcm_") else 0.0
        else:
            bytes_per_s = wav.frame_bytes * wav.sample_rate
        if self._announced_s is None:
            return
        announced_s, found_s = (until_s - self._link_from_s for until_s in (self._announced_s, self._found_s))
        if is_placeholder(announced_s * bytes_per_s, found_s * bytes_per_s):
            self._announced_s = None
        if wav is not None and wav.data_bytes is not None and n_bytes is not None:
            links.seek(end := wav.start_bytes + wav.data_bytes)
            if (rest := links.read(HEAD_BYTES)) and not WAV_CHUNK.match(rest):
                self.ignored_at_s = self.ignored_at_s if self.ignored_s else self._found_s
                self.ignored_s += (n_bytes - end) / bytes_per_s

    def _missing_s(self, frame: Any, n_s: float) -> float:  # noqa: ANN401 - PyAV's
        """Return how much too late a frame of a file is: a track may begin late, and packets may be missing."""
        start_us = self._container.start_time
        if self._links is None or frame.pts is None or start_us is None:
            return 0.0
        missing_s = float(frame.pts * frame.time_base) - start_us / 1e6 - n_s
        longest_s = min(self._longest_s or MAX_S_PER_BYTE * self._links.n_read, MAX_HOLES_S)
        return missing_s if n_s + missing_s <= longest_s else 0.0

    def _speakers(self, layout: Any) -> tuple[()] | tuple[Float32Array, int | None]:  # noqa: ANN401 - PyAV's
        """Return the share of each channel in FFmpeg's mix to mono, shape (n,), and which is the centre.

        Nothing for mono and stereo, and if it is not known which speaker is which.
        """
        n_channels, names = layout.nb_channels, [channel.name for channel in layout.channels]
        if n_channels <= 2 or "NONE" in names:
            return ()
        frame = self._av.AudioFrame.from_ndarray(np.eye(n_channels, dtype=np.float32).reshape(1, -1), "flt", layout)
        frame.sample_rate = MAX_SAMPLE_RATE
        try:
            mixed = self._av.AudioResampler("flt", "mono").resample(frame)
        except (self._av.FFmpegError, ValueError):
            return ()
        weights = np.concatenate([part.to_ndarray().ravel() for part in mixed])
        shares = np.asarray(weights / max(np.abs(weights).sum(), 1e-9), np.float32)
        return shares, names.index("FC") if "FC" in names else None

    def _arrays(self, resampler: Any, mixer: Mixer | None, frame: Any) -> Iterator[Float32Array]:  # noqa: ANN401 - PyAV's
        if resampler is None:
            return
        try:
            for packed in resampler.resample(frame):
                samples = packed.to_ndarray().reshape(-1, packed.layout.nb_channels)
                yield samples if mixer is None else mixer.process(samples)[:, None].repeat(self.channels, axis=1)
        except (self._av.FFmpegError, ValueError) as error:
            log.debug("audio cannot be converted: %s", error)

    def _decode(self) -> Any:  # noqa: ANN401 - a generator of PyAV's frames
        av, number, tracks = self._av, self._number, self._container.streams.audio
        if not tracks:
            return
        if number > len(tracks):
            raise ValueError(f"it has no audio track {number}, the last is {len(tracks)}")
        for stream in self._container.streams:
            if stream.index != tracks[number - 1].index:
                stream.discard = av.stream.Discard.all
        try:
            for packet in self._container.demux(tracks[number - 1]):
                try:
                    frames = packet.decode()
                except av.FFmpegError as error:
                    log.debug("a packet cannot be decoded: %s", error)
                    self._undecoded_s += float((packet.duration or 0) * (packet.time_base or 0))
                    continue
                if frames and self._undecoded_s:
                    self.lost_at_s = self.lost_at_s if self.lost_s else self._found_s
                    self.lost_s += self._undecoded_s
                    self._undecoded_s = 0.0
                yield from frames
        except (av.FFmpegError, OSError, ValueError) as error:
            self._failure = _reason(error)
            log.debug("the audio cannot be read on: %s", self._failure)


class _NoAudioError(ValueError):
    """A file, or a link of one, without any audio."""

    def __str__(self) -> str:
        return "it has no audio that can be decoded"


def _reason(error: Exception) -> str:
    """Return what FFmpeg says, without the address, which may hold a password."""
    return str(getattr(error, "strerror", None) or error).partition(": '")[0] or "unknown format"
