"""Who speaks, in the events of a session: with stand-in vectors, and what there is without a model."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from streamer.after.correct.pipeline import Corrections
from streamer.after.speakers.live import SpeakersOfSession, SpeakersOfSessions, label_word
from streamer.arrays import Float32Array
from streamer.audio.ring import Overrun, RingBuffer
from streamer.check import check_options
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.errors import ConfigError
from streamer.events import Event, Final, Revision, Speakers, Speech
from streamer.health import Health
from streamer.settings.load import load_settings
from tests.builders import final, words
from tests.daemon import Outcome
from tests.unit.after.speakers.voices import heard
from tests.waiting import WAIT_S, wait_until


def person_of(samples: Float32Array) -> Float32Array:
    """Return the vector of whoever speaks: person n is a sound of n hundredths."""
    levels = np.round(samples[np.abs(samples) > 0.005] * 100).astype(int)
    people, counts = np.unique(levels, return_counts=True)
    shares = {int(person): float(n) / len(levels) for person, n in zip(people, counts, strict=True)}
    return heard(shares, seed=len(samples) + int(counts[0]))


def spoken(start_s: float, end_s: float, segment: int = 1) -> Final:
    """Return a final with a word each half second."""
    text = " ".join(f"w{n}" for n in range(round(2 * (end_s - start_s))))
    return final(text, start=start_s, segment=segment, words=words(text, start_s, step=0.5))


class Session:
    """A session whose audio and events the test writes."""

    def __init__(self, vector_of: Callable[[Float32Array], Float32Array | None] = person_of, seconds: int = 60) -> None:
        self.events: list[Event] = []
        self.log = EventLog("abc", 100)
        self.log.subscribe(self.events.append)
        self.ring = RingBuffer(seconds * SAMPLE_RATE)
        self.health = Health()
        self.thread = SpeakersOfSessions(vector_of, {}, self.health)
        self.finals = Corrections([], deadline_s=WAIT_S).follow(self.log, lambda start, end: None)
        self.is_heard = True
        self.speakers = SpeakersOfSession(
            self.thread, self.log, self.ring, self.audio, lambda: self.ring.head * self.is_heard, self.finals.relabel
        )
        self.finals.label = lambda word: label_word(word, self.speakers.diarization)

    def audio(self, start_s: float, end_s: float) -> Float32Array | None:
        try:
            return self.ring.read(round(start_s * SAMPLE_RATE), round(end_s * SAMPLE_RATE))
        except Overrun:
            return None

    def say(self, person: int, seconds: float) -> None:
        self.ring.write(np.full(round(seconds * SAMPLE_RATE), person / 100, dtype=np.float32))

    def speech(self, person: int, start_s: float, end_s: float) -> None:
        """Write audio in which a person speaks, and what the session publishes of it before its final."""
        self.tell(Speech(state="start", time=start_s))
        self.say(person, end_s - start_s)
        self.tell(Speech(state="end", time=end_s))

    def tell(self, *events: Event) -> None:
        for event in events:
            self.log.append(self.speakers.label(event))

    def wait_until_heard(self) -> None:
        wait_until(lambda: not self.speakers.diarization.is_open)

    def end(self) -> None:
        over = threading.Event()

        def close() -> None:
            self.log.close()
            over.set()

        self.speakers.finish(lambda: self.finals.finish(close))
        assert over.wait(WAIT_S)


def labels(event: Event) -> list[str | None]:
    assert isinstance(event, Final | Revision)
    return [word.speaker for word in event.words]


def newest(events: Sequence[Event]) -> list[str | None]:
    """The labels of the newest final that hold: of its newest revision, else its own."""
    last = [event for event in events if isinstance(event, Final)][-1]
    return labels([last, *(event for event in events if isinstance(event, Revision) and event.of == last.seq)][-1])


def test_labels_that_come_too_late_for_the_final_are_told_as_a_revision_before_the_end() -> None:
    heard_first, go_on = threading.Event(), threading.Event()

    def late(samples: Float32Array) -> Float32Array:
        heard_first.set()
        assert go_on.wait(WAIT_S)
        return person_of(samples)

    session = Session(late)
    session.tell(Speech(state="start", time=0.0))
    session.say(1, 4.0)
    session.say(2, 4.0)
    session.tell(Speech(state="end", time=8.0))
    assert heard_first.wait(WAIT_S)
    session.tell(spoken(0.0, 8.0))
    assert labels(session.events[-1]) == [None] * 16
    go_on.set()
    session.end()
    assert [event.type for event in session.events] == ["speech", "speech", "final", "revision", "end"]
    told = session.events[3]
    assert isinstance(told, Revision)
    assert (told.of, told.by, told.edits) == (3, "speakers", ())
    # To half a second at the border of the two.
    assert (labels(told)[:7], labels(told)[9:]) == (["S1"] * 7, ["S2"] * 7)


def test_a_final_has_the_labels_that_are_known_and_is_not_told_again_where_they_stay() -> None:
    session = Session()
    for number, person in enumerate((1, 2, 1)):
        start = 5.0 * number
        session.tell(Speech(state="start", time=start))
        session.say(person, 5.0)
        session.tell(Speech(state="end", time=start + 4.0))
        session.wait_until_heard()
        session.tell(spoken(start, start + 4.0, number))
    session.end()
    assert [set(labels(event)) for event in session.events if isinstance(event, Final)] == [{"S1"}, {"S2"}, {"S1"}]
    assert not any(isinstance(event, Revision | Speakers) for event in session.events)


def test_audio_that_is_gone_leaves_words_without_a_label_and_the_session_ends() -> None:
    session = Session(seconds=2)
    session.say(1, 8.0)
    session.tell(Speech(state="start", time=0.0), Speech(state="end", time=6.0), spoken(0.0, 6.0))
    session.end()
    assert set(newest(session.events)) == {None}


def test_the_end_is_heard_where_nobody_knows_any_more_how_far_speech_was_looked_for() -> None:
    session = Session()
    session.is_heard = False
    session.speech(1, 0.0, 4.0)
    session.tell(spoken(0.0, 4.0))
    session.end()
    assert set(newest(session.events)) == {"S1"}


def test_a_session_that_cannot_be_heard_is_left_alone_and_ends() -> None:
    session = Session()
    over = threading.Event()

    def fail(window: object, samples: object, vector: object) -> None:
        over.set()
        raise RuntimeError("a defect")

    session.speakers.diarization.take = fail  # type: ignore[method-assign]
    session.speech(1, 0.0, 4.0)
    assert over.wait(WAIT_S)
    session.end()
    assert session.speakers.over
    n_regions = len(session.speakers.diarization._regions)
    session.speakers.label(Speech(state="start", time=8.0))
    assert len(session.speakers.diarization._regions) == n_regions


def test_a_model_that_fails_is_told_and_captions_go_on() -> None:
    broken = True

    def vector_of(samples: Float32Array) -> Float32Array:
        if broken:
            raise RuntimeError("out of memory")
        return person_of(samples)

    session = Session(vector_of)
    session.speech(1, 0.0, 4.0)
    session.tell(spoken(0.0, 4.0))
    session.wait_until_heard()
    assert "out of memory" in session.health.why["speakers"]
    broken = False
    session.speech(1, 4.0, 8.0)
    session.tell(spoken(4.0, 8.0, 2))
    session.end()
    assert session.health.why == {}
    assert set(newest(session.events)) == {"S1"}


def test_nothing_is_computed_for_a_client_that_has_left() -> None:
    begun, go_on, n_computed = threading.Event(), threading.Event(), 0

    def vector_of(samples: Float32Array) -> Float32Array:
        nonlocal n_computed
        n_computed += 1
        begun.set()
        assert go_on.wait(WAIT_S)
        return person_of(samples)

    session = Session(vector_of)
    session.speech(1, 0.0, 8.0)
    assert begun.wait(WAIT_S)
    session.log.close()
    go_on.set()
    session.end()
    assert n_computed == 1
    assert session.speakers.over


def test_a_session_that_is_given_up_is_forgotten() -> None:
    session = Session()
    session.tell(Speech(state="start", time=0.0))
    known = weakref.ref(session.speakers)
    del session
    wait_until(lambda: gc.collect() >= 0 and known() is None)  # the worker may be at its last step


def test_without_a_model_a_daemon_does_not_start_and_says_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_here: Callable[..., Outcome]
) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    settings = load_settings(None, {}, {"speakers.enabled": True})
    with pytest.raises(ConfigError, match="`streamer models pull speakers`"):
        check_options(settings, streaming=True)
    done = run_here("run", "--speakers", "--input", "none")
    assert (done.exit_code, "streamer models pull speakers" in done.stderr) == (2, True)
