"""Devices that compute finite nonsense from speech: each is refused, and rounding is not."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel
from streamer.constants import SAMPLE_RATE
from streamer.whisper.check import Check
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.speech import TOLERANCE, check_speech, exact_plans, read_speech
from streamer.whisper.device.stage import Stage
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.graphs.ports import STAGES
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.device.conftest import HEADS
from tests.unit.whisper.support import SAMPLE, Tensors, tamper

SOT, END = 513, 512

# What the stages write that others, or the search, read.
WRITTEN = {"encoder": "last_hidden_state", "cross_kv": "", "decoder": "logits"}


@pytest.fixture(scope="module")
def compilation(checkpoint: Checkpoint) -> Compilation:
    compilation = Compilation(ModelGraphs.of(checkpoint, HEADS), exact_plans(), windows_s=[5])
    compilation.compile()
    return compilation


@pytest.fixture
def used(compilation: Compilation) -> Runtime:
    return Runtime(compilation)


@pytest.fixture(scope="module")
def samples() -> Float32Array:
    return read_speech(SAMPLE)


@pytest.fixture
def found(compilation: Compilation, used: Runtime, samples: Float32Array) -> Callable[..., list[Check]]:
    def check(stages: tuple[str, ...] = STAGES) -> list[Check]:
        return list(check_speech(used, Runtime(compilation), samples, [SOT], END, stages))

    return check


def blamed(checks: list[Check]) -> set[str]:
    return {check.stage for check in checks if not check.passed}


def written(stage: Stage, outputs: Tensors) -> list[NDArray[np.float32]]:
    name = WRITTEN[stage.sizes.stage]
    return [stage.output(name).data] if name else [tensor.data for tensor in outputs.values()]


def noise(part: float) -> Callable[[Stage, Tensors], None]:
    """Return what adds noise to what a stage computes: a part of its spread."""
    random = np.random.default_rng(0)

    def add(stage: Stage, outputs: Tensors) -> None:
        for values in written(stage, outputs):
            values += part * values.std() * random.standard_normal(values.shape, dtype=np.float32)

    return add


def test_the_right_graphs_pass_at_each_length_of_window(found: Callable[..., list[Check]]) -> None:
    checks = found()
    assert [check.stage for check in checks] == ["encoder", "cross_kv", "decoder", "decoder"] * 2
    assert all("(5 s)" in check.name for check in checks[4:])
    assert all(check.passed for check in checks)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_noise_beyond_rounding_is_refused(found: Callable[..., list[Check]], used: Runtime, stage: str) -> None:
    tamper(used, stage, after=noise(3 * TOLERANCE))
    checks = found()
    # Cross-KV on the device of a wrong encoder goes with it.
    assert blamed(checks) == ({"encoder", "cross_kv"} if stage == "encoder" else {stage})
    assert next(check for check in checks if not check.passed).found.startswith("0.4")


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_rounding_passes(found: Callable[..., list[Check]], used: Runtime, stage: str) -> None:
    tamper(used, stage, after=noise(TOLERANCE / 3))
    assert not blamed(found())


def test_the_result_of_another_window_is_refused(
    found: Callable[..., list[Check]], used: Runtime, samples: Float32Array
) -> None:
    used.encode(log_mel(samples[5 * SAMPLE_RATE :], used.dims.n_mels), 0)
    other = used.last_hidden_state

    def late(stage: Stage, outputs: Tensors) -> None:
        (values,) = written(stage, outputs)
        values[:] = other[np.newaxis, : values.shape[1]]

    tamper(used, "encoder", after=late)
    assert not any(check.passed for check in found(("encoder",)))


def test_another_token_is_refused_though_the_logits_are_near(found: Callable[..., list[Check]], used: Runtime) -> None:
    def prefer_the_second(stage: Stage, outputs: Tensors) -> None:
        for row in stage.output("logits").data.reshape(-1, used.dims.n_vocab):
            row[row.argsort()[-2]] = row.max() + 0.01

    tamper(used, "decoder", after=prefer_the_second)
    logits, words, *_ = found(("decoder",))
    assert logits.passed
    assert not words.passed
    assert int(words.found) > 0


def test_what_is_not_finite_is_refused(found: Callable[..., list[Check]], used: Runtime) -> None:
    def overflow(stage: Stage, outputs: Tensors) -> None:
        stage.output("last_hidden_state").data[0, 0, 0] = np.inf

    tamper(used, "encoder", after=overflow)
    assert found(("encoder",))[0].found == "inf"


def test_only_the_stages_that_are_asked_for_are_judged(found: Callable[..., list[Check]], used: Runtime) -> None:
    tamper(used, "encoder", after=noise(1))
    assert {check.stage for check in found(("decoder",))} == {"decoder"}
    assert not blamed(found(("decoder",)))
