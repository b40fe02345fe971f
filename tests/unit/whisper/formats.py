"""A writer of each format of checkpoints, as its reference tool writes it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import nano_table, write_huggingface, write_openai
from tests.unit.whisper.weights.ctranslate2_writer import write_ctranslate2
from tests.unit.whisper.weights.ggml_writer import write_ggml
from tests.unit.whisper.weights.mlx_writer import write_mlx
from tests.unit.whisper.weights.optimum_writer import write_optimum


def _openai(folder: Path, checkpoint: Checkpoint, dtype: str) -> object:
    return write_openai(folder / "any name.pt", checkpoint, dtype)


def _ggml(folder: Path, checkpoint: Checkpoint, kind: str) -> object:
    """Write whisper.cpp's form with nano.en's vocabulary, whatever the model's."""
    filters = np.zeros((checkpoint.dims.n_mels, 201), np.float32)
    return write_ggml(folder / "any name.bin", checkpoint, nano_table(), filters, kind)


# Each writes into a directory that exists. Where a comma stands in a name, the format's name is before it.
WRITERS: dict[str, Callable[[Path, Checkpoint], object]] = {
    "Hugging Face": write_huggingface,
    "openai-whisper, f16": partial(_openai, dtype="float16"),
    "openai-whisper, f32": partial(_openai, dtype="float32"),
    "ggml, f16": partial(_ggml, kind="f16"),
    "ggml, f32": partial(_ggml, kind="f32"),
    "ggml, q5_0": partial(_ggml, kind="q5_0"),
    "CTranslate2": write_ctranslate2,
    "CTranslate2, int8": partial(write_ctranslate2, int8=True),
    "MLX, npz": write_mlx,
    "MLX, deflated": partial(write_mlx, save=np.savez_compressed),
    "MLX, safetensors": partial(write_mlx, file="weights.safetensors"),
    "optimum-intel": write_optimum,
}
LOSSY = {"ggml, q5_0", "CTranslate2, int8"}
