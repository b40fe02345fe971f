"""Smart-turn in OpenVINO: how probably a speaker has finished, by the sound of the last eight seconds.

Source: smart-turn v3 (https://github.com/pipecat-ai/smart-turn), the encoder of Whisper tiny with a classifier. Its
features are Whisper's, of samples with mean 0 and variance 1; what is shorter than 8 s has silence before it.
"""

from pathlib import Path

import numpy as np
import openvino as ov

from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel_alone
from streamer.constants import HOP_LENGTH, SAMPLE_RATE
from streamer.errors import ModelError
from streamer.outside import one_line

N_MELS = 80
WINDOW_SAMPLES = 8 * SAMPLE_RATE

_LEAST_VARIANCE = 1e-7  # that of silence

_REFUSAL = (
    f"{{}} is not a turn model ({{}}): expected {N_MELS} mel bins of 8 s and one probability; fetch it again with"
    " `streamer models pull turns`"
)


class TurnModel:
    """The compiled network. One thread at a time may use it."""

    def __init__(self, path: Path, core: ov.Core) -> None:
        """Compile it for the processor. Raises ModelError if the file is not that of a smart-turn v3."""
        shape = [1, N_MELS, WINDOW_SAMPLES // HOP_LENGTH]
        try:
            model = core.read_model(path)
            shapes = [port.partial_shape for port in (*model.inputs, *model.outputs)]
            if len(shapes) != 2 or not all(
                map(ov.PartialShape.compatible, shapes, map(ov.PartialShape, (shape, [1, 1])))
            ):
                raise ValueError(f"its tensors are {', '.join(map(str, shapes))}")
            model.reshape(shape)
            hints = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
            self._request = core.compile_model(model, "CPU", hints).create_infer_request()
        except ValueError as error:
            raise ModelError(_REFUSAL.format(path, one_line(error))) from None
        except RuntimeError:
            raise ModelError(_REFUSAL.format(path, "OpenVINO cannot read it")) from None

    def probability(self, samples: Float32Array) -> float:
        """Return the probability that the speaker has finished at the end of `samples`, 16 kHz mono, shape (n,)."""
        padded = np.pad(samples[-WINDOW_SAMPLES:], (max(0, WINDOW_SAMPLES - len(samples)), 0)).astype(np.float32)
        normal = (padded - padded.mean()) / np.sqrt(padded.var() + np.float32(_LEAST_VARIANCE))
        features = log_mel_alone(normal, N_MELS)[np.newaxis]
        return float(np.clip(self._request.infer([features])[0][0, 0], 0.0, 1.0))
