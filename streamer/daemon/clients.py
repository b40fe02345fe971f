"""The streams of all clients: how many may be open, and for how long one is kept whose connection broke."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection, Iterator
from weakref import WeakValueDictionary

from streamer.audio.pcm import PcmDecoder
from streamer.daemon.backend import Backend
from streamer.daemon.rooms import Rooms
from streamer.daemon.streams import ClientStream
from streamer.errors import BusyError, IdleError, StoppingError, UnknownSessionError
from streamer.events import Error
from streamer.protocols.native import StreamStart
from streamer.settings.table import ServerSettings

# Random bytes in the name of a session: a client that knows the name can resume the stream, so it must not be guessed.
SESSION_NAME_BYTES = 24

# If all slots are taken, a stream that has received nothing for this long is ended for a new client.
SPARE_S = 30.0

# Time for the text of a client that is gone to become final.
FINISH_S = 60.0


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
        self.rooms = Rooms()
        # Of each that is being opened, the stream that is to end for it, None if there is a free slot.
        self._opening: list[ClientStream | None] = []
        # What abandons a stream whose connection broke, or checks whether another has received something.
        self._timers: dict[ClientStream, asyncio.TimerHandle] = {}
        # One client at a time resumes a session.
        self._resuming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def open(self, start: StreamStart, *, tenant: str = "") -> ClientStream:
        """Open a session. `tenant` is the name of the client's token, empty without one.

        Raises BusyError if all slots are taken, ProtocolError if the audio format is not supported, and what the
        backend raises.
        """
        PcmDecoder(start.format, start.sample_rate, start.channels)  # refuses before anything has begun
        with self._slot():
            name = secrets.token_urlsafe(SESSION_NAME_BYTES)
            return self._add(await self._backend.open(name, start, tenant=tenant), tenant)

    async def resume(self, name: str, *, after: int = 0, tenant: str = "") -> ClientStream:
        """Return the stream of a session to its client, which is connected again and has events up to number `after`.

        Raises UnknownSessionError if the tenant has no such session, BusyError if it cannot be resumed now.
        """
        async with self._resuming.setdefault(name, asyncio.Lock()):
            stream = self._streams.get(name)
            if stream is not None and stream.tenant == tenant and await stream.is_here():
                stream.kept_since_s = None
                stream.touch()
                self._watch(stream)
                return stream
            if not await self._backend.knows(name, tenant=tenant):
                raise UnknownSessionError(
                    f"the session is not known: a stream is kept for {self.settings.resume_s:g} s after its connection"
                    " broke (server.resume_s), less where others need its place; start another"
                )
            with self._slot():
                return self._add(await self._backend.resume(name, after=after), tenant)

    def keep(self, stream: ClientStream) -> None:
        """Give up a stream whose connection broke, unless its client comes back in time."""
        if not self._is_open(stream):
            return
        if self.settings.resume_s:
            stream.kept_since_s = asyncio.get_running_loop().time()
            self._call_later(self.settings.resume_s, self.give_up, stream)
        else:
            self.give_up(stream)

    def give_up(self, stream: ClientStream) -> None:
        """End a stream whose client will not come back; what others read, or a history keeps, becomes final first.

        A client that comes back meanwhile is asked for the rest of its audio as a new stream.
        """
        if stream.log.closed or not (stream.options.room or stream.options.keep):
            self.abandon(stream)
            return
        stream.expired = True
        if not stream.complete:
            n_heard = stream.go_on()
            text = f"the client was away: the first {n_heard} samples are made final; send the rest as a new stream"
            stream.report(Error(code=StoppingError.code, message=text, fatal=False, heard_samples=n_heard))
            stream.finish()
        self._call_later(FINISH_S, self.abandon, stream)

    def abandon(self, stream: ClientStream) -> None:
        """End a stream's session without further text, and free its slot. Harmless the second time."""
        if self._is_open(stream):
            del self._streams[stream.log.session]
        if (timer := self._timers.pop(stream, None)) is not None:
            timer.cancel()
        stream.close()

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        """Abandon streams that are kept for other tenants, whose tokens are no longer valid."""
        for stream in tuple(self._streams.values()):
            if stream.kept_since_s is not None and stream.tenant not in tenants:
                self.abandon(stream)

    def _is_open(self, stream: ClientStream) -> bool:
        return self._streams.get(stream.log.session) is stream

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
        if spare is None or not self._is_open(spare):
            return
        if spare.kept_since_s is not None:
            self.give_up(spare)
        else:
            spare.expire(
                IdleError(
                    f"nothing was sent for {spare.idle_s:.0f} s, and another client needs the place (all"
                    f" {self.settings.max_streams} of server.max_streams are taken): send audio as it is spoken,"
                    " silence too, or begin anew when there is some"
                )
            )

    def _spare(self) -> ClientStream | None:
        """Return the stream to end for a new one; None if there is a free slot. Raises BusyError."""
        most = self.settings.max_streams
        going = [each for each in self._streams.values() if not (each.expired or each.log.closed)]
        taken = [each for each in going if each not in self._opening]
        if len(taken) + len(self._opening) < most:
            return None
        kept = [stream for stream in taken if stream.kept_since_s is not None]
        if kept:
            return min(kept, key=lambda stream: stream.kept_since_s or 0.0)
        longest = max(taken, key=lambda stream: stream.idle_s, default=None)
        if longest is None or longest.idle_s < SPARE_S:
            raise BusyError(
                f"all {most} places for clients' audio are taken: try again later, or raise server.max_streams"
            )
        return longest

    def _add(self, stream: ClientStream, tenant: str) -> ClientStream:
        stream.tenant = tenant
        self._streams[stream.log.session] = stream
        self.rooms.enter(stream)
        self._watch(stream)
        return stream

    def _watch(self, stream: ClientStream) -> None:
        """End a stream that has received nothing for too long, else check again later."""
        idle_s, limit_s = stream.idle_s, self.settings.idle_s
        if idle_s >= limit_s:
            stream.expire(
                IdleError(
                    f"nothing was sent for {idle_s:.0f} s (server.idle_s is {limit_s:g}): expected audio as it is"
                    " spoken, silence too, or a command; begin anew when there is some"
                )
            )
        else:
            self._call_later(limit_s - idle_s, self._watch, stream)

    def _call_later(self, delay_s: float, call: Callable[[ClientStream], None], stream: ClientStream) -> None:
        """Call something for a stream after a while, instead of what was to be called before."""
        if (timer := self._timers.pop(stream, None)) is not None:
            timer.cancel()
        self._timers[stream] = asyncio.get_running_loop().call_later(delay_s, call, stream)
