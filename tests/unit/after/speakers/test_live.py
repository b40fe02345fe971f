"""Who speaks, in the events of a session and in a recording, with stand-in vectors."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from streamer.after.correct.pipeline import CorrectionFollower, Corrections
from streamer.after.speakers import live
from streamer.after.speakers.diarization import Diarization
from streamer.after.speakers.live import RecordedSpeakers, SpeakerFollower, SpeakerModel
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from streamer.events import Event, Final, Revision, Speakers, Speech
from streamer.health import Health
from streamer.settings.table import Settings
from tests.builders import final, words
from tests.fakes import FakeDetector
from tests.unit.after.live import Hanging, Live, check_freed, patience
from tests.unit.after.speakers.voices import heard
from tests.waiting import WAIT_S, wait_until


def person_of(samples: Float32Array) -> Float32Array:
    """Return the vector of whoever speaks: person n is a sound of n hundredths."""
    levels = np.round(samples[np.abs(samples) > 0.005] * 100).astype(int)
    people, counts = np.unique(levels, return_counts=True)
    shares = {int(person): float(n) / len(levels) for person, n in zip(people, counts, strict=True)}
    return heard(shares, seed=len(samples) + int(counts[0]))


def said(start_s: float, end_s: float, segment: int = 1) -> Final:
    """Return a final with a word each half second."""
    text = " ".join(f"w{n}" for n in range(round(2 * (end_s - start_s))))
    return final(text, start=start_s, segment=segment, words=words(text, start_s, step=0.5))


class Session(Live):
    """A session in which people speak."""

    def __init__(
        self, vector_of: Callable[[Float32Array], Float32Array | None] = person_of, buffer_s: int = 60
    ) -> None:
        super().__init__(buffer_s=buffer_s)
        self.health = Health()
        model = SpeakerModel(vector_of, {}, self.health)
        self.diarization = Diarization(model.known)
        corrections = Corrections([], deadline_s=WAIT_S)
        finals = CorrectionFollower(corrections, self.session, self.log, diarization=self.diarization)
        self.speakers = SpeakerFollower(model, self.session, self.log, self.diarization, finals)
        self.follow(self.speakers, finals)

    def speak(self, person: int, start_s: float, end_s: float) -> None:
        """Write audio in which a person speaks, and what the session publishes of it before its final."""
        self.publish(Speech(state="start", time=start_s))
        self.write(end_s - start_s, person / 100)
        self.publish(Speech(state="end", time=end_s))


def labels(event: Event) -> list[str | None]:
    assert isinstance(event, Final | Revision)
    return [word.speaker for word in event.words]


def newest(session: Session) -> set[str | None]:
    """Return the labels of the newest final at the end of a session: of its newest revision, else its own."""
    *_, last = [event for event in session.finish() if isinstance(event, Final | Revision)]
    return set(labels(last))


def test_labels_that_come_too_late_for_the_final_are_published_as_a_revision_before_the_end() -> None:
    hanging = Hanging()
    session = Session(lambda samples: hanging() or person_of(samples))  # type: ignore[func-returns-value]
    session.publish(Speech(state="start", time=0.0))
    session.write(4.0, 0.01)
    session.write(4.0, 0.02)
    session.publish(Speech(state="end", time=8.0))
    assert hanging.begun.wait(WAIT_S)
    session.publish(said(0.0, 8.0))
    assert labels(session.events[-1]) == [None] * 16
    hanging.let_go.set()
    assert [event.type for event in session.finish()] == ["speech", "speech", "final", "revision", "end"]
    (revision,) = session.revisions
    assert (revision.of, revision.by, revision.edits) == (3, "speakers", ())
    # To half a second at the border of the two.
    assert (labels(revision)[:7], labels(revision)[9:]) == (["S1"] * 7, ["S2"] * 7)


def test_a_final_has_the_labels_that_are_known_and_is_not_published_again_if_they_stay() -> None:
    session = Session()
    for number, person in enumerate((1, 2, 1)):
        start_s = 5.0 * number
        session.speak(person, start_s, start_s + 4.0)
        session.write(1.0, person / 100)
        wait_until(lambda: not session.diarization.is_open)
        session.publish(said(start_s, start_s + 4.0, number))
    session.finish()
    assert [set(labels(event)) for event in session.events if isinstance(event, Final)] == [{"S1"}, {"S2"}, {"S1"}]
    assert not any(isinstance(event, Revision | Speakers) for event in session.events)


def test_audio_that_is_gone_leaves_words_without_a_label_and_the_session_ends() -> None:
    session = Session(buffer_s=2)
    session.write(8.0, 0.01)
    session.publish(Speech(state="start", time=0.0), Speech(state="end", time=6.0), said(0.0, 6.0))
    assert newest(session) == {None}


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("detecting", [True, False])
def test_all_speech_has_labels_at_the_end(ends: bool, detecting: bool) -> None:
    session = Session()
    session.detecting = detecting
    session.publish(Speech(state="start", time=0.0))
    session.write(4.0, 0.01)
    session.publish(*[Speech(state="end", time=4.0)][: int(ends)], said(0.0, 4.0))
    assert newest(session) == {"S1"}
    assert not session.diarization.is_open


def test_a_session_whose_recognition_fails_is_left_alone_and_ends() -> None:
    session, failed = Session(), threading.Event()

    def fail(window: object, samples: object, vector: object) -> None:
        failed.set()
        raise RuntimeError("a defect")

    session.diarization.take = fail  # type: ignore[method-assign]
    session.speak(1, 0.0, 4.0)
    assert failed.wait(WAIT_S)
    session.finish()
    assert session.speakers.failed
    session.diarization.begin = lambda position: pytest.fail("begun")  # type: ignore[method-assign]
    session.speakers.label(Speech(state="start", time=8.0))


def test_a_model_that_hangs_keeps_no_session_from_its_end_nor_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s, hanging = patience(monkeypatch), Hanging()

    def make() -> Live:
        session = Session(lambda samples: hanging() or person_of(samples))  # type: ignore[func-returns-value]
        session.speak(1, 0.0, 4.0)
        session.publish(said(0.0, 4.0))
        return session

    with hanging.session(make()) as events:
        assert not any(isinstance(event, Revision) for event in events)
    assert waited_s[0] == live.END_S
    hanging.begun.clear()
    check_freed(make, hanging.begun.is_set)


def test_a_model_that_fails_is_reported_and_leaves_words_without_a_label() -> None:
    def fail(samples: Float32Array) -> Float32Array:
        raise StreamerError("lost")

    session = Session(fail)
    session.speak(1, 0.0, 4.0)
    session.publish(said(0.0, 4.0))
    assert newest(session) == {None}
    assert session.health.why == {"speakers": "lost"}


def test_labels_that_are_one_person_are_published() -> None:
    session = Session()
    session.diarization._merged = [("S2", "S1")]
    session.speak(1, 0.0, 2.0)
    (published,) = [event for event in session.finish() if isinstance(event, Speakers)]
    assert published.same == ("S2", "S1")


def test_who_speaks_in_a_recording_is_known_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "load_vectors", lambda: person_of)
    monkeypatch.setattr(live, "known_voices", lambda settings: {})
    monkeypatch.setattr("streamer.offline.speech.SpeechDetector", FakeDetector)
    samples = np.repeat(np.array([0.01, 0.0, 0.02, 0.0], np.float32), [n * SAMPLE_RATE for n in (5, 3, 5, 3)])
    blocks, diarization = RecordedSpeakers(Settings()).recognize(np.array_split(samples, 250))
    np.testing.assert_array_equal(np.concatenate(list(blocks)), samples)
    assert [diarization.speaker(at, at + 0.3) for at in (1.0, 4.0, 9.0, 12.0)] == ["S1", "S1", "S2", "S2"]
