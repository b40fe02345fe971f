"""One graph a stage for calls of all sizes gives what a graph for each size gives."""

from collections.abc import Iterator

import numpy as np
import pytest

from streamer.arrays import FloatArray
from streamer.whisper.check import require
from streamer.whisper.device import compile as compiling
from streamer.whisper.device.checks import check_decoder, check_freshness
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import ModelGraphs
from tests.whisper.support import random_checkpoint

DIMS = ModelDimensions(80, 1500, 64, 2, 1, 50, 448, 64, 2, 2)
HEADS = [(1, 0), (0, 1)]
N_BEAMS = 3
PROMPT = list(range(20))

# float32's own rounding.
TOLERANCE = 1e-5


def compilation(*, bounded: bool) -> Compilation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "WIDE", 0 if bounded else 10_000)
        found = Compilation(
            ModelGraphs.of(random_checkpoint(DIMS), HEADS),
            plan_stages(DeviceSettings("CPU"), ["CPU"]),
            n_beams=N_BEAMS,
            windows_s=[5, 7],
        )
        found.compile()
    return found


@pytest.fixture(scope="module")
def bounded() -> Compilation:
    return compilation(bounded=True)


@pytest.fixture(scope="module")
def fixed() -> Compilation:
    return compilation(bounded=False)


def mel_of(window_s: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).uniform(-1, 1, (80, 100 * window_s)).astype(np.float32)


def results(runtime: Runtime) -> Iterator[FloatArray]:
    """Yield what a decoder gives for single tokens, blocks and beams."""
    decoder = runtime.decoder
    for tokens in ([3], PROMPT, [7], [8, 9, 10], [1], 50 * [2]):  # the cache grows
        yield from decoder.feed(tokens)
    decoder.rewind(55)
    yield from decoder.feed([5, 6])
    beams = decoder.start_beams()
    for parents in ([0], [0, 0], [1, 0, 1], *(4 * [[2, 2, 0], [0, 1, 2]]), [1, 2]):
        yield beams.extend(parents, [11, 12, 13][: len(parents)])


def assert_same(found: Runtime, expected: Runtime) -> None:
    for a, b in zip(results(found), results(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE)


def test_all_is_computed_as_with_a_graph_for_each_size(bounded: Compilation, fixed: Compilation) -> None:
    one, many = Runtime(bounded), Runtime(fixed)
    assert len(bounded.compiled) == 4
    assert len(fixed.compiled) == 15
    for i, window_s in enumerate((30, 5, 7, 30, 5)):
        for runtime in (one, many):
            runtime.decoder.use(runtime.encode(mel_of(window_s), i % 2))
        np.testing.assert_allclose(one.last_hidden_state, many.last_hidden_state, rtol=0, atol=TOLERANCE)
        assert_same(one, many)


def test_a_call_takes_as_many_tokens_as_there_are(bounded: Compilation) -> None:
    decoder = Runtime(bounded).decoder
    decoder.feed([1] * 5)
    (call,) = decoder._calls.values()
    assert call.n_tokens == 5
    decoder.feed([1] * 40)
    assert decoder.n_calls == 1 + 7


def test_the_checks_of_a_load_pass(bounded: Compilation) -> None:
    used, fresh = Runtime(bounded), Runtime(bounded, n_buffers=1)
    for window_s in used.windows_s:
        used.decoder.use(used.buffer(window_s))
        require(check_decoder(used.decoder, 3))
        require(check_freshness(used, fresh, 3, window_s))


@pytest.mark.parametrize(
    ("windows_s", "seconds", "expected"),
    [((5, 7, 30), 0.1, 5), ((5, 7, 30), 5.01, 6), ((5, 7, 30), 7.0, 7), ((5, 7, 30), 7.1, 30), ((30,), 1.0, 30)],
)
def test_windows_come_in_steps_of_a_second(
    bounded: Compilation, windows_s: tuple[int, ...], seconds: float, expected: int
) -> None:
    assert Runtime(bounded, windows_s=windows_s).frames_for(round(seconds * 16_000)) == 100 * expected


def test_a_window_that_is_encoded_leaves_the_one_being_decoded_alone(bounded: Compilation, fixed: Compilation) -> None:
    one, many = Runtime(bounded), Runtime(fixed)
    for mine, other in ((5, 30), (30, 7), (7, 5)):
        for runtime in (one, many):
            runtime.decoder.use(runtime.encode(mel_of(mine), 0))
        one.encode(mel_of(other, seed=1), 1)
        assert_same(one, many)


def test_what_is_not_finite_in_a_long_window_does_not_reach_a_short_one(bounded: Compilation) -> None:
    runtime, alone = Runtime(bounded), Runtime(bounded)
    alone.decoder.use(alone.encode(mel_of(5), 0))
    expected = list(results(alone))
    broken = runtime.encode(np.full((80, 3000), np.nan, np.float32), 0)
    runtime.decoder.use(broken)
    assert not np.isfinite(runtime.decoder.feed(PROMPT)[0]).any()
    runtime.decoder.use(runtime.encode(mel_of(5), 0))
    for a, b in zip(results(runtime), expected, strict=True):
        np.testing.assert_array_equal(a, b)
