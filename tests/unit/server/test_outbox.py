import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.events import Event, Final, Gap, Partial, Speech
from streamer.server.outbox import Outbox
from tests.wire.support import final, partial


def drain(outbox: Outbox) -> list[int]:
    seqs = []
    while (event := outbox.take()) is not None:
        seqs.append(event.seq)
    return seqs


@pytest.mark.parametrize("newer", [partial(1, "a b"), final(1, "a b")])
def test_newer_text_replaces_a_queued_partial_of_its_segment(newer: Event) -> None:
    outbox = Outbox(10)
    for seq, event in enumerate((partial(1, "a"), partial(2, "x"), newer), 1):
        outbox.put(event.stamped(seq, "s"))
    assert outbox.n_superseded == 1
    assert drain(outbox) == [2, 3]


def test_partials_alone_never_overflow() -> None:
    outbox = Outbox(2)
    for seq in range(1, 1000):
        outbox.put(partial(1, "a").stamped(seq, "s"))
    assert not outbox.overflowed
    assert len(outbox) == 1


def test_overflow_says_where_to_come_back() -> None:
    outbox = Outbox(3)
    for seq in range(1, 5):
        outbox.put(final(seq, "a").stamped(seq, "s"))
        if seq == 1:
            outbox.take()
    assert not outbox.overflowed
    outbox.put(final(5, "a").stamped(5, "s"))
    assert outbox.overflowed
    assert outbox.overflow_reason == "too slow: 4 events behind (server.queue_events), reconnect with ?after=1"
    outbox.put(final(6, "a").stamped(6, "s"))
    assert len(outbox) == 4


def test_a_long_replay_does_not_count_as_being_slow() -> None:
    outbox = Outbox(3, [final(seq, "a").stamped(seq, "s") for seq in range(1, 101)])
    for seq in range(101, 104):
        outbox.put(final(seq, "a").stamped(seq, "s"))
    assert not outbox.overflowed
    outbox.put(final(104, "a").stamped(104, "s"))
    assert outbox.overflowed


def test_a_live_final_supersedes_a_partial_of_the_replay() -> None:
    outbox = Outbox(1, [partial(1, "a").stamped(1, "s")])
    outbox.put(final(1, "a").stamped(2, "s"))
    assert not outbox.overflowed
    assert drain(outbox) == [2]


EVENTS = st.lists(
    st.one_of(
        st.integers(1, 3).map(lambda segment: partial(segment, "a")),
        st.integers(1, 3).map(lambda segment: final(segment, "a")),
        st.just(Speech(state="start", time=0.0)),
        st.just(Gap(start=0.0, end=1.0, reason="overrun")),
        st.none(),  # the subscriber takes one
    ),
    max_size=60,
)


@given(EVENTS, st.integers(0, 60))
def test_only_superseded_partials_are_ever_missing(steps: list[Event | None], n_replay: int) -> None:
    events = [event.stamped(seq, "s") for seq, event in enumerate((e for e in steps if e is not None), 1)]
    outbox = Outbox(1000, events[:n_replay])
    waiting = iter(events[n_replay:])
    taken: list[Event] = []
    for step in steps:
        if step is None:
            event = outbox.take()
            taken += [] if event is None else [event]
        elif (event := next(waiting, None)) is not None:
            outbox.put(event)
    for event in waiting:
        outbox.put(event)
    while (event := outbox.take()) is not None:
        taken.append(event)
    assert [e.seq for e in taken] == sorted({e.seq for e in taken})
    missing = [event for event in events if event not in taken]
    assert len(missing) == outbox.n_superseded
    for event in missing:
        assert isinstance(event, Partial)
        assert any(
            isinstance(later, Partial | Final) and later.segment == event.segment and later.seq > event.seq
            for later in taken
        )
