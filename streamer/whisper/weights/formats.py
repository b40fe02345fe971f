"""The formats of checkpoints. A new one is a module like these and its place in the list."""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

from streamer.whisper.weights import ctranslate2, ggml, huggingface, mlx, openai, openvino
from streamer.whisper.weights.binary import unfit
from streamer.whisper.weights.checkpoint import SUFFIXES, Checkpoint


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


# Files of which a directory has several.
_PARTS = [pattern for format_ in (huggingface, mlx, openvino) for names in format_.FILES for pattern in names]

# In the order in which a path is held against them.
FORMATS: tuple[Format, ...] = (openvino, mlx, ctranslate2, huggingface, ggml, openai)

# A shorter file holds no model.
MIN_WEIGHTS_BYTES = 1000


def find(path: Path) -> tuple[Format, Path]:
    """Return the format of a checkpoint and the path to load. Raises ModelError if a path holds none, and OSError."""
    if _is_onnx(path):
        remedy = "use --model small.en or OWNER/REPOSITORY on the Hub"
        raise unfit(path, "is an ONNX model", "the checkpoint that it was exported from", remedy)
    if path.is_file() and any(fnmatch(path.name, pattern) for pattern in _PARTS):
        raise unfit(path, "is one of a model's files", "their directory", f"use {path.parent}")
    found = checkpoints(path)
    if len(found) > 1:
        fact = f"holds {len(found)} checkpoints ({found[0][1].name}, {found[1][1].name}, ...)"
        raise unfit(path, fact, "one", "use the path of one of these files")
    if found or path.is_dir():
        return found[0] if found else (huggingface, path)  # whose loader says what is missing
    if (n_bytes := path.stat().st_size) < MIN_WEIGHTS_BYTES:
        fact = f"has only {n_bytes} bytes, as an interrupted download or a Git LFS pointer has"
        raise unfit(path, fact, "a checkpoint", "download it again, or run `git lfs pull` in its directory")
    expected = (
        "openai-whisper's .pt, whisper.cpp's ggml-*.bin, or a directory in the layout of Hugging Face, CTranslate2"
        " (faster-whisper), MLX or OpenVINO"
    )
    raise unfit(path, "is not a Whisper checkpoint", expected, "see `streamer docs models`")


def checkpoints(path: Path) -> list[tuple[Format, Path]]:
    """Return the checkpoint that a path is, else those that a directory holds, each behind its format; raises OSError.

    A first look decides: it may be broken.
    """
    if whole := [(format_, path) for format_ in FORMATS if format_.matches(path)]:
        return whole[:1]
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else []
    return [(format_, file) for file in files for format_ in FORMATS if format_.matches(file)]


def _is_onnx(path: Path) -> bool:
    """Return whether a path holds graphs of ONNX and no weights that are read."""
    suffixes = {file.suffix for file in (path, *path.glob("*"), *path.glob("onnx/*")) if file.is_file()}
    return ".onnx" in suffixes and not suffixes & {".safetensors", ".npz", ".pt", ".xml", ".bin"}
