"""When another worker should have a session."""

from streamer.constants import SAMPLE_RATE
from streamer.plugins.cluster.progress import QUIET_S, RESEND_S, SILENT_S, STUCK_S, WAIT_S, WorkerProgress
from tests.plugins.cluster.support import checkpoint, update

HOUR = 3600 * SAMPLE_RATE


def test_a_worker_that_does_not_report_is_silent_unless_this_gateway_was_cut_off() -> None:
    progress = WorkerProgress(0.0)
    assert progress.fault(0, SILENT_S) == ""
    assert progress.fault(0, SILENT_S + 0.1) == "silent"
    progress.excuse(SILENT_S)
    assert progress.fault(0, 2 * SILENT_S) == ""


def test_a_worker_is_slow_that_is_far_behind_and_does_not_keep_pace() -> None:
    progress = WorkerProgress(0.0)
    for second in range(1, 6):
        assert progress.fault(HOUR, second) == ""
        progress.note(update(0.4 * second), HOUR, second)
    assert progress.fault(HOUR, STUCK_S + 0.1) == "slow"
    assert progress.fault(HOUR, STUCK_S + 0.1 + QUIET_S) == ""  # no worker reports while NATS stores nothing
    progress.note(update(30.0), HOUR, 9.0)
    assert progress.fault(HOUR, 10.0) == ""


def test_where_all_workers_are_slow_a_session_moves_more_and_more_seldom() -> None:
    progress, moves, now_s = WorkerProgress(0.0), list[float](), 0.0
    for _ in range(600):
        now_s += 0.1
        progress.note(update(0.0), HOUR, now_s)
        if progress.fault(HOUR, now_s):
            moves.append(now_s)
            progress.stall = "slow", now_s
            progress.begin(checkpoint(), now_s)
    assert [round(after - before) for before, after in zip([0.0, *moves], moves, strict=False)] == [5, 10, 20]


def test_what_has_not_arrived_is_sent_again_and_sooner_if_it_is_missed() -> None:
    progress = WorkerProgress(0.0)
    progress.begin(checkpoint(), 0.0)
    assert not progress.must_resend(False, (0, 0), 10.0)  # all is there
    assert not progress.must_resend(False, (100, 0), RESEND_S)
    assert progress.must_resend(False, (100, 0), RESEND_S + 0.1)
    assert progress.must_resend(True, (100, 0), 0.3)
    progress.note(update(0.0, head=50), 100, 1.0)
    assert not progress.must_resend(False, (100, 0), RESEND_S + 0.9)
    assert progress.must_resend(False, (100, 0), RESEND_S + 1.1)


def test_a_stall_ends_with_the_first_that_the_new_worker_has_to_report() -> None:
    progress = WorkerProgress(0.0)
    progress.stall = "lost", 1.0
    progress.begin(checkpoint(3), 2.0)
    assert progress.ended_stall(update(0.0, seq=3), HOUR) is None
    assert progress.ended_stall(update(0.0, seq=4), HOUR) == ("lost", 1.0)
    assert progress.ended_stall(update(0.0, seq=5), HOUR) is None
    progress.stall = "drain", 5.0
    progress.begin(checkpoint(5), 5.0)
    assert progress.ended_stall(update(0.0, seq=5), 100) == ("drain", 5.0)  # there is nothing left to do


def test_a_client_is_warned_once_until_a_worker_reports_again() -> None:
    progress = WorkerProgress(0.0)
    assert [progress.must_warn(now_s) for now_s in (WAIT_S - 0.1, WAIT_S, WAIT_S + 1.0)] == [False, True, False]
    progress.note(update(0.0), 0, 10.0)
    assert [progress.must_warn(10.0 + after_s) for after_s in (WAIT_S - 0.1, WAIT_S)] == [False, True]
