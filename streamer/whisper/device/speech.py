"""A model's graphs on real speech: what its devices make of it against what the CPU does in full precision.

Accelerators have computed finite nonsense, with masks and state in order: https://github.com/openvinotoolkit/openvino
(issue 37264), https://github.com/microsoft/onnxruntime (issue 31626).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from streamer.arrays import Float32Array, FloatArray
from streamer.audio.mel import log_mel
from streamer.audio.sources.file import read_audio
from streamer.constants import FRAMES_PER_SECOND, N_SAMPLES, SAMPLE_RATE
from streamer.whisper.check import Check
from streamer.whisper.device.compile import Sizes
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.devices import DeviceSettings, StagePlan, plan_stages
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import to_float32
from streamer.whisper.dims import ModelDimensions

# Largest difference from the CPU, as root mean square over the spread of the CPU's values: rounding.
TOLERANCE = 0.15

# Of the transcript, which the CPU chooses.
MOST_TOKENS = 24


def exact_plans() -> dict[str, StagePlan]:
    """Return plans for the CPU in full precision."""
    exact = ("INFERENCE_PRECISION_HINT=f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE=0")
    return plan_stages(DeviceSettings("CPU", properties=exact), ["CPU"])


def read_speech(path: Path) -> Float32Array:
    """Return the first 30 s of a recording."""
    return np.concatenate(list(read_audio(path)))[:N_SAMPLES]


def check_speech(
    used: Runtime, exact: Runtime, samples: Float32Array, start: Sequence[int], end: int, stages: Collection[str]
) -> Iterator[Check]:
    """Compare what devices compute from speech with what the CPU does, stage by stage, for each length of window.

    used, exact : runtimes of the same graphs, on their devices and on the CPU (see `exact_plans`)
    samples : 16 kHz mono, shape (n,)
    start, end : tokens that start a transcript, and the one that ends it
    stages : those to be judged

    The decoder is given keys and values of the CPU's, so that it is not blamed for stages before it.
    """
    encoder, cross_kv = used.devices["encoder"], used.devices["cross_kv"]
    for window_s in reversed(used.windows_s):
        mel = mel_of(samples, window_s, used.dims)
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


def mel_of(samples: Float32Array, window_s: int, dims: ModelDimensions) -> Float32Array:
    """Return the spectrogram of the first seconds of samples, shape (n_mels, 100 window_s)."""
    mel = log_mel(samples[: window_s * SAMPLE_RATE], dims.n_mels)
    return np.ascontiguousarray(mel[:, : window_s * FRAMES_PER_SECOND])


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


def distance_of(expected: FloatArray, found: FloatArray) -> float:
    """Return the root mean square of a difference over the spread of what is expected; infinite if not finite."""
    if not np.isfinite(found).all():
        return np.inf
    return float(np.sqrt(np.mean(np.square(found - expected))) / (expected.std() + 1e-9))


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
