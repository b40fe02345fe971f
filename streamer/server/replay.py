"""What a client missed that the event log no longer has: read from the history, a page at a time."""

import asyncio
import logging
from collections.abc import AsyncGenerator

from streamer.engine.eventlog import EventLog
from streamer.errors import HistoryError
from streamer.events import Error, Event
from streamer.server.history import History

logger = logging.getLogger(__name__)


async def earlier_events(history: History, feed: EventLog, session: str, after: int) -> AsyncGenerator[Event, None]:
    """Yield what came after number `after` of a session of the daemon's own input, up to what `feed` still has.

    That is the rest of the session, all later ones, and of the present one what is older than the log; if the session
    is not known, nothing. A client follows `feed` from the last event on, or from its own position if there was none.
    An `error` event, code `history_lost`, stands for what is no longer in the history, or cannot be read.
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
