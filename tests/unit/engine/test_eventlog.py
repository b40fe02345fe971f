import itertools
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from streamer.engine.eventlog import EventLog
from streamer.engine.journal import Journal
from streamer.events import End, Error, Event, Final, Gap, Speech, Token, Word
from tests.builders import final, partial, ready, text_of


def brief(events: Iterable[Event]) -> list[tuple[str, int]]:
    return [(event.type, event.seq) for event in events]


def ignore(event: Event) -> None:
    pass


def test_listeners_get_every_event_in_order_until_they_cancel() -> None:
    log = EventLog("s", 10)
    first: list[Event] = []
    second: list[Event] = []
    subscription = log.subscribe(first.append)
    log.append(ready())
    log.subscribe(second.append)
    log.append(partial("a", segment=1))
    subscription.cancel()
    subscription.cancel()
    log.append(final(segment=1))
    assert brief(tuple(first)) == [("ready", 1), ("partial", 2)]
    assert brief(tuple(second)) == [("partial", 2), ("final", 3)]


HAPPENED = {
    "ready": ready(),
    "start": Speech(state="start", time=0.1),
    "stop": Speech(state="end", time=4.0),
    "gap": Gap(start=1, end=2, reason="overrun"),
    "cleared": Gap(start=1, end=2, reason="cleared"),
    "error": Error(code="x", message="y", fatal=False),
    "fatal": Error(code="c", message="d", fatal=True),
    "end": End(),
    **{f"partial{segment}": partial("a", segment=segment) for segment in (1, 2)},
    **{f"final{segment}": final(segment=segment, end=float(segment)) for segment in range(1, 7)},
}


def log_of(happened: str, limit: int = 10) -> EventLog:
    """Return a log of events by their names; session `s`."""
    log = EventLog("s", limit)
    for name in happened.split():
        log.append(HAPPENED[name])
    return log


TALK = "ready start partial1 partial1 final1 gap partial2 error partial2 stop"
TALK_TOLD = "speech 2, final 5, gap 6, error 8, partial 9, speech 10"
FINALS = "ready final1 final2 final3 final4 final5 final6"


@pytest.mark.parametrize(
    ("happened", "since", "backlog"),
    [
        # A newcomer learns where things stand.
        ("ready start partial1 final1", {}, "ready 1, speech 2"),
        ("ready start partial1 final1 partial2 partial2", {}, "ready 1, speech 2, partial 6"),
        ("ready start partial1 final1 partial2 partial2 stop final2", {}, "ready 1"),
        ("ready start partial1 cleared", {}, "ready 1, speech 2"),
        # After the end, of it and of its cause.
        ("ready error fatal end", {}, "ready 1, error 3, end 4"),
        ("ready error fatal end", {"after": 4}, "end 4"),
        # A replay holds what still matters.
        (TALK, {"after": 0}, f"ready 1, {TALK_TOLD}"),
        (TALK, {"after": 1, "session": "s"}, TALK_TOLD),
        (TALK, {"after": 5}, "gap 6, error 8, partial 9, speech 10"),
        (TALK, {"after": 9}, "speech 10"),
        (TALK, {"after": 10}, ""),
        # Numbers of another run bring everything from the start.
        ("ready final1", {"after": 99}, "ready 1, final 2"),
        ("ready final1", {"after": 1, "session": "of another run"}, "ready 1, final 2"),
        # One that reaches too far back says so first.
        (FINALS, {"after": 2}, "error 4, final 5, final 6, final 7"),
        (FINALS, {"after": 0}, "ready 1, error 4, final 5, final 6, final 7"),
        (FINALS, {"after": 4}, "final 5, final 6, final 7"),
    ],
)
def test_backlog(happened: str, since: dict[str, Any], backlog: str) -> None:
    log = log_of(happened, 3 if happened == FINALS else 10)
    found = log.subscribe(ignore, **since).backlog
    assert ", ".join(f"{type} {seq}" for type, seq in brief(found)) == backlog
    assert len(found) == len(list(found))


def test_what_a_replay_lacks_is_told_with_its_time() -> None:
    lost = next(iter(log_of(FINALS, 3).subscribe(ignore, after=2).backlog))
    assert isinstance(lost, Error)
    assert (lost.code, lost.fatal, lost.session) == ("history_lost", False, "s")
    assert "3.000 s" in lost.message


def test_end_comes_once_and_nothing_after_it() -> None:
    log = EventLog("s", 10)
    seen: list[Event] = []
    log.subscribe(seen.append)
    log.append(ready())
    assert not log.closed
    log.close()
    log.close()
    assert log.closed
    assert log.append(final(segment=1)).seq == 0
    assert log.append(End()).seq == 0
    assert brief(tuple(seen)) == [("ready", 1), ("end", 2)]
    assert log.last_seq == 2


def said(segment: int, n_words: int, tokens: tuple[Token, ...] = ()) -> Final:
    """A final with words that begin where none other does."""
    begins = [round(7 * segment + 0.3 * i, 3) for i in range(n_words)]
    words = tuple(
        Word(word=f" wörd{begin}", start=begin, end=begin + 0.25, probability=0.9137, stable=True, tokens=tokens)
        for begin in begins
    )
    return final(text_of(words), start=begins[0], segment=segment, words=words, speaker="1", task="translate")


def test_a_replay_is_what_was_published_to_the_last_token() -> None:
    log = EventLog("s", 10)
    told: list[Event] = []
    log.subscribe(told.append)
    for event in (
        ready(),
        Speech(state="start", time=0.032),
        said(1, 3, (Token(id=7, text="w\ufffd", probability=0.5),)),
        Gap(start=1.0, end=2.5, reason="overload"),
        Error(code="a", message="b", fatal=False),
        partial("a", segment=2),
    ):
        log.append(event)
    log.close()
    backlog = log.subscribe(ignore, after=0).backlog
    assert list(backlog) == told


def test_an_hour_of_finals_that_are_kept_takes_less_than_a_megabyte() -> None:
    log = EventLog("s", 10_000)
    tracemalloc.start()
    try:
        for segment in range(600):
            log.append(said(segment, 15))
        assert tracemalloc.get_traced_memory()[0] < 2**20
    finally:
        tracemalloc.stop()
    assert len(log.subscribe(ignore, after=0).backlog) == 600


class Disk:
    """Stores finals, each when the test says so."""

    def __init__(self) -> None:
        self.storing: list[Callable[[], None]] = []

    def keep(self, event: Event, publish: Callable[[], None]) -> bool:
        if isinstance(event, Final):
            self.storing.append(publish)
        return isinstance(event, Final)


def test_what_is_kept_is_published_when_it_is_stored_and_the_rest_in_its_order() -> None:
    disk = Disk()
    log = Journal("s", 10, disk.keep)
    seen: list[Event] = []
    over: list[int] = []
    log.subscribe(seen.append)
    log.append(ready())
    assert brief(seen) == [("ready", 1)]  # nothing before it is being stored
    assert log.append(final(segment=1)).seq == 2
    log.append(partial("a", segment=2))
    log.append(final(segment=2))
    log.close()
    log.close()
    log.call_behind(lambda: over.append(len(seen)))
    assert log.append(final(segment=3)).seq == 0
    assert brief(seen) == [("ready", 1)]
    assert brief(log.subscribe(ignore, after=0).backlog) == [("ready", 1)]
    first, second = disk.storing
    second()
    assert (len(seen), over, log.closed) == (1, [], False)
    first()
    first()
    assert brief(seen) == [("ready", 1), ("final", 2), ("partial", 3), ("final", 4), ("end", 5)]
    assert (over, log.closed) == ([5], True)
    log.call_behind(lambda: over.append(0))
    assert over == [5, 0]


def test_a_broken_listener_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog("s", 10)
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise OSError("out of order")

    log.subscribe(broken)
    log.subscribe(seen.append)
    log.append(ready())
    log.append(final(segment=1))
    assert len(seen) == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_an_event_that_cannot_be_kept_for_a_replay_is_published_all_the_same() -> None:
    log = EventLog("s", 10)
    seen: list[Event] = []
    log.subscribe(seen.append)
    log.append(final("half a character \ud800", segment=1))
    log.append(final(segment=2))
    assert brief(seen) == [("final", 1), ("final", 2)]
    assert brief(log.subscribe(ignore, after=0).backlog) == [("final", 2)]


def test_a_call_that_fails_keeps_no_event_behind_it() -> None:
    disk = Disk()
    log = Journal("s", 10, disk.keep)
    seen: list[Event] = []
    log.subscribe(seen.append)
    log.append(final(segment=1))
    log.call_behind(lambda: 1 / 0)
    log.append(partial("a", segment=2))
    (stored,) = disk.storing
    stored()
    assert brief(seen) == [("final", 1), ("partial", 2)]


def test_a_listener_may_cancel_itself_or_another() -> None:
    log = EventLog("s", 10)
    seen: list[Event] = []

    def leave(event: Event) -> None:
        one.cancel()
        other.cancel()

    one = log.subscribe(leave)
    other = log.subscribe(seen.append)
    log.append(ready())
    log.append(final(segment=1))
    assert seen == []


def test_subscribing_while_others_publish_loses_and_doubles_nothing() -> None:
    log = EventLog("s", 100_000)
    log.append(ready())
    stop = threading.Event()

    def publish(segments: "itertools.count[int]") -> None:
        while not stop.is_set() and log.last_seq < 2_000:
            log.append(final(segment=next(segments)))

    threads = [threading.Thread(target=publish, args=(itertools.count(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    followed: list[list[int]] = []
    for _ in range(50):
        live: list[Event] = []
        subscription = log.subscribe(live.append, after=0)
        followed.append([event.seq for event in subscription.backlog])
        subscription.cancel()
        followed[-1] += [event.seq for event in live]
    stop.set()
    for thread in threads:
        thread.join()
    for seqs in followed:
        assert seqs == list(range(1, len(seqs) + 1))


def test_events_that_have_their_numbers_are_taken_once_and_in_order() -> None:
    log = EventLog("s1", 100, after=4)
    heard: list[Event] = []
    log.subscribe(heard.append)
    for seq in (5, 5, 4, 9, 7):
        log.put(Speech(seq=seq, session="s1", state="start", time=1.0))
    assert [event.seq for event in heard] == [5, 9]
    assert log.append(End()).seq == 10
    log.put(Speech(seq=11, session="s1", state="start", time=1.0))
    assert [event.seq for event in heard] == [5, 9, 10]
