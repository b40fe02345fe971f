"""Filter banks beside those of transformers, and the network, of tiny sizes, beside operations of PyTorch."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from streamer.after.speakers.encoder import SpeakerEncoder
from streamer.after.speakers.fbank import N_BANDS, N_FRAMES, WINDOW_SAMPLES, log_mel
from streamer.arrays import Float32Array, FloatArray
from streamer.errors import ModelError
from streamer.whisper.device.devices import the_core
from tests.daemon import SAMPLE, recording

CHANNELS, GROWTH, BOTTLENECK, N_VALUES = 2, 3, 4, 5
SAMPLES = (np.random.default_rng(2).standard_normal(WINDOW_SAMPLES) / 10).astype(np.float32)


def reference(samples: Float32Array) -> Float32Array:
    """Kaldi's filter banks in float64, which transformers follows independently; Kaldi's float32 is no nearer."""
    found: Float32Array = spectrogram(
        samples.astype(np.float64) * 32768.0,
        window_function(400, "povey", periodic=False),
        frame_length=400,
        hop_length=160,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=mel_filter_bank(
            257, N_BANDS, 20.0, 8000.0, 16000, mel_scale="kaldi", triangularize_in_mel_space=True
        ),
        log_mel="log",
        mel_floor=float(np.finfo(np.float32).eps),
        remove_dc_offset=True,
    ).T
    return found


SOUNDS: dict[str, Float32Array] = {
    "speech": recording(SAMPLE, 0.5),
    "noise": np.float32(0.1) * SAMPLES,
    "silence": 0 * SAMPLES,
    "loud": np.sign(SAMPLES),
}


@pytest.mark.parametrize("kind", SOUNDS)
def test_bands_are_those_of_kaldi(kind: str) -> None:
    samples = SOUNDS[kind][:WINDOW_SAMPLES]
    found = log_mel(samples)
    assert found.shape == (N_FRAMES, N_BANDS)
    # Logarithms of energies: 1e-4 is a hundredth of a percent.
    np.testing.assert_allclose(found, reference(samples), atol=1e-4)


class Network:
    """The network of the paper (section 2, figure 1), with the names of the published weights, made up as needed."""

    def __init__(self) -> None:
        self.weights: dict[str, Float32Array] = {}
        self._rng = np.random.default_rng(1)

    def make(self, name: str, values: FloatArray) -> torch.Tensor:
        self.weights[name] = values.astype(np.float32)
        return torch.from_numpy(self.weights[name])

    def normal(self, name: str, *shape: int) -> torch.Tensor:
        return self.make(name, self._rng.standard_normal(shape) / np.sqrt(max(10, int(np.prod(shape[1:])))))

    def norm(self, x: torch.Tensor, name: str, *, affine: bool = True) -> torch.Tensor:
        size = x.shape[1]
        scales = [
            self.make(f"{name}.{part}", self._rng.uniform(0.5, 2, size))
            for part in ("running_var", "weight")[: 1 + affine]
        ]
        mean, bias = self.normal(f"{name}.running_mean", size), self.normal(f"{name}.bias", size) if affine else None
        return functional.batch_norm(x, mean, scales[0], scales[1] if affine else None, bias)

    def active(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.relu(self.norm(x, name))

    def flat(
        self, x: torch.Tensor, name: str, size: int, width: int = 1, *, bias: bool = False, **options: int
    ) -> torch.Tensor:
        weight = self.normal(f"{name}.weight", size, x.shape[1], width)
        return functional.conv1d(x, weight, self.normal(f"{name}.bias", size) if bias else None, **options)

    def plane(self, x: torch.Tensor, name: str, stride: int = 1, width: int = 3) -> torch.Tensor:
        weight = self.normal(f"{name}.weight", CHANNELS, x.shape[1], width, width)
        return functional.conv2d(x, weight, stride=(stride, 1), padding=width // 2)

    def block(self, x: torch.Tensor, name: str, dilation: int) -> torch.Tensor:
        """Return what a layer of a dense block, which masks by context, adds to its input."""
        inner = self.flat(self.active(x, f"{name}.nonlinear1.batchnorm"), f"{name}.linear1", BOTTLENECK)
        inner = self.active(inner, f"{name}.nonlinear2.batchnorm")
        parts = functional.avg_pool1d(inner, 100, 100, ceil_mode=True).repeat_interleave(100, -1)
        context = inner.mean(-1, keepdim=True) + parts[..., : inner.shape[-1]]
        context = self.flat(context, f"{name}.cam_layer.linear1", BOTTLENECK // 2, bias=True)
        mask = self.flat(functional.relu(context), f"{name}.cam_layer.linear2", GROWTH, bias=True)
        local = f"{name}.cam_layer.linear_local"
        return torch.sigmoid(mask) * self.flat(inner, local, GROWTH, 3, padding=dilation, dilation=dilation)

    def __call__(self, frames: Float32Array) -> Float32Array:
        x = self.active(self.plane(torch.from_numpy(frames.T.copy())[None, None], "head.conv1"), "head.bn1")
        for name, stride in (("layer1.0", 2), ("layer1.1", 1), ("layer2.0", 2), ("layer2.1", 1)):
            inner = self.active(self.plane(x, f"head.{name}.conv1", stride), f"head.{name}.bn1")
            inner = self.norm(self.plane(inner, f"head.{name}.conv2"), f"head.{name}.bn2")
            if stride == 2:
                x = self.norm(self.plane(x, f"head.{name}.shortcut.0", 2, 1), f"head.{name}.shortcut.1")
            x = functional.relu(inner + x)
        x = self.active(self.plane(x, "head.conv2", 2), "head.bn2").flatten(1, 2)
        x = self.flat(x, "xvector.tdnn.linear", 6, 5, stride=2, padding=2)
        x = self.active(x, "xvector.tdnn.nonlinear.batchnorm")
        for block, (n_layers, dilation) in enumerate(((2, 1), (1, 2), (2, 2)), start=1):
            for layer in range(1, n_layers + 1):
                x = torch.cat([x, self.block(x, f"xvector.block{block}.tdnnd{layer}", dilation)], 1)
            name = f"xvector.transit{block}"
            x = self.flat(self.active(x, f"{name}.nonlinear.batchnorm"), f"{name}.linear", x.shape[1] // 2)
        x = self.active(x, "xvector.out_nonlinear.batchnorm")
        x = torch.cat([x.mean(-1), x.std(-1)], 1)[..., None]
        x = self.flat(x, "xvector.dense.linear", N_VALUES)
        found: Float32Array = self.norm(x, "xvector.dense.nonlinear.batchnorm", affine=False).flatten().numpy()
        return found / np.linalg.norm(found)


def test_vectors_are_those_of_pytorch_and_weights_of_other_shapes_are_refused() -> None:
    network, frames = Network(), log_mel(SAMPLES)
    expected = network(frames - frames.mean(axis=0))
    encoder = SpeakerEncoder(network.weights, the_core())
    found, short = encoder.encode(SAMPLES), encoder.encode(SAMPLES[:8000])
    assert found is not None
    assert short is not None
    np.testing.assert_allclose(found, expected, atol=1e-4)
    # What is shorter is repeated to the length of a window.
    np.testing.assert_array_equal(short, encoder.encode(np.tile(SAMPLES[:8000], 4)[:WINDOW_SAMPLES]))
    silent = {name: np.zeros_like(values) for name, values in network.weights.items()}
    assert SpeakerEncoder(silent, the_core()).encode(0 * SAMPLES) is None, "it has no direction"
    others = {**network.weights, "xvector.tdnn.linear.weight": np.zeros((6, 7, 5), dtype=np.float32)}
    with pytest.raises(ModelError):
        SpeakerEncoder(others, the_core())
