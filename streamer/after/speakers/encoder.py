"""CAM++ in OpenVINO: a vector for a second and a half of speech, near those of the same person.

Source: Wang et al., "CAM++: A Fast and Efficient Network for Speaker Verification Using Context-Aware Masking" (2023),
https://arxiv.org/abs/2303.00332, and the names of the tensors in the weights that 3D-Speaker published. They are not
published as ONNX in a package, so the graph is built here.
"""

import itertools
from collections.abc import Mapping

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from streamer.after.speakers.fbank import N_BANDS, N_FRAMES, WINDOW_SAMPLES, log_mel
from streamer.arrays import Float32Array, FloatArray
from streamer.errors import ModelError

_EPSILON = 1e-5

_REFUSAL = "the speaker model is not a CAM++ ({}): fetch it again with `streamer models pull speakers`"

# Distance in frames between the inputs of a layer, block by block.
_DILATIONS = (1, 2, 2)


class SpeakerEncoder:
    """The compiled network. One thread at a time may use it."""

    def __init__(self, weights: Mapping[str, FloatArray], core: ov.Core) -> None:
        """Build and compile it for the processor. Raises ModelError if these are not the weights of a CAM++."""
        try:
            model = _Network(weights).build()
        except KeyError as error:
            raise ModelError(_REFUSAL.format(f"tensor {error} is missing")) from None
        except (IndexError, ValueError, RuntimeError):
            raise ModelError(_REFUSAL.format("its tensors have other shapes")) from None
        hints = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        self._request = core.compile_model(model, "CPU", hints).create_infer_request()

    def encode(self, samples: Float32Array) -> Float32Array | None:
        """Return the vector of the speaker of `samples`, of length 1; None if the network finds no direction.

        samples : 16 kHz mono, shape (n,), at most WINDOW_SAMPLES; shorter ones are repeated
        """
        frames = log_mel(np.resize(samples, WINDOW_SAMPLES))
        frames -= frames.mean(axis=0)
        vector = np.array(self._request.infer([frames[np.newaxis]])[0][0], dtype=np.float32)
        length = float(np.linalg.norm(vector))
        return vector / np.float32(length) if np.isfinite(length) and length > 0 else None


class _Network:
    """The layers of CAM++, from weights by their names. The sizes are those of the weights."""

    def __init__(self, weights: Mapping[str, FloatArray]) -> None:
        self._weights = weights

    def build(self) -> ov.Model:
        frames = ops.parameter([1, N_FRAMES, N_BANDS], np.float32, "frames")
        x = self._head(ops.unsqueeze(ops.transpose(frames, [0, 2, 1]), [1]))
        x = self._relu_norm(self._convolve(x, "xvector.tdnn.linear", stride=2), "xvector.tdnn.nonlinear.batchnorm")
        for i, dilation in enumerate(_DILATIONS, start=1):
            x = self._block(x, f"xvector.block{i}", dilation)
            x = self._relu_norm(x, f"xvector.transit{i}.nonlinear.batchnorm")
            x = self._convolve(x, f"xvector.transit{i}.linear")
        x = self._statistics(self._relu_norm(x, "xvector.out_nonlinear.batchnorm"))
        x = self._norm(self._convolve(x, "xvector.dense.linear"), "xvector.dense.nonlinear.batchnorm")
        return ov.Model([ops.squeeze(x, [2])], [frames], "speakers")

    def _head(self, x: ov.Node) -> ov.Node:
        """Two-dimensional convolutions over bands and frames; the bands that are left become channels."""
        x = self._relu_norm(self._convolve(x, "head.conv1"), "head.bn1")
        for name, stride in (("layer1.0", 2), ("layer1.1", 1), ("layer2.0", 2), ("layer2.1", 1)):
            x = self._residual(x, f"head.{name}", stride)
        x = self._relu_norm(self._convolve(x, "head.conv2", stride=2), "head.bn2")
        return ops.reshape(x, [1, -1, N_FRAMES], False)

    def _residual(self, x: ov.Node, name: str, stride: int) -> ov.Node:
        inner = self._relu_norm(self._convolve(x, f"{name}.conv1", stride), f"{name}.bn1")
        inner = self._norm(self._convolve(inner, f"{name}.conv2"), f"{name}.bn2")
        if f"{name}.shortcut.0.weight" in self._weights:
            x = self._norm(self._convolve(x, f"{name}.shortcut.0", stride), f"{name}.shortcut.1")
        return ops.relu(ops.add(inner, x))

    def _block(self, x: ov.Node, name: str, dilation: int) -> ov.Node:
        """Densely connected layers: the input of each is the output of all before it."""
        for i in itertools.count(1):
            layer = f"{name}.tdnnd{i}"
            if f"{layer}.linear1.weight" not in self._weights:
                break
            inner = self._convolve(self._relu_norm(x, f"{layer}.nonlinear1.batchnorm"), f"{layer}.linear1")
            inner = self._relu_norm(inner, f"{layer}.nonlinear2.batchnorm")
            x = ops.concat([x, self._masked(inner, f"{layer}.cam_layer", dilation)], 1)
        return x

    def _masked(self, x: ov.Node, name: str, dilation: int) -> ov.Node:
        """Weigh the channels by their context: the mean of all frames, and that of a hundred, which are all here."""
        context = ops.multiply(ops.reduce_mean(x, [2], keep_dims=True), np.float32(2.0))
        mask = ops.relu(self._convolve(context, f"{name}.linear1"))
        mask = ops.sigmoid(self._convolve(mask, f"{name}.linear2"))
        return ops.multiply(self._convolve(x, f"{name}.linear_local", dilation=dilation), mask)

    @staticmethod
    def _statistics(x: ov.Node) -> ov.Node:
        """Mean and standard deviation of each channel over all frames."""
        n_frames = x.get_output_shape(0)[2]
        mean = ops.reduce_mean(x, [2], keep_dims=True)
        squares = ops.reduce_sum(ops.power(ops.subtract(x, mean), np.float32(2.0)), [2], keep_dims=True)
        return ops.concat([mean, ops.sqrt(ops.divide(squares, np.float32(n_frames - 1)))], 1)

    def _convolve(self, x: ov.Node, name: str, stride: int = 1, dilation: int = 1) -> ov.Node:
        """Convolve over frames, or over bands and frames; `stride` is that of the first of them."""
        weight = self._weights[f"{name}.weight"]
        sizes = weight.shape[2:]
        pads = [size // 2 * dilation for size in sizes]
        strides = [stride] + [1] * (len(sizes) - 1)
        x = ops.convolution(x, ops.constant(weight), strides, pads, pads, [dilation] * len(sizes))
        bias = self._weights.get(f"{name}.bias")
        return x if bias is None else ops.add(x, ops.constant(bias[:, np.newaxis]))

    def _relu_norm(self, x: ov.Node, name: str) -> ov.Node:
        return ops.relu(self._norm(x, name))

    def _norm(self, x: ov.Node, name: str) -> ov.Node:
        mean, variance = (self._weights[f"{name}.running_{moment}"] for moment in ("mean", "var"))
        scale = self._weights.get(f"{name}.weight", np.ones_like(mean))
        shift = self._weights.get(f"{name}.bias", np.zeros_like(mean))
        return ops.batch_norm_inference(x, scale, shift, mean, variance, _EPSILON)
