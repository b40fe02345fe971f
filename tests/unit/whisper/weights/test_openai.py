"""openai-whisper's checkpoints, as that program and others save them."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import whisper

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import huggingface, openai
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from streamer.whisper.weights.openai import openai_name
from tests.unit.whisper.support import NANO, Untyped, random_checkpoint, tensor, write_openai
from tests.unit.whisper.weights.checks import assert_tensors_equal, refuse

# As small as a Whisper can be: its encoder positions are fixed.
DIMS = ModelDimensions(2, 1500, 4, 2, 1, 8, 32, 4, 2, 1)
TINY = random_checkpoint(DIMS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_openai(tmp_path / "tiny.pt", TINY)


def empty_whisper(dims: ModelDimensions) -> Untyped:
    return whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(dims)))


def as_type(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    """Return what is left of a checkpoint's numbers in one of torch's float types."""
    rounded = {name: tensor(value).to(getattr(torch, dtype)) for name, value in checkpoint.tensors.items()}
    widened = {name: (v.float() if v.dtype is torch.bfloat16 else v).numpy() for name, v in rounded.items()}
    return Checkpoint(checkpoint.dims, widened)


def test_every_tensor_of_openai_whisper_has_its_name() -> None:
    dims = huggingface.load(NANO).dims
    ours = {openai_name(name): shape for name, shape in expected_shapes(dims).items()}
    assert ours == {name: tuple(value.shape) for name, value in empty_whisper(dims).state_dict().items()}


@pytest.mark.parametrize(("dtype", "protocol"), [("float16", 2), ("float32", 3), ("bfloat16", 4), ("float16", 5)])
def test_a_model_as_openai_whisper_saves_it(tmp_path: Path, dtype: str, protocol: int) -> None:
    nano = huggingface.load(NANO)
    model = empty_whisper(nano.dims)
    model.load_state_dict({openai_name(name): tensor(value).float() for name, value in nano.tensors.items()})
    model.to(getattr(torch, dtype))
    content = {"dims": model.dims.__dict__, "model_state_dict": model.state_dict()}
    torch.save(content, tmp_path / "nano.en.pt", pickle_protocol=protocol)
    assert_tensors_equal(openai.load(tmp_path / "nano.en.pt"), as_type(nano, dtype))


def test_what_else_a_training_keeps_is_ignored(path: Path) -> None:
    """As a fine-tune that is saved with its optimizer, from the model itself and not from a copy of its state."""
    model = empty_whisper(DIMS)
    state = {openai_name(name): tensor(value) for name, value in TINY.tensors.items()}
    model.load_state_dict(state)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    parameters = {name: torch.nn.Parameter(value) for name, value in state.items()}
    others = {"proj_out.weight": state["decoder.token_embedding.weight"], "ema": torch.zeros(3, dtype=torch.int64)}
    content = {
        "dims": asdict(DIMS),
        "model_state_dict": {**state, **parameters, **others},
        "optimizer": optimizer.state_dict(),
        "step": torch.tensor(7),
        "losses": [0.5, None, True, 2**40],
    }
    torch.save(content, path)
    assert_tensors_equal(openai.load(path), TINY)


def test_views_are_read_in_their_own_order(path: Path) -> None:
    content = torch.load(path)
    state = content["model_state_dict"]
    name = "encoder.blocks.0.mlp.0.weight"
    state[name] = state[name].T.contiguous().T  # columns first
    wide = torch.zeros(8, 12, dtype=torch.float16)
    wide[:, 3:11:2] = state["decoder.token_embedding.weight"]
    state["decoder.token_embedding.weight"] = wide[:, 3:11:2]
    joined = torch.cat([state["decoder.ln.weight"], state["decoder.ln.bias"]])
    state["decoder.ln.weight"], state["decoder.ln.bias"] = torch.split(joined, 4)
    torch.save(content, path)
    assert not torch.load(path)["model_state_dict"][name].is_contiguous()
    assert_tensors_equal(openai.load(path), as_type(TINY, "float16"))


def endless() -> object:
    """Return lists in each other: a few bytes in the file, and 2^40 when they are written out."""
    value: object = 0
    for _ in range(40):
        value = [value, value]
    return value


@pytest.mark.parametrize("value", [2**2000, 0, -1, True, 4.0, "4", None, endless(), torch.ones(1), "x" * 10_000])
def test_whatever_a_dimension_is_the_refusal_is_one_line(path: Path, value: object) -> None:
    content = torch.load(path)
    content["dims"]["n_text_state"] = value
    torch.save(content, path)
    refuse(openai.load, path, " has n_text_state ")
