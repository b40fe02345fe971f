"""What a client missed that the event log does not have any more: read from the history, a page at a time."""

import asyncio
import logging
from collections.abc import AsyncGenerator

from streamer.errors import HistoryError
from streamer.events import Error, Event
from streamer.server.history_file import HistoryFile, KeptSession
from streamer.stream.eventlog import EventLog

logger = logging.getLogger(__name__)


async def earlier_events(history: HistoryFile, feed: EventLog, session: str, after: int) -> AsyncGenerator[Event, None]:
    """Yield what came behind number `after` of a session of the daemon's own input, up to what `feed` still has.

    That is the rest of the session, all later ones, and of the present one what is older than the log; where the
    session is not known, nothing. Who follows on with `feed` gives it the place of the last event, or its own where
    there was none. What is no longer in the history, or cannot be read, is told by an `error`, code `history_lost`.
    """
    try:
        kept = await asyncio.to_thread(history.session, session)
        while kept is not None and kept.own:
            session = kept.id
            while session != feed.session or after < feed.dropped_seq:
                events = await asyncio.to_thread(_page, history, kept, after)
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


def _page(history: HistoryFile, kept: KeptSession, after: int) -> list[Event]:
    """Return the next events behind number `after` of a session, its `ready` and what is lost of it included."""
    events = history.events(kept.number, after)
    dropped_seq, dropped_s = history.dropped(kept.number)  # behind the events: what they lack is known by then
    if after < dropped_seq:
        message = (
            f"events before {dropped_s:.3f} s of the session's audio are no longer in the history: text is available"
            " from there on; raise server.history_days or server.history_mb to keep more"
        )
        events = [
            Error(seq=dropped_seq, session=kept.id, code="history_lost", message=message, fatal=False),
            *(event for event in events if event.seq > dropped_seq),
        ]
    return [kept.ready, *events] if after < kept.ready.seq else events
