"""Machines too slow for what is said, over half an hour: what is told of it, how late, and what is given up."""

import numpy as np
import pytest

from streamer.constants import SAMPLE_RATE
from streamer.engine.inlet import AudioKind
from tests.unit.engine.simulation import PIECE_S, Machine, Talker

pytestmark = pytest.mark.slow

HALF_AN_HOUR_S = 1800.0

MAX_DELAY_S = 30.0


def words_told(talker: Talker) -> list[str]:
    return [word.word for final in talker.finals for word in final.words]


def seconds_lost(talker: Talker) -> float:
    return sum(gap.end - gap.start for gap in talker.gaps)


def check_delay(talker: Talker, pass_s: float) -> None:
    """The oldest speech without text has waited no longer than allowed and a pass, and the wait does not grow."""
    waits = np.array([waited for _, waited in talker.passes])
    assert waits.max() <= MAX_DELAY_S + pass_s + PIECE_S
    half = len(waits) // 2
    assert waits[half:].max() <= waits[:half].max() + 2 * PIECE_S


# A pass of half of the 30 s that it may show, for half an hour; a tenth, with pauses; and two thirds.
@pytest.mark.parametrize(
    ("pass_s", "duration_s", "pause"),
    [(15.0, HALF_AN_HOUR_S, 0.0), (3.0, 600.0, 0.05), (20.0, 900.0, 0.0), (20.0, 900.0, 0.15)],
)
def test_passes_that_cost_less_than_they_show_get_rarer_and_lose_nothing(
    pass_s: float, duration_s: float, pause: float
) -> None:
    machine = Machine(encode_s=pass_s / 2, decode_s=pass_s / 2)
    talker = machine.talker(duration_s, pause=pause)
    machine.run_until(duration_s)
    check_delay(talker, pass_s)
    assert len(talker.passes) <= duration_s / pass_s
    machine.finish()
    assert words_told(talker) == [word.text for word in talker.words]
    assert not talker.gaps


# Passes of 2 and 5 times the 30 s that they may show, and one that just cannot keep up.
@pytest.mark.parametrize(
    ("pass_s", "duration_s", "least_told"),
    [(60.0, HALF_AN_HOUR_S, 0.45), (150.0, HALF_AN_HOUR_S, 0.15), (31.0, 900.0, 0.9)],
)
def test_passes_that_cost_more_than_they_show_lose_the_oldest_audio_and_say_so(
    pass_s: float, duration_s: float, least_told: float
) -> None:
    machine = Machine(encode_s=pass_s / 2, decode_s=pass_s / 2)
    talker = machine.talker(duration_s, pause=0.0)
    machine.run_until(duration_s)
    check_delay(talker, pass_s)
    # A piece a pass, two where the buffer ran over besides, and no more than a pass costs.
    assert len(talker.gaps) <= (2 if pass_s > 90.0 else 1) * len(talker.passes)
    assert all(gap.end - gap.start <= pass_s for gap in talker.gaps)
    assert {gap.reason for gap in talker.gaps} <= {"overload", "overrun"}
    # `finish` holds that every moment of speech lies in a final or a gap.
    machine.finish()
    told = words_told(talker)
    assert len(told) >= least_told * len(talker.words)
    said = iter(word.text for word in talker.words)
    n_garbled = sum(word not in said for word in told if "~" not in word)
    assert n_garbled == 0, "what is told was said, in this order"
    assert sum(machine.engine.stats.gap_s.values()) == pytest.approx(seconds_lost(talker))


def test_what_is_known_is_final_before_the_gap_and_captions_go_on_behind_it() -> None:
    machine = Machine(encode_s=0.1, decode_s=0.1)
    talker = machine.talker(120.0, pause=0.0)
    machine.run_until(6.0)
    # One pass that takes far too long.
    machine.decoder.before = lambda encoded: stall()

    def stall() -> None:
        machine.decoder.before = lambda encoded: None
        machine.pass_time(40.0)

    machine.run_until(60.0)
    (gap,) = talker.gaps
    before = [final for final in talker.finals if final.end <= gap.start]
    assert before[-1].end == gap.start
    assert gap.start == pytest.approx(6.0, abs=1.0)
    # What had waited for more than 30 s of the 40.
    assert gap.end - gap.start == pytest.approx(10.0, abs=1.0)
    assert gap.reason == "overload"
    assert next(final for final in talker.finals if final.start >= gap.end).start == gap.end
    machine.finish()


@pytest.mark.parametrize(
    ("pass_s", "kind"), [(2.0, AudioKind.EITHER), (20.0, AudioKind.EITHER), (20.0, AudioKind.RECORDED)]
)
def test_a_recording_that_is_sent_as_fast_as_it_is_taken_loses_nothing_however_long_it_takes(
    pass_s: float, kind: AudioKind
) -> None:
    machine = Machine(encode_s=pass_s / 2, decode_s=pass_s / 2)
    talker = machine.talker(190.0, pause=0.0, kind=kind)
    talker.ahead_s = 200.0
    machine.run_until(100.0)
    assert talker.live.recorded
    while talker.live.ring.head < 200 * SAMPLE_RATE:
        machine.run_until(machine.clock.now_s + 10.0)
    sent_s = machine.clock.now_s
    machine.finish()
    assert machine.clock.now_s > sent_s + MAX_DELAY_S
    assert words_told(talker) == [word.text for word in talker.words]
    assert not talker.gaps


def test_a_client_that_sends_what_is_being_said_is_live() -> None:
    machine = Machine(encode_s=20.0, decode_s=20.0)
    talker = machine.talker(600.0, pause=0.0, kind=AudioKind.EITHER)
    # It sends two seconds at a time.
    talker.ahead_s = 2.0
    machine.run_until(600.0)
    assert not talker.live.recorded
    assert seconds_lost(talker) > 100.0
    check_delay(talker, 40.0)
    machine.finish()
