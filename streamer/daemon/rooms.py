"""Rooms: where others read what is said in clients' streams, one after another."""

import asyncio
from weakref import WeakValueDictionary

from streamer.daemon.streams import ClientStream
from streamer.engine.eventlog import EventLog
from streamer.errors import RoomTakenError


class Rooms:
    """What was said last in each room. Used on the server's loop only."""

    def __init__(self) -> None:
        # The newest stream of each room, while it is used; and its log, until another stream begins in any room after
        # its end: so clients that were away get the rest.
        self._streams: WeakValueDictionary[str, ClientStream] = WeakValueDictionary()
        self._logs: dict[str, EventLog] = {}
        # Set, and replaced, when a stream begins.
        self._begun = asyncio.Event()

    def enter(self, stream: ClientStream) -> None:
        """Let a stream be read in its room, if it has one. Another that is read there ends."""
        room = stream.options.room
        if not room:
            return
        before = self._streams.get(room)
        if before is not None and before is not stream and not before.complete:
            before.expire(RoomTakenError(f"another stream has begun in room {room}, where one at a time is read"))
        self._streams[room] = stream
        self._logs = {name: log for name, log in self._logs.items() if not log.closed} | {room: stream.log}
        self._begun.set()
        self._begun = asyncio.Event()

    async def log(self, room: str, session: str | None, after: int | None) -> EventLog:
        """Return the log of the newest stream in a room, in which there is something to read, or will be.

        session, after : the last event that the reader has; without `after` it wants nothing that has ended
        """
        while True:
            log = self._logs.get(room)
            if log is not None:
                has_all = after is None or (session == log.session and after >= log.last_seq)
                if not (log.closed and has_all):
                    return log
            await self._begun.wait()
