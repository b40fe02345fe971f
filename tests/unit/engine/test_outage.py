from streamer.engine.outage import Outage


def test_only_what_failed_ends_it_by_succeeding() -> None:
    outage = Outage()
    assert not outage.ended_by(listening=False)
    outage.fail("no detector", 0.0, listening=True)
    assert not outage.ended_by(listening=False)
    assert outage.ended_by(listening=True)
