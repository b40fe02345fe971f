"""Whole files as clients send them, in pieces that are cut anywhere: decoded as they come."""

import logging
import threading
import weakref
from contextlib import closing
from queue import SimpleQueue

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.container import Opening
from streamer.audio.links import WAV_BEGINNING, WAV_MAGICS, n_doubtful
from streamer.audio.pcm import PcmDecoder
from streamer.audio.track import AudioTrack
from streamer.audio.wav import MAX_HEADER_BYTES, WAV_CHUNK, WavHeader, is_placeholder, read_wav_header
from streamer.constants import TRUNCATED_S
from streamer.errors import AudioFileError, ProtocolError, StreamerError

log = logging.getLogger(__name__)

# Frames are decoded as they come. If the header does not name the format, it is found in this much audio.
_AS_IT_COMES = Opening(block_s=0.0, analyze_s=0.25)

# Most that one piece may decode to: 16 MB. A few bytes can stand for hours of silence.
MAX_DECODED_S = 250.0

_NOTHING = np.empty(0, dtype=np.float32)


class StreamDecoder:
    """WAV files one behind another, or what FFmpeg reads, to 16 kHz mono samples.

    FFmpeg reads 64 KiB of a WAV stream before it decodes any, which may be seconds: its samples are decoded without it.
    """

    def __init__(self) -> None:
        # What keeps the audio from being decoded further; None if nothing does.
        self.failure: AudioFileError | None = None
        # The beginning of a header, whose rest is still to come.
        self._rest = b""
        # Header of the WAV file whose audio comes, and bytes of it so far; None before a header.
        self._wav: WavHeader | None = None
        self._n_bytes = 0
        # Decodes the samples of WAV files.
        self._pcm: PcmDecoder | None = None
        # Decodes another file.
        self._file: _PushedFile | None = None
        # Seconds that decoders before this one have decoded.
        self._before_s = 0.0
        # What comes behind the audio of a WAV file: its first bytes, and how many there are.
        self._ignored, self._n_ignored = b"", 0
        # Problems not taken yet, and whether anything was ignored.
        self._problems: list[tuple[str, str]] = []
        self._reported = False

    @property
    def begun(self) -> bool:
        """Whether the beginning of a file was understood."""
        return self._pcm is not None or (self._file is not None and self._file.track is not None)

    @property
    def decoded_s(self) -> float:
        """Seconds of audio decoded so far."""
        if self._file is not None:
            return self._before_s + (self._file.track.found_s if self._file.track is not None else 0.0)
        return self._before_s + (self._pcm.frames_decoded / self._pcm.sample_rate if self._pcm is not None else 0.0)

    @property
    def missing_s(self) -> float:
        """Seconds of audio that a WAV file's header announces and that have not come."""
        announced = self._wav.data_bytes if self._wav is not None else None
        if announced is None or self._pcm is None or is_placeholder(announced, self._n_bytes):
            return 0.0
        return (announced - self._n_bytes) / self._pcm.frame_bytes / self._pcm.sample_rate

    def decode(self, data: bytes) -> Float32Array:
        """Return the samples, shape (n,), that further bytes complete: the last ones if there is a `failure`."""
        data, self._rest = self._rest + data, b""
        blocks = [_NOTHING]
        while data and self.failure is None:
            if self._file is not None:
                blocks.append(self._file.decode(data))
                self.failure = self._file.failure
                break
            if self._wav is None:
                header = read_wav_header(data)
                if header is None and b"RIFF".startswith(data[:4]) and len(data) < MAX_HEADER_BYTES:
                    self._rest = data
                    break
                blocks.append(self._begin(header))
                data = data[self._wav.start_bytes if self._wav is not None else 0 :]
                continue
            found = WAV_BEGINNING.search(data)
            end = found.start() if found else len(data) - n_doubtful(data, WAV_MAGICS)
            blocks.append(self._samples(data[:end]))
            data = data[end:]
            if not found:
                self._rest = data
                break
            self._wav = None
        return np.concatenate(blocks)

    def finish(self) -> Float32Array:
        """Return the last samples, shape (n,): the stream is over."""
        if self._file is not None:
            samples = self._file.decode(b"")
            self.failure = self._file.failure
            return samples
        if self._pcm is None and self._rest:
            self.failure = AudioFileError(
                "the audio ends within its header: expected a whole header and audio; send the rest"
            )
        last = self._samples(self._rest) if self._wav is not None else _NOTHING
        return np.concatenate([last, self._pcm.finish()]) if self._pcm is not None else last

    def take_problems(self) -> list[tuple[str, str]]:
        """Return the problems found since the last call as (code, message), in addition `ignored` and `audio_file`."""
        problems, self._problems = self._problems, []
        if self._file is not None:
            problems, self._file.problems = problems + self._file.problems, []
        return problems + (self._pcm.take_problems() if self._pcm is not None else [])

    def _begin(self, header: WavHeader | None) -> Float32Array:
        """Choose what decodes a file, by its header if it is a WAV; return the last samples of another decoder."""
        encoding = header.encoding if header is not None else None
        if header is None or encoding is None:
            last = self._end()
            self._file = _PushedFile()
            # The thread does not know this object: when it is dropped, the audio has ended.
            weakref.finalize(self, self._file.pieces.put, b"").atexit = False
            return last
        form = (encoding, header.sample_rate, header.channels)
        if self._pcm is None or form != (self._pcm.encoding, self._pcm.sample_rate, self._pcm.channels):
            last = self._end()
            try:
                self._pcm = PcmDecoder(*form, whole_chunks=False)
            except ProtocolError as error:
                self.failure = AudioFileError(f"the audio's {error}; convert it first")
                return last
        else:
            last = _NOTHING
            self._pcm.drop_rest()
        self._wav, self._n_bytes = header, 0
        self._ignored, self._n_ignored = b"", 0
        return last

    def _end(self) -> Float32Array:
        """Return the last samples of WAV files: others follow."""
        if self._pcm is None:
            return _NOTHING
        self._before_s = self.decoded_s
        last = self._pcm.finish()
        self._problems += self._pcm.take_problems()
        self._pcm = None
        return last

    def _samples(self, data: bytes) -> Float32Array:
        """Return the samples that further bytes of a WAV file complete."""
        assert self._wav is not None
        assert self._pcm is not None
        own = data if self._wav.data_bytes is None else data[: self._wav.data_bytes - self._n_bytes]
        self._n_bytes += len(own)
        samples = self._pcm.decode(own)
        behind = data[len(own) :]
        self._ignored = (self._ignored + behind)[:8]
        self._n_ignored += len(behind)
        ignored_s = self._n_ignored / self._pcm.frame_bytes / self._pcm.sample_rate
        if ignored_s > TRUNCATED_S and not WAV_CHUNK.match(self._ignored) and not self._reported:
            self._reported = True
            self._problems.append(
                (
                    "ignored",
                    f"the audio goes on after the {self.decoded_s:.2f} s in its WAV header, and the rest is ignored:"
                    " expected another header; write a length of 0 if it is unknown",
                )
            )
        return samples


class _PushedFile:
    """A file that FFmpeg decodes as its pieces come, in a thread, which works while `decode` waits: PyAV pulls."""

    def __init__(self) -> None:
        # What comes, none at the end; and what each piece, with those before, has become.
        self.pieces: SimpleQueue[bytes] = SimpleQueue()
        self._answers: SimpleQueue[Float32Array] = SimpleQueue()
        # Set by the thread before it answers: what it reads, None before its first frame; problems that were not taken
        # yet; what keeps it from being decoded further, None if nothing does; and whether nothing more comes.
        self.track: AudioTrack | None = None
        self.problems: list[tuple[str, str]] = []
        self.failure: AudioFileError | None = None
        self._ended = False
        # The thread's own: the piece that is read, and whether it is the last; what was decoded since the last answer,
        # and seconds up to there.
        self._piece, self._complete = b"", False
        self._decoded: list[Float32Array] = []
        self._answered_s = 0.0
        threading.Thread(target=self._run, name="container", daemon=True).start()

    def decode(self, piece: bytes) -> Float32Array:
        """Return the samples, shape (n,), that a piece completes; none: the end."""
        if self._ended:
            return _NOTHING
        self.pieces.put(piece)
        return self._answers.get()

    def read(self, n_bytes: int) -> bytes:
        """Return up to `n_bytes` bytes, none at the end: FFmpeg calls it."""
        if not self._piece and not self._complete:
            self._answer()
            self._take()
        piece, self._piece = self._piece[:n_bytes], self._piece[n_bytes:]
        return piece

    def _run(self) -> None:
        self._take()
        try:
            self._decode()
        except StreamerError as error:
            self.failure = AudioFileError(str(error))
        except Exception as error:  # noqa: BLE001 - whatever FFmpeg makes of what comes
            log.debug("audio cannot be decoded: %s", error)
            self.failure = AudioFileError(
                "cannot decode the audio: expected wav, flac, ogg, webm, mp3 or similar; or name its raw format"
            )
        self._ended = True
        self._answer()

    def _decode(self) -> None:
        self.track = AudioTrack(self, _AS_IT_COMES)
        with closing(self.track):
            for block in self.track.blocks(lambda error: self.problems.append((error.code, str(error)))):
                self._decoded.append(block)
                if self.track.found_s - self._answered_s > MAX_DECODED_S:
                    self._decoded.clear()
                    limit = f"more than {MAX_DECODED_S:g} s of audio"
                    raise AudioFileError(f"a message decodes to {limit}: expected less; send smaller ones")

    def _take(self) -> None:
        self._piece = self.pieces.get()
        self._complete = not self._piece

    def _answer(self) -> None:
        decoded, self._decoded = self._decoded, []
        self._answered_s = self.track.found_s if self.track is not None else 0.0
        self._answers.put(np.concatenate([_NOTHING, *decoded]))
