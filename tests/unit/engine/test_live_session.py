"""A session at work, on a clock that is moved by hand."""

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest

from streamer.arrays import Float32Array
from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import SAMPLE_RATE
from streamer.engine.follower import Follower
from streamer.engine.inlet import MAX_WAITING, AudioKind
from streamer.engine.recovery import MAX_FAILURES
from streamer.engine.waiting import RECORDED_PATIENCE_S
from streamer.events import Error, Event, Final, Flushed, Partial
from streamer.protocols.native import Command
from streamer.session.session import Session
from streamer.session.task import Request
from streamer.whisper.result import Hypothesis
from tests.fakes import FakeEncoded, SpokenWord, words_at
from tests.unit.engine.simulation import SETTINGS, Machine, Talker, broken, fails, settings_of
from tests.waiting import WAIT_S, wait_until


def talking(words: list[SpokenWord], **options: Any) -> Talker:  # noqa: ANN401 - see Talker
    """Return the session of someone who says words on a machine that takes no time."""
    return Machine().add(Talker(0, words, **options))


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
    live.do("flush")
    live.listen(talkers[0].machine.clock())
    assert live.due.deadline_s == due_s


# What is kept.


def test_audio_is_kept_where_it_is_in_the_session_and_none_of_what_comes_in_a_pause_or_was_lost() -> None:
    kept: list[tuple[int, int]] = []
    talker = talking(words_at(0.5), keep=lambda position, samples: kept.append((position, len(samples))))
    talker.write(1600)
    talker.live.do("pause")
    talker.write(800)
    talker.live.do("resume")
    talker.write(400)
    talker.live.write_gap(320, "device")
    talker.write(160)
    talker.live.close()
    talker.write(80)
    assert kept == [(0, 1600), (2400, 400), (3120, 160)]


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


# Commands.


def test_no_snapshot_has_an_answer_to_a_command_without_its_number() -> None:
    talker = talking(words_at(5.0))
    talker.live.do("flush", 1)
    talker.live.do("pause", 2)
    seen = []
    while talker.live._step(0.0):  # a command at a time
        seen.append(talker.live.snapshot(lambda: len(talker.of(Flushed))))
    assert [(n_flushed, state.mark) for n_flushed, state in seen] == [(1, 1), (1, 2)]


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
        "German is spoken, which the session does not allow (only en, fr): it becomes a gap; add de to `languages`",
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
        for command in get_args(Command):
            live.do(command)
        live.change(SETTINGS)
    assert len(live.commands) == MAX_WAITING + 5
    # The last of each, in their order.
    live.do("pause")
    live.end()
    talker.machine.work()
    assert live.over
    talker.check()
    live.do("flush")
    assert len(live.commands) == 0


def test_commands_from_many_threads_lose_nothing() -> None:
    """Neither of the audio that is processed meanwhile, nor of the commands of each thread, in its order."""
    talker = talking(words_at(*(0.5 + 0.5 * i for i in range(40))))
    begun, over, n_given = threading.Barrier(5), threading.Event(), [0] * 4

    def command(thread: int) -> None:
        begun.wait(WAIT_S)
        while not over.wait(0.001):
            talker.live.do("resume")
            talker.live.change(SETTINGS)
            talker.live.mark(thread, [Error(code=f"{thread}", message=f"{n_given[thread]}", fatal=False)])
            n_given[thread] += 1

    def came_in_the_midst(n: int) -> None:
        wait_until(lambda: min(n_given) > n)

    threads = [threading.Thread(target=command, args=(thread,), daemon=True) for thread in range(4)]
    for thread in threads:
        thread.start()
    begun.wait(WAIT_S)
    for i in range(22):
        talker.speak_until(1.0 + i)
        came_in_the_midst(i)  # however slow the machine is
    over.set()
    for thread in threads:
        thread.join(WAIT_S)
    talker.finish()
    assert (talker.text, talker.gaps) == (talker.said, [])
    given = {f"{thread}": [f"{i}" for i in range(n)] for thread, n in enumerate(n_given)}
    assert {code: [error.message for error in talker.errors if error.code == code] for code in given} == given


# Devices and detectors that fail.


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
