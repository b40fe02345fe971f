"""Decoders and devices that are wrong in the ways people met: each is refused, the right one and rounding are not."""

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.arrays import Float32Array
from streamer.errors import InferenceError
from streamer.whisper.check import Check, require
from streamer.whisper.device.checks import (
    EXACT,
    TOLERANCE,
    check_decoder,
    check_freshness,
    check_speech,
    known_speech,
    mel_of,
)
from streamer.whisper.device.compile import Compiled, compile_on_cpu
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import Stage
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.graphs.ports import STAGES
from streamer.whisper.model import WhisperModel
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.device.conftest import HEADS
from tests.unit.whisper.support import Tensors, shallow, tamper

SOT, END = 513, 512

# What the stages write that others, or the search, read.
WRITTEN = {"encoder": "last_hidden_state", "cross_kv": "", "decoder": "logits"}

Before = Callable[[Tensors], None]
After = Callable[[Stage, Tensors], None]
Written = tuple[slice | int, float]


def blamed(checks: Iterable[Check]) -> list[str]:
    return [check.stage for check in checks if not check.passed]


def outputs_changed(change: Callable[[NDArray[np.float32]], object]) -> After:
    """Return what changes each output of a run that others read."""

    def after(stage: Stage, outputs: Tensors) -> None:
        name = WRITTEN[stage.sizes.stage]
        if name == "logits" and not stage.sizes.logits and stage.device == "CPU":
            return  # they are made apart
        for values in [stage.output(name).data] if name else [tensor.data for tensor in outputs.values()]:
            change(values)

    return after


def set_first(value: float) -> After:
    return outputs_changed(lambda values: values.reshape(-1).__setitem__(7, value))


def decoder_slots(shown: Callable[[int, int, int, int], list[Written]]) -> Before:
    """Return what writes to each token's row of the mask, whose P slots come before the T tokens of the call.

    shown : of n_cached slots in use of P, n_own of the T tokens, P and T: what is written, by its place
    """

    def change(inputs: Tensors) -> None:
        mask, n_cached = inputs["attention_mask"].data, int(inputs["position_ids"].data[0])
        n_slots = mask.shape[1] - len(mask)
        for i, row in enumerate(mask):
            for place, value in shown(n_cached, i + 1, n_slots, len(mask)):
                row[place] = value

    return change


def in_place(n_cached: int, n_own: int, *_: int) -> list[Written]:
    """`[1]*(n+1) + [0]*...`, the mistake of design.md: an empty slot is shown, the current token hidden."""
    return [(slice(None), 0), (slice(n_cached + n_own), 1)]


def inverted(inputs: Tensors) -> None:
    inputs["attention_mask"].data[:] = 1 - inputs["attention_mask"].data


def keep_only_the_newest_token(inputs: Tensors) -> None:
    n_cached = int(inputs["position_ids"].data[0])
    for name, tensor in inputs.items():
        if ".decoder." in name:
            tensor.data[:, :, : max(0, n_cached - 1)] = 0


def stand_still(inputs: Tensors) -> None:
    inputs["position_ids"].data[:] = inputs["position_ids"].data[0]


all_ones = decoder_slots(lambda *_: [(slice(None), 1)])

WRONG: dict[str, Before] = {
    "inverted": inverted,
    "all ones": all_ones,
    "in place": decoder_slots(in_place),
    "in place in steps": decoder_slots(lambda *given: in_place(*given) if given[3] == 1 else []),
    "in place in blocks": decoder_slots(lambda *given: in_place(*given) if given[3] > 1 else []),
    "current tokens hidden": decoder_slots(lambda n_cached, n_own, n_slots, _: [(slice(n_slots, None), 0)]),
    "one empty slot shown": decoder_slots(lambda n_cached, *_: [(n_cached, 1)]),
    "cache hidden": decoder_slots(lambda n_cached, *_: [(slice(n_cached), 0)]),
    "newest token only": keep_only_the_newest_token,
    "same position": stand_still,
}


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_on_cpu(ModelGraphs.of(huggingface.load(shallow(2)), HEADS), [5], EXACT)


@pytest.fixture
def used(compiled: Compiled) -> Runtime:
    return Runtime(compiled)


def test_the_right_decoder_passes_and_is_left_as_it_was(model: WhisperModel) -> None:
    decoder = model.runtime.decoder
    assert not blamed(check_decoder(decoder, SOT))
    assert decoder.n_fed == 0


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_mask_cache_or_position_is_refused(used: Runtime, wrong: str) -> None:
    require(check_decoder(used.decoder, SOT))
    tamper(used, "decoder", WRONG[wrong])
    with pytest.raises(InferenceError) as caught:
        require(check_decoder(used.decoder, SOT))
    assert caught.value.stage == "decoder"


def test_logits_that_are_not_finite_are_refused(used: Runtime) -> None:
    tamper(used, "decoder", after=set_first(np.nan))
    (check,) = check_decoder(used.decoder, SOT)
    assert not check.passed


# Is anything of one window left in the next?


def check_fresh(used: Runtime) -> list[Check]:
    return list(check_freshness(used, SOT, 5))


def test_our_graphs_are_fresh(used: Runtime) -> None:
    checks = check_fresh(used)
    assert [check.stage for check in checks] == list(STAGES)
    assert not blamed(checks)


@pytest.mark.parametrize("stage", ["encoder", "cross_kv"])
def test_a_stage_that_mixes_the_window_before_in_is_named(used: Runtime, stage: str) -> None:
    kept: list[Float32Array] = []

    def mix(values: Float32Array) -> None:
        kept.append(values.copy())
        if (n := len(kept) - (1 if stage == "encoder" else 2 * used.dims.n_text_layer)) > 0:
            values[:] = 0.9 * values + 0.1 * kept[n - 1]

    tamper(used, stage, after=outputs_changed(mix))
    assert blamed(check_fresh(used))[0] == stage


def test_a_decoder_that_keeps_its_cache_is_named(used: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    # The slots keep what they hold, and the mask shows them.
    monkeypatch.setattr(used.decoder, "begin", lambda: used.decoder.rewind(0))
    tamper(used, "decoder", all_ones)
    assert blamed(check_fresh(used)) == ["decoder"]


def test_an_encoder_that_ignores_its_input_is_named(used: Runtime) -> None:
    tamper(used, "encoder", after=outputs_changed(lambda values: values.fill(1)))
    assert blamed(check_fresh(used))[0] == "encoder"


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(checkpoint: Checkpoint, value: float) -> None:
    bias = np.full_like(checkpoint.tensors["encoder.layer_norm.bias"], value)
    tensors = {**checkpoint.tensors, "encoder.layer_norm.bias": bias}
    graphs = ModelGraphs.of(dataclasses.replace(checkpoint, tensors=tensors), HEADS)
    found = list(check_freshness(Runtime(compile_on_cpu(graphs)), SOT, 30))
    assert found[0].found == "not finite"
    assert blamed(found)[0] == "encoder"


# Does a device compute of speech what the CPU does?

Speak = Callable[..., list[Check]]


@pytest.fixture
def found(compiled: Compiled, used: Runtime) -> Speak:
    def check(stages: tuple[str, ...] = STAGES) -> list[Check]:
        return list(check_speech(used, Runtime(compiled), [SOT], END, stages))

    return check


def noise(part: float) -> After:
    """Return what adds noise to what a stage computes: a part of its spread."""
    random = np.random.default_rng(0)

    def add(values: Float32Array) -> None:
        values += part * values.std() * random.standard_normal(values.shape, dtype=np.float32)

    return outputs_changed(add)


@pytest.mark.slow
def test_the_right_graphs_pass_at_each_length_of_window(found: Speak) -> None:
    checks = found()
    assert [check.stage for check in checks] == ["encoder", "cross_kv", "decoder", "decoder"] * 2
    assert all("(5 s)" in check.name for check in checks[4:])
    assert not blamed(checks)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_noise_beyond_rounding_is_refused_and_rounding_passes(found: Speak, used: Runtime, stage: str) -> None:
    tamper(used, stage, after=noise(TOLERANCE / 3))
    assert not blamed(found())
    tamper(used, stage, after=noise(3 * TOLERANCE))
    checks = found()
    # Cross-KV on the device of a wrong encoder goes with it.
    assert {*blamed(checks)} == ({"encoder", "cross_kv"} if stage == "encoder" else {stage})
    assert next(check for check in checks if not check.passed).found.startswith("0.4")


def test_the_result_of_another_window_is_refused(found: Speak, used: Runtime) -> None:
    used.encode(mel_of(known_speech()[::-1], 30, used), 0)
    other = used.last_hidden_state

    def late(values: Float32Array) -> None:
        values[:] = other[np.newaxis, : values.shape[1]]

    tamper(used, "encoder", after=outputs_changed(late))
    assert not any(check.passed for check in found(("encoder",)))


@pytest.mark.slow
def test_another_token_is_refused_though_the_logits_are_near(found: Speak, used: Runtime) -> None:
    def prefer_the_second(values: Float32Array) -> None:
        for row in values.reshape(-1, used.dims.n_vocab):
            row[row.argsort()[-2]] = row.max() + 0.01

    tamper(used, "decoder", after=outputs_changed(prefer_the_second))
    logits, words, *_ = found(("decoder",))
    assert logits.passed
    assert not words.passed
    assert int(words.found) > 0


def test_speech_that_is_not_finite_is_refused(found: Speak, used: Runtime) -> None:
    tamper(used, "encoder", after=set_first(np.inf))
    assert found(("encoder",))[0].found == "inf"


@pytest.mark.slow
def test_only_the_stages_that_are_asked_for_are_judged(found: Speak, used: Runtime) -> None:
    tamper(used, "encoder", after=noise(1))
    assert {check.stage for check in found(("decoder",))} == {"decoder"}
    assert not blamed(found(("decoder",)))
