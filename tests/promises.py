"""What docs/protocol.md promises of a session's events, checked on events as a client received them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from streamer.events import End, Error, Event, Final, Gap, Partial, Ready, Speech, Word

# Times are rounded to the millisecond, each by itself.
ROUNDING_S = 0.0015


@dataclass
class _State:
    """What the events so far have said."""

    # Number of the segment that is open, and where the last final ended.
    segment: int = 1
    settled_until_s: float = 0.0

    # Longest stable prefix of the open segment.
    stable: str = ""

    # When speech began that goes on; None in silence.
    speech_since_s: float | None = None

    # Speech from start to end, and what accounts for it: finals and gaps.
    spoken: list[tuple[float, float]] = field(default_factory=list)
    told: list[tuple[float, float]] = field(default_factory=list)

    # Where a fatal error was published: no more audio is heard.
    failed: bool = False


def check_promises(events: Sequence[Event], *, duration_s: float | None = None, ended: bool = True) -> None:
    """Hold the events of one session, from its first on, against every promise.

    `duration_s` is the length of the audio, where known; `ended` says whether the session has come to its end. Raises
    AssertionError for the first promise that is broken.
    """
    assert events, "a session has at least a `ready` event"
    state = _State()
    for i, event in enumerate(events):
        previous = events[i - 1] if i else None
        assert event.session == events[0].session, f"{event} is of another session"
        assert event.session, f"{event} names no session"
        _check_number(previous, event, events[i:])
        assert isinstance(event, Ready) == (i == 0), f"`ready` comes first and once: {event}"
        assert not isinstance(previous, End), f"{event} after `end`"
        match event:
            case Ready():
                assert event.protocol == 1
                assert event.sample_rate == 16_000
                assert event.model
                assert set(event.device) == {"encoder", "cross_kv", "decoder"}
            case Speech():
                _take_speech(state, event)
            case Partial():
                _take_partial(state, event)
            case Final():
                _take_final(state, event)
            case Gap():
                assert event.start < event.end, f"{event} is empty"
                state.told.append((event.start, event.end))
            case Error():
                assert event.code
                assert event.message
                assert "\n" not in event.message
                assert not state.failed, f"{event} after a fatal error"
                state.failed = event.fatal
        if duration_s is not None:
            _check_within(event, duration_s)
    assert isinstance(events[-1], End) == ended, f"the last event is {events[-1]}"
    if ended:
        assert state.speech_since_s is None, f"speech that began at {state.speech_since_s} s never ended"
        _check_covered(state)


def transcript(events: Sequence[Event]) -> str:
    """Return the finals, joined."""
    return " ".join(event.text for event in events if isinstance(event, Final) and event.text)


def _check_number(previous: Event | None, event: Event, rest: Sequence[Event]) -> None:
    if previous is None:
        assert event.seq == 1, f"the first number is {event.seq}"
        return
    assert event.seq > previous.seq, f"number {event.seq} after {previous.seq}"
    if event.seq > previous.seq + 1:
        # Only partials leave the queue, and only for a newer text of their segment. (What the other promises say of
        # segments, speech and coverage would fail if anything else were missing.)
        assert any(isinstance(later, Partial | Final) for later in rest), (
            f"numbers {previous.seq + 1} to {event.seq - 1} are missing, and no later text stands for them"
        )


def _take_speech(state: _State, event: Speech) -> None:
    if event.state == "start":
        assert state.speech_since_s is None, f"{event}: speech has begun already"
        latest_s = state.spoken[-1][1] if state.spoken else 0.0
        assert event.time >= latest_s - ROUNDING_S, f"{event} lies before {latest_s} s, where speech had ended"
        state.speech_since_s = event.time
    else:
        assert state.speech_since_s is not None, f"{event}: there was no speech"
        assert event.time >= state.speech_since_s, f"{event}: speech began later"
        state.spoken.append((state.speech_since_s, event.time))
        state.speech_since_s = None


def _take_partial(state: _State, event: Partial) -> None:
    assert event.segment == state.segment, f"segment {state.segment} is open: {event}"
    assert 0 <= event.stable <= len(event.text), f"{event.stable} of {len(event.text)} characters: {event}"
    stable = event.text[: event.stable]
    assert stable.startswith(state.stable), f"{state.stable!r} was stable and is {stable!r} now"
    state.stable = stable
    assert event.start >= state.settled_until_s - ROUNDING_S, f"{event} begins before {state.settled_until_s} s"
    _check_words(event, event.words)
    n_stable = sum(word.stable for word in event.words)
    assert all(word.stable for word in event.words[:n_stable]), f"a stable word behind one that is not: {event}"
    assert "".join(word.word for word in event.words[:n_stable]).lstrip() == stable, (
        f"`stable` and the words' `stable` say different things: {event}"
    )


def _take_final(state: _State, event: Final) -> None:
    assert event.segment == state.segment, f"segment {state.segment} is open: {event}"
    assert event.text.startswith(state.stable), f"{state.stable!r} was stable, the final says {event.text!r}"
    assert event.start >= state.settled_until_s - ROUNDING_S, f"{event} begins before {state.settled_until_s} s"
    _check_words(event, event.words)
    assert event.language
    assert 0.0 <= event.no_speech_prob <= 1.0
    assert event.avg_logprob <= 0.0
    state.told.append((event.start, event.end))
    state.segment += 1
    state.settled_until_s = event.end
    state.stable = ""


def _check_words(event: Partial | Final, words: Sequence[Word]) -> None:
    assert event.start <= event.end, f"{event} ends before it begins"
    assert event.text == "".join(word.word for word in words).strip(), f"the words do not give the text: {event}"
    earliest_s = event.start
    for word in words:
        assert word.word, f"an empty word: {event}"
        assert 0.0 <= word.probability <= 1.0
        assert earliest_s - ROUNDING_S <= word.start <= word.end <= event.end + ROUNDING_S, (
            f"{word} does not lie behind {earliest_s} s and within its segment: {event}"
        )
        earliest_s = word.end


def _check_within(event: Event, duration_s: float) -> None:
    match event:
        case Speech():
            times = (event.time,)
        case Partial() | Final() | Gap():
            times = (event.start, event.end)  # type: ignore[assignment]
        case _:
            return
    assert all(0.0 <= time <= duration_s + ROUNDING_S for time in times), f"{event}, and the audio has {duration_s} s"


def _check_covered(state: _State) -> None:
    told = sorted(state.told)
    for start_s, end_s in state.spoken:
        reached_s = start_s
        for first_s, last_s in told:
            if first_s <= reached_s + ROUNDING_S:
                reached_s = max(reached_s, last_s)
        assert reached_s >= end_s - ROUNDING_S, (
            f"speech from {start_s} s to {end_s} s: from {reached_s} s on it lies in no final and no gap"
        )
