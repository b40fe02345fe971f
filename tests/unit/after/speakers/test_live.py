"""Who speaks, in the events of a session: with stand-in vectors, and what there is without a model."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from streamer.after.correct.pipeline import CorrectionFollower, Corrections
from streamer.after.speakers import live
from streamer.after.speakers.diarization import Diarization
from streamer.after.speakers.live import SpeakerFollower, SpeakerModel
from streamer.arrays import Float32Array
from streamer.check import check_options
from streamer.errors import ConfigError
from streamer.events import Event, Final, Revision, Speakers, Speech
from streamer.health import Health
from streamer.settings.load import load_settings
from tests.builders import final, words
from tests.daemon import Outcome
from tests.unit.after.live import Live
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


class Session(Live):
    """A session in which people speak."""

    def __init__(
        self, vector_of: Callable[[Float32Array], Float32Array | None] = person_of, buffer_s: int = 60
    ) -> None:
        super().__init__(buffer_s=buffer_s)
        self.health = Health()
        self.model = SpeakerModel(vector_of, {}, self.health)
        self.diarization = Diarization(self.model.known)
        finals = CorrectionFollower(
            Corrections([], deadline_s=WAIT_S), self.session, self.log, diarization=self.diarization
        )
        self.speakers = SpeakerFollower(self.model, self.session, self.log, self.diarization, finals)
        self.follow(self.speakers, finals)

    def speech(self, person: int, start_s: float, end_s: float) -> None:
        """Write audio in which a person speaks, and what the session publishes of it before its final."""
        self.publish(Speech(state="start", time=start_s))
        self.write(end_s - start_s, person / 100)
        self.publish(Speech(state="end", time=end_s))

    def wait_until_heard(self) -> None:
        wait_until(lambda: not self.diarization.is_open)


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
    session.publish(Speech(state="start", time=0.0))
    session.write(4.0, 0.01)
    session.write(4.0, 0.02)
    session.publish(Speech(state="end", time=8.0))
    assert heard_first.wait(WAIT_S)
    session.publish(spoken(0.0, 8.0))
    assert labels(session.events[-1]) == [None] * 16
    go_on.set()
    session.finish()
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
        session.publish(Speech(state="start", time=start))
        session.write(5.0, person / 100)
        session.publish(Speech(state="end", time=start + 4.0))
        session.wait_until_heard()
        session.publish(spoken(start, start + 4.0, number))
    session.finish()
    assert [set(labels(event)) for event in session.events if isinstance(event, Final)] == [{"S1"}, {"S2"}, {"S1"}]
    assert not any(isinstance(event, Revision | Speakers) for event in session.events)


def test_audio_that_is_gone_leaves_words_without_a_label_and_the_session_ends() -> None:
    session = Session(buffer_s=2)
    session.write(8.0, 0.01)
    session.publish(Speech(state="start", time=0.0), Speech(state="end", time=6.0), spoken(0.0, 6.0))
    session.finish()
    assert set(newest(session.events)) == {None}


def test_the_end_is_heard_where_nobody_knows_any_more_how_far_speech_was_looked_for() -> None:
    session = Session()
    session.detecting = False
    session.speech(1, 0.0, 4.0)
    session.publish(spoken(0.0, 4.0))
    session.finish()
    assert set(newest(session.events)) == {"S1"}


def test_a_session_that_cannot_be_heard_is_left_alone_and_ends() -> None:
    session = Session()
    over = threading.Event()

    def fail(window: object, samples: object, vector: object) -> None:
        over.set()
        raise RuntimeError("a defect")

    session.diarization.take = fail  # type: ignore[method-assign]
    session.speech(1, 0.0, 4.0)
    assert over.wait(WAIT_S)
    session.finish()
    assert session.speakers.failed
    n_regions = len(session.diarization._regions)
    session.speakers.label(Speech(state="start", time=8.0))
    assert len(session.diarization._regions) == n_regions


def test_labels_of_the_newest_finals_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RECENT_S", 5.0)
    session = Session()
    for number in range(5):
        session.speech(1, 2.0 * number, 2.0 * number + 2.0)
        session.publish(spoken(2.0 * number, 2.0 * number + 2.0, number))
    session.finish()
    assert [final.end for final in session.speakers._recent.values()] == [6.0, 8.0, 10.0]


def test_labels_that_are_one_person_are_published() -> None:
    session = Session()
    session.diarization._merged = [("S2", "S1")]
    session.speech(1, 0.0, 2.0)
    (published,) = [event for event in session.finish() if isinstance(event, Speakers)]
    assert published.same == ("S2", "S1")


def test_speech_that_goes_on_ends_with_the_session() -> None:
    session = Session()
    session.publish(Speech(state="start", time=0.0))
    session.write(3.0, 0.01)
    session.publish(spoken(0.0, 3.0))
    session.finish()
    assert set(newest(session.events)) == {"S1"}
    assert not session.diarization.is_open


def test_without_a_model_a_daemon_does_not_start_and_says_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_here: Callable[..., Outcome]
) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    settings = load_settings(None, {}, {"speakers.enabled": True})
    with pytest.raises(ConfigError, match="`streamer models pull speakers`"):
        check_options(settings, streaming=True)
    done = run_here("run", "--speakers", "--input", "none")
    assert (done.exit_code, "streamer models pull speakers" in done.stderr) == (2, True)
