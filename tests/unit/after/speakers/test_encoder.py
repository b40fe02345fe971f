"""The network, of tiny sizes and random weights, held against PyTorch's operations."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from streamer.after.speakers.encoder import SpeakerEncoder
from streamer.after.speakers.fbank import N_BANDS, WINDOW_SAMPLES, log_mel
from streamer.arrays import Float32Array
from streamer.errors import ModelError
from streamer.whisper.device.devices import the_core

CHANNELS, GROWTH, BOTTLENECK, N_VALUES = 2, 3, 4, 5
N_LAYERS = (2, 1, 2)

Weights = dict[str, Float32Array]


@pytest.fixture(scope="module")
def weights() -> Weights:
    rng = np.random.default_rng(1)
    made: Weights = {}

    def convolution(name: str, *shape: int, bias: bool = False) -> None:
        made[f"{name}.weight"] = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        if bias:
            made[f"{name}.bias"] = rng.standard_normal(shape[0]).astype(np.float32)

    def norm(name: str, size: int, *, affine: bool = True) -> None:
        made[f"{name}.running_mean"] = (rng.standard_normal(size) / 10).astype(np.float32)
        made[f"{name}.running_var"] = rng.uniform(0.5, 2, size).astype(np.float32)
        if affine:
            made[f"{name}.weight"] = rng.uniform(0.5, 2, size).astype(np.float32)
            made[f"{name}.bias"] = rng.standard_normal(size).astype(np.float32)

    convolution("head.conv1", CHANNELS, 1, 3, 3)
    convolution("head.conv2", CHANNELS, CHANNELS, 3, 3)
    for number in (1, 2):
        norm(f"head.bn{number}", CHANNELS)
        for block in (0, 1):
            for part in (1, 2):
                convolution(f"head.layer{number}.{block}.conv{part}", CHANNELS, CHANNELS, 3, 3)
                norm(f"head.layer{number}.{block}.bn{part}", CHANNELS)
        convolution(f"head.layer{number}.0.shortcut.0", CHANNELS, CHANNELS, 1, 1)
        norm(f"head.layer{number}.0.shortcut.1", CHANNELS)
    size = 6
    convolution("xvector.tdnn.linear", size, CHANNELS * N_BANDS // 8, 5)
    norm("xvector.tdnn.nonlinear.batchnorm", size)
    for block, n_layers in enumerate(N_LAYERS, start=1):
        for layer in range(1, n_layers + 1):
            name = f"xvector.block{block}.tdnnd{layer}"
            norm(f"{name}.nonlinear1.batchnorm", size)
            convolution(f"{name}.linear1", BOTTLENECK, size, 1)
            norm(f"{name}.nonlinear2.batchnorm", BOTTLENECK)
            convolution(f"{name}.cam_layer.linear_local", GROWTH, BOTTLENECK, 3)
            convolution(f"{name}.cam_layer.linear1", BOTTLENECK // 2, BOTTLENECK, 1, bias=True)
            convolution(f"{name}.cam_layer.linear2", GROWTH, BOTTLENECK // 2, 1, bias=True)
            size += GROWTH
        norm(f"xvector.transit{block}.nonlinear.batchnorm", size)
        convolution(f"xvector.transit{block}.linear", size // 2, size, 1)
        size //= 2
    norm("xvector.out_nonlinear.batchnorm", size)
    convolution("xvector.dense.linear", N_VALUES, 2 * size, 1)
    norm("xvector.dense.nonlinear.batchnorm", N_VALUES, affine=False)
    return made


def by_torch(weights: Weights, frames: Float32Array) -> Float32Array:
    """The network of the paper (section 2, figure 1), with the names of the published weights."""
    tensors = {name: torch.from_numpy(values) for name, values in weights.items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, variance = tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"]
        return functional.batch_norm(x, mean, variance, tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias"))

    def flat(x: torch.Tensor, name: str, **options: int) -> torch.Tensor:
        return functional.conv1d(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"), **options)

    def plane(x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
        weight = tensors[f"{name}.weight"]
        return functional.conv2d(x, weight, stride=(stride, 1), padding=weight.shape[-1] // 2)

    x = functional.relu(norm(plane(torch.from_numpy(frames.T.copy())[None, None], "head.conv1"), "head.bn1"))
    for name, stride in (("layer1.0", 2), ("layer1.1", 1), ("layer2.0", 2), ("layer2.1", 1)):
        inner = functional.relu(norm(plane(x, f"head.{name}.conv1", stride), f"head.{name}.bn1"))
        inner = norm(plane(inner, f"head.{name}.conv2"), f"head.{name}.bn2")
        beside = norm(plane(x, f"head.{name}.shortcut.0", 2), f"head.{name}.shortcut.1") if stride == 2 else x
        x = functional.relu(inner + beside)
    x = functional.relu(norm(plane(x, "head.conv2", 2), "head.bn2")).flatten(1, 2)
    x = functional.relu(norm(flat(x, "xvector.tdnn.linear", stride=2, padding=2), "xvector.tdnn.nonlinear.batchnorm"))
    for block, (n_layers, dilation) in enumerate(zip(N_LAYERS, (1, 2, 2), strict=True), start=1):
        for layer in range(1, n_layers + 1):
            name = f"xvector.block{block}.tdnnd{layer}"
            inner = flat(functional.relu(norm(x, f"{name}.nonlinear1.batchnorm")), f"{name}.linear1")
            inner = functional.relu(norm(inner, f"{name}.nonlinear2.batchnorm"))
            parts = functional.avg_pool1d(inner, 100, 100, ceil_mode=True).repeat_interleave(100, -1)
            context = inner.mean(-1, keepdim=True) + parts[..., : inner.shape[-1]]
            mask = flat(functional.relu(flat(context, f"{name}.cam_layer.linear1")), f"{name}.cam_layer.linear2")
            local = flat(inner, f"{name}.cam_layer.linear_local", padding=dilation, dilation=dilation)
            x = torch.cat([x, local * torch.sigmoid(mask)], 1)
        x = flat(
            functional.relu(norm(x, f"xvector.transit{block}.nonlinear.batchnorm")), f"xvector.transit{block}.linear"
        )
    x = functional.relu(norm(x, "xvector.out_nonlinear.batchnorm"))
    x = torch.cat([x.mean(-1), x.std(-1)], 1)[..., None]
    found = norm(flat(x, "xvector.dense.linear"), "xvector.dense.nonlinear.batchnorm").flatten().numpy()
    unit: Float32Array = found / np.linalg.norm(found)
    return unit


def test_vectors_are_those_of_pytorch(weights: Weights) -> None:
    samples = (np.random.default_rng(2).standard_normal(WINDOW_SAMPLES) / 10).astype(np.float32)
    encoder = SpeakerEncoder(weights, the_core())
    frames = log_mel(samples)
    found = encoder.encode(samples)
    assert found is not None
    np.testing.assert_allclose(found, by_torch(weights, frames - frames.mean(axis=0)), atol=1e-4)
    # What is shorter is repeated to the length of a window.
    short = encoder.encode(samples[:8000])
    assert short is not None
    np.testing.assert_array_equal(short, encoder.encode(np.tile(samples[:8000], 4)[:WINDOW_SAMPLES]))


def test_a_window_without_a_direction_has_no_vector(weights: Weights) -> None:
    silent = {name: np.zeros_like(values) for name, values in weights.items()}
    assert SpeakerEncoder(silent, the_core()).encode(np.zeros(WINDOW_SAMPLES, dtype=np.float32)) is None


def test_weights_of_other_shapes_are_refused(weights: Weights) -> None:
    others = {**weights, "xvector.tdnn.linear.weight": np.zeros((6, 7, 5), dtype=np.float32)}
    with pytest.raises(ModelError):
        SpeakerEncoder(others, the_core())
