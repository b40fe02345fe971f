"""Replay of events that the event log no longer has, from the history."""

import asyncio
import logging
from collections.abc import AsyncGenerator

from streamer.engine.eventlog import EventLog
from streamer.errors import HistoryError
from streamer.events import Error, Event
from streamer.history.writer import History

logger = logging.getLogger(__name__)


async def earlier_events(history: History, feed: EventLog, session: str, after: int) -> AsyncGenerator[Event, None]:
    """Yield events after number `after` of a session of the daemon's own input, up to those that `feed` still has.

    These are the rest of the session, all later sessions, and the older part of the current one; none if the session
    is unknown. A client then follows `feed` after the last of them, or after its own position without any. An `error`
    event, code `history_lost`, stands for events that are no longer in the history, or cannot be read.
    """
    try:
        kept = await asyncio.to_thread(history.session, session)
        while kept is not None and kept.own:
            session = kept.id
            while session != feed.session or after < feed.dropped_seq:
                events = await asyncio.to_thread(history.events, session, after)
                if not events:
                    break
                for event in events:
                    yield event
                after = events[-1].seq
            if session == feed.session:
                return
            kept = await asyncio.to_thread(history.next_own, kept.number)
            after = 0 if kept is not None else after
    except HistoryError as error:
        logger.warning("%s", error)
        message = "the history cannot be read: text from here to the beginning of what the daemon remembers is missing"
        yield Error(seq=after, session=session, code="history_lost", message=message, fatal=False)
