"""A session that goes on elsewhere: nothing is lost, nothing doubled, and what was said to be stable stays."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.constants import SAMPLE_RATE
from streamer.errors import SessionStateError
from streamer.events import Event
from streamer.session.losses import Loss
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.session.state import NEW, SessionState
from tests.fakes import BAD, FAITHFUL, Manners, spoken
from tests.unit.engine.simulation import SETTINGS, settings_of
from tests.unit.session.scene import Scene, play, scenes
from tests.unit.session.test_session import Conversation


class MovedConversation(Conversation):
    """One whose session moves now and then: it goes on behind the last event and hears the rest again."""

    def __init__(self, settings: SessionSettings, seed: int, move: float, **more: Any) -> None:  # noqa: ANN401
        super().__init__(settings, spoken(random.Random(seed), 60.0), seed=seed, **more)
        self._settings = settings
        self._moves = random.Random(seed + 1)
        self._move = move
        self._stored = msgspec.msgpack.encode(self.session.state)
        self.n_moves = 0
        self.speak_until(62.0)
        self.finish()

    def speak_until(self, end_s: float) -> None:
        while self.position < end_s * SAMPLE_RATE:
            super().speak_until(min(end_s, self.position / SAMPLE_RATE + 0.001))
            if self._moves.random() < self._move:
                self.move()

    def _told(self, events: Sequence[Event]) -> None:
        super()._told(events)
        if events:
            self._stored = msgspec.msgpack.encode(self.session.state)

    def move(self) -> None:
        """Lose the session with all that is on its way; go on from what was stored, and hear again what came since."""
        state = msgspec.msgpack.decode(self._stored, type=SessionState)
        behind, now_s, loss = self.position, self.clock.now_s, self._loss
        self.session = Session(self._settings, state)
        self._slot = self._job = None
        self._released, self.position = state.needed_from, state.received
        self.promises.detected = [span for span in self.promises.detected if span[1] * SAMPLE_RATE <= self.position]
        self.windows.clear()
        self._loss = 0.0
        super().speak_until(behind / SAMPLE_RATE)
        self._loss, self.clock.now_s = loss, now_s
        self.n_moves += 1


@given(seed=st.integers(0, 10_000), cost_s=st.sampled_from((0.05, 0.3, 2.0)))
def test_a_session_that_moves_loses_no_word_and_doubles_none(seed: int, cost_s: float) -> None:
    conversation = MovedConversation(SETTINGS, seed, 0.02, cost_s=cost_s)
    assert conversation.check_words() == [word.index for word in conversation.speaker.words]
    assert not conversation.promises.gaps


@given(
    seed=st.integers(0, 10_000),
    manners=st.sampled_from((FAITHFUL, BAD)),
    policy=st.sampled_from(("agreement", "alignatt")),
)
def test_promises_hold_whatever_else_goes_wrong(seed: int, manners: Manners, policy: str) -> None:
    MovedConversation(settings_of(policy=policy, pace_s=0.1), seed, 0.02, manners=manners, failure=0.1, loss=0.003)


def test_what_is_known_is_not_decoded_anew() -> None:
    """A session that moves behind each event says, to the word, what one says that stays."""
    staying, moving = (MovedConversation(SETTINGS, 7, move, cost_s=0.05) for move in (0.0, 0.1))
    assert moving.n_moves > 100
    assert [final.text for final in moving.promises.finals] == [final.text for final in staying.promises.finals]


@pytest.mark.parametrize(("quiet_s", "start"), [(0.0, "start 5"), (0.4, "start 5"), (1.0, "start 5.72")])
def test_a_session_of_which_nothing_is_known_goes_on_behind_a_gap(quiet_s: float, start: str) -> None:
    """Speech soon behind a gap begins with it: the detector misses the first sounds."""
    scene = Scene(SessionState.behind_loss(2 * SAMPLE_RATE, 5 * SAMPLE_RATE, 4, mark=2), silent=True)
    scene.promises.segment = 4
    assert scene.session.mark == scene.session.state.mark == 2
    assert scene.hear(5.01 + quiet_s, 0.0) == ["gap 2-5 device"]
    assert scene.talk(6.5 + quiet_s) == [start]
    task = scene.ask()
    assert not task.request.first
    assert task.span.start >= 5 * SAMPLE_RATE
    assert scene.read(f"so {6 + quiet_s} {6.4 + quiet_s}") == ["|so"]


SCENES = """
Pauses, flushes and the end go along.
  flush ; pause ; move ; is paused True ; skip 2 ; finish 2 ; move ; is ended True
  read -> 0-0.22 + gap 0.22-2 paused + flushed 0.22

So does what was said, and what was shown of it.
  talk 2 ; read one .5 1 / two 1 1.4 -> |one two
  move ; talk 3 ; read = -> one two|
  move ; talk 4 ; ask en 0 " one two" {first=True} ; read = / three 3 3.3 -> one two| three
  rest 6 ; move ; read = -> 0-4.3 one two three
  move ; talk 7 ; ask en 0 " one two three" {first=False}
"""


@pytest.mark.parametrize(("settings", "steps"), scenes(SCENES))
def test_scene(settings: str, steps: list[str]) -> None:
    play(settings, steps)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("needed_from", 10**9),
        ("needed_from", -1),
        ("losses.published_until", 2**62),
        ("gate.open", True),
        ("losses.waiting", (Loss(-5, 3, "device"),)),
        ("text.segment", 0),
        ("text.stable.n_final", 3),
        ("text.tail.continues", True),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(path: str, value: object) -> None:
    with pytest.raises(SessionStateError, match="goes on behind a gap"):
        Session(SETTINGS, changed(NEW, path.split("."), value))


def changed(state: Any, path: Sequence[str], value: object) -> Any:  # noqa: ANN401
    """Return a state with another value somewhere in it."""
    name, *rest = path
    return msgspec.structs.replace(state, **{name: changed(getattr(state, name), rest, value) if rest else value})
