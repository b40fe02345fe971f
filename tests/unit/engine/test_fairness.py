"""Several sessions on one machine: who is served when, who is let in."""

import itertools

import pytest

from streamer.engine.inlet import AudioKind
from tests.unit.engine.simulation import Machine, Talker

pytestmark = pytest.mark.slow

MINUTES_S = 120.0


def served_between(talker: Talker, begin_s: float, end_s: float) -> int:
    return sum(begin_s <= time_s < end_s for time_s, _ in talker.passes)


def longest_wait(talker: Talker) -> float:
    times = [time_s for time_s, _ in talker.passes]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize("n_sessions", [2, 8])
def test_equal_sessions_get_equally_many_passes_and_wait_equally_long(n_sessions: int) -> None:
    machine = Machine(encode_s=0.2, decode_s=0.3)
    talkers = [machine.talker(MINUTES_S, pause=0.0) for _ in range(n_sessions)]
    machine.run_until(MINUTES_S)
    n_passes = [served_between(talker, 10.0, MINUTES_S) for talker in talkers]
    assert max(n_passes) - min(n_passes) <= 0.1 * max(n_passes) + 1, n_passes
    # All the time there is goes to them, up to a pass of each a second and what goes by before the next look; and a
    # turn is a pass of each.
    assert sum(n_passes) >= 0.9 * (MINUTES_S - 10.0) * min(1 / 0.5, n_sessions / 1.25)
    assert max(longest_wait(talker) for talker in talkers) <= 2 * n_sessions * 0.5 + 1.0
    assert not any(talker.gaps for talker in talkers)
    machine.finish()
    for talker in talkers:
        told = [word.word for final in talker.finals for word in final.words]
        said = [word.text for word in talker.words]
        assert told[:-2] == said[: len(told) - 2], "but for where the audio was cut off"
        assert len(told) >= len(said) - 2


def test_a_costly_session_delays_the_others_by_no_more_than_a_pass() -> None:
    machine = Machine(encode_s=0.1, decode_s=0.1)
    costly, *others = [machine.talker(MINUTES_S, pause=0.0) for _ in range(3)]
    machine.slowness[costly.voice] = 40.0  # 4 s a pass
    machine.run_until(MINUTES_S)
    for talker in others:
        # Their own pass, the other's, the costly one: never two of the latter.
        assert longest_wait(talker) <= 4.1 + 2 * 0.2 + 0.5 + 0.5
        assert served_between(talker, 0.0, MINUTES_S) >= served_between(costly, 0.0, MINUTES_S) > 20
    machine.finish()


def test_a_final_that_is_awaited_comes_before_partials() -> None:
    machine = Machine(encode_s=0.2, decode_s=0.2)
    talkers = [machine.talker(MINUTES_S, pause=0.0) for _ in range(4)]
    machine.run_until(20.0)
    # One says no more; when its silence has lasted, its turn comes before those that have waited as long.
    quiet = talkers[0]
    del quiet.words[next(i for i, word in enumerate(quiet.words) if word.start >= 20.2 * 16_000) :]
    ended_s = quiet.words[-1].end / 16_000
    n_finals = len(quiet.finals)
    machine.run_until(30.0)
    last = quiet.finals[-1]
    assert len(quiet.finals) > n_finals
    (told_s,) = [time_s for time_s, waited in quiet.passes if time_s > ended_s and waited == 0.0][:1]
    assert last.end <= ended_s + 0.4
    assert told_s <= ended_s + 0.6 + 0.25 + 2 * 0.4 + 0.1


def test_a_recording_does_not_keep_live_sessions_waiting_and_does_not_starve() -> None:
    machine = Machine(encode_s=0.2, decode_s=0.2)
    uploads = [machine.talker(MINUTES_S, pause=0.0, kind=AudioKind.EITHER) for _ in range(4)]
    for upload in uploads:
        upload.ahead_s = MINUTES_S
    live = machine.talker(MINUTES_S, pause=0.0)
    machine.run_until(MINUTES_S)
    # Two and a half times what a pass costs, and two passes of others.
    assert longest_wait(live) <= 1.0 + 2 * 0.4 + 0.5
    assert all(served_between(upload, 0.0, MINUTES_S) > 10 for upload in uploads)
    assert not any(talker.gaps for talker in machine.talkers)


def test_there_is_room_for_as_many_as_can_be_kept_at_the_slowest_pace() -> None:
    machine = Machine(encode_s=0.05, decode_s=0.2)
    while machine.engine.load.room:
        machine.talker(MINUTES_S, pause=0.0)
        machine.run_until(machine.clock.now_s + 5.0)
    # 0.9 * 2 s / 0.25 s is 7.2.
    assert len(machine.talkers) == machine.engine.load.capacity == 7
    assert machine.engine.load.ratio == pytest.approx(7 * 0.25 / 2.0, abs=0.02)


def test_silent_sessions_leave_room_and_the_machine_s_own_keeps_its_place() -> None:
    machine = Machine(encode_s=0.05, decode_s=0.8)
    machine.talker(20.0, pause=0.0)
    machine.talker(0.0)
    machine.run_until(10.0)
    assert machine.engine.load.ratio > 0.6
    machine.run_until(150.0)
    assert machine.engine.load.ratio < 0.1
    machine.talker(0.0, reserved=True)
    machine.run_until(300.0)
    assert machine.engine.load.ratio == pytest.approx(0.4, abs=0.1)


def test_a_backlog_that_comes_at_once_does_not_keep_others_from_speech_detection() -> None:
    """As after a client has connected again: a minute in one piece."""
    machine = Machine(encode_s=0.1, decode_s=0.1)
    behind, other = (machine.talker(MINUTES_S, pause=0.0) for _ in range(2))
    behind.send_until(60.0)
    other.send_until(1.0)
    assert machine.engine.listen(), "there is more"
    assert behind.live.position <= 2.1 * 16_000
    assert other.live.position == pytest.approx(16_000, abs=512)
    machine.run_until(30.0)
    assert behind.live.position > 59.0 * 16_000
    assert not any(talker.gaps for talker in machine.talkers)
