"""openai-whisper's checkpoints: a `.pt` of `dims` and `model_state_dict`."""

from pathlib import Path

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import Checkpoint, expected_shapes, torchfile
from streamer.whisper.weights.names import openai_name
from streamer.whisper.weights.tensors import as_checkpoint


def load(path: Path) -> Checkpoint:
    """Load a checkpoint.

    Raises ModelError where the file is missing, truncated, not openai-whisper's, or holds more than data.
    """
    saved = torchfile.read(path)
    dims, state = saved.get("dims"), saved.get("model_state_dict")
    if not isinstance(dims, dict) or not isinstance(state, dict):
        raise ModelError(
            f"{path} lacks dims or model_state_dict: expected both, as in openai-whisper's checkpoints; save it again"
            ' as {"dims": model.dims.__dict__, "model_state_dict": model.state_dict()}'
        )
    # Texts and numbers alone: what a list in a list in a list looks like has no end, and the errors show it.
    dimensions = ModelDimensions.from_openai(
        {name: value for name, value in dims.items() if isinstance(value, int | float | str)}, path
    )
    tensors = torchfile.tensors_of(state)
    found = {name: tensors[openai_name(name)] for name in expected_shapes(dimensions) if openai_name(name) in tensors}
    return as_checkpoint(dimensions, found, str(path), described_by="its dims")
