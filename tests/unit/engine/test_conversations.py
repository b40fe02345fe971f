"""Promises of a session, held over conversations in simulated time."""

import itertools
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.engine.inlet import AudioKind, Input
from streamer.engine.live_session import LiveSession
from streamer.session.settings import SessionSettings
from streamer.session.state import SessionState
from streamer.session.task import Request
from streamer.whisper.result import Hypothesis
from tests.fakes import (
    BAD,
    FAITHFUL,
    NEVER_AGREES,
    FakeDetector,
    FakeEncoded,
    FakeMel,
    Manners,
    index_of,
    spoken,
    words_at,
)
from tests.unit.engine.simulation import (
    CAPACITY_SAMPLES,
    PIECE_S,
    PIECE_SAMPLES,
    SETTINGS,
    Machine,
    Talker,
    n_items,
    settings_of,
)

# Most that a session holds, in characters and items: a prompt of 1,000, and what belongs to the newest speech.
MOST_ITEMS = 6_000

paces = st.builds(
    settings_of,
    pace_s=st.sampled_from((0.1, 0.5, 2.0, 10.0)),
    policy=st.sampled_from(("agreement", "alignatt")),
    agreement=st.integers(1, 4),
    trim_after_s=st.sampled_from((5.0, 8.0, 15.0, 28.0)),
    window_s=st.sampled_from((5.0, 10.0, 28.0)),
    final_silence_s=st.sampled_from((0.6, 1.5)),
)
seeds = st.integers(0, 2**32)
costs = st.sampled_from((0.0, 0.3, 1.0, 4.0, 15.0))


class Conversation(Machine):
    """A machine, one speaker, and what it was asked for."""

    def __init__(
        self,
        settings: SessionSettings = SETTINGS,
        *,
        seed: int = 1,
        duration_s: float = 60.0,
        pause: float = 0.0,
        manners: Manners = FAITHFUL,
        cost_s: float = 0.3,
        **options: Any,  # noqa: ANN401 - see Talker
    ) -> None:
        super().__init__(encode_s=cost_s / 2, decode_s=cost_s / 2)
        self.settings, self.duration_s = settings, duration_s
        self.requests: list[Request] = []
        words = options.pop("words", spoken(random.Random(seed), duration_s, pause=pause))
        self.person = self.add(Talker(0, words, settings=settings, **{"max_delay_s": 1e9, **options}))
        self.decoder.speakers[0].manners = manners
        self.decoder.answer = self.answer

    def answer(self, window: FakeEncoded, request: Request) -> Hypothesis:
        self.requests.append(request)
        return self.decoder.hear(window, request)

    def hold(self) -> "Conversation":
        """Let it come to its end, where all promises are held."""
        self.run_until(self.duration_s + 2.0)
        self.finish()
        return self

    @property
    def state(self) -> SessionState:
        return self.person.live.snapshot(lambda: None)[1]

    def indices(self) -> list[int]:
        """Return which words are final, of which none comes twice or out of order."""
        found = [index_of(word.word.split("'")[0]) for final in self.person.finals for word in final.words]
        indices = [index for index in found if index is not None]
        assert all(a < b for a, b in itertools.pairwise(indices)), indices
        return indices

    def check_all_words(self) -> None:
        assert self.indices() == [word.index for word in self.person.words]
        assert not self.person.gaps

    def move(self) -> None:
        """Lose the session with all that is on its way; go on from its state, and send again what came since."""
        talker, behind = self.person, self.person.live.ring.head
        n_published, state = talker.live.snapshot(lambda: len(talker.events))
        talker.live.close()
        assert n_published == len(talker.events)
        talker.live = LiveSession(
            self.settings,
            Input(kind=AudioKind.EITHER, capacity_samples=CAPACITY_SAMPLES, max_delay_s=1e9, live_from=behind),
            talker.log,
            mel=FakeMel(),
            new_detector=FakeDetector,
            state=msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SessionState),
        )
        while talker.live.ring.head < behind:
            talker.write(min(PIECE_SAMPLES, behind - talker.live.ring.head))
        self.engine.add(talker.live)


@given(
    settings=paces,
    seed=seeds,
    cost_s=costs,
    pause=st.sampled_from((0.0, 0.05, 0.3, 0.8)),
    duration_s=st.sampled_from((0.5, 7.0, 40.0, 90.0)),
    manners=st.sampled_from((FAITHFUL, NEVER_AGREES)),
)
def test_every_word_is_final_once_even_if_no_two_hypotheses_agree(settings: SessionSettings, **options: Any) -> None:  # noqa: ANN401
    Conversation(settings, **options).hold().check_all_words()


def test_windows_are_in_order_within_the_audio_and_on_the_grid_of_the_spectrogram() -> None:
    conversation = Conversation(cost_s=1.0, pause=0.3).hold()
    windows = conversation.encoder.encoded
    assert all(w.start % HOP_LENGTH == 0 and 0 < w.end - w.start <= N_SAMPLES for w in windows)
    assert [w.start for w in windows] == sorted(w.start for w in windows)


@pytest.mark.parametrize("window_s", [6.0, 12.0, 28.0])
def test_windows_grow_up_to_their_length_and_the_decoder_knows_what_was_said_before(window_s: float) -> None:
    conversation = Conversation(settings_of(window_s=window_s)).hold()
    lengths_s = [request.n_samples / SAMPLE_RATE for request in conversation.requests]
    assert window_s - 2.0 < max(lengths_s) <= window_s + PIECE_S
    # A prompt ends where the prefix begins.
    prompts = [request.prompt.strip() for request in conversation.requests]
    assert all(conversation.person.said.startswith(prompt) for prompt in prompts)
    assert any(prompts)


@given(settings=paces, seed=seeds, cost_s=costs, said_s=st.sampled_from((0.0, 2.0)))
def test_sound_that_the_gate_takes_for_speech_and_the_decoder_does_not_becomes_gaps(
    settings: SessionSettings, seed: int, cost_s: float, said_s: float
) -> None:
    class Loud(FakeDetector):
        def process(self, samples: Any) -> list[float]:  # noqa: ANN401
            return [0.9] * (len(samples) // 512)

    words = spoken(random.Random(seed), said_s, pause=0.0)
    conversation = Conversation(settings, cost_s=cost_s, words=words, duration_s=40.0, new_detector=Loud).hold()
    assert conversation.indices() == [word.index for word in words]
    assert sum(gap.end - gap.start for gap in conversation.person.gaps) > 35.0


def test_silence_asks_for_nothing_and_keeps_little_audio() -> None:
    conversation = Conversation(words=[])
    conversation.run_until(600.0)
    assert conversation.requests == []
    assert conversation.state.received - conversation.state.needed_from <= 2 * SAMPLE_RATE
    conversation.finish()
    assert conversation.person.events == []


@pytest.mark.parametrize("manners", [FAITHFUL, BAD, NEVER_AGREES], ids=["faithful", "bad", "never agrees"])
def test_long_speech_leaves_nothing_behind(manners: Manners) -> None:
    conversation = Conversation(settings_of(pace_s=2.0), duration_s=900.0, manners=manners, cost_s=1.0)
    sizes = []
    for minute in range(1, 16):
        conversation.run_until(60.0 * minute)
        sizes.append(n_items(conversation.state))
    assert max(sizes) < MOST_ITEMS, sizes
    assert max(sizes[8:]) < 3 * max(sizes[:4]), sizes
    conversation.finish()


@pytest.mark.parametrize("start_s", [0.5, 0.7, 0.9, 1.1])  # within a mel frame, and at its edge
def test_a_decoder_that_only_loops_is_not_asked_forever(start_s: float) -> None:
    words = words_at(*(start_s + 0.5 * i for i in range(4)))
    conversation = Conversation(words=words, duration_s=3.0, manners=Manners(loop=1.0)).hold()
    assert len(conversation.requests) < 10


@given(
    seed=st.integers(0, 10_000),
    cost_s=st.sampled_from((0.05, 0.3, 2.0)),
    every_s=st.sampled_from((0.7, 5.0)),
    manners=st.sampled_from((FAITHFUL, BAD)),
    policy=st.sampled_from(("agreement", "alignatt")),
)
def test_a_session_that_moves_loses_no_word_and_doubles_none(
    seed: int, cost_s: float, every_s: float, manners: Manners, policy: str
) -> None:
    conversation = Conversation(settings_of(policy=policy), seed=seed, cost_s=cost_s, manners=manners)
    while conversation.clock.now_s < 60.0:
        conversation.run_until(conversation.clock.now_s + every_s)
        conversation.move()
        assert not conversation.person.live.recorded, "what it gets again is no recording"
    conversation.hold()
    if manners is FAITHFUL:
        conversation.check_all_words()


def test_what_is_known_is_not_decoded_again_behind_a_move() -> None:
    staying, moving = Conversation(seed=7, cost_s=0.0), Conversation(seed=7, cost_s=0.0)
    n_moves = n_events = 0
    while moving.clock.now_s < 60.0:
        moving.run_until(moving.clock.now_s + 0.25)
        if len(moving.person.events) > n_events:
            n_events, n_moves = len(moving.person.events), n_moves + 1
            moving.move()
    assert n_moves > 50
    assert moving.hold().person.texts == staying.hold().person.texts
