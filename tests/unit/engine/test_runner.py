"""A session at work, on a clock that is moved by hand."""

import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.vad import CHUNK_SAMPLES
from streamer.engine.engine import RETRY_S
from streamer.engine.host import Host
from streamer.engine.outage import FIRST_RETRY_S, LONGEST_RETRY_S, MAX_FAILURES
from streamer.engine.publisher import Output
from streamer.engine.runner import RECORDED_PATIENCE_S, AudioKind, Input, SessionRunner
from streamer.engine.session import STALL_S, Session
from streamer.engine.settings import SessionSettings
from streamer.engine.transcript import MAX_STABLE_TOKENS
from streamer.engine.window import Request, Window
from streamer.errors import InferenceError
from streamer.events import Error, Event, Final, Flushed, Gap, GapReason, Partial, Speech
from streamer.whisper.result import Hypothesis, TimedWord
from tests.fakes import Clock, FakeDetector, FakeMel, Speaker, SpokenWord, audio_of, words_at
from tests.promises import Promises
from tests.unit.engine.test_session import SETTINGS, settings_of

# Audio comes in pieces of this length.
PIECE_SAMPLES = SAMPLE_RATE // 10

HOUR_S = 3600.0

Decode = Callable[[Window, Request], Hypothesis]


class Rig:
    """A session, somebody who speaks to it, and all that an engine does for it."""

    def __init__(
        self,
        words: Sequence[SpokenWord],
        *,
        settings: SessionSettings = SETTINGS,
        kind: AudioKind = AudioKind.LIVE,
        new_detector: Callable[[], FakeDetector] = FakeDetector,
    ) -> None:
        self.clock = Clock()
        self.words = list(words)
        self.speaker = Speaker(self.words)
        # Behind the last word nothing is said.
        self.samples = audio_of(self.words, self.words[-1].end)
        # What a window reads; it may raise.
        self.decode: Decode = self.hear
        self.events: list[Event] = []
        self.n_finished = 0
        self.retry_s = math.inf if kind is AudioKind.RECORDED else RETRY_S
        self.windows: list[Window] = []
        self.runner = SessionRunner(
            settings,
            Input(kind=kind, capacity_samples=90 * SAMPLE_RATE, max_delay_s=30.0),
            Output(on_event=self.events.append, on_finished=self._finish),
            mel=FakeMel(),
            new_detector=new_detector,
        )
        self.host = Host(clock=self.clock)
        self.runner.start(self.host)

    def hear(self, window: Window, request: Request) -> Hypothesis:
        """What a good decoder makes of a window."""
        return self.speaker.hypothesis(window.start, window.end, request.prefix)

    def speak_until(self, time_s: float) -> None:
        """Let audio come as it is spoken, up to a second of it."""
        while self.runner.ring.head < time_s * SAMPLE_RATE:
            self.clock.advance(PIECE_SAMPLES / SAMPLE_RATE)
            self.write(PIECE_SAMPLES)
            self.work()

    def write(self, n_samples: int) -> None:
        """Send so much at once."""
        head = self.runner.ring.head
        said = self.samples[head : head + n_samples]
        self.runner.write(np.pad(said, (0, n_samples - len(said))))

    def wait(self, duration_s: float, step_s: float = 0.5) -> None:
        """Let time pass in which nothing comes."""
        end_s = self.clock.now_s + duration_s
        while self.clock.now_s < end_s:
            self.clock.now_s = min(end_s, self.clock.now_s + step_s)
            self.work()

    def work(self) -> None:
        """Do what is to be done now."""
        for _ in range(1000):
            more = self.runner.has_news(self.clock()) and self.runner.listen(self.clock())
            if not self._pass() and not more:
                return
        pytest.fail("there is no end of work")

    def finish(self, end_s: float = 0.0) -> None:
        """End the audio, at a second of it, and hold the events against all promises."""
        self.speak_until(end_s)
        self.runner.end()
        self.work()
        assert self.runner.over
        assert self.n_finished == 1
        self.hold_promises()

    def hold_promises(self) -> None:
        promises = Promises(wordless=True)
        promises.take(self.events)
        promises.check_all_told()

    def of(self, *types: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, types)]

    @property
    def finals(self) -> list[Final]:
        return [event for event in self.events if isinstance(event, Final)]

    @property
    def gaps(self) -> list[Gap]:
        return [event for event in self.events if isinstance(event, Gap)]

    @property
    def texts(self) -> list[str]:
        return [final.text for final in self.finals]

    @property
    def errors(self) -> list[Error]:
        return [event for event in self.events if isinstance(event, Error)]

    def _finish(self) -> None:
        self.n_finished += 1

    def _pass(self) -> bool:
        if math.isinf(self.runner.due.deadline_s):
            return False
        issued = self.runner.issue(self.clock())
        if issued is None:
            return False
        window, _ = issued
        self.windows.append(window)
        self.runner.decode(window, lambda request: self.decode(window, request), retry_s=self.retry_s)
        return True


def broken(window: Window, request: Request) -> Hypothesis:
    raise InferenceError("the device is gone")


# When a window is to be encoded.


def test_a_final_is_due_at_once_a_partial_within_the_pace_and_a_recording_when_there_is_time() -> None:
    rigs = [Rig(words_at(0.5, 1.0, 1.5), kind=kind) for kind in (AudioKind.LIVE, AudioKind.RECORDED)]
    for rig in rigs:
        rig.write(2 * SAMPLE_RATE)
        rig.runner.listen(rig.clock())
        due_s = rig.clock()
        rig.clock.advance(0.1)  # a deadline does not move
        rig.runner.listen(rig.clock())
        patience_s = RECORDED_PATIENCE_S if rig.runner.recorded else SETTINGS.pace_s
        assert rig.runner.due.deadline_s == pytest.approx(due_s + patience_s)
    live = rigs[0].runner
    live.flush()
    live.listen(rigs[0].clock())
    assert live.due.deadline_s == due_s


# What does not come.


def test_no_audio_is_copied_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 30 s of it, for which everybody who needs the session would wait."""
    rig = Rig(words_at(1.0, 2.0))
    read, locked = rig.runner.ring.read, []

    def noted(start: int, end: int) -> Float32Array:
        locked.append(rig.runner._lock.locked())
        return read(start, end)

    monkeypatch.setattr(rig.runner.ring, "read", noted)
    rig.finish(4.0)
    assert rig.windows
    assert set(locked) == {False}


def test_a_client_that_stops_in_mid_speech_gets_its_final_after_a_while() -> None:
    rig = Rig(words_at(0.5, 1.0, 1.5))
    rig.speak_until(1.9)
    rig.wait(STALL_S - 0.3, step_s=0.1)
    assert rig.finals == []
    rig.wait(0.5, step_s=0.1)
    (final,) = rig.finals
    assert [word.word for word in final.words][:2] == [" w0", " w1"]
    assert final.end == pytest.approx(1.9, abs=CHUNK_SAMPLES / SAMPLE_RATE)
    rig.finish()


def test_a_client_whose_audio_cannot_come_is_waited_for() -> None:
    rig = Rig(words_at(0.5, 1.0, 1.5, 2.0, 2.5))
    rig.speak_until(1.9)
    rig.runner.excused_until_s = rig.clock() + 5.0
    rig.wait(4.9, step_s=0.1)
    assert rig.finals == []
    rig.finish(3.0)
    assert [word.word for final in rig.finals for word in final.words] == [" w0", " w1", " w2", " w3", " w4"]


def test_audio_that_stops_for_an_hour_and_goes_on_is_two_stretches_of_speech_and_nothing_else() -> None:
    rig = Rig(words_at(0.5, 1.0, 2.0, 2.5))
    rig.speak_until(1.6)
    rig.wait(HOUR_S)
    assert [type(event) for event in rig.events if not isinstance(event, Partial)] == [Speech, Speech, Final]
    n_events = len(rig.events)
    rig.wait(HOUR_S)
    assert len(rig.events) == n_events
    rig.finish(4.0)
    assert rig.texts == ["w0 w1", "w2 w3"]
    assert rig.gaps == []


def test_a_machine_that_slept_for_hours_goes_on_where_it_was() -> None:
    rig = Rig(words_at(*(0.6 + 0.5 * i for i in range(20))))
    rig.speak_until(4.0)
    # Nobody looked at the clock meanwhile; there is audio at once.
    rig.clock.advance(8 * HOUR_S)
    rig.finish(12.0)
    assert " ".join(rig.texts).split() == [f"w{i}" for i in range(20)]
    assert rig.gaps == []


def test_audio_that_is_sent_again_after_a_move_is_no_recording() -> None:
    rig = Rig(words_at(0.5), kind=AudioKind.EITHER)
    rig.runner.input = dataclasses.replace(rig.runner.input, live_from=20 * SAMPLE_RATE)
    rig.write(20 * SAMPLE_RATE)
    assert not rig.runner.recorded
    rig.write(20 * SAMPLE_RATE)
    assert rig.runner.recorded


def test_adjoining_pieces_of_a_hole_are_one_gap_behind_the_final_of_what_was_said() -> None:
    rig = Rig(words_at(0.5, 1.0, 5.0, 5.5))
    rig.speak_until(1.6)
    # Before the last words were transcribed; the second lies within what the first is told with.
    rig.runner.write_gap(5 * SAMPLE_RATE // 4, "overrun")
    rig.work()
    rig.runner.write_gap(SAMPLE_RATE // 2, "overrun")
    rig.work()
    rig.finish(7.0)
    assert rig.texts == ["w0 w1", "w2 w3"]
    assert rig.gaps == [Gap(start=rig.finals[0].end, end=3.35, reason="overrun")]
    first, gap, second = rig.of(Final, Gap)
    assert (first, gap, second) == (rig.finals[0], rig.gaps[0], rig.finals[1])


def test_a_hole_that_is_shorter_than_times_are_told_is_no_gap() -> None:
    rig = Rig(words_at(0.5))
    rig.speak_until(0.3)
    rig.runner.write_gap(3, "overrun")
    rig.finish(2.0)
    assert rig.gaps == []


# Commands.


def test_what_comes_in_a_pause_is_a_gap_between_finals() -> None:
    rig = Rig(words_at(0.5, 1.0, 2.5, 3.0, 5.0, 5.5))
    rig.speak_until(1.6)
    rig.runner.pause()
    rig.runner.pause()
    rig.work()
    assert rig.runner.paused
    rig.speak_until(4.0)
    assert len(rig.finals) == 1
    rig.runner.resume()
    rig.runner.resume()
    rig.speak_until(7.0)
    assert not rig.runner.paused
    rig.finish()
    assert rig.texts == ["w0 w1", "w4 w5"]
    assert rig.of(Final, Gap)[1] == Gap(start=1.6, end=4.0, reason="paused")


def test_a_flush_makes_final_what_was_said_and_no_word_is_lost() -> None:
    rig = Rig(words_at(*(0.5 + 0.5 * i for i in range(8))))
    rig.speak_until(2.0)
    rig.runner.flush()
    rig.work()
    assert rig.texts == ["w0 w1 w2"]
    rig.runner.flush()
    rig.finish(6.0)
    assert rig.texts == ["w0 w1 w2", "w3 w4 w5 w6 w7"]
    assert rig.gaps == []


def test_a_flush_is_answered_when_all_before_it_is_told() -> None:
    rig = Rig(words_at(0.5, 1.0, 5.0))
    rig.runner.flush()
    rig.work()
    assert [event.type for event in rig.of(Final, Flushed)] == ["flushed"]  # there was nothing
    rig.speak_until(2.0)
    rig.runner.flush()
    rig.work()
    rig.speak_until(4.0)
    rig.runner.flush()
    rig.finish(6.0)
    told = [(event.type, getattr(event, "time", None)) for event in rig.of(Final, Flushed)]
    assert told == [("flushed", 0.0), ("final", None), ("flushed", 2.0), ("flushed", 4.0), ("final", None)]


def test_no_snapshot_has_an_answer_to_a_command_without_its_number() -> None:
    rig = Rig(words_at(5.0))
    rig.runner.flush(1)
    rig.runner.pause(2)
    seen = []
    while rig.runner._step(0.0):  # a command at a time
        seen.append(rig.runner.snapshot(lambda: len(rig.of(Flushed))))
    assert [(n_flushed, state.mark) for n_flushed, state in seen] == [(1, 1), (1, 2)]


def test_what_is_cleared_is_a_gap_and_its_segment_is_not_told() -> None:
    rig = Rig(words_at(0.5, 1.0, 1.5, 2.0, 5.0))
    rig.speak_until(2.5)
    (shown, *_) = rig.of(Partial)
    assert isinstance(shown, Partial)
    rig.runner.clear()
    rig.finish(7.0)
    (gap,) = rig.gaps
    assert (gap.start, gap.end, gap.reason) == (shown.start, 2.5, "cleared")
    (final,) = rig.finals
    assert (final.segment, final.text) == (shown.segment + 1, "w4")


def test_the_log_says_which_language_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(words_at(0.5, 1.0, 4.0, 4.5, 8.0, 8.5), settings=settings_of(language="auto"))
    rig.decode = lambda window, request: dataclasses.replace(
        rig.hear(window, request), language="fr" if window.end > 7 * SAMPLE_RATE else "de"
    )
    rig.finish(11.0)
    assert [final.language for final in rig.finals] == ["de", "de", "fr"]
    assert [record.message for record in caplog.records] == ["language: German", "language: French"]


def test_the_log_says_once_that_a_language_is_spoken_that_is_not_allowed(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(words_at(0.5, 1.0, 4.0, 4.5, 8.0, 8.5), settings=settings_of(language="auto", languages=("en", "fr")))
    rig.decode = lambda window, request: dataclasses.replace(
        rig.hear(window, request), language_outside="de" if window.end > 3 * SAMPLE_RATE else ""
    )
    rig.finish(11.0)
    assert [record.message for record in caplog.records] == [
        "German is spoken, which the session does not allow (only en, fr): its text is wrong; add de to `languages`"
    ]


def test_settings_can_change_while_somebody_speaks() -> None:
    rig = Rig(words_at(0.5, 1.0, 2.0, 2.5, 5.0, 5.5), settings=settings_of(language="en"))
    quick = msgspec.structs.replace(SETTINGS.gate, min_silence_s=0.2)
    rig.speak_until(1.4)
    rig.runner.change(settings_of(gate=quick, final_silence_s=0.2, pace_s=10.0, language="auto"))
    n_windows = len(rig.windows)
    languages: list[str] = []

    def note_language(window: Window, request: Request) -> Hypothesis:
        languages.append(request.language)
        return rig.hear(window, request)

    rig.decode = note_language
    rig.speak_until(4.0)
    # Less silence ends speech, and a pass is made where it ends only; what was said before goes on in its language.
    assert rig.texts == ["w0 w1", "w2 w3"]
    # The second is decoded once more with what was said before, as it was too short for its language to be sure.
    assert len(rig.windows) == n_windows + 3
    assert languages[-2:] == ["auto", "en"]
    # Nothing is as probable: nobody speaks any more.
    rig.runner.change(settings_of(gate=msgspec.structs.replace(quick, threshold=0.99), final_silence_s=0.2))
    rig.finish(7.0)
    assert len(rig.finals) == 2


def test_words_are_left_out_from_where_somebody_does_not_want_them() -> None:
    rig = Rig(words_at(0.5, 1.0, 4.0, 4.5))
    rig.speak_until(3.0)
    rig.runner.change(settings_of(words=False))
    rig.finish(7.0)
    assert [(final.text, len(final.words)) for final in rig.finals] == [("w0 w1", 2), ("w2 w3", 0)]
    assert not any(event.words for event in rig.of(Partial)[-2:] if isinstance(event, Partial))


def test_commands_without_end_and_without_audio_between_them_take_no_memory() -> None:
    # A recording that waits for its window listens to nothing.
    rig = Rig(words_at(0.5, 1.0), kind=AudioKind.RECORDED)
    runner = rig.runner
    rig.write(4 * SAMPLE_RATE)
    while runner.listen(0.0):
        pass
    assert runner.position < 4 * SAMPLE_RATE
    for _ in range(1000):
        for command in (runner.flush, runner.pause, runner.resume, runner.clear):
            command()
        runner.change(SETTINGS)
    assert len(runner._inbox) == 5
    # The last of each, in their order.
    runner.pause()
    runner.end()
    rig.work()
    assert runner.over
    rig.hold_promises()
    runner.flush()
    assert len(runner._inbox) == 0


# Devices and detectors that fail.


def test_a_device_that_fails_for_long_is_one_error_and_one_gap_and_tried_again_ever_more_rarely() -> None:
    rig = Rig(words_at(*(0.5 + 0.5 * i for i in range(600))))
    tried_s: list[float] = []

    def fail(window: Window, request: Request) -> Hypothesis:
        tried_s.append(rig.clock())
        return broken(window, request)

    rig.decode = fail
    rig.speak_until(200.0)
    (error,) = rig.errors
    assert (error.code, error.fatal) == ("device", False)
    assert rig.gaps == []
    assert rig.runner.failing == "the device is gone"
    pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(tried_s)]
    assert pauses[0] == pytest.approx(FIRST_RETRY_S, abs=0.7)
    assert pauses[-1] == pytest.approx(LONGEST_RETRY_S, abs=0.7)
    assert pauses == sorted(pauses)
    rig.decode = rig.hear
    rig.speak_until(240.0)
    assert rig.runner.failing == ""
    (gap,) = rig.gaps
    assert gap.reason == "device"
    assert gap.end > 180.0
    rig.finish()
    assert rig.texts[-1].endswith("w478")
    assert len(rig.gaps) == len(rig.errors) == 1


def test_what_failed_is_no_longer_tried_where_nobody_speaks() -> None:
    rig = Rig(words_at(0.5, 1.0, 60.0))
    rig.decode = broken
    rig.speak_until(3.0)
    assert rig.runner.failing
    assert rig.runner.due.retrying
    rig.wait(2 * LONGEST_RETRY_S)
    assert not rig.runner.due.retrying
    rig.speak_until(61.0)
    assert rig.runner.due.retrying
    rig.decode = rig.hear
    rig.finish()
    assert len(rig.errors) == len(rig.gaps) == 1


def test_the_delay_of_live_text_is_the_time_since_its_audio_came() -> None:
    rig = Rig(words_at(1.0, 1.6, 2.2))
    delays: list[tuple[str, float]] = []
    rig.host.stats.on_delay = lambda event_type, delay_s: delays.append((event_type, delay_s))
    rig.finish(5.0)
    assert {event_type for event_type, _ in delays} == {"partial", "final"}
    assert all(0.0 <= delay_s < 2.0 for _, delay_s in delays), delays
    final = next(delay_s for event_type, delay_s in delays if event_type == "final")
    assert final >= SETTINGS.gate.min_silence_s
    # At most once while a word is spoken, and once when it is over.
    assert 3 <= sum(event_type == "partial" for event_type, _ in delays) <= 6
    assert rig.host.stats.audio_s == {"own": 0.0, "client": pytest.approx(5.0)}


def test_recorded_text_has_no_delay() -> None:
    rig = Rig(words_at(1.0), kind=AudioKind.RECORDED)
    delays: list[tuple[str, float]] = []
    rig.host.stats.on_delay = lambda event_type, delay_s: delays.append((event_type, delay_s))
    rig.finish(3.0)
    assert rig.finals
    assert delays == []


@pytest.mark.parametrize("ahead_s", [0.0, 20.0])
def test_a_session_that_ends_while_its_device_fails_does_not_wait_for_the_next_attempt(ahead_s: float) -> None:
    rig = Rig(words_at(*(0.5 + 0.5 * i for i in range(300))), kind=AudioKind.EITHER)
    rig.decode = broken
    rig.speak_until(100.0)
    rig.write(round(ahead_s * SAMPLE_RATE))
    rig.finish()
    assert rig.gaps[-1].end == pytest.approx(100.0 + ahead_s, abs=0.1)


def test_a_recording_whose_device_fails_ends_with_a_fatal_error() -> None:
    rig = Rig(words_at(*(0.5 + 0.5 * i for i in range(20))), kind=AudioKind.RECORDED)
    rig.decode = broken
    rig.write(12 * SAMPLE_RATE)
    rig.runner.end()
    rig.wait(10.0)
    assert rig.runner.over
    assert rig.n_finished == 1
    assert [error.fatal for error in rig.errors] == [False, True]
    assert len(rig.windows) == rig.host.stats.failures == MAX_FAILURES
    rig.hold_promises()
    assert rig.gaps[-1].end == 12.0


@pytest.mark.parametrize("kind", [AudioKind.LIVE, AudioKind.EITHER])
def test_a_session_whose_device_fails_for_good_ends_soon_after_its_audio(kind: AudioKind) -> None:
    # Far enough apart that each stretch of speech has a window of its own.
    rig = Rig(words_at(*(1.0 + 8.0 * i for i in range(10))), kind=kind)
    rig.decode = broken
    rig.write(80 * SAMPLE_RATE)
    rig.runner.end()
    rig.wait(2 * LONGEST_RETRY_S)
    assert rig.runner.over
    assert rig.n_finished == 1
    rig.hold_promises()
    assert len(rig.errors) == len(rig.gaps) == 1


@pytest.mark.parametrize("step", ["advance", "apply_hypothesis"])
def test_a_recording_whose_session_fails_again_and_again_ends_with_a_fatal_error(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(words_at(*(0.5 + 0.5 * i for i in range(20))), kind=AudioKind.RECORDED)
    monkeypatch.setattr(Session, step, lambda *args: 1 / 0)
    rig.write(12 * SAMPLE_RATE)
    rig.runner.end()
    rig.wait(10.0)
    assert [error.fatal for error in rig.errors] == [False, True]
    assert rig.runner.over


class Deaf(FakeDetector):
    """Hears nothing any more."""

    def process(self, samples: object) -> list[float]:
        """See SpeechDetector."""
        raise InferenceError("the detector is gone")


def test_a_session_whose_detector_fails_for_good_ends_with_its_audio() -> None:
    rig = Rig(words_at(*(0.5 + 0.5 * i for i in range(20))), new_detector=Deaf)
    rig.speak_until(60.0)
    rig.runner.end()
    rig.wait(1.0)
    assert rig.runner.over
    assert rig.gaps == [Gap(start=0.0, end=60.0, reason="device")]
    assert len(rig.errors) == 1


def test_a_session_that_fails_at_its_end_is_cut_short_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(words_at(0.5, 1.0, 1.5))
    rig.speak_until(1.9)
    monkeypatch.setattr(Session, "lose", lambda *args: 1 / 0)
    rig.runner.cut_short("overload")
    assert rig.runner.over


def test_numbers_of_segments_have_no_hole_where_a_session_that_failed_made_final_what_was_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(words_at(*(0.5 + 0.5 * i for i in range(10))))
    rig.speak_until(2.0)
    assert rig.of(Partial)
    with monkeypatch.context() as patched:
        patched.setattr(Session, "advance", lambda *args: 1 / 0)
        rig.speak_until(2.1)
    rig.wait(FIRST_RETRY_S, step_s=0.1)
    rig.finish(7.0)
    assert [final.segment for final in rig.finals] == [1, 2]
    assert len(rig.gaps) == len(rig.errors) == 1


@pytest.mark.parametrize("reason", ["device", "overrun"])
def test_a_hole_while_the_device_fails_does_not_swallow_speech_that_waits(reason: GapReason) -> None:
    rig = Rig(words_at(0.5, 3.0, 3.5, 8.0))
    rig.decode = broken
    rig.speak_until(2.5)
    assert len(rig.errors) == 1
    # More is said, and then there is a hole, before it is tried again.
    rig.runner._outage.retry_at_s = 9.0
    rig.decode = rig.hear
    rig.speak_until(5.0)
    rig.runner.write_gap(SAMPLE_RATE, reason)
    rig.clock.advance(1.0)
    rig.work()
    rig.finish(10.0)
    assert rig.texts == ["w1 w2", "w3"]
    told = rig.of(Final, Gap)
    assert [type(event) for event in told] == [Gap, Final, Gap, Final]


def test_a_pause_before_speech_is_told_before_its_final_though_a_hole_goes_on() -> None:
    rig = Rig(words_at(0.5, 3.0, 3.5, 8.0))
    rig.decode = broken
    rig.speak_until(1.7)
    rig.runner._outage.retry_at_s = 6.0
    rig.decode = rig.hear
    rig.runner.pause()
    rig.speak_until(2.5)
    rig.runner.resume()
    rig.speak_until(4.5)
    rig.runner.pause()
    rig.speak_until(5.0)
    # In a pause it is no loss of its own.
    rig.runner.write_gap(2 * SAMPLE_RATE, "overrun")
    rig.clock.advance(2.0)
    rig.work()
    rig.runner.resume()
    rig.finish(10.0)
    assert rig.texts == ["w1 w2", "w3"]
    assert [gap.reason for gap in rig.gaps] == ["device", "paused", "paused"]


# Hypotheses.


def test_a_loop_at_the_end_does_not_become_final_as_it_is() -> None:
    rig = Rig(words_at(0.5, 1.0, 1.5))
    rig.speak_until(2.1)
    (*_, shown) = rig.of(Partial)
    assert isinstance(shown, Partial)

    def laugh(window: Window, request: Request) -> Hypothesis:
        known = rig.hear(window, request).words[: len(request.prefix) // 2]
        end = window.end - window.start
        laughter = tuple(TimedWord(" ha", (70_000_000,), end - 100, end - 100, 0.02) for _ in range(30))
        return Hypothesis((*known, *laughter), "en", 0.1, -3.9, 12.0)

    rig.decode = laugh
    rig.finish(4.0)
    (final,) = rig.finals
    assert "ha" not in final.text
    assert final.text.startswith(shown.text[: shown.stable])


@pytest.mark.parametrize("policy", ["agreement", "alignatt"])
def test_a_window_full_of_settled_words_is_no_fault(policy: str) -> None:
    rig = Rig(words_at(*(0.5 + 0.5 * i for i in range(20))), settings=settings_of(policy=policy))
    prefixes: list[int] = []

    def talk(window: Window, request: Request) -> Hypothesis:
        """Say as many tokens as there is room for, at the beginning of the window, so that all settle."""
        prefixes.append(len(request.prefix))
        tokens = (*request.prefix, *range(90_000_000, 90_000_000 + 445))[:445]
        words = [TimedWord(f" {token}", (token,), 100 * i, 100 * i + 100, 0.9) for i, token in enumerate(tokens)]
        return Hypothesis(tuple(words), "en", 0.0, -0.1, 1.2)

    rig.decode = talk
    rig.finish(13.0)
    assert rig.errors == []
    assert max(prefixes) <= MAX_STABLE_TOKENS


@pytest.mark.parametrize("kind", [AudioKind.LIVE, AudioKind.RECORDED])
def test_a_second_look_that_is_cut_short_is_taken_once_more_and_no_more(kind: AudioKind) -> None:
    rig = Rig(words_at(1.0, 2.0, 3.0), kind=kind)
    looks: list[Window] = []

    def cut_short(window: Window, request: Request) -> Hypothesis:
        hypothesis = dataclasses.replace(rig.hear(window, request), avg_logprob=-2.0)
        if not request.retry_s:
            return hypothesis
        looks.append(window)
        return dataclasses.replace(hypothesis, cut_short=True)

    rig.decode = cut_short
    rig.finish(6.0)
    first, again = looks
    assert (first.start, first.end) == (again.start, again.end)
    assert len(rig.finals) == 1
