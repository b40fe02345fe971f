"""The queue of one subscriber, against a plain list that is searched from end to end."""

from hypothesis import given
from hypothesis import strategies as st

from streamer.events import Event, Final, Gap, Partial, Speech
from streamer.server.outbox import Outbox
from tests.builders import final, partial


class Plain:
    """What an outbox does, as it is described."""

    def __init__(self, limit: int, replay: list[Event]) -> None:
        self.limit, self.replay, self.queue = limit, [*replay], list[Event]()
        self.n_superseded, self.overflowed = 0, False

    def put(self, event: Event) -> None:
        if not self.overflowed:
            self.replay, self.queue = (self.without(event, waiting) for waiting in (self.replay, self.queue))
            self.queue.append(event)
            self.overflowed = len(self.queue) > self.limit

    def without(self, newer: Event, waiting: list[Event]) -> list[Event]:
        """Drop the partials of a segment that has a newer text."""
        if not isinstance(newer, Partial | Final):
            return waiting
        left = [each for each in waiting if not (isinstance(each, Partial) and each.segment == newer.segment)]
        self.n_superseded += len(waiting) - len(left)
        return left

    def take(self) -> Event | None:
        waiting = self.replay or self.queue
        return waiting.pop(0) if waiting and not self.overflowed else None


SEGMENTS = st.integers(1, 3)
EVENTS = st.one_of(
    SEGMENTS.map(lambda segment: partial("a", segment=segment)),
    SEGMENTS.map(lambda segment: final("a", segment=segment)),
    st.just(Speech(state="start", time=0.0)),
    st.just(Gap(start=0.0, end=1.0, reason="overrun")),
)


@given(st.lists(EVENTS, max_size=20), st.lists(st.one_of(EVENTS, st.none()), max_size=60), st.integers(1, 8))
def test_all_events_but_partials_with_newer_text_are_there_until_too_many_wait(
    replay: list[Event], steps: list[Event | None], limit: int
) -> None:
    replay = [event.stamped(seq, "s") for seq, event in enumerate(replay, 1)]
    outbox, plain = Outbox(limit, replay), Plain(limit, replay)
    for seq, step in enumerate([*steps, *[None] * 80], len(replay) + 1):  # None: the subscriber takes one
        if step is None:
            assert outbox.take() == plain.take()
        else:
            outbox.put(step.stamped(seq, "s"))
            plain.put(step.stamped(seq, "s"))
        assert outbox.overflowed == plain.overflowed
    assert plain.overflowed or (len(outbox), outbox.n_superseded) == (0, plain.n_superseded)


def test_overflow_says_where_to_come_back_and_a_replay_does_not_count() -> None:
    outbox = Outbox(3, [final(seq=seq, session="s") for seq in range(1, 101)])
    assert outbox.last_taken is None
    assert outbox.take() == final(seq=1, session="s")
    for seq in range(101, 105):
        assert not outbox.overflowed
        outbox.put(final(seq=seq, session="s"))
    assert outbox.take() is None
    assert outbox.overflow_reason == "too slow: 103 events behind (server.queue_events), reconnect with ?after=1"
