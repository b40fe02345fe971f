"""Decoders that are wrong in the ways people met: each is refused, the right one is not."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.errors import InferenceError
from streamer.whisper.check import Check, require
from streamer.whisper.device.checks import check_decoder, check_freshness
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import Stage
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.model import WhisperModel
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import NANO, Tensors, start_runtime, tamper

pytestmark = pytest.mark.slow

SOT = 513

HEADS = [(1, 0)]


@pytest.fixture
def runtime() -> Runtime:
    return start_runtime(huggingface.load(NANO), HEADS)


# Fill a token's row of the mask, shape (P + T,), of a call whose tokens so far see `n_cached` slots of P and `n_own`
# of its T tokens, of which it is the last.
Write = Callable[[NDArray[np.float32], int, int, int], None]


def inverted(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    row[:] = 1 - row


def all_ones(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    row[:] = 1


def in_place(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    """`[1]*(n+1) + [0]*...`, the mistake of design.md: an empty slot is shown, the current token hidden."""
    row[:] = 0
    row[: n_cached + n_own] = 1


def current_tokens_hidden(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    row[n_slots:] = 0


def one_empty_slot_shown(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    row[n_cached] = 1


def cache_hidden(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    row[:n_cached] = 0


def wrong_in_steps_only(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    if len(row) == n_slots + 1:
        in_place(row, n_cached, n_own, n_slots)


def wrong_in_blocks_only(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    if len(row) > n_slots + 1:
        in_place(row, n_cached, n_own, n_slots)


def wrongly(write: Write) -> Callable[[Tensors], None]:
    """Return what changes the mask of each run."""

    def change(inputs: Tensors) -> None:
        mask, n_cached = inputs["attention_mask"].data, int(inputs["position_ids"].data[0])
        for i, row in enumerate(mask):
            write(row, n_cached, i + 1, mask.shape[1] - len(mask))

    return change


def failures(checks: Iterable[Check]) -> list[str]:
    return [check.problem for check in checks if not check.passed]


def test_the_right_decoder_passes(model: WhisperModel) -> None:
    decoder = model.runtime.decoder
    assert failures(check_decoder(decoder, SOT)) == []
    # And is left as it was: at the start of a sequence, its cache clean.
    assert decoder.n_fed == 0
    assert not any(slots.any() for slots in decoder.open_step.cache)


@pytest.mark.parametrize(
    "wrong",
    [
        inverted,
        all_ones,
        in_place,
        current_tokens_hidden,
        one_empty_slot_shown,
        cache_hidden,
        wrong_in_steps_only,
        wrong_in_blocks_only,
    ],
)
def test_a_wrong_mask_is_refused(runtime: Runtime, wrong: Write) -> None:
    require(check_decoder(runtime.decoder, SOT))
    tamper(runtime, "decoder", wrongly(wrong))
    with pytest.raises(InferenceError, match=r"the compiled decoder .*: its text would be nonsense; .*--device CPU"):
        require(check_decoder(runtime.decoder, SOT))


def test_a_cache_that_keeps_only_the_newest_token_is_refused(runtime: Runtime) -> None:
    def forget(inputs: Tensors) -> None:
        n_cached = int(inputs["position_ids"].data[0])
        for name, tensor in inputs.items():
            if ".decoder." in name:
                tensor.data[:, :, : max(0, n_cached - 1)] = 0

    tamper(runtime, "decoder", forget)
    assert failures(check_decoder(runtime.decoder, SOT))


def test_positions_that_stand_still_are_refused(runtime: Runtime) -> None:
    def stand_still(inputs: Tensors) -> None:
        positions = inputs["position_ids"].data
        positions[:] = positions[0]

    tamper(runtime, "decoder", stand_still)
    found = failures(check_decoder(runtime.decoder, SOT))
    assert any("other logits token by token than in a block" in problem for problem in found)


def test_logits_that_are_not_finite_are_refused(runtime: Runtime) -> None:
    def overflow(stage: Stage, outputs: Tensors) -> None:
        stage.output("logits").data[0, 0, 7] = np.nan

    tamper(runtime, "decoder", after=overflow)
    with pytest.raises(InferenceError, match="logits that are not finite"):
        require(check_decoder(runtime.decoder, SOT))


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
        kept: list[NDArray[Any]] = []

        def mix(part: Stage, outputs: Tensors) -> None:
            written = [tensor.data for tensor in outputs.values()] or [part.output("last_hidden_state").data]
            before, kept[:] = list(kept), [output.copy() for output in written]
            for output, old in zip(written, before, strict=False):
                output[:] = 0.9 * output + 0.1 * old

        tamper(pair[0], stage, after=mix)
        blamed = [check.stage for check in check_freshness(*pair, SOT) if not check.passed]
        assert blamed[0] == stage

    def test_a_decoder_that_keeps_its_cache_is_named(
        self, pair: tuple[Runtime, Runtime], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used, _ = pair
        # The slots keep what they hold, and the mask shows them.
        monkeypatch.setattr(used.decoder, "begin", lambda: used.decoder.rewind(0))
        tamper(used, "decoder", wrongly(all_ones))
        with pytest.raises(InferenceError, match="the compiled decoder gives results that depend on the window before"):
            require(check_freshness(*pair, SOT))

    def test_an_encoder_that_ignores_its_input_is_named(self, pair: tuple[Runtime, Runtime]) -> None:
        def ignore(part: Stage, outputs: Tensors) -> None:
            part.output("last_hidden_state").data[:] = 1

        for runtime in pair:
            tamper(runtime, "encoder", after=ignore)
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
