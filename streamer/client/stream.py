"""Sends a client's own audio to a running daemon and reads its events, across broken connections.

The rules are docs/protocol.md's, *When the connection breaks* and *When the daemon stops*.
"""

import asyncio
import contextlib
import json
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from streamer.client.connection import (
    STREAM_PATH,
    DaemonAddress,
    Events,
    GoneError,
    Place,
    Reconnection,
    connected,
    events_of,
    log_notice,
    parse_address,
)
from streamer.client.options import Options
from streamer.constants import SAMPLE_RATE, PcmFormat
from streamer.errors import (
    BusyError,
    ConfigError,
    IdleError,
    PeerError,
    ProtocolError,
    StoppingError,
    StreamerError,
    TruncatedAudioError,
    UnknownSessionError,
    UsageError,
)
from streamer.events import End, Error, Event, Final, Gap, Resumed
from streamer.outside import one_line

Command = Literal["flush", "pause", "resume", "clear"]

# Audio or a piece of it, shape (n,) or (n, channels): int16 or floats from -1 to 1; or bytes of `format`, cut anywhere.
Audio = bytes | bytearray | memoryview | NDArray[np.int16] | NDArray[np.floating[Any]]


class StreamOptions(Options, total=False):
    """What is chosen at the start of a session. Defaults: 16 kHz, one channel, "s16le", not kept."""

    sample_rate: int
    channels: int
    format: PcmFormat
    keep: bool


# What may stand in a stream: audio, a command, or options that hold from there on.
Item = Audio | Command | Options
Source = Audio | str | Path | Iterable[Item] | AsyncIterable[Item]

# Audio, or a message of the protocol.
Message = bytes | dict[str, Any]

KEPT_S = 120.0  # of sent audio that is kept to be sent again
MAX_KEPT_ITEMS = 20_000  # kept pieces of audio and commands
PING_S = 2.0  # of audio between two pings, whose answers show what the daemon has read
MAX_PINGS = 5  # unanswered; they bound the audio under way, to less than is kept
ANSWER_S = 60.0  # for a ping behind audio that the daemon has yet to read
MESSAGE_BYTES = 1 << 16
BLOCK = 1 << 15  # samples, or bytes, into which a whole recording is cut

_ERRORS = {
    cls.code: cls for cls in (BusyError, ConfigError, IdleError, ProtocolError, StoppingError, UnknownSessionError)
}
_FINISH: dict[str, Any] = {"type": "finish"}


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
    return Events(lambda: StreamClient(address, audio, start, on_notice, wait_s).events())


class Sent:
    """A bounded buffer of audio and commands that may be sent again. Positions count frames."""

    def __init__(self, start: dict[str, Any], frame_bytes: int) -> None:
        """Begin a stream with a `start` message; a frame, a sample of each channel, has `frame_bytes`."""
        self._frame_bytes = frame_bytes
        self._kept_samples = KEPT_S * start["sample_rate"]
        # The `start` message that would open a session at the first item, and whether the stream is paused there.
        self._start = dict(start)
        self._paused = False
        # Each with its position; the first `_n_sent` were sent over the current connection.
        self._items: list[tuple[int, Message]] = []
        self._n_sent = 0
        # End of the last audio.
        self.position = 0
        # End of the audio that is no longer kept.
        self.first = 0

    def add(self, item: Message) -> None:
        self._items.append((self.position, item))
        self.position += self._length(item)
        while self._n_sent and (
            len(self._items) > MAX_KEPT_ITEMS or self.position - self._items[0][0] > self._kept_samples
        ):
            position, item = self._items.pop(0)
            self._start, self._paused = _obeyed(item, self._start, self._paused)
            self._n_sent -= 1
            self.first = position + self._length(item)

    def take(self) -> Message | None:
        """Return the next item to send; None if all is sent."""
        if self._n_sent == len(self._items):
            return None
        self._n_sent += 1
        return self._items[self._n_sent - 1][1]

    def rewind(self, position: int) -> None:
        """Send again the audio from a position, and the commands at that position or later."""
        self._n_sent = sum(start < position for start, _ in self._items)
        if self._n_sent:
            start, item = self._items[self._n_sent - 1]
            cut = (position - start) * self._frame_bytes
            if isinstance(item, bytes) and cut < len(item):
                self._items[self._n_sent - 1 : self._n_sent] = [(start, item[:cut]), (position, item[cut:])]

    def opening(self) -> list[dict[str, Any]]:
        """Return the messages that open a session that continues at the next item."""
        start, paused = self._start, self._paused
        for _, item in self._items[: self._n_sent]:
            start, paused = _obeyed(item, start, paused)
        return [start, {"type": "pause"}] if paused else [start]

    def is_finished(self) -> bool:
        return bool(self._items) and self._items[-1][1] is _FINISH

    def _length(self, item: Message) -> int:
        return len(item) // self._frame_bytes if isinstance(item, bytes) else 0


def _obeyed(item: Message, start: dict[str, Any], paused: bool) -> tuple[dict[str, Any], bool]:
    """Return the `start` message with the effects of a command, and whether the stream is paused after it."""
    if isinstance(item, bytes):
        return start, paused
    kind = item["type"]
    if kind == "set":
        return {**start, **item, "type": "start"}, paused
    return start, kind == "pause" if kind in ("pause", "resume") else paused


class _ForgottenError(Exception):
    """The daemon no longer has the session, and accepts another."""


class StreamClient:
    """One stream, over any number of connections and sessions."""

    def __init__(
        self,
        address: DaemonAddress,
        audio: Source,
        start: dict[str, Any],
        on_notice: Callable[[str], None],
        wait_s: float | None = None,
    ) -> None:
        """Send `audio` behind a `start` message."""
        self._address = address
        self._audio = audio
        self._on_notice = on_notice
        self._reconnection = Reconnection(address, on_notice, wait_s)
        self._pieces = _Pieces(start["format"], start["channels"])
        self._rate = start["sample_rate"]
        self._sent = Sent(start, self._pieces.frame_bytes)
        # The next item to send, or the exception that `audio` raised.
        self._given: asyncio.Queue[Message | Exception] = asyncio.Queue(maxsize=1)
        self._failure: Exception | None = None
        # Whether to wait for a daemon that has no room: there was a session, or the caller wants to.
        self._patient = wait_s is not None
        # Newest event of the session; positions in all the audio: start of the session, end of its final text.
        self._place = Place()
        self._base = 0
        self._final = 0
        # Reason of the session's end: a fatal error, or the samples that a stopping daemon has processed.
        self._fatal: Error | None = None
        self._processed: int | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        pumping = asyncio.create_task(self._pump())
        try:
            while True:
                try:
                    connection = await connected(self._address, answer_s=ANSWER_S)
                    async with contextlib.aclosing(self._converse(connection)) as events:
                        async for event in events:
                            yield event
                            if isinstance(event, End):
                                return
                    raise GoneError("it closed the connection")
                except _ForgottenError:
                    pass
                except GoneError as gone:
                    if self._failure is not None:
                        raise self._failure from None
                    if self._fatal is not None:
                        raise _error(self._fatal) from None
                    await self._reconnection.wait(gone)
        finally:
            pumping.cancel()

    async def _converse(self, connection: ClientConnection) -> AsyncGenerator[Event, None]:
        """Send and read over one connection. Raises GoneError if another is needed."""
        sending: asyncio.Task[None] | None = None
        try:
            if not self._place.session:
                self._begin_anew(self._base)
                sending = asyncio.create_task(self._send(connection, self._sent.opening()))
            else:
                resume = {"type": "resume", "session": self._place.session, "after": self._place.seq}
                with contextlib.suppress(ConnectionClosed):  # then reading says so, too
                    await connection.send(json.dumps(resume))
            async for event in events_of(self._address, connection):
                if isinstance(event, Resumed):
                    self._reconnection.works()
                    if sending is None:
                        self._rewind(self._base + event.heard_samples)
                        sending = asyncio.create_task(self._send(connection, []))
                    continue
                if isinstance(event, Error) and not event.session:
                    self._refused(event)
                if not self._place.moved(event):
                    continue
                self._reconnection.works()
                self._note(event)
                if isinstance(event, End):
                    if self._fatal is not None:
                        raise _error(self._fatal)
                    if self._processed is not None and not (
                        self._sent.is_finished() and self._base + self._processed >= self._sent.position
                    ):
                        self._begin_anew(self._base + self._processed)
                        raise GoneError("it stops")
                base_s = self._base / self._rate
                yield shifted(event, base_s.__add__) if base_s else event
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            await connection.close()  # if it is still open, with the code that gives up the stream

    def _note(self, event: Event) -> None:
        """Remember what is needed when the connection breaks."""
        self._patient = True
        match event:
            case Final() | Gap():
                self._final = self._base + round(event.end * self._rate)
            case Error(fatal=True):
                self._fatal = event
            case Error(code=StoppingError.code, heard_samples=heard):
                self._processed = heard if isinstance(heard, int) else self._final - self._base

    def _refused(self, error: Error) -> None:
        """Handle a refused session: begin another, try again, or raise the daemon's error."""
        if error.code == UnknownSessionError.code and self._place.session:
            self._begin_anew(self._final)
            text_s = self._base / self._rate
            self._on_notice(f"{self._address} has forgotten the session: another begins at {text_s:.1f} s of the audio")
            raise _ForgottenError
        if error.code in (BusyError.code, StoppingError.code) and self._patient:
            raise GoneError(one_line(error.message))
        raise _error(error)

    def _begin_anew(self, position: int) -> None:
        """Continue in another session at a position."""
        self._rewind(position)
        self._place = Place()
        self._base = self._final = min(max(position, self._sent.first), self._sent.position)
        self._processed = None

    def _rewind(self, position: int) -> None:
        if position < self._sent.first:
            lost_s = (self._sent.first - position) / self._rate
            self._on_notice(
                f"{lost_s:.1f} s of audio, of which no text has come from {self._address}, are not kept any more"
            )
        self._sent.rewind(position)

    async def _send(self, connection: ClientConnection, opening: Sequence[dict[str, Any]]) -> None:
        pongs: deque[Awaitable[float]] = deque()
        n_bytes = 0
        try:
            for message in opening:
                await connection.send(json.dumps(message))
            while True:
                item = self._sent.take()
                if item is None:
                    given = await self._given.get()
                    if isinstance(given, BaseException):
                        raise given
                    self._sent.add(given)
                    continue
                await connection.send(item if isinstance(item, bytes) else json.dumps(item))
                n_bytes += len(item) if isinstance(item, bytes) else 0
                if n_bytes >= PING_S * self._rate * self._pieces.frame_bytes:
                    n_bytes = 0
                    pongs.append(await connection.ping())
                    if len(pongs) > MAX_PINGS:
                        await pongs.popleft()
        except ConnectionClosed:
            pass  # the reader notices, too
        except Exception as error:  # noqa: BLE001 - raised by the reader
            self._failure = error
            await connection.close()

    async def _pump(self) -> None:
        """Read `audio` piece by piece, each when the one before is on its way."""
        try:
            async for item in _items(self._audio, self._on_notice):
                for piece in self._pieces.of(item):
                    await self._given.put(piece)
            await self._given.put(_FINISH)
        except Exception as error:  # noqa: BLE001 - raised by the reader
            await self._given.put(error)


class _Pieces:
    """Converts items of a stream to messages."""

    def __init__(self, format: str, channels: int) -> None:
        self.frame_bytes = (2 if format == "s16le" else 4) * channels
        self._format = format
        self._channels = channels
        # Beginning of an incomplete frame.
        self._carried = b""

    def of(self, item: object) -> Iterator[Message]:
        """Yield messages: audio in whole frames, and commands. Raises UsageError for anything else."""
        match item:
            case str() if item in get_args(Command):
                yield {"type": item}
                return
            case Mapping():
                yield {**item, "type": "set"}
                return
            case np.ndarray():
                data = self._bytes_of(item)
            case bytes() | bytearray() | memoryview():
                data = bytes(item)
            case _:
                raise UsageError(
                    f"a stream was given {item!r:.40}: expected samples, bytes, options, or one of"
                    f" {', '.join(get_args(Command))}"
                )
        data = self._carried + data
        whole = len(data) - len(data) % self.frame_bytes
        self._carried = data[whole:]
        step = MESSAGE_BYTES // self.frame_bytes * self.frame_bytes
        for first in range(0, whole, step):
            yield data[first : min(whole, first + step)]

    def _bytes_of(self, samples: NDArray[Any]) -> bytes:
        channels = samples.shape[1] if samples.ndim == 2 else 1
        is_float = np.issubdtype(samples.dtype, np.floating)
        if samples.ndim not in (1, 2) or channels != self._channels or not (is_float or samples.dtype == np.int16):
            raise UsageError(
                f"samples are {samples.dtype} of shape {samples.shape}: expected int16, or floats from -1 to 1, of"
                f" shape (n,) or (n, channels), with {self._channels} channels"
            )
        if self._format == "f32le":
            return (samples.astype("<f4") if is_float else samples.astype("<f4") / 32768).astype("<f4").tobytes()
        if is_float:
            samples = np.nan_to_num(samples * 32768).clip(-32768, 32767).round()
        return samples.astype("<i2").tobytes()


async def _items(audio: Source, on_notice: Callable[[str], None]) -> AsyncGenerator[object, None]:
    """Yield the items of a source; a whole recording in blocks."""
    pieces: Iterable[object]
    match audio:
        case str() | Path():
            pieces = _file(audio, on_notice)
        case bytes() | bytearray() | memoryview() | np.ndarray():
            pieces = (audio[first : first + BLOCK] for first in range(0, len(audio), BLOCK))
        case AsyncIterable():
            async for given in audio:
                yield given
            return
        case Iterable():
            pieces = audio
        case _:
            raise UsageError(f"audio is {audio!r:.40}: expected a path, samples, bytes, or an iterable of these")
    async with contextlib.aclosing(_pulled(iter(pieces))) as pulled:
        async for item in pulled:
            yield item


def _file(path: str | Path, on_notice: Callable[[str], None]) -> Iterator[object]:
    """Yield a file's audio, 16 kHz mono; of a truncated file, what can be read."""
    # Late, as few need it.
    from streamer.audio.sources.file import read_audio

    try:
        yield from read_audio(path)
    except TruncatedAudioError as error:
        on_notice(str(error))


async def _pulled(pieces: Iterator[object]) -> AsyncGenerator[object, None]:
    """Yield the items of an iterator that may block: a thread reads it, and is not joined at the end."""
    wanted: queue.SimpleQueue[Future[object] | None] = queue.SimpleQueue()
    over = object()

    def work() -> None:
        while (answer := wanted.get()) is not None and answer.set_running_or_notify_cancel():
            try:
                answer.set_result(next(pieces, over))
            except Exception as error:  # noqa: BLE001 - raised by who waits
                answer.set_exception(error)

    threading.Thread(target=work, name="streamer-audio", daemon=True).start()
    try:
        while True:
            answer: Future[object] = Future()
            wanted.put(answer)
            found = await asyncio.wrap_future(answer)
            if found is over:
                return
            yield found
    finally:
        wanted.put(None)


def _error(event: Error) -> StreamerError:
    return _ERRORS.get(event.code, PeerError)(f"{one_line(event.message):.500}")


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
