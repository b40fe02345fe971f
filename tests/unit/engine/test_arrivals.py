"""When audio came."""

import math

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.engine.arrivals import STEP_S, Arrivals


def test_when_audio_came_is_known_while_it_is_kept() -> None:
    arrivals = Arrivals(keep_s=30.0)
    assert arrivals.time_at(1) is None
    for i in range(1, 5001):  # 20 ms at a time
        arrivals.note(320 * i, 100.0 + 0.02 * i)
    for time_s in (171.0, 199.9, 200.0):
        came_s = arrivals.time_at(round((time_s - 100.0) * SAMPLE_RATE))
        assert came_s is not None
        assert 0.0 <= time_s - came_s + 0.001 <= STEP_S + 0.021
    assert arrivals.time_at(10 * SAMPLE_RATE) is None
    assert arrivals.time_at(200 * SAMPLE_RATE) is None


def test_old_steps_are_forgotten() -> None:
    arrivals = Arrivals(keep_s=30.0)
    for i in range(100_000):
        arrivals.note(1600 * i, 0.1 * i)
    assert len(arrivals._steps) <= 30.0 / STEP_S + 2
    now_s = 0.1 * 99_999
    assert abs(arrivals.position_at(now_s - 30.0) - 1600 * (99_999 - 300)) <= 3200


# Seconds of audio that have come, when, and whether the sender has to wait for room.
Notes = list[tuple[float, float, bool]]


def in_time(*seconds: float, held_back_from: float = math.inf) -> Notes:
    """Return audio that comes as it is spoken."""
    return [(second, second, second >= held_back_from) for second in seconds]


RECORDED: dict[str, tuple[Notes, dict[float, bool]]] = {
    "live audio two seconds at a time, and after an interruption": (in_time(*range(2, 21, 2), 50), {50: False}),
    "the first second, at any time": ([(1, 50, False)], {0: False}),
    "audio ahead of the clock, as long as nothing else has come": (
        [(1, 50, False), (6, 51, False)],
        {0: True, 6: True},
    ),
    "what comes behind that": ([(1, 50, False), (6, 51, False), (7, 60, False)], {6: True, 6.001: False}),
    "a file after an hour of nothing": ([(1, 0, False), (61, 3600, False)], {60: True}),
    "a day by a clock that runs fast, behind a backlog": (
        [(2 + second * 1.0003, second, False) for second in range(24 * 3600)],
        {2: False},
    ),
    "who has to wait for room, however slowly it is taken": ([(90 + i, 10 * i, True) for i in range(100)], {150: True}),
    "who is live, had to wait for room, and sends what was said meanwhile": (
        in_time(*range(1, 90), held_back_from=86) + in_time(180),
        {0: False},
    ),
}


@pytest.mark.parametrize("case", RECORDED)
def test_what_is_a_recording(case: str) -> None:
    notes, expected = RECORDED[case]
    arrivals = Arrivals(keep_s=30.0)
    for audio_s, now_s, held_back in notes:
        arrivals.note(round(audio_s * SAMPLE_RATE), now_s, held_back=held_back)
    found = {audio_s: arrivals.recorded(round(audio_s * SAMPLE_RATE)) for audio_s in expected}
    assert found == expected


def test_audio_that_is_sent_again_says_nothing_of_its_pace() -> None:
    arrivals = Arrivals(60.0)
    arrivals.note(100 * SAMPLE_RATE, 0.0, again=True)
    arrivals.note(130 * SAMPLE_RATE, 0.1, again=True)
    for second in range(1, 10):
        arrivals.note((130 + second) * SAMPLE_RATE, 0.1 + second)
    assert not arrivals.recorded(139 * SAMPLE_RATE)
    assert arrivals.time_at(130 * SAMPLE_RATE) is not None
    arrivals.note(160 * SAMPLE_RATE, 10.0)
    assert arrivals.recorded(160 * SAMPLE_RATE)
