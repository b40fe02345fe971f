"""The promises of a session, held over simulated conversations."""

import itertools
import random
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.events import Event, Final, Gap, Partial, Speech
from streamer.session.gate import PAUSE_SAMPLES
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.session.task import Request, Span, Task
from streamer.session.text import PROMPT_CHARACTERS
from streamer.session.transcript import Transcript
from streamer.whisper.result import Hypothesis, TimedWord
from tests.fakes import BAD, FAITHFUL, NEVER_AGREES, Clock, Manners, Speaker, SpokenWord, index_of, spoken, words_at
from tests.promises import Promises
from tests.unit.engine.simulation import GATE, SETTINGS, settings_of

AnyEvent = TypeVar("AnyEvent", bound=Event)

# A word of a hypothesis: text, start, end and, if it is not the end, how far the decoder attended, in seconds.
Said = TimedWord | tuple[str, float, float] | tuple[str, float, float, float]


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
        # Whether windows are decoded as they become due, and not only by `transcribe`.
        self.at_work = True
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
                self.promises.take(self.session.hear(end, 0.9 if talks else 0.05, self.clock.now_s))
            self.position = end
            self._work()

    def finish(self) -> None:
        """End the audio, wait for what is still to come, and check that everything was told."""
        self.at_work = True
        self.promises.take(self.session.finish(self.position))
        for _ in range(10_000):
            self._work()
            if self.session.finished:
                break
            assert self._job is not None or self._slot is not None, "it stands still"
            self.clock.now_s = max(self.clock.now_s, self._done_s)
        assert self.session.finished
        self._work()
        self.promises.check_all_told()

    def check_words(self) -> list[int]:
        """Check that no word is told twice or out of order; return those that were told."""
        heard = [index_of(word.word.split("'")[0]) for final in self.promises.finals for word in final.words]
        indices = [index for index in heard if index is not None]
        assert all(a < b for a, b in itertools.pairwise(indices)), indices
        return indices

    def transcribe(self, cost_s: float = 0.1) -> Span:
        """Decode the window that is due, which takes `cost_s`."""
        window = self._next_window()
        task = self.session.task(window)
        assert task is not None
        hypothesis = self.speaker.hypothesis(window.start, window.end, task.request.prefix)
        self._told(self.session.take(task, hypothesis, self.clock.now_s + cost_s))
        return window

    def _work(self) -> None:
        """Do what is due at this time."""
        if not self.at_work:
            return
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
durations = st.sampled_from((0.5, 7.0, 40.0, 90.0))


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


@given(settings=paces, seed=seeds, cost_s=costs, pause=pauses, duration_s=durations)
def test_with_a_good_decoder_every_word_is_told_once(
    settings: SessionSettings, seed: int, cost_s: float, pause: float, duration_s: float
) -> None:
    conversation = held(settings, seed, duration_s, pause=pause, cost_s=cost_s)
    assert " ".join(final.text for final in conversation.promises.finals if final.text).split() == [
        word.text.strip() for word in conversation.speaker.words
    ]
    assert not conversation.promises.gaps


@pytest.mark.parametrize("window_s", [6.0, 12.0, 28.0])
def test_windows_grow_up_to_their_length_and_the_decoder_knows_what_was_said_before(window_s: float) -> None:
    conversation = held(settings_of(window_s=window_s), 1, 60.0)
    lengths_s = [(window.end - window.start) / SAMPLE_RATE for window in conversation.windows]
    assert window_s - 2.0 < max(lengths_s) <= window_s
    # A prompt ends where the prefix begins.
    said = "".join(word.text for word in conversation.speaker.words)
    for request in conversation.requests:
        assert said.startswith(request.prompt)
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
    if not bad:
        gaps = [(gap.start, gap.end) for gap in conversation.promises.gaps]
        for word in words:
            start, end = word.start / SAMPLE_RATE, word.end / SAMPLE_RATE
            if end <= conversation.position / SAMPLE_RATE and word.index not in told:
                # A word that was hardly begun before a gap, or hardly left behind it, is lost too.
                assert any(a < end + 0.35 and start - 0.35 < b for a, b in gaps), f"{word} lies in no gap of {gaps}"


@given(settings=paces, seed=seeds, cost_s=costs)
def test_where_no_two_hypotheses_agree_long_speech_is_still_told(
    settings: SessionSettings, seed: int, cost_s: float
) -> None:
    conversation = held(settings, seed, 120.0, manners=NEVER_AGREES, cost_s=cost_s)
    assert conversation.check_words() == [word.index for word in conversation.speaker.words]


@given(settings=paces, seed=seeds, cost_s=costs)
def test_speech_without_words_ends_all_the_same(settings: SessionSettings, seed: int, cost_s: float) -> None:
    conversation = held(settings, seed, 100.0, manners=Manners(nothing=1.0), cost_s=cost_s)
    assert not any(final.text for final in conversation.promises.finals)
    assert conversation.promises.partials == 0


@given(seed=seeds, cost_s=costs)
def test_words_at_the_begin_of_a_full_window_only_do_not_stop_it(seed: int, cost_s: float) -> None:
    # Two seconds of words, then minutes of something that is speech to the gate and nothing to the decoder.
    words = spoken(random.Random(seed), 2.0, pause=0.0)
    conversation = Conversation(SETTINGS, words, seed=seed, cost_s=cost_s)
    conversation.speaker.talks = lambda start, end: start > SAMPLE_RATE  # type: ignore[method-assign]
    conversation.speak_until(100.0)
    conversation.finish()
    assert conversation.check_words() == [word.index for word in words]


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
    assert max(sizes) < PROMPT_CHARACTERS + 5_000, sizes
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
    if isinstance(value, list | tuple | deque):
        return 1 + sum(n_items(item, seen) for item in value)
    names = getattr(type(value), "__slots__", ()) or getattr(value, "__dict__", ())
    return 1 + sum(n_items(getattr(value, name), seen) for name in names)


# What a session does, one thing at a time.


def test_windows_grow_by_the_pace_and_no_faster_than_they_cost() -> None:
    session = speaking(settings_of(pace_s=1.0))
    first = window_at(session, 1.5, now_s=10.0)
    assert (first.start, first.end) == (0, first.end)
    take(session, first, [], now_s=13.0)
    assert session.state.heard.cost == 3 * SAMPLE_RATE
    hear(session, first.end / SAMPLE_RATE + 2.9)
    assert session.next_span(13.0) is None
    second = window_at(session, first.end / SAMPLE_RATE + 3.1, now_s=14.0)
    assert second.start == first.start
    take(session, second, [], now_s=14.1)
    # A pass that was cheap again: the pace is the floor.
    hear(session, second.end / SAMPLE_RATE + 0.9)
    assert session.next_span(15.0) is None
    assert window_at(session, second.end / SAMPLE_RATE + 1.1).end > second.end


def test_words_settle_when_two_hypotheses_agree_and_not_where_the_audio_cuts_them_off() -> None:
    session = speaking()
    first = window_at(session, 2.0)
    assert shown(take(session, first, [(" so", 0.5, 0.8), (" far", 0.9, 1.5)])) == ("so far", 0)
    second = window_at(session, 3.0)
    assert shown(take(session, second, [(" so", 0.5, 0.8), (" far", 0.9, seconds_of(second) - 0.1)])) == ("so far", 2)
    third = window_at(session, 4.0)
    assert request_of(session, third).prefix == tokens_of(" so")


# "so far away", read once, then again at the same places, and what is said behind it.
ONCE = ((" so", 0.5, 0.8), (" far", 0.9, 1.2), (" away", 1.3, 1.6))
TWICE = (*ONCE, (" so", 1.6, 1.6, 0.8), (" far", 1.6, 1.6, 1.2), (" away", 1.6, 1.6, 1.6))
GOES_ON = (*TWICE, (" we", 1.6, 1.8), (" went", 1.9, 2.3))
CERTAIN = settings_of(policy="alignatt", commit_probability=0.4)

LOOP = [(" on", 0.5, 0.8)]


def test_what_is_read_twice_is_said_once() -> None:
    session = speaking(CERTAIN)
    assert shown(take(session, window_at(session, 2.0), TWICE)) == ("so far away", len("so far away"))
    # The decoder reads the settled words again, which it was given.
    assert take(session, window_at(session, 2.6), TWICE) == []
    assert shown(take(session, window_at(session, 3.2), (*ONCE, (" we", 1.7, 1.8), (" went", 1.9, 2.3)))) == (
        "so far away we went",
        len("so far away we went"),
    )


def test_what_is_read_twice_does_not_settle_where_passes_agree_on_it() -> None:
    session = speaking()
    for until_s in (2.0, 2.6):
        events = take(session, window_at(session, until_s), GOES_ON)
    assert shown(events) == ("so far away", len("so far away"))


def test_where_the_decoder_keeps_reading_again_the_next_window_begins_behind_that() -> None:
    session = speaking(CERTAIN)
    only(Partial, take(session, window_at(session, 2.6), GOES_ON))
    assert take(session, window_at(session, 3.2), GOES_ON) == []
    final = only(Final, take(session, window_at(session, 3.8), GOES_ON))
    assert (final.text, final.end) == ("so far away", 1.6)
    window = window_at(session, 4.4)
    assert window.start == round(1.6 * SAMPLE_RATE)
    assert request_of(session, window).prefix == ()


def test_words_after_one_for_which_the_attention_leapt_ahead_are_not_lost() -> None:
    """For the first word, base often attends to the silence after the sentence."""
    session = speaking(CERTAIN)
    words: list[Said] = [(" so", 0.5, 0.8, 3.5), (" far", 0.9, 1.2), (" away", 1.3, 1.8)]
    words += [(" we", 2.2, 2.4), (" went.", 2.5, 2.9)]
    hear(session, 3.3)
    assert shown(take(session, pause_at(session, 3.6), words))[0] == "so far away we went."
    assert last(Final, hear(session, 5.5, 0.0)).text == "so far away we went."


def test_words_after_a_stable_one_for_which_the_attention_leapt_ahead_are_not_lost() -> None:
    session = speaking(CERTAIN)
    leapt = (" so", 0.5, 0.8, 2.5)
    assert shown(take(session, window_at(session, 3.0), [leapt])) == ("so", len("so"))
    words: list[Said] = [leapt, (" far", 0.9, 1.2), (" away", 1.3, 1.8), (" we", 2.2, 2.4), (" went", 2.6, 3.0)]
    for until_s in (3.6, 4.2):
        events = take(session, window_at(session, until_s), words)
    assert not [event for event in events if isinstance(event, Final)]
    hear(session, 6.0, 0.0)
    assert said(take(session, due(session, 6.0), words)) == "so far away we went"


@pytest.mark.parametrize("ended", [False, True])
def test_a_pause_and_the_end_of_speech_say_once_what_was_read_twice_and_hear_what_follows_it(ended: bool) -> None:
    session = speaking(CERTAIN)
    take(session, window_at(session, 1.8), ONCE)
    hear(session, 2.4)
    window = pause_at(session, 4.0 if ended else 2.7)
    assert window.last if ended else window.pause
    assert said(take(session, window, GOES_ON)) == "so far away"
    again = due(session, 4.1 if ended else 2.8)
    assert again.start == round(1.6 * SAMPLE_RATE)
    assert again.last == ended
    events = take(session, again, [(" we", 0.0, 0.2), (" went", 0.3, 0.7)])
    if not ended:
        assert shown(events) == ("we went", len("we went"))
        events = hear(session, 4.0, 0.0)[-1:]
    assert said(events) == "we went"


def test_a_word_that_begins_where_the_audio_ends_is_not_shown() -> None:
    session = speaking()
    window = window_at(session, 2.0)
    end_s = seconds_of(window)
    assert (
        shown(take(session, window, [(" so", 0.5, 0.8), (" far", end_s - 0.2, end_s), (" away", end_s, end_s)]))[0]
        == "so far"
    )


def test_the_end_of_speech_makes_everything_final() -> None:
    session = speaking()
    take(session, window_at(session, 2.0), [(" hello", 0.5, 1.0)])
    end = only(Speech, hear(session, 4.0, 0.0))
    last = due(session, 5.0)
    assert last.last
    assert last.end / SAMPLE_RATE == pytest.approx(end.time, abs=0.001)
    final = only(Final, take(session, last, [(" hello", 0.5, 1.0), (" there.", 1.2, 1.6)]))
    assert final.text == "hello there."
    assert final.end == end.time
    assert session.next_span(6.0) is None


def test_a_pause_is_transcribed_at_once_and_its_window_serves_as_the_last() -> None:
    session = speaking(settings_of(policy="alignatt"))
    take(session, window_at(session, 2.0), [(" hello", 0.5, 1.0)])
    hear(session, 2.2, 0.0)
    assert session.next_span(2.2) is None, "it may be a stop within a word"
    window = pause_at(session, 2.3)
    assert window.pause
    assert not window.last
    end_s = seconds_of(window)
    assert shown(take(session, window, [(" hello", 0.5, 1.0), (" there.", 1.2, end_s)]))[1] == len("hello there."), (
        "no word is cut off by a pause"
    )
    events = hear(session, 4.0, 0.0)
    assert [type(event) for event in events] == [Speech, Final]
    assert isinstance(events[1], Final)
    assert events[1].text == "hello there."
    assert session.next_span(5.0) is None, "all that was said had been encoded"


def test_where_speech_ends_while_the_pause_is_transcribed_that_is_the_last_pass() -> None:
    session = speaking()
    hear(session, 2.0)
    window = pause_at(session, 2.3)
    hear(session, 4.0, 0.0)
    assert session.next_span(4.0) is None
    assert said(take(session, window, [(" hello", 0.5, 1.0)])) == "hello"
    assert session.next_span(5.0) is None


def test_silence_after_a_pause_is_not_encoded_and_speech_goes_on_behind_it() -> None:
    session = speaking(settings_of(gate=msgspec.structs.replace(GATE, min_silence_s=5.0)))
    hear(session, 2.0)
    take(session, pause_at(session, 2.3), [(" hello", 0.5, 1.0)])
    hear(session, 5.0, 0.0)
    assert session.next_span(5.0) is None
    window = window_at(session, 5.6)
    assert window.start == 0
    assert not window.pause


def test_a_sure_decoder_settles_words_at_first_sight() -> None:
    session = speaking(settings_of(policy="alignatt", commit_probability=0.4))
    window = window_at(session, 2.0)
    end_s = seconds_of(window)
    so, away, attends_to_the_end = (" so", 0.5, 0.8), (" away", 1.2, 1.4), (" far", 0.9, 1.2, end_s - 0.1)
    stable = shown(take(session, window, [so, attends_to_the_end, away]))[1]
    assert stable == len("so"), "no word after an unstable one becomes stable"
    unsure = timed(" far", 0.9, 1.2, probability=0.3)
    stable = shown(take(session, window_at(session, 3.0), [so, unsure, away]))[1]
    assert stable == len("so far away"), "two hypotheses agree"


def test_unlikely_words_where_nobody_speaks_are_no_words() -> None:
    session = speaking()
    murmur = [timed(" The", 0.2, 0.5, probability=0.4)]
    assert take(session, window_at(session, 2.0), murmur, no_speech_prob=0.9, avg_logprob=-0.7) == []
    hear(session, 4.0, 0.0)
    assert said(take(session, due(session, 4.0), murmur, no_speech_prob=0.9, avg_logprob=-0.7)) == ""


@pytest.mark.parametrize("text", [" ...", " 🎵", " [Music]"])
def test_bare_punctuation_and_notes_are_no_words(text: str) -> None:
    """Nothing of them is shown, and the final covers the speech all the same."""
    session = speaking()
    note = [(text, 0.5, 1.0)]
    assert take(session, window_at(session, 2.0), note) == []
    assert take(session, window_at(session, 3.0), note) == []
    end = only(Speech, hear(session, 5.0, 0.0))
    last = due(session, 6.0)
    final = only(Final, take(session, last, note))
    assert (final.text, final.words, final.end) == ("", (), end.time)


def test_what_is_said_behind_punctuation_is_shown_with_it() -> None:
    session = speaking()
    assert take(session, window_at(session, 2.0), [(" ...", 0.5, 0.6)]) == []
    assert (
        shown(take(session, window_at(session, 3.0), [(" ...", 0.5, 0.6), (" and", 0.7, 1.0), (" so", 1.1, 1.4)]))[0]
        == "... and so"
    )


def test_words_that_will_hardly_stay_are_not_shown() -> None:
    session = speaking(settings_of(show_probability=0.5))
    window = window_at(session, 2.0)
    unlikely = timed(" far", 0.9, 1.2, probability=0.4)
    assert shown(take(session, window, [(" so", 0.5, 0.8), unlikely, (" away", 1.2, 1.4)]))[0] == "so"
    # What is seen stays while it is said again, however unsure.
    window = window_at(session, 3.0)
    end_s = seconds_of(window)
    likely = timed(" so", 0.5, 0.8, probability=0.2)
    truncated = (" further", 2.0, end_s - 0.05)
    partial = only(Partial, take(session, window, [likely, (" fur", 0.9, 1.4), truncated]))
    assert partial.text == "so fur"
    assert [word.stable for word in partial.words] == [True, False]


def test_words_before_a_segment_that_lead_into_a_loop_are_dropped_and_the_last_window_decoded_without_them() -> None:
    session = speaking()
    hear(session, 2.0)
    take(session, pause_at(session, 2.3), [(" hello.", 0.5, 1.0)])
    hear(session, 4.0, 0.0)
    hear(session, 6.0)
    hear(session, 7.0, 0.0)
    window = due(session, 7.0)
    assert window.last
    request = request_of(session, window)
    assert request.prefix == tokens_of(" hello.")
    assert take(session, window, LOOP, looped=True) == []
    window = due(session, 7.2)
    request = request_of(session, window)
    assert window.start == 3.7 * SAMPLE_RATE // HOP_LENGTH * HOP_LENGTH
    assert (request.prefix, request.prompt, request.first) == ((), "", False)
    assert said(take(session, window, [(" on and on.", 0.5, 1.8)])) == "on and on."
    assert session.finished or session.next_span(8.0) is None


@pytest.mark.parametrize("start_s", [0.5, 0.7, 0.9, 1.1])  # within a mel frame, and at its edge
def test_a_decoder_that_does_nothing_but_loop_is_not_asked_for_ever(start_s: float) -> None:
    words = words_at(*(start_s + 0.5 * i for i in range(4)))
    conversation = Conversation(SETTINGS, words, seed=1, manners=Manners(loop=1.0))
    conversation.speak_until(3.0)
    conversation.finish()
    assert len(conversation.windows) < 10


def test_a_window_on_its_way_with_words_that_led_into_a_loop_is_replaced() -> None:
    session = speaking()
    hear(session, 2.0)
    take(session, pause_at(session, 2.3), [(" hello.", 0.5, 1.0)])
    hear(session, 4.0, 0.0)
    window = window_at(session, 6.0)
    waiting = window_at(session, 6.6)
    assert waiting.start == window.start
    take(session, window, LOOP, looped=True)
    assert session.task(waiting) is None
    window = window_at(session, 6.6)
    assert (window.start > waiting.start, window.end) == (True, waiting.end)
    assert request_of(session, window).prefix == ()


def test_a_pause_whose_text_loops_after_a_prompt_is_decoded_once_more_too() -> None:
    session = speaking()
    hear(session, 2.0)
    take(session, pause_at(session, 2.3), [(" hello.", 0.5, 1.0)])
    hear(session, 4.0, 0.0)
    hear(session, 6.0)
    window = pause_at(session, 6.3)
    assert window.pause
    assert take(session, window, LOOP, looped=True) == []
    # No chunk has come since: the window is the same, and wanted.
    again = due(session, 6.4)
    assert again.end == window.end
    assert request_of(session, again).prompt == ""
    take(session, again, [(" on and on.", 0.5, 1.8)])
    _, final = hear(session, 8.0, 0.0)
    assert isinstance(final, Final)
    assert final.text == "on and on."


def test_a_loop_in_a_full_window_that_reaches_the_end_of_speech_is_decoded_once_more() -> None:
    session = speaking()
    hear(session, 2.0)
    take(session, pause_at(session, 2.3), [(" hello.", 0.5, 1.0)])
    hear(session, 4.0, 0.0)
    hear(session, 4.3)
    utterance = session.state.heard.current
    assert utterance is not None
    begin = session.state.text.begins.position
    # What is kept behind the last sound ends beyond the window, what has to be heard of it within.
    hear(session, (begin + N_SAMPLES) / SAMPLE_RATE - PAUSE_SAMPLES / SAMPLE_RATE - 0.04)
    hear(session, 36.0, 0.0)
    window = due(session, 36.0)
    utterance = session.state.heard.current
    assert utterance is not None
    assert not utterance.open
    assert window.end == begin + N_SAMPLES < utterance.end
    assert take(session, window, LOOP, looped=True) == []
    again = due(session, 36.1)
    assert said(take(session, again, [(" on and on.", 0.5, 1.8)])) == "on and on."


def test_a_full_window_that_ends_in_speech_does_not_end_in_a_pause_that_came_later() -> None:
    session = speaking(settings_of(policy="alignatt"))
    hear(session, 40.0)
    window = pause_at(session, 40.3)
    assert window.end == N_SAMPLES
    assert not window.pause
    end_s = seconds_of(window)
    partial = last(Partial, take(session, window, [(" hello", 0.5, 1.0), (" ther", end_s - 0.3, end_s)]))
    assert (partial.text, partial.stable) == ("ther", 0), "it is cut off"


def test_a_word_that_the_decoder_writes_on_at_stays_one_word() -> None:
    session = speaking()
    settle(session, [(" the", 0.2, 0.4), (" President", 0.5, 1.0)])
    whole = TimedWord(" President's", (*tokens_of(" President"), 999_999), 8000, 20000, 0.5)
    words: list[Said] = [(" the", 0.2, 0.4), whole]
    assert shown(take(session, window_at(session, 4.0), words)) == ("the President's", len("the President"))
    partial = only(Partial, take(session, window_at(session, 5.0), words))
    assert (partial.text, partial.stable) == ("the President's", len("the President's"))
    assert [word.word for word in partial.words] == [" the", " President's"]


@pytest.mark.parametrize(
    ("stable", "text", "expected"),
    [
        (["你", "好"], "你好吗", "你好吗"),  # words of a character each become one word
        (["你", "好"], "好吗", "你好吗"),
        ([" well", " "], "  done", "well  done"),
        ([" Octo"], " October", "October"),
    ],
)
def test_where_words_are_split_otherwise_nothing_new_is_lost(stable: list[str], text: str, expected: str) -> None:
    session = speaking()
    settle(session, [(word, 0.2 + 0.2 * i, 0.4 + 0.2 * i) for i, word in enumerate(stable)])
    window = window_at(session, 4.0)
    prefix = request_of(session, window).prefix
    kept = b"".join(map(str.encode, stable))
    assert bytes(prefix) == kept
    overlap = next(n for n in range(len(text.encode()), 0, -1) if kept.endswith(text.encode()[:n]))
    before = prefix[: len(prefix) - overlap]
    words = [TimedWord(bytes(before).decode(), before, 0, 4000, 0.9)] if before else []
    words.append(TimedWord(text, tokens_of(text), 4000, 20000, 0.9))
    assert shown(take(session, window, words))[0] == expected


def test_an_improbable_end_of_a_stable_word_is_left_out_of_the_final() -> None:
    session = speaking()
    settle(session, [(" the", 0.2, 0.4), (" President", 0.5, 1.0)])
    hear(session, 4.0, 0.0)
    window = due(session, 4.0)
    whole = TimedWord(" President's", (*tokens_of(" President"), 999_999), 8000, 20000, 0.1)
    assert said(take(session, window, [(" the", 0.2, 0.4), whole], avg_logprob=-2.0)) == "the President"


def test_long_speech_is_cut_behind_a_sentence_and_the_window_goes_on() -> None:
    session = speaking()
    words = [(" one", 0.5, 1.0), (" two", 1.0, 2.0), (" three", 2.0, 3.0), (" four.", 3.0, 4.0), (" five", 4.2, 5.0)]
    take(session, window_at(session, 7.0), [*words, (" six", 5.0, 6.0)])
    window = window_at(session, 8.2)
    final, partial = take(session, window, [*words, (" six", 5.0, 6.0), (" seven", 6.1, 6.9)])
    assert isinstance(final, Final)
    assert isinstance(partial, Partial)
    assert (partial.segment, partial.text, partial.stable) == (2, "five six seven", len("five six"))
    assert final.text == "one two three four."
    assert final.end == pytest.approx(4.1)
    following = window_at(session, 9.0)
    assert following.start == 0
    request = request_of(session, following)
    assert request.prefix == tuple(token for text, *_ in [*words, (" six", 5.0, 6.0)] for token in tokens_of(text))
    assert request.prompt == ""


def test_a_window_reaches_back_over_a_pause() -> None:
    session = speaking()
    words = [(" one", 0.5, 1.0), (" two.", 1.0, 2.0), (" three", 2.5, 2.8)]
    take(session, window_at(session, 3.0), words)
    take(session, pause_at(session, 3.3), words)
    final = last(Final, hear(session, 4.0, 0.0))
    hear(session, 6.0, 0.0)
    hear(session, 7.0)
    window = due(session, 7.0)
    request = request_of(session, window)
    assert window.start == 0
    assert request.prefix == tuple(token for text, *_ in words for token in tokens_of(text))
    # What is published of it is new.
    partial = only(Partial, take(session, window, [*words, (" four", 6.2, 6.6)]))
    assert partial.text == "four"
    assert partial.start >= final.end
    # A long pause leaves the words to the prompt.
    take(session, pause_at(session, 7.3), [*words, (" four", 6.2, 6.6)])
    hear(session, 20.0, 0.0)
    window = window_at(session, 21.0)
    request = request_of(session, window)
    assert window.start > 19 * SAMPLE_RATE
    assert (request.prefix, request.prompt) == ((), " one two. three four")


def test_no_window_reaches_back_over_speech_that_was_given_up() -> None:
    session = speaking()
    settle(session, [(" one", 0.5, 1.0)])
    hear(session, 4.0)
    hear(session, 5.0, 0.0)
    hear(session, 7.0)
    window = due(session, 7.0)
    assert window.last
    only(Final, session.fail(window))
    assert [type(event) for event in session.recovered()] == [Gap]
    window = window_at(session, 8.0)
    assert window.start / SAMPLE_RATE > 4.5
    assert request_of(session, window).prefix == ()


def test_speech_becomes_final_behind_a_longer_silence_than_ends_it() -> None:
    session = speaking(settings_of(final_silence_s=1.5))
    hear(session, 1.7)
    take(session, pause_at(session, 2.0), [(" one", 0.5, 1.0)])
    end = only(Speech, hear(session, 3.0, 0.0))
    assert end.state == "end"
    # Speech that goes on before that is of the same segment.
    only(Speech, hear(session, 4.0))
    window = window_at(session, 4.5)
    partial = only(Partial, take(session, window, [(" one", 0.5, 1.0), (" two", 3.2, 3.6)]))
    assert (partial.segment, partial.text) == (1, "one two")
    take(session, pause_at(session, 4.9), [(" one", 0.5, 1.0), (" two", 3.2, 3.6)])
    final = last(Final, hear(session, 7.0, 0.0))
    assert (final.segment, final.text) == (1, "one two")


def test_speech_that_begins_with_the_audio_lacks_nothing() -> None:
    session = Session(SETTINGS)
    assert hear(session, 0.7, 0.1) == []
    assert hear(session, 1.0) == [Speech(state="start", time=0.0)]
    session = Session(SETTINGS)
    hear(session, 2.0, 0.1)
    start = only(Speech, hear(session, 2.4))
    assert start.time > 1.6
    # It does not begin once more where it ended before.
    session = Session(settings_of(gate=msgspec.structs.replace(GATE, min_silence_s=0.1)))
    hear(session, 0.3)
    end = only(Speech, [event for event in hear(session, 0.45, 0.0) if isinstance(event, Speech)])
    start = only(Speech, [event for event in hear(session, 0.8) if isinstance(event, Speech)])
    assert start.time >= end.time


@pytest.mark.parametrize(("probability", "is_final"), [(0.9, True), (0.3, False)])
def test_a_sentence_that_probably_ends_is_final_as_soon_as_speech_ends(probability: float, is_final: bool) -> None:
    session = speaking(settings_of(final_silence_s=1.5))
    hear(session, 1.7)
    window = pause_at(session, 2.0)
    stop = TimedWord(".", tokens_of("."), 20_000, 20_800, probability)
    take(session, window, [(" one", 0.5, 1.0), stop])
    finals = [event.text for event in hear(session, 2.5, 0.0) if isinstance(event, Final)]
    assert finals == (["one."] if is_final else [])


def test_punctuation_at_the_end_of_the_sound_is_neither_shown_nor_stable() -> None:
    session = speaking(settings_of(policy="alignatt"))
    words = [(" one", 0.5, 1.0), (" two", 1.2, 1.6)]
    hear(session, 1.7)
    assert shown(take(session, pause_at(session, 2.0), [*words, (".", 1.6, 1.7)])) == ("one two", len("one two"))
    window = window_at(session, 3.5)
    assert request_of(session, window).prefix == tokens_of(" one") + tokens_of(" two")
    partial = only(Partial, take(session, window, [*words, (",", 1.6, 1.7), (" three", 2.6, 3.0)]))
    assert [word.word for word in partial.words] == [" one", " two,", " three"]
    assert partial.stable == len("one two, three")
    # Before, a mark that is not stable is no part of a stable word.
    window = window_at(session, 5.0)
    marked = [*words, (",", 1.6, 1.7), (" three", 2.6, 3.0), (",", 3.0, 3.1)]
    partial = only(Partial, take(session, window, [*marked, TimedWord(" fo", tokens_of(" fo"), 77_000, 78_000, 0.99)]))
    stable = "".join(word.word for word in partial.words if word.stable).strip()
    assert stable == partial.text[: partial.stable]


def test_punctuation_that_comes_behind_a_final_is_left_out() -> None:
    session = speaking()
    hear(session, 1.7)
    take(session, pause_at(session, 2.0), [(" one", 0.5, 1.0)])
    last(Final, hear(session, 3.0, 0.0))
    window = window_at(session, 4.5)
    assert shown(take(session, window, [(" one", 0.5, 1.0), (".", 1.0, 1.1), (" Two", 3.5, 3.9)]))[0] == "Two"


def test_a_loop_settles_nothing() -> None:
    session = speaking()
    take(session, window_at(session, 2.0), [(" and", 0.5, 0.8)])
    assert take(session, window_at(session, 3.0), [(" and", 0.5, 0.8)], looped=True) == []
    assert shown([*take(session, window_at(session, 4.0), [(" and", 0.5, 0.8), (" so", 0.9, 1.0)])])[1] == 0


def test_an_older_window_has_nothing_to_say_once_a_newer_was_taken() -> None:
    session = speaking()
    older = window_at(session, 2.0)
    newer = window_at(session, 3.0)
    take(session, newer, [(" word", 0.5, 0.8)])
    assert session.task(older) is None
    assert session.fail(older) == []


def test_lost_audio_leaves_a_final_of_what_was_known_and_a_gap() -> None:
    session = speaking()
    window = window_at(session, 2.0)
    take(session, window, [(" known", 0.5, 0.8)])
    hear(session, 3.0)
    final, speech, gap = session.lose(5 * SAMPLE_RATE, "overrun")
    assert isinstance(final, Final)
    assert final.text == "known"
    assert final.end == pytest.approx(window.end / SAMPLE_RATE, abs=0.001)
    assert isinstance(speech, Speech)
    assert speech.state == "end"
    assert gap == Gap(start=final.end, end=5.0, reason="overrun")
    hear(session, 5.2)
    following = window_at(session, 6.0)
    assert following.start >= 5 * SAMPLE_RATE


def test_a_window_that_fails_costs_its_own_speech_only() -> None:
    session = speaking()
    hear(session, 2.0)
    hear(session, 3.0, 0.0)
    hear(session, 4.0)  # more speech, while nothing of the first is known
    window = due(session, 0.0)
    assert window.last
    assert session.fail(window) == [], "it may go on to fail"
    following = due(session, 0.0)
    gap, *_ = take(session, following, [(" so", 0.5, 0.8)])
    assert isinstance(gap, Gap)
    assert gap.reason == "device"
    assert gap.end <= 3.0
    assert following.start / SAMPLE_RATE >= gap.end - 0.01


def test_windows_that_fail_one_after_the_other_are_one_gap_that_is_told_when_one_succeeds() -> None:
    session = speaking()
    for i in range(100):
        hear(session, 10.0 * i + 5.0)
        window = session.next_span(0.0)
        assert window is not None
        events = [*session.fail(window), *hear(session, 10.0 * i + 10.0, 0.0)]
        assert not any(isinstance(event, Gap) for event in events)
    hear(session, 1005.0)
    window = due(session, 0.0)
    gap, partial = take(session, window, [(" so", 0.5, 0.8)])
    assert isinstance(gap, Gap)
    assert gap == Gap(start=0.0, end=gap.end, reason="device")
    assert 994.0 < gap.end < 996.0
    assert isinstance(partial, Partial)


def test_a_hypothesis_that_cannot_be_taken_does_not_take_the_gap_before_it_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = speaking()
    session.fail(window_at(session, 5.0))
    hear(session, 7.0)
    window = window_at(session, 9.0)
    with monkeypatch.context() as patched:
        patched.setattr(Transcript, "keep", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take(session, window, [(" so", 0.5, 0.8)])
    gap, partial = take(session, window, [(" so", 0.5, 0.8)])
    assert isinstance(gap, Gap)
    assert (gap.start, gap.reason) == (0.0, "device")
    assert isinstance(partial, Partial)


def test_what_is_given_up_while_windows_fail_belongs_to_the_same_gap_also_at_the_end() -> None:
    session = speaking()
    window = window_at(session, 5.0)
    events = session.fail(window)
    hear(session, 20.0)
    events += session.drop_before(15 * SAMPLE_RATE, "overload")
    events += hear(session, 22.0, 0.0)
    window = pause_at(session, 22.3)
    events += session.fail(window)
    events += session.finish(session.position)
    (gap,) = (event for event in events if isinstance(event, Gap))
    assert gap.reason == "device"
    assert (gap.start, session.finished) == (0.0, True)


def test_a_hypothesis_without_its_prefix_takes_nothing_back() -> None:
    session = speaking()
    settle(session, [(" so", 0.5, 0.8)])
    window = pause_at(session, 3.1)
    hear(session, 4.0, 0.0)
    assert session.final_awaited
    assert said(take(session, window, [])) == "so"


AUTO = settings_of(language="auto", policy="alignatt")


def asked(session: Session, window: Span) -> tuple[str, float, int, str]:
    """Return the language that a window is to be decoded in, where it begins, its prefix's length and its prompt."""
    request = request_of(session, window)
    return request.language, window.start / SAMPLE_RATE, len(request.prefix), request.prompt


def test_nothing_is_stable_before_the_language_is_sure() -> None:
    session = speaking(AUTO)
    words = [(" one", 0.3, 0.6), (" two.", 0.6, 0.9), (" three", 1.2, 1.4)]
    for end_s, n_shown in ((0.8, 0), (1.5, len("one two. three"))):
        partials = take(session, window_at(session, end_s), words, language="cy", sure=False)
        assert [(len(partial.text), partial.stable) for partial in partials if isinstance(partial, Partial)] == (
            [(n_shown, 0)] if n_shown else []
        )
    window = window_at(session, 2.3)
    assert asked(session, window) == ("auto", 0.0, 0, "")
    assert shown(take(session, window, words, language="de"))[1] == len("one two. three")
    assert asked(session, window_at(session, 3.0)) == ("de", 0.0, len(" one two. three"), "")


def after_german(**changes: object) -> Session:
    """Return a session in which something was said in German, and speech begins again."""
    session = speaking(settings_of(language="auto", policy="alignatt", **changes))
    take(session, window_at(session, 3.0), [(" eins", 0.5, 1.0)], language="de")
    take(session, pause_at(session, 3.3), [(" eins", 0.5, 1.0)], language="de")
    hear(session, 6.0, 0.0)
    hear(session, 6.5)
    return session


def test_a_new_utterance_is_heard_alone_until_its_language_is_sure_and_then_with_what_was_said_before() -> None:
    session = after_german()
    window = window_at(session, 7.0)
    language, start_s, n_prefix, prompt = asked(session, window)
    assert (language, n_prefix, prompt) == ("auto", 0, "")
    assert start_s > 5
    assert shown(take(session, window, [(" zwei", 0.3, 0.5)], language="de", sure=False)) == ("zwei", 0)
    take(session, window_at(session, 7.6), [(" zwei", 0.3, 0.5)], language="de")
    assert session.needed_from == 0
    assert asked(session, window_at(session, 8.2)) == ("de", 0.0, len(" eins"), "")


def test_a_short_utterance_is_decoded_once_more_with_what_was_said_before() -> None:
    session = after_german()
    session.flush()
    window = due(session, 6.5)
    assert take(session, window, [(" zwei", 0.3, 0.5)], language="de", sure=False) == []
    window = due(session, 6.5)
    assert asked(session, window) == ("de", 0.0, len(" eins"), "")
    final, *_ = take(session, window, [(" eins", 0.5, 1.0), (" zwei", 6.2, 6.4)], language="de")
    assert isinstance(final, Final)
    assert (final.text, final.language) == ("zwei", "de")


def test_when_the_language_is_to_be_found_in_mid_speech_nothing_is_published_twice() -> None:
    session = speaking(settings_of(policy="alignatt"))
    take(session, window_at(session, 3.0), [(" eins", 0.5, 1.0)])
    take(session, pause_at(session, 3.3), [(" eins", 0.5, 1.0)])
    hear(session, 6.0, 0.0)
    assert asked(session, window_at(session, 6.5)) == ("en", 0.0, 5, "")
    session.change(AUTO)
    window = window_at(session, 8.5)
    assert asked(session, window)[0] == "auto"
    assert window.start / SAMPLE_RATE > 5.0
    assert shown(take(session, window, [(" zwei", 0.5, 1.0)], language="de"))[0] == "zwei"
    # Nor by what follows in the new language.
    window = window_at(session, 9.5)
    assert asked(session, window)[::2] == ("de", 5)
    assert window.start / SAMPLE_RATE > 5.0


def test_text_in_another_language_is_no_context() -> None:
    session = after_german()
    window = window_at(session, 8.0)
    assert shown(take(session, window, [(" two", 0.3, 0.5)], language="en"))[1] == len("two")
    following = window_at(session, 9.0)
    assert asked(session, following) == ("en", window.start / SAMPLE_RATE, len(" two"), "")
    assert request_of(session, following).known_languages == ("de", "en")


def test_where_another_language_goes_on_the_next_window_begins_behind_what_is_stable() -> None:
    session = speaking(AUTO)
    take(session, window_at(session, 3.0), [(" eins", 0.5, 1.0)], language="de")
    words = [(" eins", 0.5, 1.0), (" Zuluft", 1.5, 2.0)]
    assert shown(take(session, window_at(session, 4.0), words, language="de", sure=False))[1] == len("eins")
    final, *_ = take(session, window_at(session, 5.0), words, language="de", sure=False)
    assert isinstance(final, Final)
    assert (final.text, final.language) == ("eins", "de")
    window = window_at(session, 6.0)
    assert asked(session, window) == ("auto", 1.0, 0, "")
    assert shown(take(session, window, [(" two", 0.5, 1.0)], language="en"))[1] == len("two")


def test_the_end_of_speech_is_decoded_once_more_where_it_is_in_another_language() -> None:
    session = speaking(AUTO)
    take(session, window_at(session, 2.5), [(" eins", 0.5, 1.0)], language="de")
    hear(session, 3.0)
    session.flush()
    window = due(session, 3.0)
    final, *_ = take(session, window, [(" eins", 0.5, 1.0), (" Zuluft", 1.5, 2.0)], language="de", sure=False)
    assert isinstance(final, Final)
    assert final.text == "eins"
    window = due(session, 2.5)
    assert asked(session, window) == ("auto", 1.0, 0, "")
    final, *_ = take(session, window, [(" two", 0.5, 1.0)], language="en")
    assert isinstance(final, Final)
    assert (final.text, final.language) == ("two", "en")


def test_a_session_goes_on_elsewhere_before_its_language_is_sure() -> None:
    session = after_german()
    take(session, window_at(session, 7.0), [(" zwei", 0.3, 0.5)], language="de", sure=False)
    session = Session(AUTO, session.state)
    take(session, window_at(session, 7.6), [(" zwei", 0.3, 0.5)], language="de")
    assert asked(session, window_at(session, 8.2)) == ("de", 0.0, len(" eins"), "")


def test_a_language_that_was_set_stays() -> None:
    session = speaking(settings_of(language="fr"))
    assert not request_of(session, window_at(session, 3.0)).chosen


CLEAR = 0.9  # probability of speech of which words are missed


def test_speech_without_words_is_decoded_once_more_without_what_was_said_before_and_then_a_gap() -> None:
    session = speaking()
    take(session, window_at(session, 2.0), [(" so", 0.5, 0.8), (" far.", 0.8, 1.2)])
    hear(session, 5.0, 0.0)
    take(session, due(session, 5.0), [(" so", 0.5, 0.8), (" far.", 0.8, 1.2)])
    hear(session, 9.0, CLEAR)
    hear(session, 11.0, 0.0)
    window = due(session, 11.0)
    assert window.last
    assert request_of(session, window).prefix, "it reaches back to what was said before"
    assert take(session, window, [(" so", 0.5, 0.8), (" far.", 0.8, 1.2)]) == []
    again = due(session, 11.0)
    request = request_of(session, again)
    assert (request.prefix, request.prompt) == ((), "")
    assert request.retry_s > 0, "however busy the machine is"
    gap = only(Gap, take(session, again, []))
    assert (gap.reason, gap.end) == ("unclear", seconds_of_end(session))
    assert session.state.heard.current is None


def test_a_second_try_that_finds_the_words_makes_them_final() -> None:
    session = speaking(settings_of(language="auto"))
    take(session, window_at(session, 2.0), [(" eins", 0.5, 0.8), (" zwei.", 0.8, 1.2)], language="de")
    hear(session, 6.0, CLEAR)
    hear(session, 8.0, 0.0)
    words: list[Said] = [(" eins", 0.5, 0.8), (" zwei.", 0.8, 1.2)]
    final = only(Final, take(session, due(session, 8.0), words, language="de"))
    assert (final.text, final.end) == ("eins zwei.", 1.2)
    again = due(session, 8.0)
    assert again.start == round(1.2 * SAMPLE_RATE)
    rest = only(
        Final, take(session, again, [(" drei", 1.0, 1.5), (" vier", 2.0, 3.0), (" acht", 3.1, 4.4)], language="de")
    )
    assert (rest.text, rest.start, rest.end) == ("drei vier acht", 1.2, seconds_of_end(session))


def test_speech_without_words_is_decoded_in_the_next_likely_language() -> None:
    session = speaking(AUTO)
    hear(session, 5.0, CLEAR)
    hear(session, 7.0, 0.0)
    assert take(session, due(session, 7.0), [], language="cy", other_language="de") == []
    again = due(session, 7.0)
    request = request_of(session, again)
    assert (request.language, request.chosen) == ("de", False)
    final = only(Final, take(session, again, [(f" w{i}", i + 0.2, i + 0.8) for i in range(5)], language="de"))
    assert (final.text, final.language) == ("w0 w1 w2 w3 w4", "de")


def test_what_was_known_stays_if_another_try_finds_less() -> None:
    session = speaking(AUTO)
    hear(session, 8.0, CLEAR)
    hear(session, 10.0, 0.0)
    known: list[Said] = [
        (" eins", 0.3, 0.8),
        (" zwei", 3.5, 4.0),
        (" drei", 4.5, 5.0),
        (" vier", 5.6, 6.2),
        (" acht", 7.0, 7.8),
    ]
    first = only(Final, take(session, due(session, 10.0), known, language="de", other_language="cy", avg_logprob=-0.3))
    assert first.text == "eins"
    assert take(session, due(session, 10.0), [(" Unsinn", 6.0, 6.9)], language="de", other_language="cy") == []
    gap, rest = take(session, due(session, 10.0), [], language="cy")
    assert isinstance(gap, Gap)
    assert isinstance(rest, Final)
    assert (gap.start, gap.end, rest.start) == (first.end, 3.5, 3.5)
    assert (rest.text, rest.language) == ("zwei drei vier acht", "de")


def test_words_behind_speech_without_words_wait_until_it_is_filled_or_a_gap() -> None:
    session = speaking(settings_of(policy="alignatt"))
    hear(session, 4.0, CLEAR)
    words: list[Said] = [(" now", 0.3, 0.8), (" then", 3.0, 3.4), (" more", 3.4, 3.6)]
    assert shown(take(session, due(session, 4.0), words)) == ("now then more", len("now"))
    hear(session, 5.0, CLEAR)
    final = only(Final, take(session, due(session, 5.0), [*words, (" said", 4.0, 4.5)]))
    assert final.text == "now", "the second pass in a row: what follows is decoded alone"
    hear(session, 6.0, CLEAR)
    begin_s = 0.8
    rest = [(" then", 3.0 - begin_s, 3.4 - begin_s), (" more", 3.4 - begin_s, 3.6 - begin_s), (" said", 3.8, 4.0)]
    assert shown(take(session, due(session, 6.0), rest)) == ("then more said", 0)
    hear(session, 7.0, CLEAR)
    gap, *_, partial = take(session, due(session, 7.0), [*rest, (" here", 4.8, 5.4)])
    assert isinstance(gap, Gap)
    assert (gap.start, gap.end, gap.reason) == (final.end, 3.0, "unclear")
    assert isinstance(partial, Partial)
    assert partial.text == "then more said here"
    hear(session, 8.0, CLEAR)
    partial = last(
        Partial, take(session, due(session, 8.0), [(" then", 0.0, 0.4), (" more", 0.4, 0.6), (" said", 1.6, 1.8)])
    )
    assert partial.text[: partial.stable] == "then more said"


def test_after_long_speech_without_a_word_what_begins_the_window_is_left_out() -> None:
    session = speaking(settings_of(policy="alignatt"))
    for end_s in (2.0, 4.0, 5.8):
        hear(session, end_s, CLEAR)
        window = due(session, end_s)
        assert window.start == 0
        assert take(session, window, []) == []
    hear(session, 6.4, CLEAR)
    window = due(session, 6.4)
    take(session, window, [])
    hear(session, 8.0, CLEAR)
    later = due(session, 8.0)
    assert 0 < later.start < window.end
    begin_s = later.start / SAMPLE_RATE
    words: list[Said] = [(" then", 6.5 - begin_s, 7.0 - begin_s), (" more", 7.0 - begin_s, 7.5 - begin_s)]
    assert shown(take(session, later, words)) == ("then more", 0)
    hear(session, 9.0, CLEAR)
    gap, _ = take(session, due(session, 9.0), [*words, (" said", 8.0 - begin_s, 8.6 - begin_s)])
    assert isinstance(gap, Gap)
    assert (gap.start, gap.end) == (0.0, 6.5)


@pytest.mark.parametrize("n_speaking_on", [0, 30])
def test_a_loop_that_stays_ends_with_what_was_known(n_speaking_on: int) -> None:
    """Its window begins within the open segment, whose words before the window are its prompt."""
    session = speaking(settings_of(trim_after_s=60.0, window_s=8.0, policy="alignatt"))
    said: list[tuple[str, float, float]] = []
    for i in range(20):
        said.append((f" w{i}", 0.5 * i + 0.1, 0.5 * i + 0.5))
        hear(session, 0.5 * i + 1.0)
        if session.due:
            window = due(session, 0.0)
            begin = window.start / SAMPLE_RATE
            heard = [(text, a - begin, b - begin) for text, a, b in said if a >= begin]
            take(session, window, heard)
    assert request_of(session, window_at(session, 11.2)).prompt
    hear(session, 11.7 + n_speaking_on)
    session.finish(session.position)
    events: list[Event] = []
    n_passes = 0
    while not session.finished:
        events += take(session, due(session, 60.0), LOOP, looped=True)
        n_passes += 1
        assert n_passes < 20, "it is decoded again and again"
    assert any(isinstance(event, Final) and "w19" in event.text for event in events)


def test_more_words_than_can_be_spoken_are_no_text() -> None:
    session = speaking()
    words = [(f" w{i}", 0.1 + i / 50, 0.1 + (i + 1) / 50) for i in range(40)]
    take(session, window_at(session, 1.5), words)
    hear(session, 4.0, 0.0)
    assert said(take(session, due(session, 4.0), words)) == ""


def test_a_copy_of_the_prompt_is_decoded_without_it() -> None:
    session = speaking()
    sentence: list[Said] = [
        (f" {word}", 0.2 * i, 0.2 * i + 0.2) for i, word in enumerate(["we", "do", "not", "know", "that", "yet."])
    ]
    take(session, window_at(session, 2.0), sentence)
    hear(session, 8.0, 0.0)
    take(session, due(session, 8.0), sentence)
    hear(session, 14.0, 0.0)
    hear(session, 16.0)
    hear(session, 18.0, 0.0)
    window = due(session, 18.0)
    assert request_of(session, window).prompt
    assert take(session, window, sentence) == []
    again = due(session, 18.0)
    assert not request_of(session, again).prompt
    assert said(take(session, again, sentence)) == "we do not know that yet."


def seconds_of_end(session: Session) -> float:
    """Return where the newest final or gap ends."""
    return session.state.losses.published_until / SAMPLE_RATE


def speaking(settings: SessionSettings = SETTINGS) -> Session:
    """Return a session in which speech has just begun, at sample 0."""
    session = Session(settings)
    (start,) = hear(session, 0.2)
    assert start == Speech(state="start", time=0.0)
    return session


def hear(session: Session, until_s: float, probability: float | None = None) -> list[Event]:
    """Add audio. By default it is speech too faint to count as skipped: clear only until it has begun."""
    events: list[Event] = []
    position = session.position
    while position < until_s * SAMPLE_RATE:
        position += CHUNK_SAMPLES
        found = (0.4 if session.state.gate.open else 0.9) if probability is None else probability
        events += session.hear(position, found, position / SAMPLE_RATE)
    return events


def window_at(session: Session, until_s: float, now_s: float = 0.0) -> Span:
    hear(session, until_s)
    return due(session, now_s)


def pause_at(session: Session, until_s: float) -> Span:
    hear(session, until_s, 0.0)
    return due(session, 0.0)


def task_of(session: Session, window: Span) -> Task:
    task = session.task(window)
    assert task is not None
    return task


def request_of(session: Session, window: Span) -> Request:
    return task_of(session, window).request


def take(
    session: Session,
    window: Span,
    words: Sequence[Said],
    now_s: float | None = None,
    *,
    language: str = "en",
    sure: bool = True,
    **more: Any,  # noqa: ANN401 - of the hypothesis
) -> list[Event]:
    """Let the decoder return words, at seconds of the window."""
    found = tuple(word if isinstance(word, TimedWord) else timed(*word) for word in words)
    fields = {"no_speech_prob": 0.0, "avg_logprob": -0.1, **more}
    hypothesis = Hypothesis(found, language, language_sure=sure, **fields)
    now_s = window.issued_s if now_s is None else now_s
    return session.take(task_of(session, window), hypothesis, now_s)


def only(kind: type[AnyEvent], events: Sequence[Event]) -> AnyEvent:
    """Return the only event, which is of a kind."""
    (event,) = events
    assert isinstance(event, kind)
    return event


def last(kind: type[AnyEvent], events: Sequence[Event]) -> AnyEvent:
    """Return the last event, which is of a kind."""
    return only(kind, events[-1:])


def shown(events: Sequence[Event]) -> tuple[str, int]:
    """Return the text of the only event, a partial, and the length of its stable part."""
    partial = only(Partial, events)
    return partial.text, partial.stable


def said(events: Sequence[Event]) -> str:
    """Return the text of the only event, a final."""
    return only(Final, events).text


def due(session: Session, now_s: float) -> Span:
    window = session.next_span(now_s)
    assert window is not None
    return window


def settle(session: Session, words: Sequence[tuple[str, float, float]], at_s: float = 2.0) -> None:
    take(session, window_at(session, at_s), words)
    take(session, window_at(session, at_s + 0.7), words)


def timed(
    text: str, start_s: float, end_s: float, attended_s: float | None = None, probability: float = 0.5
) -> TimedWord:
    attended = end_s if attended_s is None else attended_s
    start, end, furthest = (round(time_s * SAMPLE_RATE) for time_s in (start_s, end_s, attended))
    return TimedWord(text, tokens_of(text), start, end, probability, furthest)


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def seconds_of(window: Span) -> float:
    return (window.end - window.start) / SAMPLE_RATE
