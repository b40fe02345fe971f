"""A client that follows with `after` and `session` continues across a restart of the daemon."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import aclosing, closing

import pytest

from streamer.engine.eventlog import EventLog
from streamer.engine.journal import Journal
from streamer.events import Error, Event, Final, Revision
from streamer.history import reader
from streamer.history.writer import History
from streamer.server.replay import earlier_events
from tests.builders import final, ready
from tests.wire.harness import deaf_socket, events_until, next_event, serving, wait_published, within


def begun(history: History, session: str, *texts: str, limit: int = 1000, own: bool = True) -> EventLog:
    """Return the log of a session in which something was said."""
    log = Journal(session, limit, keep=history.keeper(source="mic", own=own))
    log.append(ready())
    say(log, *texts)
    return log


def say(log: EventLog, *texts: str) -> None:
    for text in texts:
        log.append(final(text, segment=log.last_seq, start=float(log.last_seq)))
    wait_published(log)


def close(log: EventLog) -> None:
    log.close()
    wait_published(log)


def brief(events: Sequence[Event]) -> list[str]:
    return [f"{event.session}:{getattr(event, 'text', event.type)}" for event in events]


async def earlier(history: History, feed: EventLog, session: str, after: int) -> list[Event]:
    async with aclosing(earlier_events(history, feed, session, after)) as events:
        return [event async for event in events]


async def test_the_rest_of_a_session_and_all_later_ones_come_first(history: History) -> None:
    begun(history, "a", "one", "two")  # killed: it has no end
    b = begun(history, "b", "three")
    b.append(Revision(of=2, by="glossary", text="Three", words=(), edits=()))
    close(b)
    begun(history, "client", "not for all", own=False)
    feed = begun(history, "c", "four")
    rest = ["b:ready", "b:three", "b:Three"]
    for session, after, expected in [
        ("a", 0, ["a:ready", "a:one", "a:two", *rest]),
        ("a", 2, ["a:two", *rest]),
        *(("a", after, rest) for after in (3, 99)),
        ("b", 2, ["b:Three"]),
        *((session, after, []) for session, after in [("b", 3), ("client", 0), ("never", 0), ("c", 0)]),
    ]:
        assert brief(await earlier(history, feed, session, after)) == expected, (session, after)


async def test_what_the_log_no_longer_has_comes_from_the_file(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE_EVENTS", 3)
    feed = begun(history, "a", *"abcdefgh", limit=2)  # the log has g and h
    async with (
        serving(feed, history_file=history) as running,
        running.socket("/v1/captions?after=2&session=a") as client,
    ):
        feed.close()
        events = await events_until(client, "end")
    assert [event.text for event in events if isinstance(event, Final)] == list("bcdefgh")
    assert not [event for event in events if isinstance(event, Error)]
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers))


async def test_a_client_continues_over_its_connection_and_gets_no_end_before_the_last(history: History) -> None:
    close(begun(history, "a", "one", "two"))
    second = begun(history, "b", "three")
    async with (
        serving(second, history_file=history) as running,
        running.socket("/v1/captions?after=2&session=a") as client,
    ):
        assert brief([await next_event(client) for _ in range(3)]) == ["a:two", "b:ready", "b:three"]
        say(second, "four")
        second.close()
        assert brief(await events_until(client, "end")) == ["b:four", "b:end"]


async def test_what_retention_deleted_is_reported(history: History) -> None:
    close(begun(history, "a", *"abc"))
    with closing(sqlite3.connect(history.path)) as connection, connection:
        connection.execute("UPDATE events SET at = 0 WHERE seq = 2")
    assert history.delete_before(1.0) == 1
    feed = begun(history, "b")
    events = await earlier(history, feed, "a", 0)
    assert brief(events) == ["a:ready", "a:error", "a:b", "a:c"]
    assert isinstance(events[1], Error)
    assert (events[1].seq, events[1].code) == (2, "history_lost")
    assert brief(await earlier(history, feed, "a", 2)) == ["a:b", "a:c"]


async def test_a_history_that_cannot_be_read_is_reported_and_the_present_goes_on(history: History) -> None:
    begun(history, "a", "one")
    feed = begun(history, "b", "two")
    with closing(sqlite3.connect(history.path)) as connection, connection:
        connection.execute("DROP TABLE events")
    async with (
        serving(feed, history_file=history) as running,
        running.socket("/v1/captions?after=1&session=a") as client,
    ):
        lost = await next_event(client)
        assert isinstance(lost, Error)
        assert (lost.session, lost.seq, lost.code, lost.fatal) == ("a", 1, "history_lost", False)
        assert brief([await next_event(client) for _ in range(2)]) == ["b:ready", "b:two"]


async def test_a_long_replay_is_read_as_the_client_takes_it_and_delays_nobody(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE_EVENTS", 10)
    long = begun(history, "a")
    for n in range(300):
        long.append(final("word " * 3200, segment=n, words=()))
    wait_published(long)
    feed = begun(history, "b")
    n_pages, read = 0, History.events

    def counted(history: History, session: str, after: int) -> list[Event]:
        nonlocal n_pages
        n_pages += 1
        return read(history, session, after)

    monkeypatch.setattr(History, "events", counted)
    async with serving(feed, history_file=history) as running:
        with closing(await asyncio.to_thread(deaf_socket, running.port, "/v1/captions?after=0&session=a")):
            async with running.socket("/v1/captions?after=0&session=b") as other:
                await next_event(other)
                for n in range(5):
                    say(feed, f"live {n}")
                    await within(events_until(other, "final"))
                before = -1
                while n_pages > before:  # until no more is taken
                    before = n_pages
                    await asyncio.sleep(0.1)
                assert n_pages < 20, "of 30: nobody reads what is not taken"
