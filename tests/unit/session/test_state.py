"""A session that goes on elsewhere: nothing is lost, nothing doubled, and what was said to be stable stays."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamer.constants import SAMPLE_RATE
from streamer.engine.inlet import AudioKind, Input
from streamer.engine.live_session import LiveSession
from streamer.errors import SessionStateError
from streamer.events import Event, Gap, Speech
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.session.state import NEW, Loss, SessionState
from streamer.session.transcript import Tail
from tests.fakes import BAD, FAITHFUL, FakeDetector, FakeMel, Manners, SpokenWord, spoken
from tests.unit.engine.simulation import CAPACITY_SAMPLES, PIECE_SAMPLES, SETTINGS, Machine, settings_of
from tests.unit.session.test_session import Conversation


class MovedConversation(Conversation):
    """One whose session moves now and then: it goes on behind the last event and hears the rest again."""

    def __init__(
        self,
        settings: SessionSettings,
        words: list[SpokenWord],
        *,
        seed: int,
        move: float,
        **more: Any,  # noqa: ANN401 - passed on
    ) -> None:
        super().__init__(settings, words, seed=seed, **more)
        self._settings = settings
        self._moves = random.Random(seed + 1)
        self._move = move
        self._stored = msgspec.msgpack.encode(self.session.state)
        self.n_moves = 0
        taken = self.promises.take

        def take(events: Sequence[Event]) -> None:
            taken(events)
            if events:
                self._stored = msgspec.msgpack.encode(self.session.state)

        self.promises.take = take  # type: ignore[method-assign, assignment]

    def speak_until(self, end_s: float) -> None:
        while self.position < end_s * SAMPLE_RATE:
            super().speak_until(min(end_s, self.position / SAMPLE_RATE + 0.001))
            if self._moves.random() < self._move:
                self.move()

    def move(self) -> None:
        """Lose the session with all that is on its way; go on from what was stored, and hear again what came since."""
        state = msgspec.msgpack.decode(self._stored, type=SessionState)
        behind, now_s, loss = self.position, self.clock.now_s, self._loss
        self.session = Session(self._settings, state)
        self._slot = self._job = None
        self._released, self.position = state.needed_from, state.received
        self.windows.clear()
        self._loss = 0.0
        super().speak_until(behind / SAMPLE_RATE)
        self._loss, self.clock.now_s = loss, now_s
        self.n_moves += 1


def talk(seed: int, length_s: float = 60.0) -> list[SpokenWord]:
    return spoken(random.Random(seed), length_s)


@given(seed=st.integers(0, 10_000), cost_s=st.sampled_from((0.05, 0.3, 2.0)))
def test_a_session_that_moves_loses_no_word_and_doubles_none(seed: int, cost_s: float) -> None:
    words = talk(seed)
    conversation = MovedConversation(SETTINGS, words, seed=seed, cost_s=cost_s, move=0.02)
    conversation.speak_until(62.0)
    conversation.finish()
    assert conversation.check_words() == list(range(len(words)))
    assert not conversation.promises.gaps


@given(
    seed=st.integers(0, 10_000),
    manners=st.sampled_from((FAITHFUL, BAD)),
    policy=st.sampled_from(("agreement", "alignatt")),
)
def test_promises_hold_whatever_else_goes_wrong(seed: int, manners: Manners, policy: str) -> None:
    settings = settings_of(policy=policy, pace_s=0.1)
    conversation = MovedConversation(
        settings, talk(seed), seed=seed, manners=manners, move=0.02, failure=0.1, loss=0.003
    )
    conversation.speak_until(62.0)
    conversation.finish()


def test_what_is_known_is_not_decoded_anew() -> None:
    """A session that moves behind each event says, to the word, what one says that stays."""
    staying, moving = (MovedConversation(SETTINGS, talk(7), seed=7, cost_s=0.05, move=move) for move in (0.0, 0.1))
    for conversation in (staying, moving):
        conversation.speak_until(62.0)
        conversation.finish()
    assert moving.n_moves > 100
    assert [final.text for final in moving.promises.finals] == [final.text for final in staying.promises.finals]


def test_a_session_of_which_nothing_is_known_goes_on_behind_a_gap() -> None:
    session = Session(SETTINGS, SessionState.behind_loss(32_000, 80_000, 4, mark=2))
    assert session.state.mark == 2
    events = session.hear(80_512, 0.9, 0.0)
    assert events == [Gap(start=2.0, end=5.0, reason="device")]
    for end in range(81_024, 96_000, 512):
        events += session.hear(end, 0.9, 0.0)
    events += session.finish(96_000)
    window = session.next_span(0.0)
    assert window is not None
    task = session.task(window)
    assert task is not None
    assert not task.request.first
    assert window.start >= 80_000
    assert session.state.transcript.segment == 4


def test_speech_soon_behind_a_gap_begins_with_it_also_elsewhere() -> None:
    session = Session(SETTINGS, SessionState.behind_loss(32_000, 80_000, 4, mark=2))
    events: list[Event] = []
    for end in range(80_512, 96_000, 512):
        events += session.hear(end, 0.9 if end > 86_000 else 0.0, 0.0)
    assert [event.time for event in events if isinstance(event, Speech)] == [5.0]


def test_pauses_flushes_and_the_end_go_along() -> None:
    session = Session(SETTINGS)
    for end in range(512, 16_384, 512):
        session.hear(end, 0.9, 0.0)
    session.flush()
    session.pause()
    again = Session(SETTINGS, session.state)
    assert again.paused
    assert again.state == session.state
    again.skip(32_000)
    again.finish(32_000)
    assert again.state.ended
    assert Session(SETTINGS, again.state).state.ended


@pytest.mark.parametrize(
    "wrong",
    [
        replace(NEW, needed_from=10**9),
        replace(NEW, needed_from=-1),
        replace(NEW, published_until=2**62),
        replace(NEW, gate=replace(NEW.gate, open=True)),
        replace(NEW, losses=(Loss(-5, 3, "device"),)),
        replace(NEW, transcript=dataclasses.replace(NEW.transcript, segment=0)),
        replace(NEW, transcript=dataclasses.replace(NEW.transcript, n_final=3)),
        replace(NEW, transcript=dataclasses.replace(NEW.transcript, tail=Tail(continues=True))),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(wrong: SessionState) -> None:
    with pytest.raises(SessionStateError, match="goes on behind a gap"):
        Session(SETTINGS, wrong)


def test_a_session_at_work_moves_to_another_engine_and_what_it_hears_again_is_no_recording() -> None:
    first, second = (Machine(encode_s=0.1, decode_s=0.2) for _ in range(2))
    talker = first.talker(60.0)
    second.decoder.speakers.append(first.decoder.speakers[0])
    second.talkers.append(talker)
    here, there = first, second
    for until_s in (10.0, 17.5, 18.0, 31.0, 44.0):
        here.run_until(until_s)
        talker.live.mark(round(until_s))
        told, state = talker.live.snapshot(lambda: len(talker.events))
        talker.live.close()
        assert told == len(talker.events)
        behind = talker.live.ring.head
        live = LiveSession(
            SETTINGS,
            Input(kind=AudioKind.EITHER, capacity_samples=CAPACITY_SAMPLES, live_from=behind),
            talker.log,
            mel=FakeMel(),
            new_detector=FakeDetector,
            state=state,
        )
        talker.live = live
        while live.ring.head < behind:
            assert live.ring.head > state.received or not live.restored
            talker.write(min(PIECE_SAMPLES, behind - live.ring.head))
        here, there = there, here
        here.clock.now_s = there.clock.now_s
        here.engine.add(live)
        assert not live.recorded
    here.run_until(62.0)
    here.finish()
    assert " ".join(final.text for final in talker.finals if final.text).split() == [
        word.text.strip() for word in talker.words
    ]
    assert not talker.gaps
    assert not talker.live.recorded
