"""Decoders that are wrong in the ways people met: each is refused, the right one is not."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.errors import InferenceError
from streamer.whisper.check import Check, require
from streamer.whisper.device.checks import check_decoder, check_freshness
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.masks import OURS, MaskConvention
from streamer.whisper.device.runtime import DecoderRuntime, Runtime
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.model import WhisperModel
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.whisper.support import NANO, Untyped, start_runtime

SOT = 513

Mask = NDArray[Any]
HEADS = [(1, 0)]


@pytest.fixture(scope="module")
def own_runtime() -> Runtime:
    return start_runtime(huggingface.load(NANO), HEADS)


@pytest.fixture
def decoder(own_runtime: Runtime) -> Iterator[DecoderRuntime]:
    """A decoder of its own, mended after the test."""
    decoder = own_runtime.decoder
    yield decoder
    decoder.mask = OURS
    decoder.__dict__.pop("_forward", None)


class Inverted(MaskConvention):
    def write(self, mask: Mask, n_cached: int, n_tokens: int, n_slots: int) -> None:
        super().write(mask, n_cached, n_tokens, n_slots)
        mask[:] = 1 - mask


class AllOnes(MaskConvention):
    def write(self, mask: Mask, n_cached: int, n_tokens: int, n_slots: int) -> None:
        mask[:] = 1


class InPlace(MaskConvention):
    """`[1]*(n+1) + [0]*...`, the mistake of design.md: an empty slot is shown, the current token hidden."""

    def write(self, mask: Mask, n_cached: int, n_tokens: int, n_slots: int) -> None:
        mask[:] = 0
        mask[: n_cached + n_tokens] = 1


class CurrentTokensHidden(MaskConvention):
    def write(self, mask: Mask, n_cached: int, n_tokens: int, n_slots: int) -> None:
        super().write(mask, n_cached, n_tokens, n_slots)
        mask[-n_tokens:] = 0


class OneEmptySlotShown(MaskConvention):
    def write(self, mask: Mask, n_cached: int, n_tokens: int, n_slots: int) -> None:
        super().write(mask, n_cached, n_tokens, n_slots)
        mask[n_cached : n_cached + 1] = 1


class CacheHidden(MaskConvention):
    def write(self, mask: Mask, n_cached: int, n_tokens: int, n_slots: int) -> None:
        super().write(mask, n_cached, n_tokens, n_slots)
        mask[:n_cached] = 0


class WrongInStepsOnly(InPlace):
    def write(self, mask: Mask, n_cached: int, n_tokens: int, n_slots: int) -> None:
        write = super().write if n_tokens == 1 else OURS.write
        write(mask, n_cached, n_tokens, n_slots)


class WrongInBlocksOnly(InPlace):
    def write(self, mask: Mask, n_cached: int, n_tokens: int, n_slots: int) -> None:
        write = super().write if n_tokens > 1 else OURS.write
        write(mask, n_cached, n_tokens, n_slots)


def failures(checks: Iterable[Check]) -> list[str]:
    return [check.problem for check in checks if not check.passed]


def test_the_right_decoder_passes(model: WhisperModel) -> None:
    assert failures(check_decoder(model.runtime.decoder, SOT)) == []
    # And is left as it was: at the start of a sequence, its cache clean.
    assert model.runtime.decoder._n_cached == 0
    assert not any(slots.any() for slots in model.runtime.decoder._cache.slots)


@pytest.mark.parametrize(
    "wrong",
    [
        Inverted,
        AllOnes,
        InPlace,
        CurrentTokensHidden,
        OneEmptySlotShown,
        CacheHidden,
        WrongInStepsOnly,
        WrongInBlocksOnly,
    ],
)
def test_a_wrong_mask_is_refused(decoder: DecoderRuntime, wrong: type[MaskConvention]) -> None:
    require(check_decoder(decoder, SOT))
    decoder.mask = wrong("wrong", 1.0, 0.0)
    with pytest.raises(InferenceError, match=r"the compiled decoder .*: its text would be nonsense; .*--device CPU"):
        require(check_decoder(decoder, SOT))


def test_a_cache_that_keeps_only_the_newest_token_is_refused(decoder: DecoderRuntime) -> None:
    forward = decoder._forward

    def forget(call: Untyped, tokens: list[int]) -> None:
        forward(call, tokens)
        for slots in decoder._cache.slots:
            slots[:, :, : decoder._n_cached - 1] = 0

    decoder._forward = forget  # type: ignore[method-assign, assignment]
    assert failures(check_decoder(decoder, SOT))


def test_positions_that_stand_still_are_refused(decoder: DecoderRuntime) -> None:
    forward = decoder._forward

    def stand_still(call: Untyped, tokens: list[int]) -> None:
        offsets, call.offsets = call.offsets, np.zeros_like(call.offsets)
        try:
            forward(call, tokens)
        finally:
            call.offsets = offsets

    decoder._forward = stand_still  # type: ignore[method-assign, assignment]
    assert any("other logits token by token than in a block" in f for f in failures(check_decoder(decoder, SOT)))


def test_logits_that_are_not_finite_are_refused(decoder: DecoderRuntime) -> None:
    forward = decoder._forward

    def overflow(call: Untyped, tokens: list[int]) -> None:
        forward(call, tokens)
        call._logits[0, 0, 7] = np.nan

    decoder._forward = overflow  # type: ignore[method-assign, assignment]
    with pytest.raises(InferenceError, match="logits that are not finite"):
        require(check_decoder(decoder, SOT))


class TestFreshness:
    @pytest.fixture
    def pair(self) -> tuple[Runtime, Runtime]:
        compilation = compile_nano()
        return Runtime(compilation), Runtime(compilation, n_buffers=1)

    def test_our_graphs_pass(self, pair: tuple[Runtime, Runtime]) -> None:
        checks = list(check_freshness(*pair, SOT))
        assert [check.stage for check in checks] == ["encoder", "cross_kv", "decoder"]
        assert failures(checks) == []

    @pytest.mark.parametrize("stage", ["encoder", "cross_kv"])
    def test_a_stage_that_mixes_the_window_before_in_is_named(self, pair: tuple[Runtime, Runtime], stage: str) -> None:
        used, _ = pair
        part = used._encoder.encoder if stage == "encoder" else used._encoder.cross_kv
        infer = part.infer
        kept: list[np.ndarray] = []

        def stale() -> None:
            infer()
            outputs = [part.tensors[name].data for name in part.outputs]
            before, kept[:] = list(kept), [output.copy() for output in outputs]
            for output, old in zip(outputs, before, strict=False):
                output[:] = 0.9 * output + 0.1 * old

        part.infer = stale  # type: ignore[method-assign]
        blamed = [check.stage for check in check_freshness(*pair, SOT) if not check.passed]
        assert blamed[0] == stage

    def test_a_decoder_that_keeps_its_cache_is_named(self, pair: tuple[Runtime, Runtime]) -> None:
        used, _ = pair

        def begin() -> None:
            used.decoder._n_cached = 0  # the slots keep what they hold, and the mask shows them

        used.decoder.begin = begin  # type: ignore[method-assign]
        used.decoder.mask = AllOnes("wrong", 1.0, 0.0)
        with pytest.raises(InferenceError, match="the compiled decoder gives results that depend on the window before"):
            require(check_freshness(*pair, SOT))

    def test_an_encoder_that_hears_nothing_is_named(self, pair: tuple[Runtime, Runtime]) -> None:
        for runtime in pair:
            infer = runtime._encoder.encoder.infer

            def deaf(infer: Untyped = infer, runtime: Runtime = runtime) -> None:
                infer()
                runtime._encoder.encoder.tensors["last_hidden_state"].data[:] = 1

            runtime._encoder.encoder.infer = deaf  # type: ignore[method-assign]
        found = list(check_freshness(*pair, SOT))
        assert found[0].found == "the same for every window"
        assert not found[0].passed

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_weights_that_are_not_finite_are_told(self, value: float) -> None:
        checkpoint = huggingface.load(NANO)
        tensors = dict(checkpoint.tensors)
        tensors["encoder.layer_norm.bias"] = np.full_like(tensors["encoder.layer_norm.bias"], value)
        compilation = compile_nano(dataclasses.replace(checkpoint, tensors=tensors))
        found = list(check_freshness(Runtime(compilation), Runtime(compilation), SOT))
        assert found[0].found == "not finite"
        with pytest.raises(InferenceError, match="encoder gives numbers that are not finite: the weights are broken"):
            require(found)


def compile_nano(checkpoint: Checkpoint | None = None) -> Compilation:
    graphs = ModelGraphs.of(checkpoint or huggingface.load(NANO), HEADS)
    compilation = Compilation(graphs, plan_stages(DeviceSettings("CPU"), ["CPU"]))
    compilation.compile()
    return compilation
