"""`/v1/stream`: a client's audio in, its session's events out, over as many connections as that takes."""

import asyncio
import contextlib
import dataclasses
import logging

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from streamer.errors import BusyError, ProtocolError, StreamerError, UsageError
from streamer.events import Error, Resumed
from streamer.server.interfaces import ClientStream, Streams
from streamer.server.messages import StreamStart, parse_message
from streamer.server.ws import (
    GONE,
    STOPPED,
    Close,
    Context,
    Sender,
    cancel,
    close_connection,
    ended,
    first_of,
    ignore_messages,
    receive,
    shortened,
    tasks,
)

logger = logging.getLogger(__name__)

MAX_BAD_MESSAGES = 100  # on one connection; then the stream ends

FINISHED = Close(CloseCode.NORMAL_CLOSURE)
RESUMED_ELSEWHERE = Close(4000, "resumed elsewhere")

# How a client closes a connection that it does not come back for; 1005: its close frame had no code.
_LEFT = (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD)


class StreamEndpoint:
    """Opens a session for each client that comes, and lets one whose connection broke go on with its session."""

    def __init__(self, context: Context, streams: Streams) -> None:
        self._context = context
        self._streams = streams
        # The newest connection of each session that has one.
        self._connections: dict[str, _StreamConnection] = {}

    async def serve(self, connection: ServerConnection, *, after: int | None, session: str | None) -> None:
        """Serve one connection to its end.

        With `session` it goes on with that session, and gets the events later than number `after`.
        """
        first: str | bytes | None = None
        try:
            if session:
                stream = self._streams.resume(session)
            else:
                first = await receive(connection)
                start, first = _parse_first(first)
                stream = self._streams.open(start)
        except ConnectionClosed:
            return
        except StreamerError as error:
            await self._refuse(connection, error)
            return
        name = stream.feed.session
        before = self._connections.get(name)
        current = self._connections[name] = _StreamConnection(connection, self._context, stream)
        try:
            with self._context.metrics.streams.track_inprogress():
                await current.run(first, before=before, after=(after or 0) if session else None)
        finally:
            if self._connections[name] is current:
                del self._connections[name]

    async def _refuse(self, connection: ServerConnection, error: StreamerError) -> None:
        """Say why there is no session, and close."""
        event = Error(seq=1, code=error.code, message=str(error), fatal=True)
        with contextlib.suppress(ConnectionClosed):
            await connection.send(event.to_json())
            self._context.metrics.events_sent.labels(event.type).inc()
        close = Close(CloseCode.POLICY_VIOLATION, error.code)
        if isinstance(error, BusyError):
            close = Close(CloseCode.TRY_AGAIN_LATER, shortened(f"{error.code}: {error}"))
        await close_connection(connection, close)


class _StreamConnection:
    """One connection of a client to its session."""

    def __init__(self, connection: ServerConnection, context: Context, stream: ClientStream) -> None:
        self._connection = connection
        self._context = context
        self._stream = stream
        # Set when the client has come back over another connection, which has the stream from then on.
        self._replaced = asyncio.Event()
        # Set when this connection does nothing with the stream any more.
        self._detached = asyncio.Event()
        # Whether the session cannot go on.
        self._failed = False

    async def give_way(self) -> None:
        """Leave the stream to another connection; return when it is free."""
        self._replaced.set()
        await self._detached.wait()

    async def run(self, first: str | bytes | None, *, before: "_StreamConnection | None", after: int | None) -> None:
        """Talk with the client until the session is over or the connection is.

        `first` is a message that has been read already, `before` the connection that had the stream until now.
        `after` is the number of the last event that a client has which comes back, None for a new session.
        """
        kept = False
        try:
            try:
                if before is not None:
                    await before.give_way()
                sender = self._sender(after)
                try:
                    close = await self._converse(sender, first)
                finally:
                    sender.close()
            finally:
                self._detached.set()
            await close_connection(self._connection, close)
            kept = self._may_come_back(sender)
        finally:
            if not self._replaced.is_set():
                self._stream.keep() if kept else self._stream.abandon()

    def _sender(self, after: int | None) -> Sender:
        stream, feed = self._stream, self._stream.feed
        if after is None:
            return Sender(self._connection, self._context, feed)
        heard = stream.go_on()
        # A client that has more than there is gets everything: see `EventLog.subscribe`.
        seq = after if after <= feed.last_seq else 0
        resumed = Resumed(heard_samples=heard).stamped(seq, feed.session)
        return Sender(self._connection, self._context, feed, after=after, greeting=resumed)

    def _may_come_back(self, sender: Sender) -> bool:
        """Whether the client may want to go on over another connection, now that this one is closed."""
        code = self._connection.close_code or CloseCode.ABNORMAL_CLOSURE
        if sender.ended:  # it has everything, unless its answer to our close frame is missing
            return code == CloseCode.ABNORMAL_CLOSURE
        return not self._failed and code not in _LEFT

    async def _converse(self, sender: Sender, first: str | bytes | None) -> Close:
        async with tasks() as run:
            sending = run(sender.run())
            interrupted = [run(sender.overflowed.wait()), run(self._replaced.wait())]
            reading = run(self._take_messages(first))
            await first_of(sending, reading, *interrupted, run(self._context.stopping.wait()))
            if any(task.done() for task in interrupted):
                return self._interruption(sender)
            if sending.done():  # the session ended by itself, or the client is gone
                return ended(sending, sender)
            if reading.done():
                try:
                    close = reading.result()
                except ConnectionClosed:
                    return GONE
            else:
                await cancel(reading)
                close = STOPPED

            # The client may still leave, or stop to read, while its last words are transcribed and sent.
            ignoring = run(ignore_messages(self._connection, max_bytes=None))
            finishing = run(self._finish())
            await first_of(finishing, ignoring, *interrupted)
            if finishing.done():
                close = finishing.result() or close
                await first_of(sending, ignoring, *interrupted)
            return self._interruption(sender) if any(task.done() for task in interrupted) else close

    def _interruption(self, sender: Sender) -> Close:
        if self._replaced.is_set():
            return RESUMED_ELSEWHERE
        self._context.metrics.too_slow.inc()
        return sender.overflow

    async def _take_messages(self, message: str | bytes | None) -> Close:
        """Do what the client says until it finishes or errs. Raises ConnectionClosed where it leaves."""
        n_bad = 0
        try:
            while not self._stream.complete:
                if message is None:
                    message = await receive(self._connection)
                if isinstance(message, bytes):
                    await self._stream.write(message)
                else:
                    try:
                        if await self._obey(message):
                            break
                    except UsageError as error:
                        n_bad += 1
                        if n_bad == MAX_BAD_MESSAGES:
                            text = f"{error} (bad message number {n_bad}: the stream ends)"
                            self._stream.report(error.code, text, fatal=True)
                            return Close(CloseCode.UNSUPPORTED_DATA, error.code)
                        self._stream.report(error.code, str(error), fatal=False)
                message = None
            return FINISHED
        except ConnectionClosed:
            raise
        except Exception as error:  # noqa: BLE001 - told to the client and the log
            return self._report_failure(error)

    async def _obey(self, message: str) -> bool:
        """Do what a text message says; return whether it is `finish`. Raises UsageError where it cannot be done."""
        kind, values = parse_message(message)
        match kind:
            case "finish":
                return True
            case "start":
                raise ProtocolError("start message is out of place: expected it first, and once; set changes options")
            case "set":
                await self._stream.change(dataclasses.replace(self._stream.options, **values))
            case _:
                await self._stream.command(kind)
        return False

    async def _finish(self) -> Close | None:
        """See the session to its end; return how to close the connection where that went wrong."""
        try:
            await self._stream.finish()
        except Exception as error:  # noqa: BLE001 - told to the client and the log
            close = self._report_failure(error)
            self._failed = True
            self._stream.abandon()
            return close
        return None

    def _report_failure(self, error: Exception) -> Close:
        """Tell the client of a fatal failure that is not its own; return how to close the connection."""
        code, text = "internal", "the daemon failed: see its log, and report it as a bug"
        if isinstance(error, StreamerError):
            code, text = error.code, str(error)
        else:
            logger.error("a client's stream failed", exc_info=error)
        self._stream.report(code, text, fatal=True)
        return Close(CloseCode.INTERNAL_ERROR, code)


def _parse_first(message: str | bytes) -> tuple[StreamStart, str | bytes | None]:
    """Return how the first message opens a session, and what of it is still to be done."""
    if isinstance(message, bytes):
        return StreamStart(), message
    kind, values = parse_message(message)
    return (StreamStart(**values), None) if kind == "start" else (StreamStart(), message)
