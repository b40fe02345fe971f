"""Published weights in the format of each program that is measured beside ours."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from streamer.errors import UsageError
from streamer.whisper.locate import find_model
from streamer.whisper.weights import formats
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name
from tools.benchmarks.peers.environment import INSTALL_TIMEOUT_S, TORCH, Environment, run

FASTER_WHISPER = Environment("faster-whisper", (("faster-whisper==1.2.1", "ctranslate2==4.8.5"),))
CONVERTER = Environment("ctranslate2", ((TORCH,), ("ctranslate2==4.8.5", "transformers==5.23.0", TORCH)))


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model on this machine, by its name or path; other formats are written to a temporary folder."""

    given: str
    temporary: Path
    peers_folder: Path

    @property
    def name(self) -> str:
        """Its name in tables and folders."""
        return Path(self.given).name

    @property
    def multilingual(self) -> bool:
        """Whether it knows other languages than English."""
        return not self.name.endswith(".en")

    @property
    def path(self) -> Path:
        """Its folder. Raises UsageError if it was never fetched."""
        if found := find_model(self.given):
            return found
        raise UsageError(f"{self.given!r:.80} is not on this machine: fetch it with `streamer models pull NAME`")

    def checkpoint(self) -> Checkpoint:
        """Return the weights as they are stored. Raises ModelError if the format holds graphs."""
        found, path = formats.find(self.path)
        return found.load(path)

    def ctranslate2(self) -> Path:
        """Return the weights as CTranslate2 reads them. Raises PeerUnavailable if its converter cannot be installed."""
        if (self.path / "model.bin").is_file():
            return self.path
        converted = self.temporary / f"{self.name}-ctranslate2"
        if not converted.exists():
            to_ctranslate2(self.path, converted, "float16", self.peers_folder)
        return converted

    def openai(self) -> Path:
        """Return the weights as openai-whisper reads them."""
        path = self.temporary / f"{self.name}.pt"
        if not path.exists():
            write_pt(path, self.checkpoint())
        return path

    def of_peer(self, system: str) -> tuple[Path, Path]:
        """Return the interpreter and the weights of a program. Raises PeerUnavailable if it cannot be installed."""
        if system == "openai-whisper":  # is installed beside us
            return Path(sys.executable), self.openai()
        return FASTER_WHISPER.python(self.peers_folder), self.ctranslate2()


def write_pt(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint as openai-whisper does, in the types of its tensors."""
    import torch

    tensors = {openai_name(name): np.ascontiguousarray(value) for name, value in checkpoint.tensors.items()}
    state = {name: torch.from_numpy(value) for name, value in tensors.items()}
    torch.save({"dims": asdict(checkpoint.dims), "model_state_dict": state}, path)


def to_ctranslate2(source: Path, target: Path, quantization: str, folder: Path) -> None:
    """Convert a model in transformers' layout with CTranslate2's own converter, which is installed in `folder`.

    quantization : such as float16 or int8

    Raises PeerUnavailable if the converter cannot be installed or fails.
    """
    python = CONVERTER.python(folder)
    command = [str(python.with_name(f"ct2-transformers-converter{python.suffix}")), "--model", str(source)]
    names = [name for name in ("tokenizer.json", "preprocessor_config.json") if (source / name).is_file()]
    flags = ["--quantization", quantization, "--copy_files", *names, "--output_dir", str(target)]
    run(CONVERTER.name, [*command, *flags], timeout_s=INSTALL_TIMEOUT_S)
