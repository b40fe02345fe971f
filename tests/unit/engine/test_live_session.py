"""A session at work, on a clock that is moved by hand."""

import dataclasses
import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from streamer.arrays import Float32Array
from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import SAMPLE_RATE
from streamer.engine.follower import Follower
from streamer.engine.inlet import MAX_WAITING, AudioKind
from streamer.engine.recovery import FIRST_RETRY_S, LONGEST_RETRY_S, MAX_FAILURES
from streamer.engine.waiting import RECORDED_PATIENCE_S
from streamer.errors import InferenceError
from streamer.events import Event, Final, Flushed, Gap, GapReason, Partial, Speech
from streamer.session.losses import MAX_FLUSHES
from streamer.session.session import STALL_S, Session
from streamer.session.task import Request
from streamer.whisper.result import Hypothesis
from tests.fakes import FakeDetector, FakeEncoded, SpokenWord, words_at
from tests.unit.engine.simulation import SETTINGS, Machine, Talker, settings_of

HOUR_S = 3600.0


def talking(words: list[SpokenWord], **options: Any) -> Talker:  # noqa: ANN401 - see Talker
    """Return the session of someone who says words on a machine that takes no time."""
    return Machine().add(Talker(0, words, **options))


def broken(window: FakeEncoded, request: Request) -> Hypothesis:
    raise InferenceError("the device is gone")


# When a window is to be encoded.


def test_a_final_is_due_at_once_a_partial_within_the_pace_and_a_recording_when_there_is_time() -> None:
    talkers = [talking(words_at(0.5, 1.0, 1.5), kind=kind) for kind in (AudioKind.LIVE, AudioKind.RECORDED)]
    for talker in talkers:
        talker.write(2 * SAMPLE_RATE)
        talker.live.listen(talker.machine.clock())
        due_s = talker.machine.clock()
        talker.machine.clock.advance(0.1)  # a deadline does not move
        talker.live.listen(talker.machine.clock())
        patience_s = RECORDED_PATIENCE_S if talker.live.recorded else SETTINGS.pace_s
        assert talker.live.due.deadline_s == pytest.approx(due_s + patience_s)
    live = talkers[0].live
    live.flush()
    live.listen(talkers[0].machine.clock())
    assert live.due.deadline_s == due_s


# What is kept.


def test_audio_is_kept_where_it_is_in_the_session_and_none_of_what_comes_in_a_pause_or_was_lost() -> None:
    kept: list[tuple[int, int]] = []
    talker = talking(words_at(0.5), keep=lambda position, samples: kept.append((position, len(samples))))
    talker.write(1600)
    talker.live.pause()
    talker.write(800)
    talker.live.resume()
    talker.write(400)
    talker.live.write_gap(320, "device")
    talker.write(160)
    talker.live.close()
    talker.write(80)
    assert kept == [(0, 1600), (2400, 400), (3120, 160)]


def fails(*args: object, **options: object) -> Any:  # noqa: ANN401 - it stands for any function
    raise RuntimeError("can't start new thread")


class Failing(Follower):
    """Fails at whatever it is asked for."""

    def __getattribute__(self, name: str) -> Callable[..., object]:
        return fails


def test_no_audio_is_lost_if_it_cannot_be_kept() -> None:
    talker = talking(words_at(0.5, 1.0), keep=fails)
    talker.finish(3.0)
    assert (talker.texts, talker.gaps, talker.errors) == (["w0 w1"], [], [])


# What follows a session and fails.


def test_followers_that_fail_cost_no_event_no_turn_and_no_end(caplog: pytest.LogCaptureFixture) -> None:
    gate = msgspec.structs.replace(SETTINGS.gate, turns=True)
    talker = talking(words_at(0.5, 1.0, 4.0), settings=settings_of(gate=gate), followers=[Failing(), Failing()])
    talker.finish(6.0)
    assert (talker.texts, talker.gaps, talker.errors) == (["w0 w1", "w2"], [], [])
    assert talker.machine.engine.n_sessions == 0
    for message in ("a final event is published without a label", "a final event is not followed", "finished"):
        assert message in caplog.text


class Noting(Follower):
    """Notes what it is called with, in a list that it shares with others."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    def label(self, event: Event) -> Event:
        if not isinstance(event, Final):
            return event
        assert event.words, "it sees words that are not published"
        return msgspec.structs.replace(event, text=f"{event.text} {self._name}")

    def see(self, event: Event) -> None:
        if isinstance(event, Final):
            self._notes.append(f"{self._name} sees {event.seq > 0} {event.text!r} {event.words}")

    def finish(self, then: Callable[[], object]) -> None:
        self._notes.append(f"{self._name} finishes")
        then()


def test_followers_label_see_and_finish_in_their_order() -> None:
    notes: list[str] = []
    talker = talking(
        words_at(0.5), settings=settings_of(words=False), followers=[Noting("a", notes), Noting("b", notes)]
    )
    talker.promises.wordless = True
    talker.finish(3.0)
    assert talker.texts == ["w0 a b"]
    assert notes == [f"{name} sees True 'w0 a b' ()" for name in "ab"] + ["a finishes", "b finishes"]


# What does not come.


def test_no_audio_is_copied_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 30 s of it, for which everybody who needs the session would wait."""
    talker = talking(words_at(1.0, 2.0))
    read, locked = talker.live.ring.read, []

    def noted(start: int, end: int) -> Float32Array:
        locked.append(talker.live._lock.locked())
        return read(start, end)

    monkeypatch.setattr(talker.live.ring, "read", noted)
    talker.finish(4.0)
    assert talker.machine.encoder.encoded
    assert set(locked) == {False}


def test_a_client_that_stops_in_mid_speech_gets_its_final_after_a_while() -> None:
    talker = talking(words_at(0.5, 1.0, 1.5))
    talker.speak_until(1.9)
    talker.machine.wait(STALL_S - 0.3, step_s=0.1)
    assert talker.finals == []
    talker.machine.wait(0.5, step_s=0.1)
    (final,) = talker.finals
    assert [word.word for word in final.words][:2] == [" w0", " w1"]
    assert final.end == pytest.approx(1.9, abs=CHUNK_SAMPLES / SAMPLE_RATE)
    talker.finish()


def test_a_client_whose_audio_cannot_come_is_waited_for() -> None:
    talker = talking(words_at(0.5, 1.0, 1.5, 2.0, 2.5))
    talker.speak_until(1.9)
    talker.live.excused_until_s = talker.machine.clock() + 5.0
    talker.machine.wait(4.9, step_s=0.1)
    assert talker.finals == []
    talker.finish(3.0)
    assert [word.word for final in talker.finals for word in final.words] == [" w0", " w1", " w2", " w3", " w4"]


def test_audio_that_stops_for_an_hour_and_goes_on_is_two_stretches_of_speech_and_nothing_else() -> None:
    talker = talking(words_at(0.5, 1.0, 2.0, 2.5))
    talker.speak_until(1.6)
    talker.machine.wait(HOUR_S)
    assert [type(event) for event in talker.events if not isinstance(event, Partial)] == [Speech, Speech, Final]
    n_events = len(talker.events)
    talker.machine.wait(HOUR_S)
    assert len(talker.events) == n_events
    talker.finish(4.0)
    assert talker.texts == ["w0 w1", "w2 w3"]
    assert talker.gaps == []


def test_adjoining_pieces_of_a_hole_are_one_gap_behind_the_final_of_what_was_said() -> None:
    talker = talking(words_at(0.5, 1.0, 5.0, 5.5))
    talker.speak_until(1.6)
    # Before the last words were transcribed; the second lies within what the first is told with.
    talker.live.write_gap(5 * SAMPLE_RATE // 4, "overrun")
    talker.machine.work()
    talker.live.write_gap(SAMPLE_RATE // 2, "overrun")
    talker.machine.work()
    talker.finish(7.0)
    assert talker.texts == ["w0 w1", "w2 w3"]
    assert talker.gaps == [Gap(start=talker.finals[0].end, end=3.35, reason="overrun")]
    first, gap, second = talker.of(Final, Gap)
    assert (first, gap, second) == (talker.finals[0], talker.gaps[0], talker.finals[1])


# Commands.


def test_what_comes_in_a_pause_is_a_gap_between_finals() -> None:
    talker = talking(words_at(0.5, 1.0, 2.5, 3.0, 5.0, 5.5))
    talker.speak_until(1.6)
    talker.live.pause()
    talker.live.pause()
    talker.machine.work()
    assert talker.live.paused
    talker.speak_until(4.0)
    assert len(talker.finals) == 1
    talker.live.resume()
    talker.live.resume()
    talker.speak_until(7.0)
    assert not talker.live.paused
    talker.finish()
    assert talker.texts == ["w0 w1", "w4 w5"]
    assert talker.of(Final, Gap)[1] == Gap(start=1.6, end=4.0, reason="paused")


def test_a_flush_is_answered_when_all_before_it_is_told() -> None:
    talker = talking(words_at(0.5, 1.0, 5.0))
    talker.live.flush()
    talker.machine.work()
    assert [event.type for event in talker.of(Final, Flushed)] == ["flushed"]  # there was nothing
    talker.speak_until(2.0)
    talker.live.flush()
    talker.machine.work()
    talker.speak_until(4.0)
    talker.live.flush()
    talker.finish(6.0)
    told = [(event.type, getattr(event, "time", None)) for event in talker.of(Final, Flushed)]
    assert told == [("flushed", 0.0), ("final", None), ("flushed", 2.0), ("flushed", 4.0), ("final", None)]


def test_each_of_several_flushes_at_once_has_its_answer() -> None:
    talker = talking(words_at(0.5, 1.0, 5.0))
    talker.speak_until(2.0)
    for _ in range(3):
        talker.live.flush()
    talker.finish(6.0)
    flushed = [event.time for event in talker.of(Flushed) if isinstance(event, Flushed)]
    assert flushed == [2.0, 2.0, 2.0]


def test_a_flood_of_flushes_has_a_bounded_number_of_answers() -> None:
    talker = talking(words_at(0.5, 1.0, 5.0))
    talker.machine.clock.advance(2.0)
    talker.write(2 * SAMPLE_RATE)
    for _ in range(10):
        for _ in range(1000):
            talker.live.flush()
        while talker.live.listen(talker.machine.clock()):  # its window is not decoded
            pass
    assert len(talker.live.snapshot(list)[1].losses.flushes) == MAX_FLUSHES + 1
    talker.finish(6.0)
    assert len(talker.of(Flushed)) == MAX_FLUSHES + 1


def test_no_snapshot_has_an_answer_to_a_command_without_its_number() -> None:
    talker = talking(words_at(5.0))
    talker.live.flush(1)
    talker.live.pause(2)
    seen = []
    while talker.live._step(0.0):  # a command at a time
        seen.append(talker.live.snapshot(lambda: len(talker.of(Flushed))))
    assert [(n_flushed, state.mark) for n_flushed, state in seen] == [(1, 1), (1, 2)]


def test_what_is_cleared_is_a_gap_and_its_segment_is_not_told() -> None:
    talker = talking(words_at(0.5, 1.0, 1.5, 2.0, 5.0))
    talker.speak_until(2.5)
    (shown, *_) = talker.of(Partial)
    assert isinstance(shown, Partial)
    talker.live.clear()
    talker.finish(7.0)
    (gap,) = talker.gaps
    assert (gap.start, gap.end, gap.reason) == (shown.start, 2.5, "cleared")
    (final,) = talker.finals
    assert (final.segment, final.text) == (shown.segment + 1, "w4")


def test_the_log_says_which_language_is_heard_and_once_that_one_is_not_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    talker = talking(
        words_at(0.5, 1.0, 4.0, 4.5, 8.0, 8.5), settings=settings_of(language="auto", languages=("en", "fr"))
    )
    talker.machine.decoder.answer = lambda window, request: dataclasses.replace(
        talker.machine.decoder.hear(window, request),
        language="fr" if window.end > 7 * SAMPLE_RATE else "en",
        language_outside="de" if window.end > 3 * SAMPLE_RATE else "",
    )
    talker.finish(11.0)
    assert sorted(record.message for record in caplog.records) == [
        "German is spoken, which the session does not allow (only en, fr): its text is wrong; add de to `languages`",
        "language: English",
        "language: French",
    ]


def test_settings_can_change_while_somebody_speaks() -> None:
    talker = talking(words_at(0.5, 1.0, 2.0, 2.5, 5.0, 5.5), settings=settings_of(language="en"))
    quick = msgspec.structs.replace(SETTINGS.gate, min_silence_s=0.2)
    talker.speak_until(1.4)
    talker.live.change(settings_of(gate=quick, final_silence_s=0.2, pace_s=10.0, language="auto", words=False))
    n_windows = len(talker.machine.encoder.encoded)
    languages: list[str] = []

    def note_language(window: FakeEncoded, request: Request) -> Hypothesis:
        languages.append(request.language)
        return talker.machine.decoder.hear(window, request)

    talker.machine.decoder.answer = note_language
    talker.speak_until(4.0)
    # Less silence ends speech, and a pass is made where it ends only; what was said before goes on in its language.
    assert talker.texts == ["w0 w1", "w2 w3"]
    # The second is decoded once more with what was said before, as it was too short for its language to be sure.
    assert len(talker.machine.encoder.encoded) == n_windows + 3
    assert languages[-2:] == ["auto", "en"]
    assert [len(final.words) for final in talker.finals] == [0, 0]
    talker.promises.wordless = True
    # Nothing is as probable: nobody speaks any more.
    talker.live.change(settings_of(gate=msgspec.structs.replace(quick, threshold=0.99), final_silence_s=0.2))
    talker.finish(7.0)
    assert len(talker.finals) == 2


def test_commands_without_end_and_without_audio_between_them_take_no_memory() -> None:
    # A recording that waits for its window listens to nothing.
    talker = talking(words_at(0.5, 1.0), kind=AudioKind.RECORDED)
    live = talker.live
    talker.write(4 * SAMPLE_RATE)
    while live.listen(0.0):
        pass
    assert live.position < 4 * SAMPLE_RATE
    for _ in range(1000):
        for command in (live.flush, live.pause, live.resume, live.clear):
            command()
        live.change(SETTINGS)
    assert len(live.commands) == MAX_WAITING + 5
    # The last of each, in their order.
    live.pause()
    live.end()
    talker.machine.work()
    assert live.over
    talker.check()
    live.flush()
    assert len(live.commands) == 0


# Devices and detectors that fail.


def test_a_device_that_fails_for_long_is_one_error_and_one_gap_and_tried_again_ever_more_rarely() -> None:
    talker = talking(words_at(*(0.5 + 0.5 * i for i in range(600))))
    tried_s: list[float] = []

    def fail(window: FakeEncoded, request: Request) -> Hypothesis:
        tried_s.append(talker.machine.clock())
        return broken(window, request)

    talker.machine.decoder.answer = fail
    talker.speak_until(200.0)
    (error,) = talker.errors
    assert (error.code, error.fatal) == ("device", False)
    assert talker.gaps == []
    assert talker.live.failing == "the device is gone"
    pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(tried_s)]
    assert pauses[0] == pytest.approx(FIRST_RETRY_S, abs=0.7)
    assert pauses[-1] == pytest.approx(LONGEST_RETRY_S, abs=0.7)
    assert pauses == sorted(pauses)
    talker.machine.decoder.answer = talker.machine.decoder.hear
    talker.speak_until(240.0)
    assert talker.live.failing == ""
    (gap,) = talker.gaps
    assert gap.reason == "device"
    assert gap.end > 180.0
    talker.finish()
    assert talker.texts[-1].endswith("w478")
    assert len(talker.gaps) == len(talker.errors) == 1


def test_what_failed_is_no_longer_tried_where_nobody_speaks() -> None:
    talker = talking(words_at(0.5, 1.0, 60.0))
    talker.machine.decoder.answer = broken
    talker.speak_until(3.0)
    assert talker.live.failing
    assert talker.live.due.retrying
    talker.machine.wait(2 * LONGEST_RETRY_S)
    assert not talker.live.due.retrying
    talker.speak_until(61.0)
    assert talker.live.due.retrying
    talker.machine.decoder.answer = talker.machine.decoder.hear
    talker.finish()
    assert len(talker.errors) == len(talker.gaps) == 1


def test_the_delay_of_live_text_is_the_time_since_its_audio_came_and_recorded_text_has_none() -> None:
    talker, recorded = talking(words_at(1.0, 1.6, 2.2)), talking(words_at(1.0), kind=AudioKind.RECORDED)
    delays: list[tuple[str, float]] = []
    for each in (recorded, talker):
        assert delays == []
        each.machine.engine.stats.on_delay = lambda event_type, delay_s: delays.append((event_type, delay_s))
        each.finish(5.0)
    assert {event_type for event_type, _ in delays} == {"partial", "final"}
    assert all(0.0 <= delay_s < 2.0 for _, delay_s in delays), delays
    final = next(delay_s for event_type, delay_s in delays if event_type == "final")
    assert final >= SETTINGS.gate.min_silence_s
    # At most once while a word is spoken, and once when it is over.
    assert 3 <= sum(event_type == "partial" for event_type, _ in delays) <= 6
    assert talker.machine.engine.stats.audio_s == {"own": 0.0, "client": pytest.approx(5.0)}


@pytest.mark.parametrize("ahead_s", [0.0, 20.0])
def test_a_session_that_ends_while_its_device_fails_does_not_wait_for_the_next_attempt(ahead_s: float) -> None:
    talker = talking(words_at(*(0.5 + 0.5 * i for i in range(300))), kind=AudioKind.EITHER)
    talker.machine.decoder.answer = broken
    talker.speak_until(100.0)
    talker.write(round(ahead_s * SAMPLE_RATE))
    talker.finish()
    assert talker.gaps[-1].end == pytest.approx(100.0 + ahead_s, abs=0.1)


@pytest.mark.parametrize("failing", ["decoder", "hear", "take"])
def test_a_recording_that_fails_again_and_again_ends_with_a_fatal_error(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker = talking(words_at(*(0.5 + 0.5 * i for i in range(20))), kind=AudioKind.RECORDED)
    if failing == "decoder":
        talker.machine.decoder.answer = broken
    else:
        monkeypatch.setattr(Session, failing, fails)
    talker.write(12 * SAMPLE_RATE)
    talker.live.end()
    talker.machine.wait(10.0)
    assert talker.live.over
    assert talker.n_finished == 1
    assert [error.fatal for error in talker.errors] == [False, True]
    assert talker.machine.engine.stats.failures == MAX_FAILURES
    talker.check()
    assert talker.gaps[-1].end == 12.0


def test_a_recording_goes_on_when_there_was_no_memory_for_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    talker = talking(words_at(*(0.5 + 0.5 * i for i in range(20))), kind=AudioKind.RECORDED)
    read, failures = talker.live.ring.read, iter([MemoryError()])

    def read_or_fail(start: int, end: int) -> Float32Array:
        if end - start > CHUNK_SAMPLES and (error := next(failures, None)) is not None:
            raise error
        return read(start, end)

    monkeypatch.setattr(talker.live.ring, "read", read_or_fail)
    talker.write(12 * SAMPLE_RATE)
    talker.live.end()
    talker.machine.wait(10.0)
    assert [error.fatal for error in talker.errors] == [False]
    assert talker.finals[-1].end > 10.0
    assert talker.live.over


class Deaf(FakeDetector):
    """Hears nothing any more."""

    def process(self, samples: object) -> list[float]:
        """See SpeechDetector."""
        raise InferenceError("the detector is gone")


def test_a_session_whose_detector_fails_for_good_ends_with_its_audio() -> None:
    talker = talking(words_at(*(0.5 + 0.5 * i for i in range(20))), new_detector=Deaf)
    talker.speak_until(60.0)
    talker.live.end()
    talker.machine.wait(1.0)
    assert talker.live.over
    assert talker.gaps == [Gap(start=0.0, end=60.0, reason="device")]
    assert len(talker.errors) == 1


@pytest.mark.parametrize("step", ["lose", "take"])
def test_a_session_that_fails_at_its_end_is_over_all_the_same(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talker = talking(words_at(0.5, 1.0, 1.5))
    talker.speak_until(1.9)
    monkeypatch.setattr(Session, step, fails)
    if step == "lose":
        talker.live.cut_short("overload")
    else:
        talker.live.end()
        talker.machine.work()
    assert talker.live.over
    assert talker.n_finished == (step == "take")
    talker.check()


@pytest.mark.parametrize("step", ["fail", "give_up", "lose", "task"])
@pytest.mark.parametrize("n_windows", [1, MAX_FAILURES + 1])
def test_a_session_that_fails_at_giving_up_a_window_goes_on_behind_a_gap(
    step: str, n_windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lose` is in the middle of that: what was known is final by then, and not published."""
    talker = talking(words_at(*(0.5 + 0.5 * i for i in range(60))))
    talker.speak_until(2.0)
    assert talker.of(Partial)
    n_failed = 0

    def fail(window: FakeEncoded, request: Request) -> Hypothesis:
        nonlocal n_failed
        n_failed += 1
        return broken(window, request)

    with monkeypatch.context() as patched:
        patched.setattr(Session, step, fails)
        talker.machine.decoder.answer = fail
        while n_failed < n_windows and talker.live.position < 20 * SAMPLE_RATE:
            talker.speak_until(talker.live.position / SAMPLE_RATE + 0.2)
    talker.machine.decoder.answer = talker.machine.decoder.hear
    talker.finish(32.0)
    assert len(talker.errors) == 1
    assert talker.gaps
    assert talker.texts[-1].endswith("w59")


@pytest.mark.parametrize("reason", ["device", "overrun"])
def test_a_hole_while_the_device_fails_does_not_swallow_speech_that_waits(reason: GapReason) -> None:
    talker = talking(words_at(0.5, 3.0, 3.5, 8.0))
    talker.machine.decoder.answer = broken
    talker.speak_until(2.5)
    assert len(talker.errors) == 1
    # More is said, and then there is a hole, before it is tried again.
    talker.live._recovery._retry_at_s = 9.0
    talker.machine.decoder.answer = talker.machine.decoder.hear
    talker.speak_until(5.0)
    talker.live.write_gap(SAMPLE_RATE, reason)
    talker.machine.clock.advance(1.0)
    talker.machine.work()
    talker.finish(10.0)
    assert talker.texts == ["w1 w2", "w3"]
    told = talker.of(Final, Gap)
    assert [type(event) for event in told] == [Gap, Final, Gap, Final]


def test_a_pause_before_speech_is_told_before_its_final_though_a_hole_goes_on() -> None:
    talker = talking(words_at(0.5, 3.0, 3.5, 8.0))
    talker.machine.decoder.answer = broken
    talker.speak_until(1.7)
    talker.live._recovery._retry_at_s = 6.0
    talker.machine.decoder.answer = talker.machine.decoder.hear
    talker.live.pause()
    talker.speak_until(2.5)
    talker.live.resume()
    talker.speak_until(4.5)
    talker.live.pause()
    talker.speak_until(5.0)
    # In a pause it is no loss of its own.
    talker.live.write_gap(2 * SAMPLE_RATE, "overrun")
    talker.machine.clock.advance(2.0)
    talker.machine.work()
    talker.live.resume()
    talker.finish(10.0)
    assert talker.texts == ["w1 w2", "w3"]
    assert [gap.reason for gap in talker.gaps] == ["device", "paused", "paused"]


# Hypotheses.
