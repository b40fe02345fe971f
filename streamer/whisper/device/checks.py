"""Checks that compiled graphs obey what we rely on, on the device that will be used.

Wrong masks, state that survives from window to window, and mixed-up files give fluent nonsense, not an error. And
accelerators have computed finite nonsense, with masks and state in order:
https://github.com/openvinotoolkit/openvino (issue 37264), https://github.com/microsoft/onnxruntime (issue 31626).
So masks and state are tried out, and known speech goes through devices and through the CPU.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from streamer.arrays import Float32Array, FloatArray
from streamer.audio.mel import log_mel
from streamer.audio.sources.file import read_audio
from streamer.constants import FRAMES_PER_SECOND, N_SAMPLES, SAMPLE_RATE
from streamer.whisper.check import Check
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.sizes import Sizes
from streamer.whisper.device.stage import to_float32
from streamer.whisper.shipped import speech

# Largest difference from the CPU, as root mean square over the spread of the CPU's values: rounding.
TOLERANCE = 0.15

# Largest difference between logits, over the largest logit, that counts as the same: float16 accelerators round.
SAME_LOGITS = 0.05

# Smallest one that counts as another. Logits that do not depend on something differ by nothing but rounding.
MOVED_LOGITS = 1e-4

# Largest part of the difference between two windows that may be left of the first in the second: rounding.
STALE = 0.02

# Of the transcript, which the CPU chooses.
MOST_TOKENS = 24

# OpenVINO's properties with which the CPU computes what others are compared with.
EXACT = ("INFERENCE_PRECISION_HINT=f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE=0")

_NONSENSE = "its text would be nonsense"
_BROKEN = "the weights are broken, or the device's driver is"


def check_decoder(decoder: Decoder, token: int, about: str = "decoder") -> Iterator[Check]:
    """Try masks and cache of the decoder's graphs out, from `token` (the start of a transcript) on.

    about : what the checks are called

    Those for the length of the window that the decoder holds are tried; it is left at the start of a sequence.
    """
    block = [[token, 1, 2, 3, 4]]
    stepped, in_block = _feed(decoder, _steps(token)), _feed(decoder, block)
    # With an empty cache the current token is all there is to see: if it is hidden, noise in the cache shows up.
    stepped_in_noise, block_in_noise = _feed(decoder, _steps(token), noisy=True), _feed(decoder, block, noisy=True)
    stepped_after_another = _feed(decoder, _steps(token + 1))
    decoder.begin()

    def row(name: str, found: str, expected: str, passed: bool, problem: str) -> Check:
        return Check(f"{about}: {name}", found, expected, passed, f"the compiled decoder {problem}", "decoder")

    finite = bool(np.isfinite(stepped).all() and np.isfinite(in_block).all())
    found = "finite" if finite else "not finite"
    yield row("logits", found, "finite", finite, f"gives logits that are not finite: {_BROKEN}")
    if not finite:
        return  # nothing can be compared
    scale = float(np.abs(stepped).max()) + 1e-6
    leak = float(np.maximum(np.abs(stepped_in_noise - stepped).max(), np.abs(block_in_noise - in_block).max())) / scale
    difference = float(np.abs(in_block - stepped).max()) / scale
    moved = float(np.abs(stepped_after_another - stepped).max(axis=1).min()) / scale
    same = f"at most {SAME_LOGITS} of the largest logit"
    # Each comparison fails for NaN.
    yield row(
        "noise in hidden slots moves the logits by",
        f"{leak:.2g}",
        same,
        leak <= SAME_LOGITS,
        f"looks at cache slots that the mask hides, or hides the token being decoded: {_NONSENSE}",
    )
    yield row(
        "a block differs from single steps by",
        f"{difference:.2g}",
        same,
        difference <= SAME_LOGITS,
        f"gives other logits token by token than in a block: {_NONSENSE}",
    )
    yield row(
        "another first token moves the logits by",
        f"{moved:.2g}",
        f"more than {MOVED_LOGITS}",
        moved > MOVED_LOGITS,
        f"does not look at the tokens before the one being decoded: {_NONSENSE}",
    )


def check_freshness(runtime: Runtime, token: int, window_s: int) -> Iterator[Check]:
    """See that nothing of one window is left in the next: after another one, speech must give what it gives again.

    window_s : length of the windows, in seconds
    """
    samples = known_speech()[: window_s * SAMPLE_RATE]
    mel, other = (mel_of(each, window_s, runtime) for each in (samples, samples[::-1]))
    before, after, again = (run_stages(runtime, each, token) for each in (other, mel, mel))
    for stage, of_other, first, second in zip(before, before.values(), after.values(), again.values(), strict=True):
        finite = bool(np.isfinite([of_other, first, second]).all())
        moved = float(np.abs(of_other - second).max()) if finite else 0.0
        left = float(np.abs(first - second).max()) / (moved or 1.0) if finite else np.inf
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


def check_speech(
    used: Runtime, exact: Runtime, start: Sequence[int], end: int, stages: Collection[str]
) -> Iterator[Check]:
    """Compare what devices compute from speech with what the CPU does, stage by stage, for each length of window.

    used, exact : runtimes of the same graphs, on their devices and on the CPU (see `EXACT`)
    start, end : tokens that start a transcript, and the one that ends it
    stages : those to be judged

    The decoder is given keys and values of the CPU's, so that it is not blamed for stages before it.
    """
    encoder, cross_kv = used.devices["encoder"], used.devices["cross_kv"]
    for window_s in reversed(used.windows_s):
        mel = mel_of(known_speech(), window_s, used)
        spoken = exact.encode(mel, 0)
        found = used.encode(mel, 0)
        encoded = _compared(used, "encoder", window_s, [(exact.last_hidden_state, used.last_hidden_state)])
        if "encoder" in stages:
            yield encoded
        # What is made of a wrong encoding is wrong, which is another device's fault.
        if "cross_kv" in stages and (encoded.passed or encoder == cross_kv):
            both = zip(spoken.tensors.values(), found.tensors.values(), strict=True)
            yield _compared(used, "cross_kv", window_s, ((to_float32(a), to_float32(b)) for a, b in both))
        if "decoder" in stages:
            tokens, expected = _transcript(exact.decoder_of(spoken), start, end)
            logits = _follow(used.decoder_of(spoken), start, tokens)
            yield _compared(used, "decoder", window_s, [(expected, logits)])
            yield _words(used, window_s, expected, logits)
            used.decoder_of(found)  # the other holds the memory of the CPU's windows


def known_speech() -> Float32Array:
    """Return the first 30 s of the sample that comes with the program; noise if the installation lacks it."""
    sample = speech()
    if sample is None:
        return np.random.default_rng(0).uniform(-0.1, 0.1, N_SAMPLES).astype(np.float32)
    return np.concatenate(list(read_audio(sample)))[:N_SAMPLES]


def mel_of(samples: Float32Array, window_s: int, runtime: Runtime) -> Float32Array:
    """Return the spectrogram of the first seconds of samples, shape (n_mels, 100 window_s)."""
    mel = log_mel(samples[: window_s * SAMPLE_RATE], runtime.dims.n_mels)
    return np.ascontiguousarray(mel[:, : window_s * FRAMES_PER_SECOND])


def run_stages(runtime: Runtime, mel: FloatArray, token: int) -> dict[str, FloatArray]:
    """Return what each stage makes of a window: the encoder's output, some keys, and logits from `token` on."""
    window = runtime.encode(mel, 0)
    cross = to_float32(next(iter(window.tensors.values())))
    hidden = runtime.last_hidden_state.astype(np.float32)
    decoder = runtime.decoder_of(window)
    return {"encoder": hidden, "cross_kv": cross, "decoder": _feed(decoder, _steps(token))}


def distance_of(expected: FloatArray, found: FloatArray) -> float:
    """Return the root mean square of a difference over the spread of what is expected; infinite if not finite."""
    if not np.isfinite(found).all():
        return np.inf
    return float(np.sqrt(np.mean(np.square(found - expected))) / (expected.std() + 1e-9))


def _compared(used: Runtime, stage: str, window_s: int, pairs: Iterable[tuple[FloatArray, FloatArray]]) -> Check:
    distance = max(distance_of(expected, found) for expected, found in pairs)
    name = str(Sizes(stage, window_s))
    problem = (
        f"{used.devices[stage]} computes the {name} wrongly: in speech it differs from the CPU by {distance:.2g},"
        f" expected at most {TOLERANCE}"
    )
    row = f"{name}: differs from the CPU in speech by"
    return Check(row, f"{distance:.2g}", f"at most {TOLERANCE}", distance <= TOLERANCE, problem, stage)


def _words(used: Runtime, window_s: int, expected: FloatArray, found: FloatArray) -> Check:
    """Compare the likeliest tokens, except those that rounding may decide."""
    tokens, others = expected.argmax(axis=1), found.argmax(axis=1)
    rows = np.arange(len(tokens))
    lead = expected[rows, tokens] - expected[rows, others]
    n_wrong = int((lead > TOLERANCE * expected.std()).sum())
    name = str(Sizes("decoder", window_s))
    problem = (
        f"{used.devices['decoder']} computes the {name} wrongly: in speech it chooses {n_wrong} of {len(tokens)} tokens"
        " otherwise than the CPU, expected none"
    )
    return Check(f"{name}: tokens unlike the CPU's in speech", str(n_wrong), "0", n_wrong == 0, problem, "decoder")


def _transcript(decoder: Decoder, start: Sequence[int], end: int) -> tuple[list[int], FloatArray]:
    """Return the likeliest tokens, one by one, and the logits that each was chosen by, shape (n, n_vocab)."""
    rows = [decoder.feed(start)[0][0, -1]]
    tokens = [int(rows[0].argmax())]
    while tokens[-1] != end and len(tokens) < MOST_TOKENS:
        rows.append(decoder.feed(tokens[-1:])[0][0, -1])
        tokens.append(int(rows[-1].argmax()))
    return tokens, np.stack(rows)


def _follow(decoder: Decoder, start: Sequence[int], tokens: Sequence[int]) -> FloatArray:
    """Return the logits of a transcript, the first half of which is fed in a block, shape (n, n_vocab)."""
    half = len(tokens) // 2
    calls = [[*start, *tokens[:half]], *([token] for token in tokens[half:-1])]
    return np.concatenate([decoder.feed(call)[0][0] for call in calls])[len(start) - 1 :]


def _steps(first: int) -> list[list[int]]:
    """Return five tokens in such calls that graphs for one token and for several meet an empty and a filled cache."""
    return [[first], [1, 2], [3], [4]]


def _feed(decoder: Decoder, calls: Sequence[Sequence[int]], *, noisy: bool = False) -> FloatArray:
    """Feed tokens from the start of a sequence, call by call; return the logits of each, shape (n, n_vocab).

    noisy : whether the empty cache slots hold noise
    """
    decoder.begin()
    if noisy:
        decoder.pollute_hidden_slots()
    return np.concatenate([decoder.feed(tokens)[0][0] for tokens in calls])
