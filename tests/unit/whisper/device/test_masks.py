"""Mask conventions, found by experiment on graphs that follow each of them, and on graphs that follow none."""

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.errors import ModelError
from streamer.whisper.device.devices import the_core
from streamer.whisper.device.masks import CONVENTIONS, OURS, MaskConvention, find_convention
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.triple import TripleDecoder, build_decoder

SOT = 513
ADDITIVE = CONVENTIONS[1]

every_convention = pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.name)


def compiled(model: ov.Model) -> TripleDecoder:
    return TripleDecoder(the_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}))


@pytest.mark.slow
@pytest.mark.usefixtures("npu_plugin")
@every_convention
def test_the_convention_is_found_in_half_precision(checkpoint: Checkpoint, convention: MaskConvention) -> None:
    """As an NPU: half precision between the parts of the graph."""
    model = build_decoder(checkpoint, convention, cache_type=np.float16)
    decoder = TripleDecoder(the_core().compile_model(model, "NPU", {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU"}))
    assert find_convention(decoder, "decoder.xml", SOT) is convention


@pytest.mark.parametrize(
    ("convention", "mask_type"),
    [(OURS, np.int64), (OURS, np.int32), (OURS, np.bool_), (OURS, np.float16), (ADDITIVE, np.float16)],
)
def test_masks_of_other_types_are_written(
    checkpoint: Checkpoint, convention: MaskConvention, mask_type: type[np.generic]
) -> None:
    decoder = compiled(build_decoder(checkpoint, convention, mask_type=mask_type))
    assert decoder.mask.dtype == mask_type
    assert find_convention(decoder, "decoder.xml", SOT) is convention


class FakeDecoder:
    """One head of attention over 40 slots; `read` says what of its 41 mask values is visible."""

    def __init__(self, read: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> None:
        self.mask = np.zeros(41, np.float32)
        self.cache: list[FloatArray] = [np.zeros((1, 1, 40, 8), np.float32) for _ in range(2)]
        self.present: list[FloatArray] = [np.full((1, 1, 1, 8), 0.1, np.float32), np.ones((1, 1, 1, 8), np.float32)]
        self._read = read

    def compute(self, token: int, position: int) -> FloatArray:
        keys, values = (np.concatenate([c, p], 2)[0, 0] for c, p in zip(self.cache, self.present, strict=True))
        scores = np.where(self._read(self.mask), 0.1 * keys.sum(1), -1e9)
        weights = np.exp(scores - scores.max())
        logits: FloatArray = (weights / weights.sum()) @ values
        return logits


def by_majority(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Whatever few slots have is "attend"."""
    visible: NDArray[np.bool_] = mask != (mask.mean() > 0.5)
    return visible


def wrong(place: slice | int, visible: bool, shown: float = 1) -> Callable[[NDArray[Any]], NDArray[np.bool_]]:
    """Return what shows or hides some slots whatever their mask says."""

    def read(mask: NDArray[Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = mask == shown
        found[place] = visible
        return found

    return read


def test_a_graph_that_follows_two_conventions_alike_has_the_first() -> None:
    assert find_convention(FakeDecoder(by_majority), "decoder.xml", 0) is OURS


@pytest.mark.parametrize("shown", [1, 0])  # by 1, or by 0 as masks that are added
@pytest.mark.parametrize(
    ("place", "visible"),
    [(-1, True), (-1, False), (20, True), (slice(10), False), (slice(None), True), (slice(None), False)],
)
def test_what_is_shown_or_hidden_whatever_the_mask_says_is_refused(
    place: slice | int, visible: bool, shown: float
) -> None:
    with pytest.raises(ModelError):
        find_convention(FakeDecoder(wrong(place, visible, shown)), "decoder.xml", 0)


def test_scores_that_are_not_finite_are_refused() -> None:
    decoder = FakeDecoder(wrong(0, True))
    decoder.present[1][:] = np.nan
    with pytest.raises(ModelError):
        find_convention(decoder, "decoder.xml", 0)


@pytest.mark.parametrize(
    ("convention", "n_cached", "expected"),
    [
        (OURS, 0, [0, 0, 0, 0, 1]),
        (OURS, 2, [1, 1, 0, 0, 1]),
        (OURS, 4, [1, 1, 1, 1, 1]),
        (ADDITIVE, 1, [0, -65500, -65500, -65500, 0]),
    ],
)
def test_a_mask_is_written_whole(convention: MaskConvention, n_cached: int, expected: list[float]) -> None:
    mask = np.full(len(expected), 7, np.float16)
    convention.write(mask, n_cached)
    # -65500 is -65504 in half precision, its largest.
    np.testing.assert_array_equal(mask, np.array(expected, np.float16))
    assert np.isfinite(mask).all()
