"""Names of tensors against openai-whisper's own model."""

from dataclasses import asdict

import whisper

from streamer.whisper.weights import expected_shapes, huggingface
from streamer.whisper.weights.names import openai_name
from tests.whisper.support import NANO


def test_every_tensor_of_openai_whisper_has_its_name() -> None:
    dims = huggingface.load(NANO).dims
    state = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(dims))).state_dict()
    ours = {openai_name(name): shape for name, shape in expected_shapes(dims).items()}
    assert ours == {name: tuple(value.shape) for name, value in state.items()}
