"""The formats of checkpoints. A new one is a module like these and its place in the list."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from streamer.errors import ModelError
from streamer.whisper.weights import ctranslate2, ggml, huggingface, mlx, openai, optimum
from streamer.whisper.weights.checkpoint import Checkpoint


class Format(Protocol):
    """What the module of a format has."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """For people."""

    @property
    def FILES(self) -> Sequence[Sequence[str]]:  # noqa: N802
        """Sets of files in a repository: the first that is whole is fetched. A `*` stands for shards or one name."""

    def matches(self, path: Path, /) -> bool:
        """Return whether a file or directory is of the format, as far as a first look shows; may raise OSError."""

    def load(self, path: Path, /) -> Checkpoint:
        """Load a checkpoint; raises ModelError if it is broken."""


# In the order in which a path is held against them.
FORMATS: tuple[Format, ...] = (optimum, mlx, ctranslate2, huggingface, ggml, openai)


def find(path: Path) -> tuple[Format, Path]:
    """Return the format of a checkpoint and the path to load. Raises ModelError if a path holds none, and OSError."""
    if _is_onnx(path):
        raise ModelError(
            f"{path} is a model for ONNX Runtime, whose files are not read: name the checkpoint that it was made from,"
            " such as --model small.en or OWNER/REPOSITORY on the Hub"
        )
    for format_ in FORMATS:
        if format_.matches(path):
            return format_, path
    if not path.is_dir():
        raise ModelError(
            f"{path} is no Whisper checkpoint: expected openai-whisper's .pt, whisper.cpp's ggml-*.bin, or a directory"
            " in the layout of Hugging Face, CTranslate2 (faster-whisper), MLX or OpenVINO; see `streamer docs models`"
        )
    files = [
        (format_, file)
        for file in sorted(path.iterdir())
        if file.is_file()
        for format_ in FORMATS
        if format_.matches(file)
    ]
    if len(files) > 1:
        raise ModelError(
            f"{path} holds {len(files)} checkpoints ({files[0][1].name}, {files[1][1].name}, ...): name the one that"
            " you mean"
        )
    return files[0] if files else (huggingface, path)  # whose loader says what is missing


def _is_onnx(path: Path) -> bool:
    """Return whether a path holds graphs of ONNX and no weights that are read."""
    suffixes = {file.suffix for file in (path, *path.glob("*"), *path.glob("onnx/*")) if file.is_file()}
    return ".onnx" in suffixes and not suffixes & {".safetensors", ".npz", ".pt", ".xml", ".bin"}
