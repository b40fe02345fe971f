"""What clients read: the daemon's own input, or a room; and who may speak in a room."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from streamer.daemon.clients import ClientStreams
from streamer.daemon.streams import ClientStream
from streamer.errors import ConfigError, StoppingError
from streamer.events import End, Error, Event
from streamer.protocols.adapter import Follow
from streamer.protocols.native import StreamStart
from streamer.server.context import Context
from streamer.server.follower import Follower
from streamer.server.replay import earlier_events
from streamer.server.tokens import DEFAULT
from streamer.server.ws import Close


async def open_stream(streams: ClientStreams, start: StreamStart, tenant: str) -> ClientStream:
    """Open a session; if it is read in a room, that is the one of its token, unless all clients share one.

    Raises ConfigError if it is another, and what `ClientStreams.open` raises.
    """
    if start.room and tenant not in ("", DEFAULT, start.room):
        raise ConfigError(
            f"room is {start.room}, which is not the name of this token: expected {tenant}; make a token for that room"
            f" with `streamer token new {start.room}`"
        )
    return await streams.open(start, tenant=tenant)


def follow(wanted: Follow, context: Context, closing: asyncio.Future[Close]) -> "Follower | RoomFollower":
    """Begin to follow what a client wants to read; `closing` is that of a `Follower`."""
    after, session = wanted.after, wanted.session
    if wanted.room:
        return RoomFollower(wanted.room, context, closing, after=after, session=session)
    own, history, earlier = context.services.input, context.services.history, None
    assert own is not None
    if history is not None and after is not None and session is not None:
        earlier = earlier_events(history, own.log, session, after)
    return Follower(own.log, context, closing, after=after, session=session, earlier=earlier)


def _is_for_sender(event: Event) -> bool:
    """Return whether an event ends a stream, or says why it ends."""
    match event:
        case End() | Error(fatal=True) | Error(code=StoppingError.code):
            return True
    return False


class RoomFollower:
    """The events of a room's streams, one stream after another, for one client. It does not end."""

    ended = False

    def __init__(
        self, room: str, context: Context, closing: asyncio.Future[Close], *, after: int | None, session: str | None
    ) -> None:
        """Follow a room after event `after` of `session`."""
        self._room = room
        self._context = context
        self._closing = closing
        # Number and session of the client's last event.
        self._after, self._session = after, session
        # Of the present stream; None between streams.
        self._follower: Follower | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def last_sent(self) -> int:
        return self._follower.last_sent if self._follower is not None else self._after or 0

    @property
    def session(self) -> str:
        return self._follower.session if self._follower is not None else self._session or ""

    @property
    def idle(self) -> asyncio.Event:
        """Set while all events have been passed on."""
        return self._follower.idle if self._follower is not None else self._idle

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events, in order; once. The end of a stream, and why it ends, is for its sender only."""
        rooms = self._context.services.streams.rooms
        while True:
            log = await rooms.log(self._room, self._session, self._after)
            follower = self._follower = Follower(
                log, self._context, self._closing, after=self._after, session=self._session
            )
            async with contextlib.aclosing(follower.events()) as events:
                async for event in events:
                    if not _is_for_sender(event):
                        yield event
            self._after, self._session = follower.last_sent, follower.session
            self.close()

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
