from streamer.stream.outage import FIRST_RETRY_S, LONGEST_RETRY_S, MAX_FAILURES, Outage


def test_pauses_double_up_to_the_longest() -> None:
    outage = Outage()
    pauses = []
    for _ in range(2000):  # some hours
        outage.fail("no device", 0.0, listening=False)
        pauses.append(outage.retry_at_s)
    assert pauses[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert pauses[-1] == LONGEST_RETRY_S


def test_it_is_tried_again_when_the_pause_is_over() -> None:
    outage = Outage()
    assert not outage.waits(0.0)
    outage.fail("no device", 1.0, listening=False)
    assert outage.waits(1.0 + FIRST_RETRY_S - 0.01)
    assert not outage.waits(1.0 + FIRST_RETRY_S)


def test_only_what_failed_ends_it_by_succeeding() -> None:
    outage = Outage()
    assert not outage.ended_by(listening=False)
    outage.fail("no detector", 0.0, listening=True)
    assert not outage.ended_by(listening=False)
    assert outage.ended_by(listening=True)


def test_it_lasts_from_so_many_failures_in_a_row_on() -> None:
    outage = Outage()
    for n in range(1, MAX_FAILURES + 1):
        outage.fail("no device", 0.0, listening=False)
        assert outage.lasting == (n >= MAX_FAILURES)
