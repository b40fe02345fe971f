"""The formats of checkpoints. A new one is a module like these and its place in the list."""

from pathlib import Path
from typing import Protocol

from streamer.errors import ModelError
from streamer.whisper.weights import ggml, huggingface, mlx, openai
from streamer.whisper.weights.checkpoint import Checkpoint


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
FORMATS: tuple[Format, ...] = (mlx, huggingface, ggml, openai)


def find(path: Path) -> tuple[Format, Path]:
    """Find out the format of a checkpoint; return it, and the file or directory to load.

    Raises ModelError where it is none, OSError where it cannot be read.
    """
    for format_ in FORMATS:
        if format_.matches(path):
            return format_, path
    if not path.is_dir():
        raise ModelError(
            f"{path} is no Whisper checkpoint: expected openai-whisper's .pt, whisper.cpp's ggml-*.bin, or a directory"
            " in the layout of Hugging Face, MLX or OpenVINO; see docs/models.md"
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
