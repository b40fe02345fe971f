"""Graphs for any size give what those of fixed sizes do, and windows together what each gives alone."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from streamer.arrays import FloatArray
from streamer.whisper.decode.search import Search, follow_beams
from streamer.whisper.device.compile import Compiled, Recipe
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.dims import MAX_BEAMS, ModelDimensions
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.graphs.ports import SLOTS_STEP
from tests.unit.whisper.device.conftest import compile_all
from tests.unit.whisper.support import lively_checkpoint

DIMS = ModelDimensions(80, 1500, 64, 2, 1, 50, 448, 64, 2, 2)
END = 7
N_WINDOWS = 5
N_BEAMS = 3
PROMPT = list(range(20))

# float32's own rounding.
TOLERANCE = 1e-5


def compiled(settings: DeviceSettings) -> Compiled:
    graphs = ModelGraphs.of(lively_checkpoint(DIMS), [(1, 0), (0, 1)])
    return compile_all(Recipe(graphs, plan_stages(settings, ["CPU"]), (5, 7, 30), N_BEAMS))


@pytest.fixture(scope="module")
def dynamic() -> Compiled:
    return compiled(DeviceSettings("CPU"))


@pytest.fixture(scope="module")
def static(npu_plugin: None) -> Compiled:
    """Graphs as an NPU gets them, which its plugin computes on the CPU."""
    return compiled(DeviceSettings(npu_through_cpu=True))


def mel_of(window_s: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).uniform(-1, 1, (80, 100 * window_s)).astype(np.float32)


def results(runtime: Runtime) -> Iterator[FloatArray]:
    """Yield what a decoder gives for single tokens, blocks and beams."""
    decoder = runtime.decoder
    for tokens in ([3], PROMPT, [7], [8, 9, 10], [1], 50 * [2]):  # the cache grows
        yield from decoder.feed(tokens)
    decoder.rewind(55)
    yield from decoder.feed([5, 6])
    yield decoder.extend(np.array([[0]]), np.array([[11]]))
    # More slots than one sequence can have.
    for parents in ([0, 0, 0], [1, 0, 1], *(70 * [[2, 2, 0], [0, 1, 2]])):
        yield decoder.extend(np.array([parents]), np.array([[11, 12, 13]]))
    decoder.rewind(57)
    yield from decoder.feed([4])


@pytest.mark.slow
def test_graphs_for_any_size_compute_what_those_of_fixed_sizes_do(dynamic: Compiled, static: Compiled) -> None:
    one, many = Runtime(dynamic), Runtime(static)
    assert (len(dynamic.graphs), len(static.graphs)) == (4, 15)
    assert (one.decoder.max_beams, many.decoder.max_beams) == (MAX_BEAMS, N_BEAMS)
    assert not many.decoder.takes_batches
    for i, (window_s, next_s) in enumerate(((30, 5), (5, 30), (7, 5), (30, 7))):
        for runtime in (one, many):
            runtime.decoder.use(runtime.encode(mel_of(window_s), i % 2))
        np.testing.assert_allclose(one.last_hidden_state, many.last_hidden_state, rtol=0, atol=TOLERANCE)
        # A window that is encoded leaves the one that is being decoded alone.
        one.encode(mel_of(next_s, seed=1), 1 - i % 2)
        for a, b in zip(results(one), results(many), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE)


def test_of_silent_tokens_nothing_is_returned(dynamic: Compiled) -> None:
    decoder = Runtime(dynamic).decoder
    logits, attention = decoder.feed(PROMPT * 5)
    for n_silent in (1, 64, 65, 99):
        decoder.begin()
        found = decoder.feed(PROMPT * 5, n_silent)
        np.testing.assert_array_equal(found[0], logits[:, n_silent:])
        np.testing.assert_array_equal(found[1], attention[:, :, n_silent:])


@pytest.mark.parametrize(
    ("windows_s", "seconds", "expected"),
    [((5, 10, 30), 0.1, 5), ((5, 10, 30), 5.01, 7), ((5, 10, 30), 9.5, 10), ((5, 10, 30), 10.1, 30), ((30,), 1.0, 30)],
)
def test_windows_come_in_steps(dynamic: Compiled, windows_s: tuple[int, ...], seconds: float, expected: int) -> None:
    assert Runtime(dynamic, windows_s=windows_s).frames_for(round(seconds * 16_000)) == 100 * expected


def test_what_is_not_finite_in_a_long_window_does_not_reach_a_short_one(dynamic: Compiled) -> None:
    runtime, alone = Runtime(dynamic), Runtime(dynamic)
    alone.decoder.use(alone.encode(mel_of(5), 0))
    expected, _ = alone.decoder.feed(PROMPT)
    runtime.decoder.use(runtime.encode(np.full((80, 3000), np.nan, np.float32), 0))
    assert not np.isfinite(runtime.decoder.feed(PROMPT)[0][0]).any()
    runtime.decoder.use(runtime.encode(mel_of(5), 0))
    np.testing.assert_array_equal(runtime.decoder.feed(PROMPT)[0], expected)


def texts_of(runtime: Runtime, windows: Sequence[EncodedWindow], n_beams: int) -> list[list[list[int]]]:
    """Return the texts along the beams of windows that are decoded together."""
    decoder = runtime.decoder_of(*windows)
    logits, _ = decoder.feed(PROMPT)
    found = follow_beams(decoder, logits[:, -1], Search(rules=(), end_of_text=END, limit=70), n_beams=n_beams)
    return [[text.tokens for text in texts] for texts in found]


@pytest.mark.slow
@pytest.mark.parametrize("n_beams", [1, N_BEAMS])
def test_windows_get_the_texts_that_each_gets_alone(dynamic: Compiled, n_beams: int) -> None:
    runtime = Runtime(dynamic, n_buffers=N_WINDOWS)
    mels = [mel_of(30, seed) for seed in range(N_WINDOWS)]
    alone = [texts_of(runtime, [runtime.encode(mel, 0)], n_beams)[0] for mel in mels]
    lengths = {len(texts[0]) for texts in alone}
    assert len(lengths) > 1
    assert max(lengths) > SLOTS_STEP
    windows = [runtime.encode(mel, row) for row, mel in enumerate(mels)]
    assert texts_of(runtime, windows, n_beams) == alone
    # Windows whose text ended have moved to another row, and can still be decoded; nothing of the first time is left.
    assert [window.row for window in windows] != list(range(N_WINDOWS))
    assert texts_of(runtime, windows[::-1], n_beams) == alone[::-1]
    assert texts_of(runtime, windows[:1], n_beams) == alone[:1]
