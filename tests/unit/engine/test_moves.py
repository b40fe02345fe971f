"""A session at work that moves to another engine."""

from streamer.engine.inlet import AudioKind, Input
from streamer.engine.live_session import LiveSession
from tests.fakes import FakeDetector, FakeMel
from tests.unit.engine.simulation import CAPACITY_SAMPLES, PIECE_SAMPLES, SETTINGS, Machine


def test_a_session_at_work_moves_to_another_engine_and_what_it_hears_again_is_no_recording() -> None:
    first, second = (Machine(encode_s=0.1, decode_s=0.2) for _ in range(2))
    talker = first.talker(60.0)
    second.decoder.speakers.append(first.decoder.speakers[0])
    second.talkers.append(talker)
    here, there = first, second
    for until_s in (10.0, 17.5, 18.0, 31.0, 44.0):
        here.run_until(until_s)
        talker.live.mark(round(until_s))
        told, state = talker.live.snapshot(lambda: len(talker.events))
        talker.live.close()
        assert told == len(talker.events)
        behind = talker.live.ring.head
        live = LiveSession(
            SETTINGS,
            Input(kind=AudioKind.EITHER, capacity_samples=CAPACITY_SAMPLES, live_from=behind),
            talker.log,
            mel=FakeMel(),
            new_detector=FakeDetector,
            state=state,
        )
        talker.live = live
        while live.ring.head < behind:
            assert live.ring.head > state.received or not live.restored
            talker.write(min(PIECE_SAMPLES, behind - live.ring.head))
        here, there = there, here
        here.clock.now_s = there.clock.now_s
        here.engine.add(live)
        assert not live.recorded
    here.run_until(62.0)
    here.finish()
    assert " ".join(final.text for final in talker.finals if final.text).split() == [
        word.text.strip() for word in talker.words
    ]
    assert not talker.gaps
    assert not talker.live.recorded
