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
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import Stage
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.graphs.ports import STAGES
from streamer.whisper.model import WhisperModel
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.device.conftest import HEADS, Planned
from tests.unit.whisper.support import Tensors, tamper

SOT = 513

Before = Callable[[Tensors], None]


def failed(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if not check.passed]


# Fill a token's row of the mask, shape (P + T,), of a call whose tokens so far see `n_cached` slots of P and `n_own`
# of its T tokens, of which it is the last.
Write = Callable[[NDArray[np.float32], int, int, int], None]


def masked(write: Write) -> Before:
    """Return what changes the mask of each run."""

    def change(inputs: Tensors) -> None:
        mask, n_cached = inputs["attention_mask"].data, int(inputs["position_ids"].data[0])
        for i, row in enumerate(mask):
            write(row, n_cached, i + 1, mask.shape[1] - len(mask))

    return change


def in_place(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    """`[1]*(n+1) + [0]*...`, the mistake of design.md: an empty slot is shown, the current token hidden."""
    row[:] = 0
    row[: n_cached + n_own] = 1


def all_ones(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    row[:] = 1


def inverted(row: NDArray[np.float32], n_cached: int, n_own: int, n_slots: int) -> None:
    row[:] = 1 - row


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


def keep_only_the_newest_token(inputs: Tensors) -> None:
    n_cached = int(inputs["position_ids"].data[0])
    for name, tensor in inputs.items():
        if ".decoder." in name:
            tensor.data[:, :, : max(0, n_cached - 1)] = 0


def stand_still(inputs: Tensors) -> None:
    inputs["position_ids"].data[:] = inputs["position_ids"].data[0]


WRONG_MASKS = (
    *(inverted, all_ones, in_place, current_tokens_hidden, one_empty_slot_shown, cache_hidden),
    *(wrong_in_steps_only, wrong_in_blocks_only),
)


@pytest.fixture
def runtime(planned: Planned) -> Runtime:
    compilation = planned()
    compilation.compile()
    return Runtime(compilation)


def test_the_right_decoder_passes_and_is_left_as_it_was(model: WhisperModel) -> None:
    decoder = model.runtime.decoder
    assert not failed(check_decoder(decoder, SOT))
    assert decoder.n_fed == 0
    assert not any(slots.any() for slots in decoder.open_step.cache)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [*map(masked, WRONG_MASKS), keep_only_the_newest_token, stand_still])
def test_a_wrong_mask_cache_or_position_is_refused(runtime: Runtime, wrong: Before) -> None:
    require(check_decoder(runtime.decoder, SOT))
    tamper(runtime, "decoder", wrong)
    with pytest.raises(InferenceError) as caught:
        require(check_decoder(runtime.decoder, SOT))
    assert caught.value.stage == "decoder"


def test_logits_that_are_not_finite_are_refused(runtime: Runtime) -> None:
    def overflow(stage: Stage, outputs: Tensors) -> None:
        stage.output("logits").data[0, 0, 7] = np.nan

    tamper(runtime, "decoder", after=overflow)
    (check,) = check_decoder(runtime.decoder, SOT)
    assert not check.passed


class TestFreshness:
    @pytest.fixture
    def pair(self, planned: Planned) -> tuple[Runtime, Runtime]:
        compilation = planned()
        compilation.compile()
        return Runtime(compilation), Runtime(compilation, n_buffers=1)

    def test_our_graphs_pass(self, pair: tuple[Runtime, Runtime]) -> None:
        checks = list(check_freshness(*pair, SOT))
        assert [check.stage for check in checks] == list(STAGES)
        assert not failed(checks)

    @pytest.mark.parametrize("stage", ["encoder", "cross_kv"])
    def test_a_stage_that_mixes_the_window_before_in_is_named(self, pair: tuple[Runtime, Runtime], stage: str) -> None:
        kept: list[NDArray[Any]] = []

        def mix(part: Stage, outputs: Tensors) -> None:
            written = [tensor.data for tensor in outputs.values()] or [part.output("last_hidden_state").data]
            before, kept[:] = list(kept), [output.copy() for output in written]
            for output, old in zip(written, before, strict=False):
                output[:] = 0.9 * output + 0.1 * old

        tamper(pair[0], stage, after=mix)
        assert failed(check_freshness(*pair, SOT))[0].stage == stage

    def test_a_decoder_that_keeps_its_cache_is_named(
        self, pair: tuple[Runtime, Runtime], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used, _ = pair
        # The slots keep what they hold, and the mask shows them.
        monkeypatch.setattr(used.decoder, "begin", lambda: used.decoder.rewind(0))
        tamper(used, "decoder", masked(all_ones))
        assert [check.stage for check in failed(check_freshness(*pair, SOT))] == ["decoder"]

    def test_an_encoder_that_ignores_its_input_is_named(self, pair: tuple[Runtime, Runtime]) -> None:
        def ignore(part: Stage, outputs: Tensors) -> None:
            part.output("last_hidden_state").data[:] = 1

        for runtime in pair:
            tamper(runtime, "encoder", after=ignore)
        assert failed(check_freshness(*pair, SOT))[0].stage == "encoder"

    @pytest.mark.slow
    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_weights_that_are_not_finite_are_named(
        self, planned: Planned, checkpoint: Checkpoint, value: float
    ) -> None:
        bias = np.full_like(checkpoint.tensors["encoder.layer_norm.bias"], value)
        tensors = {**checkpoint.tensors, "encoder.layer_norm.bias": bias}
        compilation = planned(graphs=ModelGraphs.of(dataclasses.replace(checkpoint, tensors=tensors), HEADS))
        compilation.compile()
        found = list(check_freshness(Runtime(compilation), Runtime(compilation), SOT))
        assert found[0].found == "not finite"
        assert failed(found)[0].stage == "encoder"
