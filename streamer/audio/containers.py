"""Compressed audio that comes in pieces, cut anywhere, such as a browser's recorder sends it."""

import logging
import threading
import weakref
from queue import SimpleQueue

from streamer.errors import AudioFileError, TruncatedAudioError

log = logging.getLogger(__name__)

ANALYZE_S = 0.25  # of audio, in which its format is found if the header does not name it

# Most that one piece may decode to: 43 s of stereo at 48 kHz. A few bytes can stand for hours of silence.
MAX_DECODED_BYTES = 2**24


class ContainerStream:
    """Decodes any container that FFmpeg reads from its beginning on, in a thread that works while `feed` waits."""

    def __init__(self, like: tuple[int, int] | None = None) -> None:
        """Convert it to samples a second, and channels; None: those of the file."""
        self._pipe = _Pipe(like)
        threading.Thread(target=self._pipe.run, name="container", daemon=True).start()
        # The thread does not know this object: when it is dropped, the audio has ended.
        weakref.finalize(self, self._pipe.fed.put, b"").atexit = False

    @property
    def format(self) -> tuple[int, int] | None:
        """Samples a second, and channels, once they are known."""
        return self._pipe.format

    def feed(self, data: bytes) -> bytes:
        """Return what further bytes complete, f32le, interleaved; no bytes: the end.

        Raises AudioFileError once all that was decoded before it failed has been returned.
        """
        pipe = self._pipe
        if not pipe.ended:
            pipe.fed.put(data)
            pipe.hungry.get()
        decoded, pipe.decoded = pipe.decoded, bytearray()
        if pipe.failure and not decoded:
            raise AudioFileError(pipe.failure)
        return bytes(decoded)


class _Pipe:
    """What goes between the two threads, of which one works at a time."""

    def __init__(self, like: tuple[int, int] | None) -> None:
        self._like = like
        self.fed: SimpleQueue[bytes] = SimpleQueue()
        # Gets an item when everything that was fed is used up, and at the end.
        self.hungry: SimpleQueue[None] = SimpleQueue()
        self.format: tuple[int, int] | None = None
        self.decoded = bytearray()
        self.failure = ""
        self.ended = False
        # What was fed and is not read yet, and whether the end was fed.
        self._rest = b""
        self._complete = False

    def run(self) -> None:
        """Decode until the end: the thread."""
        try:
            self._wait()
            self._decode()
        except TruncatedAudioError as error:
            self.failure = str(error)
        except Exception as error:  # noqa: BLE001 - whatever FFmpeg makes of what comes
            log.debug("audio cannot be decoded: %s", error)
            self.failure = (
                "cannot decode the audio: expected wav, flac, ogg, webm, mp3 or similar; or name its raw format"
            )
        finally:
            self.ended = True
            self.hungry.put(None)

    def read(self, n_bytes: int) -> bytes:
        """Return up to `n_bytes` bytes, none at the end: FFmpeg calls it."""
        if not self._rest and not self._complete:
            self.hungry.put(None)
            self._wait()
        piece, self._rest = self._rest[:n_bytes], self._rest[n_bytes:]
        return piece

    def _wait(self) -> None:
        self._rest = self.fed.get()
        self._complete = not self._rest

    def _decode(self) -> None:
        from streamer.audio.sources.container import AudioTrack  # late: most never need it

        track = AudioTrack(self, like=self._like, analyze_s=ANALYZE_S)
        self.format = track.sample_rate, track.channels
        for samples in track.blocks():
            self.decoded += samples.tobytes()
            if len(self.decoded) > MAX_DECODED_BYTES:
                limit = f"more than {MAX_DECODED_BYTES} bytes of audio"
                self.failure = f"a message decodes to {limit}: expected less; send smaller ones"
                self.decoded.clear()
                break
        track.close()
