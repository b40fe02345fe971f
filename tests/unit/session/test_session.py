"""The promises of a session, held over simulated conversations."""

import itertools
import random
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.events import Event
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.session.task import Request, Span, Task
from streamer.whisper.result import Hypothesis
from tests.fakes import BAD, FAITHFUL, NEVER_AGREES, Clock, Manners, Speaker, SpokenWord, index_of, spoken
from tests.promises import Promises
from tests.unit.engine.simulation import SETTINGS, settings_of

# Most that a session holds, in characters and items: a prompt of 1,000, and what belongs to the newest speech.
MOST_ITEMS = 6_000


class Conversation:
    """A speaker, a session, and a decoder that takes its time, moved on chunk by chunk."""

    def __init__(
        self,
        settings: SessionSettings,
        words: list[SpokenWord],
        *,
        seed: int,
        manners: Manners = FAITHFUL,
        cost_s: float = 0.3,
        failure: float = 0.0,
        loss: float = 0.0,
    ) -> None:
        self.session = Session(settings)
        self.promises = Promises()
        self.speaker = Speaker(words, seed=seed, manners=manners)
        self.clock = Clock()
        self.position = 0
        self.windows: list[Span] = []
        self.requests: list[Request] = []
        self._rng = random.Random(seed)
        self._cost_s, self._failure, self._loss = cost_s, failure, loss
        # No audio before this can be had: released, as the ring buffer does.
        self._released = 0
        # The window that waits for the decoder, and the one that it is busy with.
        self._slot: Span | None = None
        self._job: tuple[Task, Hypothesis] | None = None
        self._done_s = 0.0

    def speak_until(self, end_s: float) -> None:
        """Let the audio go on until `end_s`."""
        while self.position < end_s * SAMPLE_RATE:
            end = self.position + CHUNK_SAMPLES
            self.clock.advance(CHUNK_SAMPLES / SAMPLE_RATE)
            if self._rng.random() < self._loss:
                end += self._rng.randint(0, 10 * SAMPLE_RATE) // CHUNK_SAMPLES * CHUNK_SAMPLES
                self._lose(end)
            else:
                talks = self.speaker.talks(self.position, end)
                if talks:
                    self.promises.detected.append((self.position / SAMPLE_RATE, end / SAMPLE_RATE))
                self._told(self.session.hear(end, 0.9 if talks else 0.05, self.clock.now_s))
            self.position = end
            self._work()

    def finish(self) -> None:
        """End the audio, wait for what is still to come, and check that everything was told."""
        self._told(self.session.finish(self.position))
        for _ in range(10_000):
            self._work()
            if self.session.now.finished:
                break
            assert self._job is not None or self._slot is not None, "it stands still"
            self.clock.now_s = max(self.clock.now_s, self._done_s)
        assert self.session.now.finished
        self._work()
        self.promises.check_all_told()

    def check_words(self) -> list[int]:
        """Check that no word is told twice or out of order; return those that were told."""
        heard = [index_of(word.word.split("'")[0]) for final in self.promises.finals for word in final.words]
        indices = [index for index in heard if index is not None]
        assert all(a < b for a, b in itertools.pairwise(indices)), indices
        return indices

    def _work(self) -> None:
        """Do what is due at this time."""
        if self._job is not None and self.clock.now_s >= self._done_s:
            job, self._job = self._job, None
            if self._rng.random() < self._failure:
                self._told(self.session.fail(job[0].span))
            else:
                self._told(self.session.take(*job, self.clock.now_s))
        if self.session.due:
            self._slot = self._next_window()
        if self._job is None and self._slot is not None:
            window, self._slot = self._slot, None
            task = self.session.task(window)
            if task is not None:
                assert task.request.n_samples == window.end - window.start
                self.requests.append(task.request)
                hypothesis = self.speaker.hypothesis(window.start, window.end, task.request.prefix)
                self._job = (task, hypothesis)
                self._done_s = self.clock.now_s + self._rng.uniform(0, 2 * self._cost_s)

    def _next_window(self) -> Span:
        window = self.session.next_span(self.clock.now_s)
        assert window is not None
        assert window.start % HOP_LENGTH == 0
        assert 0 <= window.end - window.start <= N_SAMPLES
        assert window.end <= self.position
        assert window.start >= self._released
        assert not self.windows or window.start >= self.windows[-1].start
        self.windows.append(window)
        return window

    def _lose(self, end: int) -> None:
        self._released = end  # the audio is gone
        self._told(self.session.lose(end, "overrun"))

    def _told(self, events: Sequence[Event]) -> None:
        self.promises.take(events)
        self._released = max(self._released, min(self.position, self.session.needed_from))


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
pauses = st.sampled_from((0.0, 0.05, 0.3, 0.8))


def held(
    settings: SessionSettings,
    seed: int,
    duration_s: float,
    *,
    pause: float = 0.0,
    **more: Any,  # noqa: ANN401 - of Conversation
) -> Conversation:
    """Return a conversation of about this length that has come to its end."""
    conversation = Conversation(settings, spoken(random.Random(seed), duration_s, pause=pause), seed=seed, **more)
    conversation.speak_until(duration_s + 2.0)
    conversation.finish()
    return conversation


@given(
    settings=paces,
    seed=seeds,
    cost_s=costs,
    pause=pauses,
    duration_s=st.sampled_from((0.5, 7.0, 40.0, 90.0)),
    manners=st.sampled_from((FAITHFUL, NEVER_AGREES)),
)
def test_every_word_is_told_once_also_where_no_two_hypotheses_agree(
    settings: SessionSettings, seed: int, duration_s: float, pause: float, cost_s: float, manners: Manners
) -> None:
    conversation = held(settings, seed, duration_s, pause=pause, cost_s=cost_s, manners=manners)
    assert conversation.check_words() == [word.index for word in conversation.speaker.words]
    assert not conversation.promises.gaps


@pytest.mark.parametrize("window_s", [6.0, 12.0, 28.0])
def test_windows_grow_up_to_their_length_and_the_decoder_knows_what_was_said_before(window_s: float) -> None:
    conversation = held(settings_of(window_s=window_s), 1, 60.0)
    lengths_s = [(window.end - window.start) / SAMPLE_RATE for window in conversation.windows]
    assert window_s - 2.0 < max(lengths_s) <= window_s
    # A prompt ends where the prefix begins.
    said = "".join(word.text for word in conversation.speaker.words)
    assert all(said.startswith(request.prompt) for request in conversation.requests)
    assert any(request.prompt for request in conversation.requests)


@given(settings=paces, seed=seeds, cost_s=costs, pause=pauses, bad=st.booleans())
def test_with_lost_audio_and_failures_every_promise_is_kept(
    settings: SessionSettings, seed: int, cost_s: float, pause: float, bad: bool
) -> None:
    words = spoken(random.Random(seed), 60.0, pause=pause)
    manners = BAD if bad else FAITHFUL
    conversation = Conversation(settings, words, seed=seed, manners=manners, cost_s=cost_s, failure=0.1, loss=0.003)
    conversation.speak_until(random.Random(seed).uniform(1.0, 60.0))
    conversation.finish()
    told = set(conversation.check_words())
    gaps = [(gap.start, gap.end) for gap in conversation.promises.gaps]
    for word in words if not bad else ():
        start, end = word.start / SAMPLE_RATE, word.end / SAMPLE_RATE
        if end <= conversation.position / SAMPLE_RATE and word.index not in told:
            # A word that was hardly begun before a gap, or hardly left behind it, is lost too.
            assert any(a < end + 0.35 and start - 0.35 < b for a, b in gaps), f"{word} lies in no gap of {gaps}"


@given(settings=paces, seed=seeds, cost_s=costs, said_s=st.sampled_from((0.0, 2.0)))
def test_what_is_speech_to_the_gate_and_nothing_to_the_decoder_ends_all_the_same(
    settings: SessionSettings, seed: int, cost_s: float, said_s: float
) -> None:
    conversation = Conversation(settings, spoken(random.Random(seed), said_s, pause=0.0), seed=seed, cost_s=cost_s)
    conversation.speaker.talks = lambda start, end: start > SAMPLE_RATE  # type: ignore[method-assign]
    conversation.speak_until(100.0)
    conversation.finish()
    assert conversation.check_words() == [word.index for word in conversation.speaker.words]


def test_silence_asks_for_nothing_and_keeps_little_audio() -> None:
    conversation = Conversation(SETTINGS, [], seed=0)
    conversation.speak_until(3600.0)
    assert conversation.windows == []
    assert conversation.position - conversation.session.needed_from <= 2 * SAMPLE_RATE
    conversation.finish()
    assert conversation.promises == Promises()


@pytest.mark.parametrize("manners", [FAITHFUL, BAD, NEVER_AGREES])
def test_an_hour_of_speech_leaves_nothing_behind(manners: Manners) -> None:
    words = spoken(random.Random(5), 3600.0, pause=0.0)
    conversation = Conversation(settings_of(pace_s=2.0), words, seed=5, manners=manners, cost_s=1.0)
    sizes = []
    for minute in range(1, 61):
        conversation.speak_until(60.0 * minute)
        sizes.append(n_items(conversation.session))
    assert max(sizes) < MOST_ITEMS, sizes
    assert max(sizes[30:]) < 3 * max(sizes[:10]), sizes
    conversation.finish()


def n_items(value: object, seen: set[int] | None = None) -> int:
    """Count what a session holds: characters, and items of containers at any depth."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, str | int | float | Enum | itertools.count | None):
        return len(value) if isinstance(value, str) else 1
    if isinstance(value, list | tuple | set | frozenset | deque):
        return 1 + sum(n_items(item, seen) for item in value)
    if isinstance(value, dict):
        return 1 + sum(n_items(item, seen) for item in value.items())
    kind = type(value)
    names = getattr(kind, "__struct_fields__", ()) or getattr(kind, "__slots__", ()) or getattr(value, "__dict__", ())
    return 1 + sum(n_items(getattr(value, name), seen) for name in names)
