"""What the tests of the Whisper package share: recordings, and models of random weights."""

import contextlib
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import soundfile
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import save_file as torch_save_file

from streamer.constants import SAMPLE_RATE
from streamer.whisper.device.compile import compile_on_cpu
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import Stage
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.loading import LoadOptions
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from streamer.whisper.weights.openai import openai_name
from tests.daemon import CACHE_VARIABLE

ROOT = Path(__file__).parents[3]
NANO = ROOT / "models" / "nano.en"
SAMPLE = NANO / "sample.flac"
SPEECH = ROOT / "tests" / "data" / "speech.flac"

Samples = NDArray[np.float32]

# torch and transformers have no types.
Untyped = Any


def read(path: Path) -> Samples:
    samples, sample_rate = soundfile.read(path, dtype="float32")
    assert sample_rate == SAMPLE_RATE
    return np.asarray(samples, dtype=np.float32)


def noise(n_samples: int, seed: int = 0) -> Samples:
    return (0.1 * np.random.default_rng(seed).standard_normal(n_samples)).astype(np.float32)


def tensor(array: NDArray[Any]) -> Untyped:
    return torch.from_numpy(np.ascontiguousarray(array))


def random_checkpoint(dims: ModelDimensions, seed: int = 0) -> Checkpoint:
    """Return weights of a spread that keeps logits and attention lively."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_shapes(dims).items():
        values = random.standard_normal(shape, dtype=np.float32)
        fan_in = shape[-1] if len(shape) == 2 and "embed" not in name else 1
        spread = 1.0 if "layer_norm.weight" in name else fan_in**-0.5 if fan_in > 1 else 0.2
        tensors[name] = values * np.float32(spread)
    return Checkpoint(dims, tensors)


def lively_checkpoint(dims: ModelDimensions) -> Checkpoint:
    """Return random weights whose cross-attention picks places: it would almost average over the audio otherwise."""
    checkpoint = random_checkpoint(dims)
    for i in range(dims.n_text_layer):
        queries = checkpoint.tensors[f"decoder.layers.{i}.encoder_attn.q_proj.weight"]
        np.multiply(queries, 3, out=queries)
    return checkpoint


def start_runtime(checkpoint: Checkpoint, alignment_heads: Heads) -> Runtime:
    """Compile a checkpoint's graphs for the CPU and start them."""
    return Runtime(compile_on_cpu(ModelGraphs.of(checkpoint, alignment_heads)))


def load_on_cpu(path: Path, cache_dir: Path | str = "", **options: Any) -> WhisperModel:  # noqa: ANN401 - any option
    """Load a model for the CPU; `options` are those of LoadOptions."""
    return load_model(str(path), LoadOptions(DeviceSettings("CPU"), cache_dir=str(cache_dir), **options))


Tensors = Mapping[str, ov.Tensor]


def tamper(
    runtime: Runtime,
    stage: str,
    before: Callable[[Tensors], None] = lambda inputs: None,
    after: Callable[[Stage, Tensors], None] = lambda stage, outputs: None,
) -> None:
    """Let the graphs of a stage compute something else.

    before : changes the inputs of each run, except those that logits are made of
    after : changes what it gave, in the tensors that it wrote to or in `Stage.output`
    """
    for part in runtime.stages:
        if part.sizes.stage == stage:
            part.infer = partial(_tampered, part, part.infer, before, after)  # type: ignore[method-assign]


def _tampered(
    part: Stage,
    infer: Callable[[Tensors, Tensors | None], None],
    before: Callable[[Tensors], None],
    after: Callable[[Stage, Tensors], None],
    inputs: Tensors,
    outputs: Tensors | None = None,
) -> None:
    if not part.sizes.logits:
        before(inputs)
    infer(inputs, outputs)
    after(part, outputs or {})


def load_reference(**keywords: object) -> Untyped:
    """Return transformers' model of the embedded weights."""
    model: Untyped = transformers.WhisperForConditionalGeneration
    return model.from_pretrained(NANO, dtype=torch.float32, **keywords).eval()


def config_of(dims: ModelDimensions) -> dict[str, Any]:
    """Return what Hugging Face's `config.json` says of these dimensions."""
    return {
        "model_type": "whisper",
        "num_mel_bins": dims.n_mels,
        "max_source_positions": dims.n_audio_ctx,
        "d_model": dims.n_text_state,
        "encoder_attention_heads": dims.n_audio_head,
        "encoder_layers": dims.n_audio_layer,
        "vocab_size": dims.n_vocab,
        "max_target_positions": dims.n_text_ctx,
        "decoder_attention_heads": dims.n_text_head,
        "decoder_layers": dims.n_text_layer,
    }


def shallow(n_layers: int = 1) -> Path:
    """Return a model of nano.en's first layers, made once a run, for what happens to models whatever they say.

    Its text is nonsense, and its graphs are compiled and checked in a third of the time.
    """
    directory = Path(os.environ[CACHE_VARIABLE]) / f"shallow {n_layers}"
    if not directory.exists():
        nano = huggingface.load(NANO)
        left_out = re.compile(rf"layers\.[{n_layers}-9]")
        tensors = {name: value for name, value in nano.tensors.items() if not left_out.search(name)}
        dims = replace(nano.dims, n_audio_layer=n_layers, n_text_layer=n_layers)
        generation = json.loads((NANO / "generation_config.json").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(dir=directory.parent) as made:
            files = write_huggingface(Path(made) / "shallow", Checkpoint(dims, tensors), "float16")
            shutil.copy(NANO / "tokenizer.json", files)
            text = json.dumps({**generation, "alignment_heads": [[0, 0]]})
            (files / "generation_config.json").write_text(text, encoding="utf-8")
            with contextlib.suppress(OSError):  # another process was faster
                files.rename(directory)
    return directory


def nano_table() -> list[bytes]:
    """Return what each of the embedded model's tokens of text spells."""
    tokenizer = Tokenizer.load(NANO, n_vocab=2022)
    return list(tokenizer.spelled[: tokenizer.special.end_of_text])


def table(name: str) -> dict[str, Any]:
    """Return a table of `tests/data`."""
    return tomllib.loads((ROOT / "tests" / "data" / f"{name}.toml").read_text(encoding="utf-8"))


# The published models' dimensions, by their names.
SIZES = {
    name: ModelDimensions(n_mels, 1500, width, width // 64, n_audio, n_vocab, 448, width, width // 64, n_text)
    for name, (width, n_audio, n_text, n_vocab, n_mels) in table("sizes").items()
}


def check_one_line(error: Exception) -> None:
    """Check that an error is a line that can be shown, however long or strange what a file holds."""
    assert str(error).isprintable()
    assert len(str(error)) < 900


def damage(path: Path, change: object) -> None:
    """Change a file of a model as a row of the refusals `whisper_files` says."""
    if change is False:
        path.unlink()
    elif change == {}:
        path.unlink()
        path.mkdir()
    elif isinstance(change, str):
        path.write_text(change, encoding="utf-8")
    elif isinstance(change, list):
        text, times = change
        path.write_text(text * times, encoding="utf-8")
    elif isinstance(change, dict):
        data = json.loads(path.read_text(encoding="utf-8"))
        for where, value in change.items():
            *parents, key = where.split(".")
            table = reduce(dict.__getitem__, parents, data)
            table.pop(key, None) if value == "..." else table.update({key: value})
        path.write_text(json.dumps(data), encoding="utf-8")


# As small as a Whisper can be: its encoder positions are fixed.
TINY_CONFIG = config_of(ModelDimensions(2, 1500, 4, 2, 1, 8, 32, 4, 2, 1))


def write_huggingface(directory: Path, checkpoint: Checkpoint, dtype: str = "float32") -> Path:
    """Write `config.json` and `model.safetensors`, with tensors of one of torch's float types."""
    directory.mkdir(parents=True, exist_ok=True)
    values = {f"model.{name}": tensor(value).to(getattr(torch, dtype)) for name, value in checkpoint.tensors.items()}
    torch_save_file(values, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config_of(checkpoint.dims)), encoding="utf-8")
    return directory


def write_openai(path: Path, checkpoint: Checkpoint, dtype: str = "float16") -> Path:
    """Write openai-whisper's form of a checkpoint, with tensors of one of torch's float types."""
    state = {openai_name(name): tensor(value).to(getattr(torch, dtype)) for name, value in checkpoint.tensors.items()}
    torch.save({"dims": asdict(checkpoint.dims), "model_state_dict": state}, path)
    return path
