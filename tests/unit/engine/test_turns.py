"""Pauses that a turn model judges: when speech ends and its text is final."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import SAMPLE_RATE
from streamer.engine.follower import Follower
from streamer.engine.inlet import AudioKind
from streamer.events import Speech, Turn
from streamer.session.gate import PAUSE_SAMPLES
from tests.fakes import words_at
from tests.unit.engine.simulation import GATE, Machine, Talker, settings_of

SILENCE_S = 2.0
TURNS = settings_of(gate=msgspec.structs.replace(GATE, turns=True, turn_silence_s=SILENCE_S))
REFUSED = -1.0


class Asked(Follower):
    """Notes the turns that are to be judged."""

    def __init__(self, verdicts: list[float | None]) -> None:
        self.turns: list[tuple[int, int]] = []
        self._verdicts = verdicts

    def judge(self, start: int, end: int) -> bool:
        """See Follower."""
        self.turns.append((start, end))
        return self._verdicts[:1] != [REFUSED]


class Judged(Talker):
    """A session whose pauses are judged: `verdicts`, one after the other, before the next audio comes."""

    def __init__(self, *starts_s: float, verdicts: Iterable[float | None] = (), **options: Any) -> None:  # noqa: ANN401
        self.verdicts = list(verdicts)
        asked = Asked(self.verdicts)
        self.asked = asked.turns
        super().__init__(0, words_at(*starts_s), followers=[asked], **{"settings": TURNS, **options})
        Machine().add(self)

    def answer(self) -> None:
        """Judge the newest pause."""
        self.live.judge(self.asked[-1][1], self.verdicts.pop(0))
        self.machine.work()

    def say_until(self, time_s: float) -> None:
        """Speak, and judge each pause at once."""
        n_asked = len(self.asked)
        while self.live.ring.head < time_s * SAMPLE_RATE:
            self.speak_until(self.live.ring.head / SAMPLE_RATE + 0.1)
            if len(self.asked) > n_asked and self.verdicts != [REFUSED]:
                n_asked = len(self.asked)
                self.answer()

    @property
    def turns(self) -> list[tuple[float, bool]]:
        return [(event.probability, event.finished) for event in self.events if isinstance(event, Turn)]

    @property
    def speech(self) -> list[tuple[str, float]]:
        return [(event.state, event.time) for event in self.events if isinstance(event, Speech)]


def test_if_the_speaker_has_finished_speech_ends_as_without_a_model() -> None:
    talker, other = Judged(1.0, 1.5, verdicts=(0.8,)), Judged(1.0, 1.5, settings=settings_of())
    for each in (talker, other):
        each.say_until(2.5)
        assert each.finals == []
        each.say_until(3.0)
        assert each.texts == ["w0 w1"]
    assert talker.speech == other.speech
    turn = next(event for event in talker.events if isinstance(event, Turn))
    assert (turn.probability, turn.finished) == (0.8, True)
    assert turn.time == pytest.approx(2.0 + PAUSE_SAMPLES / SAMPLE_RATE, abs=2 * CHUNK_SAMPLES / SAMPLE_RATE)
    talker.finish(3.0)


def test_speech_goes_on_through_pauses_of_an_unfinished_turn() -> None:
    talker = Judged(1.0, 3.0, 4.5, verdicts=(0.2, 0.49, 0.5))
    talker.say_until(4.4)
    assert talker.finals == []
    assert talker.turns == [(0.2, False), (0.49, False)]
    talker.say_until(5.9)
    assert talker.texts == ["w0 w1 w2"]
    assert [state for state, _ in talker.speech] == ["start", "end"]
    # The whole turn is judged, each pause once.
    (start,) = {start for start, _ in talker.asked}
    assert start / SAMPLE_RATE == pytest.approx(talker.speech[0][1], abs=0.001)
    assert len(talker.asked) == 3
    talker.finish(6.0)


@pytest.mark.parametrize("verdict", [None, REFUSED])
def test_without_a_verdict_silence_decides(verdict: float | None) -> None:
    talker = Judged(1.0, 3.0, verdicts=(verdict,))
    talker.say_until(1.5 + GATE.min_silence_s + 0.2)
    assert talker.texts == ["w0"]
    assert talker.turns == []
    talker.finish(2.5)


def test_a_verdict_that_comes_late_is_not_published() -> None:
    talker = Judged(1.0, 2.0, verdicts=(0.9, 0.9))
    talker.speak_until(2.2)
    assert len(talker.asked) == 1
    talker.answer()
    assert (talker.turns, talker.finals) == ([], [])
    talker.speak_until(2.9)
    talker.live.judge(talker.asked[0][1], 0.9)  # the pause before: that is over
    assert talker.turns == []
    talker.answer()
    talker.finish(3.0)
    assert talker.texts == ["w0 w1"]


def test_a_session_that_ends_waits_for_no_verdict() -> None:
    talker = Judged(1.0, verdicts=(0.9,))
    talker.finish(1.9)
    talker.answer()
    assert (talker.texts, talker.turns) == (["w0"], [])


def test_recorded_audio_waits_for_the_verdict() -> None:
    talker = Judged(1.0, 1.5, 3.5, verdicts=(0.9, 0.1), kind=AudioKind.RECORDED)
    talker.write_until(6.5)
    talker.live.end()
    talker.machine.work()
    assert talker.live.position == talker.asked[0][1]
    talker.answer()
    assert talker.live.position == talker.asked[1][1]
    talker.answer()
    assert talker.turns == [(0.9, True), (0.1, False)]
    assert talker.texts == ["w0 w1", "w2"]
    talker.check()
