"""A session at work that moves to another engine."""

from streamer.engine.publisher import SessionOutput
from streamer.engine.runner import AudioKind, Input, SessionRunner
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
        talker.runner.mark(round(until_s))
        told, state = talker.runner.snapshot(lambda: len(talker.events))
        talker.runner.close()
        assert told == len(talker.events)
        behind = talker.runner.ring.head
        runner = SessionRunner(
            SETTINGS,
            Input(kind=AudioKind.EITHER, capacity_samples=CAPACITY_SAMPLES, live_from=behind),
            SessionOutput(on_event=talker.take),
            mel=FakeMel(),
            new_detector=FakeDetector,
            state=state,
        )
        talker.runner = runner
        while runner.ring.head < behind:
            assert runner.ring.head > state.received or not runner.restored
            talker.write(min(PIECE_SAMPLES, behind - runner.ring.head))
        here, there = there, here
        here.clock.now_s = there.clock.now_s
        here.engine.add(runner)
        assert not runner.recorded
    here.run_until(62.0)
    here.finish()
    assert " ".join(final.text for final in talker.finals if final.text).split() == [
        word.text.strip() for word in talker.words
    ]
    assert not talker.gaps
    assert not talker.runner.recorded
