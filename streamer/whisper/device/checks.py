"""Checks that compiled graphs obey what we rely on.

Wrong masks, state that survives from window to window, and mixed-up files give fluent nonsense, not an error. So masks
and state are tried out on the device that will be used.
"""

from collections.abc import Iterator

import numpy as np
import openvino as ov

from streamer.arrays import FloatArray
from streamer.audio.constants import CHUNK_LENGTH_S, FRAMES_PER_SECOND
from streamer.whisper.check import Check
from streamer.whisper.device.compile import Compilation, Sizes
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.masks import MOVED_LOGITS, SAME_LOGITS
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import describe, to_float32

# Largest part of the difference between two windows that may be left of the first in the second: rounding.
STALE = 0.02


_NONSENSE = "its text would be nonsense"
_BROKEN = "the weights are broken, or the device's driver is"


def check_ports(compilation: Compilation) -> Iterator[Check]:
    """Compare names, shapes and kinds of the compiled graphs' ports with the dimensions."""
    for name, compiled in compilation.compiled.items():
        ports = name.ports(compilation.graphs.dims, len(compilation.graphs.alignment_heads))
        expected = {**ports.inputs, **ports.outputs}
        found = {port_name: port for port in (*compiled.inputs, *compiled.outputs) for port_name in port.names}
        wrong = [
            f"{port} {describe(found[port]) if port in found else 'missing'}, expected {list(shape)}"
            for port, shape in expected.items()
            if port not in found or not found[port].partial_shape.compatible(ov.PartialShape(list(shape)))
        ]
        yield Check(
            f"{name}: ports",
            wrong[0] if wrong else f"{len(compiled.inputs)} inputs, {len(compiled.outputs)} outputs",
            f"{len(expected)} or more, by name and shape",
            not wrong,
            f"the {name} graph has {wrong[0] if wrong else ''}: it is not of this model; fetch or convert all graphs"
            " again",
        )
        states = [state.name for state in compiled.create_infer_request().query_state()]
        yield Check(
            f"{name}: state",
            ", ".join(states)[:60] or "none",
            "none",
            not states,
            f"the {name} graph keeps state from call to call ({', '.join(states)[:100]}): expected a graph whose caches"
            " are inputs and outputs; export it without state, or convert the original checkpoint",
        )


def check_decoder(decoder: Decoder, token: int, about: str = "decoder") -> Iterator[Check]:
    """Try masks and cache of the decoder's graphs out, from `token` (the start of a transcript) on.

    about : what the checks are called

    Those for the length of the window that the decoder holds are tried; it is left at the start of a sequence.
    """
    decoder.begin()
    stepped = _step(decoder, token)
    decoder.begin()
    block = _block(decoder, token)
    # With an empty cache the current token is all there is to see: where it is hidden, noise in the cache shows up.
    decoder.begin()
    decoder.pollute_hidden_slots()
    stepped_in_noise = _step(decoder, token)
    decoder.begin()
    decoder.pollute_hidden_slots()
    block_in_noise = _block(decoder, token)
    decoder.begin()
    stepped_after_another = _step(decoder, token + 1)
    decoder.begin()

    def row(name: str, what: str, expected: str, passed: bool, found: float) -> Check:
        problem = f"the compiled decoder {what}: {_NONSENSE}"
        return Check(f"{about}: {name}", f"{found:.2g}", expected, passed, problem, "decoder")

    scale = float(np.abs(stepped).max()) + 1e-6
    finite = bool(np.isfinite(stepped).all() and np.isfinite(block).all())
    yield Check(
        f"{about}: logits",
        "finite" if finite else "not finite",
        "finite",
        finite,
        f"the compiled decoder gives logits that are not finite: {_BROKEN}",
        "decoder",
    )
    if not finite:
        return  # nothing can be compared
    same = f"at most {SAME_LOGITS} of the largest logit"
    leak = max(_relative(stepped_in_noise - stepped, scale), _relative(block_in_noise - block, scale))
    yield row(
        "noise in hidden slots moves the logits by",
        "looks at cache slots that the mask hides, or hides the token being decoded",
        same,
        # Written so that NaN counts as a difference.
        leak <= SAME_LOGITS,
        leak,
    )
    apart = _relative(block - stepped, scale)
    yield row(
        "a block differs from single steps by",
        "gives other logits token by token than in a block",
        same,
        apart <= SAME_LOGITS,
        apart,
    )
    moved = float(np.abs(stepped_after_another - stepped).max(axis=1).min()) / scale
    yield row(
        "another first token moves the logits by",
        "does not look at the tokens before the one being decoded",
        f"more than {MOVED_LOGITS}",
        moved > MOVED_LOGITS,
        moved,
    )


def check_freshness(used: Runtime, fresh: Runtime, token: int, window_s: int = CHUNK_LENGTH_S) -> Iterator[Check]:
    """See that nothing of one window is left in the next: A, then B, must give what B gives alone.

    used, fresh : runtimes of one compilation; nothing of this length has been encoded with `fresh`
    window_s : length of the windows
    """
    shape = (used.dims.n_mels, window_s * FRAMES_PER_SECOND)
    a, b = (np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32) for seed in (1, 2))
    first = _run(used, a, token)
    second, alone = _run(used, b, token), _run(fresh, b, token)
    for stage, of_a, after_a, by_itself in zip(first, first.values(), second.values(), alone.values(), strict=True):
        finite = bool(np.isfinite([of_a, after_a, by_itself]).all())
        moved = float(np.abs(of_a - by_itself).max()) if finite else 0.0
        left = float(np.abs(after_a - by_itself).max()) / (moved or 1.0) if finite else np.inf
        yield Check(
            f"{Sizes(stage, window_s)}: left of the window before",
            f"{left:.2g}" if finite and moved else "the same for every window" if finite else "not finite",
            f"at most {STALE}",
            finite and moved > 0 and left <= STALE,
            f"the compiled {stage} gives results that depend on the window before, or on nothing: {_NONSENSE}"
            if finite
            else f"the compiled {stage} gives numbers that are not finite: {_BROKEN}",
            stage,
        )


def _run(runtime: Runtime, mel: FloatArray, token: int) -> dict[str, FloatArray]:
    window = runtime.encode(mel, 0)
    cross = to_float32(next(iter(window.tensors.values())))
    hidden = runtime.last_hidden_state.astype(np.float32)
    return {"encoder": hidden, "cross_kv": cross, "decoder": _step(runtime.decoder_of(window), token)}


def _step(decoder: Decoder, first: int) -> FloatArray:
    """Feed five tokens so that both graphs meet an empty and a filled cache; return the logits of each."""
    return np.concatenate([decoder.feed(tokens)[0][0] for tokens in ([first], [1, 2], [3], [4])])


def _block(decoder: Decoder, first: int) -> FloatArray:
    logits: FloatArray = decoder.feed([first, 1, 2, 3, 4])[0][0]
    return logits


def _relative(difference: FloatArray, scale: float) -> float:
    return float(np.abs(difference).max()) / scale
