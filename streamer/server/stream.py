"""`/v1/stream`: a client's audio in, its session's events out, over as many connections as that takes."""

import asyncio
import contextlib
import dataclasses
import logging

from websockets.frames import CloseCode

from streamer.errors import BusyError, IdleError, ProtocolError, StoppingError, StreamerError, UsageError
from streamer.events import Error, Resumed
from streamer.protocols.native import StreamResume, StreamStart, parse_message
from streamer.server import ws
from streamer.server.interfaces import ClientStream, Streams
from streamer.server.ws import GONE, Close, Connection, Context, GoneError, Sender

logger = logging.getLogger(__name__)

MAX_BAD_MESSAGES = 100  # on one connection; then the stream ends

FINISHED = Close(CloseCode.NORMAL_CLOSURE)
RESUMED_ELSEWHERE = Close(4000, "resumed elsewhere")

# How a client closes a connection that it does not come back for; 1005: its close frame had no code.
_LEFT = (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD)


class StreamEndpoint:
    """Opens a session for each client that comes, and lets one whose connection broke go on with its session."""

    def __init__(self, context: Context, streams: Streams, *, first_message_s: float) -> None:
        """Open sessions in `streams` for clients that say what they want within `first_message_s`."""
        self._context = context
        self._streams = streams
        self.first_message_s = first_message_s
        # The newest connection of each session that has one.
        self._connections: dict[str, _StreamConnection] = {}

    async def serve(self, connection: Connection, *, asked: StreamResume | None = None, tenant: str = "") -> None:
        """Serve one connection to its end, for a client with the token of that name.

        asked : what the client's address says that it comes back to, instead of its first message
        """
        try:
            request, first = (asked, None) if asked else _parse_first(await self._first_message(connection))
            if isinstance(request, StreamResume):
                stream = await self._streams.resume(request.session, after=request.after, tenant=tenant)
            else:
                stream = await self._streams.open(request, tenant=tenant)
        except GoneError:
            return
        except StreamerError as error:
            await self._refuse(connection, error)
            return
        name = stream.feed.session
        before = self._connections.get(name)
        current = self._connections[name] = _StreamConnection(connection, self._context, stream)
        try:
            with self._context.metrics.streams.track_inprogress():
                after = request.after if isinstance(request, StreamResume) else None
                await current.run(first, before=before, after=after)
        finally:
            if self._connections.get(name) is current:
                del self._connections[name]

    async def _first_message(self, connection: Connection) -> str | bytes:
        async with ws.tasks() as run:
            receiving = run(connection.receive())
            draining = run(self._context.draining.wait())
            await asyncio.wait((receiving, draining), timeout=self.first_message_s, return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                raise StoppingError("the daemon stops: it takes no new stream, reconnect in a moment")
            if not receiving.done():
                raise IdleError(f"no message came within {self.first_message_s:g} s (server.first_message_s)")
            if receiving.exception() is not None:
                raise GoneError
            return receiving.result()

    async def _refuse(self, connection: Connection, error: StreamerError) -> None:
        self._context.metrics.refused(error.code)
        event = Error(seq=1, code=error.code, message=str(error), fatal=True)
        with contextlib.suppress(GoneError):
            await connection.send(event)
            self._context.metrics.events_sent.labels(event.type).inc()
        # Who may try again is told when.
        again = isinstance(error, BusyError | StoppingError)
        close = Close(error.close_code, ws.shortened(f"{error.code}: {error}") if again else error.code)
        await connection.close(close)


class _StreamConnection:
    """One connection of a client to its session."""

    def __init__(self, connection: Connection, context: Context, stream: ClientStream) -> None:
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
            if sender.failure == IdleError.code:
                self._context.metrics.refused(sender.failure)
            await self._connection.close(close)
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
        async with ws.tasks() as run:
            sending = run(sender.run())
            interrupted = [run(event.wait()) for event in (sender.overflowed, self._replaced, self._connection.gone)]
            reading = run(self._take_messages(first))
            draining = run(self._context.draining.wait())
            await ws.first_of(sending, reading, draining, *interrupted)
            if any(task.done() for task in interrupted):
                return self._interruption(sender)
            if sending.done():  # the session ended by itself, or the client is gone
                return ws.ended(sending, sender)
            if reading.done():
                if reading.exception() is not None:
                    return GONE
                close = reading.result()
            elif self._stream.outlives:
                return _stopped(sender)  # it goes on at another, with all that was heard
            else:
                await ws.cancel(reading)
                close = self._tell_stop()

            # The client may still leave, or stop to read, while its last words are transcribed and sent.
            ignoring = run(ws.ignore_messages(self._connection))
            finishing = run(self._finish())
            if self._stream.outlives:  # what is not final yet becomes so elsewhere
                interrupted.append(draining)
            await ws.first_of(finishing, ignoring, *interrupted)
            if finishing.done():
                close = finishing.result() or close
                await ws.first_of(sending, ignoring, *interrupted)
                if close is FINISHED and sending.done():  # a session may end by itself as the client says something
                    close = ws.ended(sending, sender)
            return self._interruption(sender) if any(task.done() for task in interrupted) else close

    def _tell_stop(self) -> Close:
        """Tell the client that the daemon stops, and what is needed to go on elsewhere."""
        heard = self._stream.go_on()
        message = f"the daemon stops: the first {heard} samples are made final; send the rest as a new stream"
        self._stream.report(Error(code=StoppingError.code, message=message, fatal=False, heard_samples=heard))
        name = self._stream.feed.session
        return Close(CloseCode.GOING_AWAY, f"the daemon stops: {heard} samples of session {name} were heard")

    def _interruption(self, sender: Sender) -> Close:
        if self._connection.gone.is_set():
            return GONE
        if self._replaced.is_set():
            return RESUMED_ELSEWHERE
        if not sender.overflowed.is_set():
            return _stopped(sender)
        self._context.metrics.too_slow.inc()
        return sender.overflow

    async def _take_messages(self, message: str | bytes | None) -> Close:
        """Do what the client says until it finishes or errs. Raises GoneError where it leaves."""
        n_bad = 0
        try:
            while not self._stream.complete:
                if message is None:
                    message = await self._connection.receive()
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
                            self._stream.report(Error(code=error.code, message=text, fatal=True))
                            return Close(CloseCode.UNSUPPORTED_DATA, error.code)
                        self._stream.report(Error(code=error.code, message=str(error), fatal=False))
                message = None
            return FINISHED
        except GoneError:
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
            case "resume" if values:
                raise ProtocolError("resume message with a session is out of place: expected it first, without start")
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
            logger.error("a client's stream failed", exc_info=error, extra={"session": self._stream.feed.session})
        self._stream.report(Error(code=code, message=text, fatal=True))
        return Close(CloseCode.INTERNAL_ERROR, code)


def _stopped(sender: Sender) -> Close:
    """How to close a connection when the daemon stops: with what the client needs to resume at another."""
    return Close(
        CloseCode.GOING_AWAY, f"the daemon stops: resume with session={sender.session}, after={sender.last_sent}"
    )


def _parse_first(message: str | bytes) -> tuple[StreamStart | StreamResume, str | bytes | None]:
    """Return what the first message opens or comes back to, and what of it is still to be done."""
    if isinstance(message, bytes):
        return StreamStart(), message
    kind, values = parse_message(message)
    if kind == "resume" and values:
        return StreamResume(**values), None
    return (StreamStart(**values), None) if kind == "start" else (StreamStart(), message)
