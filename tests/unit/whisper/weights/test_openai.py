"""openai-whisper's checkpoints, whole and broken."""

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


def test_every_tensor_of_openai_whisper_has_its_name() -> None:
    dims = huggingface.load(NANO).dims
    state = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(dims))).state_dict()
    ours = {openai_name(name): shape for name, shape in expected_shapes(dims).items()}
    assert ours == {name: tuple(value.shape) for name, value in state.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_openai(tmp_path / "tiny.pt", TINY)


def saved(path: Path) -> Untyped:
    return torch.load(path)


def as_type(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    """Return what is left of a checkpoint's numbers in one of torch's float types."""
    rounded = {name: tensor(value).to(getattr(torch, dtype)) for name, value in checkpoint.tensors.items()}
    widened = {name: (v.float() if v.dtype is torch.bfloat16 else v).numpy() for name, v in rounded.items()}
    return Checkpoint(checkpoint.dims, widened)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_the_embedded_model_as_openai_whisper_saves_it(tmp_path: Path, dtype: str) -> None:
    nano = huggingface.load(NANO)
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(nano.dims)))
    model.load_state_dict({openai_name(name): tensor(value).float() for name, value in nano.tensors.items()})
    model.to(getattr(torch, dtype))
    path = tmp_path / "nano.en.pt"
    torch.save({"dims": model.dims.__dict__, "model_state_dict": model.state_dict()}, path)
    assert_tensors_equal(openai.load(path), as_type(nano, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickle(tmp_path: Path, protocol: int, dtype: str) -> None:
    content = saved(write_openai(tmp_path / "tiny.pt", TINY, dtype))
    torch.save(content, tmp_path / "again.pt", pickle_protocol=protocol)
    assert_tensors_equal(openai.load(tmp_path / "again.pt"), as_type(TINY, dtype))


def test_parameters_and_what_else_a_training_keeps(tmp_path: Path, path: Path) -> None:
    """As a fine-tune that is saved with its optimizer, from the model itself and not from a copy of its state."""
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(DIMS)))
    state = {openai_name(name): tensor(value) for name, value in TINY.tensors.items()}
    model.load_state_dict(state)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    content = {
        "dims": asdict(DIMS),
        "model_state_dict": {**state, **{name: torch.nn.Parameter(value) for name, value in state.items()}},
        "optimizer": optimizer.state_dict(),
        "step": torch.tensor(7),
        "epoch": 2**40,
        "losses": [0.5, None, True],
    }
    torch.save(content, path)
    assert_tensors_equal(openai.load(path), TINY)


def test_views_are_read_in_their_own_order(path: Path) -> None:
    content = saved(path)
    state = content["model_state_dict"]
    name = "encoder.blocks.0.mlp.0.weight"
    state[name] = state[name].T.contiguous().T  # columns first
    wide = torch.zeros(8, 12, dtype=torch.float16)
    wide[:, 3:11:2] = state["decoder.token_embedding.weight"]
    state["decoder.token_embedding.weight"] = wide[:, 3:11:2]
    joined = torch.cat([state["decoder.ln.weight"], state["decoder.ln.bias"]])
    state["decoder.ln.weight"], state["decoder.ln.bias"] = torch.split(joined, 4)
    torch.save(content, path)
    assert not saved(path)["model_state_dict"][name].is_contiguous()
    assert_tensors_equal(openai.load(path), as_type(TINY, "float16"))


def test_tied_weights_and_strangers_are_ignored(path: Path) -> None:
    content = saved(path)
    state = content["model_state_dict"]
    state["proj_out.weight"] = state["decoder.token_embedding.weight"]
    state["ema"] = torch.zeros(3, dtype=torch.int64)
    torch.save(content, path)
    assert set(openai.load(path).tensors) == set(expected_shapes(DIMS))


def test_a_bare_state_says_how_to_save_it(path: Path) -> None:
    torch.save(saved(path)["model_state_dict"], path)
    refuse(openai.load, path, "lacks dims or model_state_dict", "save it again as", "model.dims.__dict__")


@pytest.mark.parametrize("key", ["dims", "model_state_dict"])
def test_half_of_a_checkpoint(path: Path, key: str) -> None:
    content = saved(path)
    for value in ([1, 2], "text", torch.zeros(2)):
        torch.save({**content, key: value}, path)
        refuse(openai.load, path, "lacks dims or model_state_dict")


@pytest.mark.parametrize("value", [2**60, 2**2000, 0, -1, True, 4.0, "4", None, [4], torch.ones(1), "x" * 10_000])
def test_a_dimension_that_is_none(path: Path, value: object) -> None:
    content = saved(path)
    content["dims"]["n_text_state"] = value
    torch.save(content, path)
    refuse(openai.load, path, " has n_text_state ", "expected a whole number from ")


def test_a_list_that_would_be_endless_to_show(path: Path) -> None:
    """Ten lists in each other, a few bytes in the file, are 2^40 when they are written out."""
    content = saved(path)
    endless: object = 0
    for _ in range(40):
        endless = [endless, endless]
    content["dims"]["n_mels"] = endless
    torch.save(content, path)
    refuse(openai.load, path, " has n_mels None")


@pytest.mark.parametrize("dtype", ["float64", "int8", "int32", "bool"])
def test_a_tensor_of_another_type(path: Path, dtype: str) -> None:
    content = saved(path)
    content["model_state_dict"]["encoder.conv1.bias"] = torch.zeros(4, dtype=getattr(torch, dtype))
    torch.save(content, path)
    refuse(openai.load, path, "encoder.conv1.bias of type", "expected F16, BF16 or F32")
