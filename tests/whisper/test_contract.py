"""Decoders that are wrong in the ways people met: each is refused, the right one is not."""

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.errors import InferenceError
from streamer.whisper.contract import check_masking
from streamer.whisper.model import WhisperModel
from streamer.whisper.runtime import DecoderRuntime, Runtime
from streamer.whisper.weights import huggingface
from tests.whisper.support import NANO

SOT = 513

Mask = NDArray[np.floating]
Show = Callable[[DecoderRuntime, Mask, int, int], None]

right: Show = DecoderRuntime._show


@pytest.fixture(scope="module")
def own_decoder() -> DecoderRuntime:
    checkpoint = huggingface.load(NANO)
    return Runtime(checkpoint, [(1, 0)], device="CPU").decoder


@pytest.fixture
def decoder(own_decoder: DecoderRuntime) -> Iterator[DecoderRuntime]:
    """A decoder of its own, mended after the test."""
    yield own_decoder
    own_decoder.__dict__.pop("_show", None)
    own_decoder.__dict__.pop("_forward", None)


def inverted(decoder: DecoderRuntime, mask: Mask, n_cached: int, n: int) -> None:
    right(decoder, mask, n_cached, n)
    mask[:] = 1 - mask


def all_ones(decoder: DecoderRuntime, mask: Mask, n_cached: int, n: int) -> None:
    mask[:] = 1


def as_if_current_tokens_were_in_place(decoder: DecoderRuntime, mask: Mask, n_cached: int, n: int) -> None:
    """`[1]*(n+1) + [0]*...`, the mistake of design.md: an empty slot is shown, the current token hidden."""
    mask[:] = 0
    mask[: n_cached + n] = 1


def current_tokens_hidden(decoder: DecoderRuntime, mask: Mask, n_cached: int, n: int) -> None:
    right(decoder, mask, n_cached, n)
    mask[-n:] = 0


def one_empty_slot_shown(decoder: DecoderRuntime, mask: Mask, n_cached: int, n: int) -> None:
    right(decoder, mask, n_cached, n)
    mask[n_cached : n_cached + 1] = 1


def cache_hidden(decoder: DecoderRuntime, mask: Mask, n_cached: int, n: int) -> None:
    right(decoder, mask, n_cached, n)
    mask[:n_cached] = 0


def wrong_in_steps_only(decoder: DecoderRuntime, mask: Mask, n_cached: int, n: int) -> None:
    (as_if_current_tokens_were_in_place if n == 1 else right)(decoder, mask, n_cached, n)


def wrong_in_blocks_only(decoder: DecoderRuntime, mask: Mask, n_cached: int, n: int) -> None:
    (as_if_current_tokens_were_in_place if n > 1 else right)(decoder, mask, n_cached, n)


def test_the_right_decoder_passes(model: WhisperModel) -> None:
    check_masking(model.runtime.decoder, SOT)
    # And is left as it was: at the start of a sequence, its cache clean.
    assert model.runtime.decoder._n_cached == 0
    assert not any(slots.any() for slots in model.runtime.decoder._cache)


@pytest.mark.parametrize(
    "show",
    [
        inverted,
        all_ones,
        as_if_current_tokens_were_in_place,
        current_tokens_hidden,
        one_empty_slot_shown,
        cache_hidden,
        wrong_in_steps_only,
        wrong_in_blocks_only,
    ],
)
def test_a_wrong_mask_is_refused(decoder: DecoderRuntime, show: Show) -> None:
    check_masking(decoder, SOT)
    decoder._show = MethodType(show, decoder)  # type: ignore[method-assign]
    with pytest.raises(InferenceError, match=r"the compiled decoder .*: its text would be nonsense; .*--device CPU"):
        check_masking(decoder, SOT)


def test_a_cache_that_keeps_only_the_newest_token_is_refused(decoder: DecoderRuntime) -> None:
    forward = decoder._forward

    def forget(tokens: list[int]) -> Any:  # noqa: ANN401
        call = forward(tokens)
        for slots in decoder._cache:
            slots[:, :, : decoder._n_cached - 1] = 0
        return call

    decoder._forward = forget  # type: ignore[method-assign, assignment]
    with pytest.raises(InferenceError, match="the compiled decoder"):
        check_masking(decoder, SOT)


def test_positions_that_stand_still_are_refused(decoder: DecoderRuntime) -> None:
    forward = decoder._forward

    def stand_still(tokens: list[int]) -> Any:  # noqa: ANN401
        offsets = decoder._block.offsets
        decoder._block.offsets = np.zeros_like(offsets)
        try:
            return forward(tokens)
        finally:
            decoder._block.offsets = offsets

    decoder._forward = stand_still  # type: ignore[method-assign, assignment]
    with pytest.raises(InferenceError, match="other logits token by token than in a block"):
        check_masking(decoder, SOT)


def test_logits_that_are_not_finite_are_refused(decoder: DecoderRuntime) -> None:
    forward = decoder._forward

    def overflow(tokens: list[int]) -> Any:  # noqa: ANN401
        call = forward(tokens)
        call.logits[0, 0, 7] = np.nan
        return call

    decoder._forward = overflow  # type: ignore[method-assign, assignment]
    with pytest.raises(InferenceError, match="logits that are not finite"):
        check_masking(decoder, SOT)
