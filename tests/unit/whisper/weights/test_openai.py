"""openai-whisper's checkpoints, as that program and others save them."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import whisper

from streamer.whisper.weights import huggingface, openai
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name
from tests.unit.whisper.support import NANO, tensor
from tests.unit.whisper.weights.checks import assert_tensors_equal


def as_type(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    """Return what is left of a checkpoint's numbers in one of torch's float types."""
    rounded = {name: tensor(value).to(getattr(torch, dtype)) for name, value in checkpoint.tensors.items()}
    widened = {name: (v.float() if v.dtype is torch.bfloat16 else v).numpy() for name, v in rounded.items()}
    return Checkpoint(checkpoint.dims, widened)


@pytest.mark.parametrize(("dtype", "protocol"), [("float16", 2), ("float32", 3), ("bfloat16", 4), ("float16", 5)])
def test_a_model_as_openai_whisper_saves_it(tmp_path: Path, dtype: str, protocol: int) -> None:
    nano = huggingface.load(NANO)
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(nano.dims)))
    model.load_state_dict({openai_name(name): tensor(value).float() for name, value in nano.tensors.items()})
    model.to(getattr(torch, dtype))
    content = {"dims": model.dims.__dict__, "model_state_dict": model.state_dict()}
    torch.save(content, tmp_path / "nano.en.pt", pickle_protocol=protocol)
    assert_tensors_equal(openai.load(tmp_path / "nano.en.pt"), as_type(nano, dtype))
