"""Sends a client's own audio to a running daemon and reads its events, across broken connections.

The rules are docs/protocol.md's, *Writing a client*.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Unpack, get_args

import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from streamer.client.audio import Source, frame_bytes, messages_of
from streamer.client.connection import STREAM_PATH, DaemonAddress, gone, log_notice, parse_address
from streamer.client.loops import Events
from streamer.client.machine import Client, error_of
from streamer.client.options import Options
from streamer.client.sent import Message, Sent
from streamer.constants import SAMPLE_RATE, PcmFormat
from streamer.errors import ProtocolError, StoppingError, UnknownSessionError
from streamer.events import End, Error, Event, Final, Gap, Resumed

PING_S = 5.0  # of audio between two pings; the next waits for the answer, so that less audio is under way than is kept
ANSWER_S = 60.0  # for a ping behind audio that the daemon has yet to read


class StreamOptions(Options, total=False):
    """What is chosen at the start of a session. Defaults: 16 kHz, one channel, "s16le", not kept, in no room."""

    sample_rate: int
    channels: int
    format: PcmFormat
    keep: bool
    room: str


def stream(
    audio: Source,
    address: str | DaemonAddress = "localhost",
    *,
    token: str = "",
    fingerprint: str = "",
    on_notice: Callable[[str], None] = log_notice,
    wait_s: float | None = None,
    **options: Unpack[StreamOptions],
) -> Events:
    """Send audio to a daemon and read its text as events.

    audio : the path of a file; samples or bytes; or an iterable, which may block, or asynchronous iterable of pieces:
        samples, bytes, the commands "flush", "pause", "resume" and "clear", and mappings of options that hold from
        there on. It is read only as fast as the daemon takes the audio
    address, token, fingerprint, on_notice : see `listen`
    wait_s : how long to wait for a daemon that is away, at the start also for one that has no room; default: not at
        the start, later without limit
    options : of the session, such as language="en"
        sample_rate, channels : of samples and bytes; default: 16000 Hz, one channel
        format : encoding of bytes, and of what is sent: "s16le" (default; floats are rounded) or "f32le"
        keep : whether the daemon keeps the text in its history
        room : where others may read it; the name of the token if it has one

    Returns its events, to be read with `for` or `async for`; the last one is `end`. If the connection breaks or the
    daemon restarts, the audio that it has not processed is sent again: nothing is lost, and no final comes twice. A
    daemon that has forgotten the session begins another, with a `ready` of its own; times are those of all the audio.

    Raises UsageError for an invalid address; the loop raises PeerError if there is no daemon or it refuses the client,
    BusyError if it has no room, ConfigError or ProtocolError for options that it cannot satisfy, IdleError if nothing
    was sent for too long, AudioFileError for an unreadable file, and what `audio` raises.

        for event in stream("speech.wav", language="en"):
            if event.type == "final":
                print(event.start, event.text)
    """
    if isinstance(address, str):
        address = parse_address(address, token, fingerprint, path=STREAM_PATH)
    start: dict[str, Any] = {"type": "start", "format": "s16le", "sample_rate": SAMPLE_RATE, "channels": 1, **options}
    if isinstance(audio, str | Path):
        start |= {"sample_rate": SAMPLE_RATE, "channels": 1}
    elif isinstance(audio, np.ndarray) and audio.ndim == 2:
        start["channels"] = audio.shape[1]
    format, rate, channels = start["format"], start["sample_rate"], start["channels"]
    if format not in get_args(PcmFormat) or not (rate > 0 and channels > 0):
        raise ProtocolError(
            f"audio of {format!r:.20} at {rate!r:.20} with {channels!r:.20} channels: expected s16le or f32le,"
            " and positive numbers"
        )
    return Events(lambda: Stream(address, audio, start, on_notice, wait_s).events())


class Stream(Client):
    """One stream of audio, over any number of connections and sessions."""

    answer_s = ANSWER_S

    def __init__(
        self,
        address: DaemonAddress,
        audio: Source,
        start: dict[str, Any],
        on_notice: Callable[[str], None],
        wait_s: float | None = None,
    ) -> None:
        """Send `audio` behind a `start` message."""
        super().__init__(address, on_notice, wait_s)
        self._messages = messages_of(audio, start["format"], start["channels"], on_notice)
        self._rate = start["sample_rate"]
        self._frame_bytes = frame_bytes(start["format"], start["channels"])
        self._sent = Sent(start, self._frame_bytes)
        # The next message to send, or the exception that `audio` raised.
        self._given: asyncio.Queue[Message | Exception] = asyncio.Queue(maxsize=1)
        # Reads the audio, over all connections.
        self._reading: asyncio.Task[None] | None = None
        # Sends over the present connection, first what opens it; set when audio may follow.
        self._sending: asyncio.Task[None] | None = None
        self._may_send = asyncio.Event()
        # Positions in all the audio: start of the session, end of its final text.
        self._base = self._final = 0
        # Samples of the session that a stopping daemon processes; None: it does not stop.
        self._processed: int | None = None

    def stop(self, error: Exception | None = None) -> None:
        super().stop(error)
        if self._reading is not None:
            self._reading.cancel()

    def query(self) -> dict[str, Any]:
        return {}

    def greet(self, connection: ClientConnection) -> None:
        self._may_send.clear()
        self._reading = self._reading or asyncio.create_task(self._read())
        if self.session:
            self.move("resume")
            opening = [{"type": "resume", "session": self.session, "after": self.seq}]
        else:
            self._begin_anew(self._base)
            self.move("start")
            opening = self._sent.opening()
            self._may_send.set()
        self._sending = asyncio.create_task(self._send(connection, opening))

    async def leave(self, connection: ClientConnection) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await super().leave(connection)

    def take(self, event: Event) -> Event | None:
        base_s = self._base / self._rate
        match event:
            case Resumed() if self.state == "resuming":
                self._base += self._rewind(self._base + event.heard_samples)  # what is lost takes its time all the same
                self._may_send.set()
            case Error(session="", code=UnknownSessionError.code) if self.state == "resuming":
                self._begin_anew(self._final)
                begin_s = self._base / self._rate
                self.on_notice(
                    f"{self.address} has forgotten the session: another begins at {begin_s:.1f} s of the audio"
                )
                self.move("forgotten")
                return None
            case Error(fatal=True) if event.session:
                self.error = error_of(event)
            case Error(code=StoppingError.code, heard_samples=heard) if event.session:
                self._processed = heard if isinstance(heard, int) else self._final - self._base
            case Final() | Gap():
                self._final = self._base + round(event.end * self._rate)
            case End() if self.error is not None:
                self.lose(self.error)
                return None
            case End() if self._processed is not None and not self._sent.is_finished(self._base + self._processed):
                self._begin_anew(self._base + self._processed)
                self.lose(gone(self.address, "it stops"), "stopped")
                return None
        shown = super().take(event)
        return shown if shown is None or not base_s else shifted(shown, base_s.__add__)

    def _begin_anew(self, position: int) -> None:
        """Continue in another session at a position."""
        self._base = self._final = min(position + self._rewind(position), self._sent.position)
        self.session, self.seq = "", 0
        self._processed = None

    def _rewind(self, position: int) -> int:
        """Send again from a position on. Returns how many samples behind it are not kept any more."""
        n_lost = max(0, self._sent.first - position)
        if n_lost:
            self.on_notice(
                f"{n_lost / self._rate:.1f} s of audio, of which no text has come from {self.address}, are not kept"
                " any more"
            )
        self._sent.rewind(position)
        return n_lost

    async def _send(self, connection: ClientConnection, opening: Sequence[dict[str, Any]]) -> None:
        pong: Awaitable[float] | None = None
        n_bytes = 0
        try:
            for message in opening:
                await connection.send(json.dumps(message))
            await self._may_send.wait()
            while True:
                item = self._sent.take()
                if item is None:
                    given = await self._given.get()
                    if isinstance(given, Exception):
                        raise given
                    self._sent.add(given)
                    continue
                await connection.send(item if isinstance(item, bytes) else json.dumps(item))
                n_bytes += len(item) if isinstance(item, bytes) else 0
                if n_bytes >= PING_S * self._rate * self._frame_bytes:
                    if pong is not None:
                        await pong
                    n_bytes, pong = 0, await connection.ping()
        except ConnectionClosed:
            pass  # the reader notices, too
        except Exception as error:  # noqa: BLE001 - raised by `events`
            self.stop(error)
            await connection.close()

    async def _read(self) -> None:
        """Read the audio piece by piece, each when the one before is on its way."""
        try:
            async with contextlib.aclosing(self._messages) as messages:
                async for message in messages:
                    await self._given.put(message)
        except Exception as error:  # noqa: BLE001 - raised by `events`
            await self._given.put(error)


def shifted(value: Any, later: Callable[[float], float]) -> Any:  # noqa: ANN401 - an event or a word
    """Return an event, or a word, with later times."""
    changes: dict[str, Any] = {
        name: round(later(getattr(value, name)), 3)
        for name in ("time", "start", "end")
        if name in value.__struct_fields__
    }
    if "words" in value.__struct_fields__:
        changes["words"] = tuple(shifted(word, later) for word in value.words)
    return msgspec.structs.replace(value, **changes)
