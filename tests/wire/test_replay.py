"""A client that follows with `after` and `session` goes on across a restart of the daemon."""

import asyncio
import sqlite3
from contextlib import aclosing, closing

import pytest

from streamer.engine.eventlog import EventLog
from streamer.engine.journal import Journal
from streamer.events import Error, Event, Final, Ready, Revision, Speech
from streamer.history import history as history_module
from streamer.history.history import History
from streamer.server.replay import earlier_events
from tests.builders import ready
from tests.wire.support import deaf_socket, events_until, final, next_event, serving, wait_published, within


def begun(history: History, session: str, limit: int = 1000, *, own: bool = True) -> EventLog:
    log = Journal(session, limit, keep=history.keeper(source="mic", own=own))
    log.append(ready())
    wait_published(log)
    return log


def say(log: EventLog, *texts: str) -> None:
    for text in texts:
        log.append(Speech(state="start", time=0.0))
        log.append(final(log.last_seq, text, start=float(log.last_seq)))
    wait_published(log)


def revise(log: EventLog, of: int, text: str) -> None:
    log.append(Revision(of=of, by="glossary", text=text, words=(), edits=()))
    wait_published(log)


def close(log: EventLog) -> None:
    log.close()
    wait_published(log)


def brief(events: list[Event]) -> list[str]:
    return [f"{event.session}:{getattr(event, 'text', event.type)}" for event in events]


async def earlier(history: History, feed: EventLog, session: str, after: int) -> list[str]:
    async with aclosing(earlier_events(history, feed, session, after)) as events:
        return brief([event async for event in events])


async def test_the_rest_of_a_session_and_all_later_ones_come_first(history: History) -> None:
    say(begun(history, "a"), "one", "two")  # killed: it has no end
    b = begun(history, "b")
    say(b, "three")
    revise(b, 3, "Three")
    close(b)
    say(begun(history, "client", own=False), "not for all")
    feed = begun(history, "c")
    say(feed, "four")
    rest = ["b:ready", "b:three", "b:Three"]
    assert await earlier(history, feed, "a", 0) == ["a:ready", "a:one", "a:two", *rest]
    assert await earlier(history, feed, "a", 3) == ["a:two", *rest]
    assert await earlier(history, feed, "a", 5) == rest
    assert await earlier(history, feed, "a", 99) == rest
    assert await earlier(history, feed, "b", 3) == ["b:Three"]
    assert await earlier(history, feed, "b", 4) == []
    for unknown in ("client", "never", "c"):
        assert await earlier(history, feed, unknown, 0) == []


async def test_what_the_log_does_not_have_any_more_comes_from_the_file(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "PAGE_EVENTS", 3)
    feed = begun(history, "a", limit=4)
    say(feed, *"abcdefgh")  # the log has g and h
    async with (
        serving(feed, history_file=history) as running,
        running.socket("/v1/captions?after=3&session=a") as client,
    ):
        feed.close()
        events = await events_until(client, "end")
    assert [event.text for event in events if isinstance(event, Final)] == list("bcdefgh")
    assert not [event for event in events if isinstance(event, Error)]
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers))


async def test_a_client_goes_on_over_its_connection_and_hears_no_end_before_the_last(history: History) -> None:
    first = begun(history, "a")
    say(first, "one", "two")
    close(first)
    second = begun(history, "b")
    say(second, "three")
    async with (
        serving(second, history_file=history) as running,
        running.socket("/v1/captions?after=3&session=a") as client,
    ):
        events = [await next_event(client) for _ in range(4)]
        assert brief(events) == ["a:two", "b:ready", "b:speech", "b:three"]
        say(second, "four")
        second.close()
        assert brief(await events_until(client, "end")) == ["b:speech", "b:four", "b:end"]


async def test_what_retention_deleted_is_told_of(history: History) -> None:
    first = begun(history, "a")
    say(first, *"abc")
    close(first)
    with closing(sqlite3.connect(history.path)) as connection, connection:
        connection.execute("UPDATE events SET at = 0 WHERE seq = 3")
    assert history.delete_before(1.0) == 1
    feed = begun(history, "b")
    async with aclosing(earlier_events(history, feed, "a", 0)) as found:
        events = [event async for event in found]
    assert brief(events) == ["a:ready", "a:error", "a:b", "a:c"]
    assert isinstance(events[0], Ready)
    assert isinstance(events[1], Error)
    assert (events[1].seq, events[1].code) == (3, "history_lost")
    assert "history_days" in events[1].message
    assert await earlier(history, feed, "a", 3) == ["a:b", "a:c"]


async def test_a_history_that_cannot_be_read_is_told_of_and_the_present_goes_on(history: History) -> None:
    say(begun(history, "a"), "one")
    feed = begun(history, "b")
    say(feed, "two")
    with closing(sqlite3.connect(history.path)) as connection, connection:
        connection.execute("DROP TABLE events")
    async with (
        serving(feed, history_file=history) as running,
        running.socket("/v1/captions?after=1&session=a") as client,
    ):
        lost = await next_event(client)
        assert isinstance(lost, Error)
        assert (lost.session, lost.seq, lost.code, lost.fatal) == ("a", 1, "history_lost", False)
        assert brief([await next_event(client) for _ in range(3)]) == ["b:ready", "b:speech", "b:two"]


async def test_a_long_replay_is_read_as_the_client_takes_it_and_stalls_nobody(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "PAGE_EVENTS", 10)
    long = begun(history, "a")
    for i in range(800):
        long.append(final(i, "word " * 200))
    wait_published(long)
    feed = begun(history, "b")
    n_pages = 0
    read = History.events

    def counted(history: History, session: str, after: int) -> list[Event]:
        nonlocal n_pages
        n_pages += 1
        return read(history, session, after)

    monkeypatch.setattr(History, "events", counted)
    async with serving(feed, history_file=history) as running:
        deaf = await asyncio.to_thread(deaf_socket, running.port, "/v1/captions?after=0&session=a")
        with closing(deaf):
            async with running.socket("/v1/captions?after=0&session=b") as other:
                await next_event(other)
                for i in range(20):
                    say(feed, f"live {i}")
                    await within(events_until(other, "final"))
                before = -1
                while n_pages > before:  # until no more is taken
                    before = n_pages
                    await asyncio.sleep(0.1)
                assert n_pages < 60  # of 80: nobody reads what is not taken
