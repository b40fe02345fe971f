"""The formats of checkpoints. A new one is a module like these and its place in the list."""

from pathlib import Path
from typing import Protocol

from streamer.errors import ModelError
from streamer.whisper.weights import ggml, huggingface, mlx, openai, optimum
from streamer.whisper.weights.checkpoint import Checkpoint, first_bytes


class Format(Protocol):
    """What the module of a format has."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """For people."""

    def matches(self, path: Path, /) -> bool:
        """Tell whether a file or directory is of the format, as far as a first look shows; may raise OSError."""

    def load(self, path: Path, /) -> Checkpoint:
        """Load a checkpoint; raises ModelError where it is broken."""


# In the order in which a path is held against them.
FORMATS: tuple[Format, ...] = (optimum, mlx, huggingface, ggml, openai)


def find(path: Path) -> tuple[Format, Path]:
    """Return the format of a checkpoint, and what to load. Raises ModelError where it is none, and OSError."""
    if other := _unread_format(path):
        raise ModelError(
            f"{path} is a model for {other}, whose files are not read: name the checkpoint that it was made from, such"
            " as --model small.en or OWNER/REPOSITORY on the Hub"
        )
    for format_ in FORMATS:
        if format_.matches(path):
            return format_, path
    if not path.is_dir():
        raise ModelError(
            f"{path} is no Whisper checkpoint: expected openai-whisper's .pt, whisper.cpp's ggml-*.bin, or a directory"
            " in the layout of Hugging Face, MLX or OpenVINO; see `streamer docs models`"
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


def _unread_format(path: Path) -> str:
    """Return who reads the weights at a path, where we do not and there are no others; empty where nobody is known."""
    files = [file for file in (path, *path.glob("*"), *path.glob("onnx/*")) if file.is_file()]
    if any(
        file.suffix in (".safetensors", ".npz", ".pt", ".xml", ".bin") and file.name != "model.bin" for file in files
    ):
        return ""
    if any(file.suffix == ".onnx" for file in files):
        return "ONNX Runtime"
    # Behind the number of a version and a length stands what kind of model it is.
    if any(file.name == "model.bin" and b"WhisperSpec" in first_bytes(file, 32) for file in files):
        return "faster-whisper (CTranslate2)"
    return ""
