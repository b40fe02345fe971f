"""Audio from an address: a file, a radio station or HLS over HTTP, or a camera over RTSP, through FFmpeg (PyAV)."""

import contextlib
import logging
import os
import queue
import re
import threading
import time

from streamer.arrays import Float32Array
from streamer.audio.container import FORMATS, Opening
from streamer.audio.sources.base import SourceCallbacks, ThreadedSource
from streamer.audio.track import AudioTrack
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioDeviceError, ConfigError, TruncatedAudioError
from streamer.extras import requires
from streamer.outside import one_line
from streamer.version import __version__

log = logging.getLogger(__name__)

AHEAD_BLOCKS = 50  # of 0.1 s, read before they are due: a delay of the network that is shorter causes no gap

ANALYZE_S = 1.0  # of audio, in which its format is found if no header names it
TIMEOUT_S = 20.0  # without an answer, or without more of it: a playlist may say nothing new for ten seconds
STALL_S = 2.0  # after this time without audio, the time that passes is a gap
LOOK_S = 0.1  # how often that is looked at
RETRY_S = 0.5  # before the first attempt to connect again; each further one waits twice as long, up to:
MAX_RETRY_S = 30.0

# What FFmpeg may open for an address, for what a playlist or a redirection there names too. No files.
_HTTP = "http,https,tcp,tls,crypto,httpproxy"
_RTSP = "rtsp,rtsps,rtp,srtp,udp,tcp,tls"
_PROTOCOLS = {"http": _HTTP, "https": _HTTP, "rtsp": _RTSP, "rtsps": _RTSP}


def is_address(source: str) -> bool:
    """Whether a source is an address, and not the name of a file."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source) is not None


def shown(url: str) -> str:
    """Return an address without what may be secret in it: user, password and query."""
    return one_line(re.sub(r"//[^/]*@", "//", re.split(r"[?#]", url)[0]))[:200]


def _trusted_file() -> str:
    """Return the file of the certificates that are trusted: FFmpeg knows none of the system's."""
    requires("certifi", extra="internet-audio", purpose="--input URL")
    import certifi  # late, as PyAV

    return certifi.where()


class Address(ThreadedSource):
    """What an address sends, at the pace of speech; a lost connection is opened again.

    One thread reads ahead, another delivers. A file is resumed where it was interrupted, and ends; an address that says
    neither how long nor how large it is, is a station, and does not.
    """

    def __init__(self, url: str, speed: float = 1.0) -> None:
        """Read at `speed` times real time; 0: as fast as on_audio takes it. Raises ConfigError for other protocols."""
        self._scheme = url.lower().partition("://")[0]
        if self._scheme not in _PROTOCOLS:
            raise ConfigError(
                f"cannot open {shown(url)}: expected a file, or an address that begins with"
                f" {'://, '.join(_PROTOCOLS)}://"
            )
        super().__init__(shown(url), realtime=speed > 0, thread_name="address")
        self.speed = speed
        self._url = url

        # Audio, 16 kHz mono; text if the connection is lost; at the end None, or why it cannot be read on.
        self._items: queue.Queue[Float32Array | str | TruncatedAudioError | None] = queue.Queue(AHEAD_BLOCKS)

    def check(self) -> None:
        """Raise AudioDeviceError if it has no audio, MissingExtraError if certificates could not be verified."""
        try:
            self._connect().close()
        except ValueError as error:
            raise AudioDeviceError(
                f"cannot open {self.name} ({one_line(error)}): expected audio; check the address and the network"
            ) from None

    def _open(self) -> None:
        threading.Thread(target=self._read, name="address reader", daemon=True).start()

    def _connect(self) -> AudioTrack:
        options = {
            "protocol_whitelist": _PROTOCOLS[self._scheme],
            "format_whitelist": f"{FORMATS},hls,webvtt,rtsp,rtp,sdp",
            "user_agent": f"streamer/{__version__}",
            "tls_verify": "1",
            "ca_file": os.environ.get("SSL_CERT_FILE") or _trusted_file(),
            "rtsp_flags": "prefer_tcp",
            "allowed_media_types": "audio",
        }
        return AudioTrack(self._url, Opening(analyze_s=ANALYZE_S, timeout_s=TIMEOUT_S, options=options), name=self.name)

    def _read(self) -> None:
        """Read ahead, and connect again if that fails: the thread."""
        retry_s = RETRY_S
        n_read = 0
        while not self._stopping.is_set():
            try:
                with contextlib.closing(self._connect()) as track:
                    is_file = track.container.is_file
                    ends = is_file or track.container.format == "hls"
                    n_before, n_read = n_read if is_file else 0, 0
                    fact = ""
                    try:
                        for block in track.blocks():
                            n_read += len(block)
                            if n_read > n_before:  # it was not read before
                                self._put(block[n_before - n_read :])
                                retry_s = RETRY_S
                            if self._stopping.is_set():
                                return
                    except TruncatedAudioError as error:
                        fact = error.reason
                        # A connection is lost anywhere. What ends twice in one place ends there.
                        if n_read == n_before:
                            self._put(error)
                            return
                    n_read = max(n_read, n_before)
                if ends and not fact:
                    self._put(None)
                    return
                fact = fact or "the connection was closed"
            except Exception as error:  # noqa: BLE001 - whatever it was, the next attempt follows
                log.debug("%s: %s", self.name, one_line(error))
                fact = one_line(error)
            self._put(f"is lost ({fact})")
            self._stopping.wait(retry_s)
            retry_s = min(2 * retry_s, MAX_RETRY_S)

    def _put(self, item: Float32Array | str | TruncatedAudioError | None) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(queue.Full):
                self._items.put(item, timeout=LOOK_S)
                return

    def _run(self, callbacks: SourceCallbacks) -> None:
        while not self._stopping.is_set():
            try:
                item = self._items.get(timeout=LOOK_S)
            except queue.Empty:
                now_s = time.monotonic()
                late = self.failure or now_s - self._accounted_until_s >= STALL_S
                if late and self._accounted_until_s and self.speed:
                    self._announce_lost(now_s, callbacks, self.speed)
                continue
            if item is None:
                return
            if isinstance(item, TruncatedAudioError):
                raise item
            if isinstance(item, str):
                self._begin_outage(item, "it is tried again until there is some", callbacks)
            elif len(item):
                self._end_outage()
                if self.speed:
                    self._accounted_until_s = self._accounted_until_s or time.monotonic()
                    self._accounted_until_s += len(item) / SAMPLE_RATE / self.speed
                    self._stopping.wait(max(0.0, self._accounted_until_s - time.monotonic()))
                if not self._stopping.is_set():
                    callbacks.on_audio(item)
