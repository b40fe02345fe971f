"""The streams of all clients: how many may be open, and for how long one is kept whose connection broke."""

import asyncio
import contextlib
import secrets
from collections.abc import Collection, Iterator
from functools import partial
from weakref import WeakValueDictionary

from streamer.audio.pcm import PcmDecoder
from streamer.daemon.backend import Backend, Session
from streamer.daemon.streams import ClientStream
from streamer.errors import BusyError, UnknownSessionError
from streamer.protocols.native import StreamStart
from streamer.settings.table import ServerSettings

# Random bytes in the name of a session: a client that knows the name can resume the stream, so it must not be guessed.
SESSION_NAME_BYTES = 24

# If all slots are taken, a stream that has received nothing for this long is ended for a new client.
SPARE_S = 30.0


class ClientStreams:
    """The streams that are open: at most `server.max_streams`. Used on the server's loop only.

    A stream whose connection broke keeps its slot for `server.resume_s`, unless a new client needs it. A stream that
    receives nothing is ended after `server.idle_s`, or after SPARE_S if a new client needs its slot.
    """

    def __init__(self, settings: ServerSettings, backend: Backend) -> None:
        # May be replaced.
        self.settings = settings
        self._backend = backend
        # By the session's name.
        self._streams: dict[str, ClientStream] = {}
        # Of each that is being opened, the stream that is to end for it, None if there is a free slot.
        self._opening: list[ClientStream | None] = []
        # Timers that abandon the streams whose connection broke, the oldest first.
        self._kept: dict[ClientStream, asyncio.TimerHandle] = {}
        # Timers that check whether the others have received something.
        self._watches: dict[ClientStream, asyncio.TimerHandle] = {}
        # One client at a time resumes a session.
        self._resuming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def open(self, start: StreamStart, *, tenant: str = "") -> ClientStream:
        """Open a session. `tenant` is the name of the client's token, empty without one.

        Raises BusyError if all slots are taken, ProtocolError if the audio format is not supported, and what the
        backend raises.
        """
        pcm = _decoder(start)
        with self._slot():
            session = await self._backend.open(secrets.token_urlsafe(SESSION_NAME_BYTES), start, tenant=tenant)
        return self._add(session, pcm, tenant)

    async def resume(self, name: str, *, after: int = 0, tenant: str = "") -> ClientStream:
        """Return the stream of a session to its client, which is connected again and has events up to number `after`.

        Raises UnknownSessionError if the tenant has no such session, BusyError if it cannot be resumed now.
        """
        async with self._resuming.setdefault(name, asyncio.Lock()):
            stream = self._streams.get(name)
            if stream is not None and stream.tenant == tenant and await stream.session.is_here():
                self._come_back(stream)
                return stream
            if not await self._backend.knows(name, tenant=tenant):
                raise UnknownSessionError(
                    f"the session is not known: a stream is kept for {self.settings.resume_s:g} s after its connection"
                    " broke (server.resume_s), less where others need its place; start another"
                )
            with self._slot():
                session = await self._backend.resume(name, after=after)
            return self._add(session, _decoder(session.options), tenant)

    def keep(self, stream: ClientStream) -> None:
        """Abandon a stream whose connection broke, unless its client comes back in time."""
        if self._streams.get(stream.feed.session) is not stream:
            return
        self._cancel_timers(stream)
        if self.settings.resume_s:
            loop = asyncio.get_running_loop()
            self._kept[stream] = loop.call_later(self.settings.resume_s, self.abandon, stream)
        else:
            self.abandon(stream)

    def abandon(self, stream: ClientStream) -> None:
        """End a stream's session without further text, and free its slot. Harmless the second time."""
        if self._streams.get(stream.feed.session) is stream:
            del self._streams[stream.feed.session]
            self._cancel_timers(stream)
            stream.close()

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        """Abandon streams that are kept for other tenants, whose tokens are no longer valid."""
        for stream in [stream for stream in self._kept if stream.tenant not in tenants]:
            self.abandon(stream)

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        """Hold a slot while a session is being opened: a free one, or that of a stream that is ended for it.

        Raises BusyError.
        """
        spare = self._spare()
        self._opening.append(spare)
        try:
            yield
        finally:
            self._opening.remove(spare)
        if spare is not None:
            self._give_up(spare)

    def _spare(self) -> ClientStream | None:
        """Return the stream to end for a new one; None if there is a free slot. Raises BusyError."""
        most = self.settings.max_streams
        taken = [each for each in self._streams.values() if not each.expired and each not in self._opening]
        if len(taken) + len(self._opening) < most:
            return None
        kept = next((stream for stream in self._kept if stream in taken), None)
        if kept is not None:
            return kept
        longest = max(taken, key=lambda stream: stream.idle_s, default=None)
        if longest is None or longest.idle_s < SPARE_S:
            raise BusyError(
                f"all {most} places for clients' audio are taken: try again later, or raise server.max_streams"
            )
        return longest

    def _give_up(self, stream: ClientStream) -> None:
        """End a stream for a new one: see `_spare`."""
        if stream in self._kept:
            self.abandon(stream)
        elif self._streams.get(stream.feed.session) is stream:
            stream.expire(
                f"nothing was sent for {stream.idle_s:.0f} s, and another client needs the place (all"
                f" {self.settings.max_streams} of server.max_streams are taken): send audio as it is spoken,"
                " silence too, or begin anew when there is some"
            )

    def _add(self, session: Session, pcm: PcmDecoder, tenant: str) -> ClientStream:
        stream = self._streams[session.feed.session] = ClientStream(session, pcm, tenant)
        session.on_lost = partial(self.abandon, stream)
        self._watch(stream)
        return stream

    def _come_back(self, stream: ClientStream) -> None:
        """Note that a stream's client is connected again."""
        self._cancel_timers(stream)
        stream.touch()
        self._watch(stream)

    def _watch(self, stream: ClientStream) -> None:
        """End a stream if it has received nothing for too long, else check again later."""
        idle_s, limit_s = stream.idle_s, self.settings.idle_s
        if idle_s >= limit_s:
            stream.expire(
                f"nothing was sent for {idle_s:.0f} s (server.idle_s is {limit_s:g}): expected audio as it is spoken,"
                " silence too, or a command; begin anew when there is some"
            )
        elif not stream.complete:
            self._watches[stream] = asyncio.get_running_loop().call_later(limit_s - idle_s, self._watch, stream)

    def _cancel_timers(self, stream: ClientStream) -> None:
        for timers in (self._kept, self._watches):
            timer = timers.pop(stream, None)
            if timer is not None:
                timer.cancel()


def _decoder(start: StreamStart) -> PcmDecoder:
    return PcmDecoder(start.format, start.sample_rate, start.channels)
