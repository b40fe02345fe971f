"""Published weights in the format of each program that is measured beside ours."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamer.errors import UsageError
from streamer.whisper.heads import known_heads
from streamer.whisper.locate import find_model
from streamer.whisper.weights import formats
from streamer.whisper.weights.checkpoint import Checkpoint
from tools.benchmarks.model_files import to_ctranslate2
from tools.benchmarks.peers.weights import write_pt
from tools.benchmarks.raw import SYSTEMS


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model that lies on this machine, by its name or path; other formats are written to a temporary folder."""

    given: str
    temporary: Path
    peers_folder: Path

    @property
    def name(self) -> str:
        """What tables and folders call it."""
        return Path(self.given).name

    @property
    def multilingual(self) -> bool:
        """Whether it knows other languages than English."""
        return not self.name.endswith(".en")

    @property
    def path(self) -> Path:
        """Return where it lies. Raises UsageError when it was never fetched."""
        if found := find_model(self.given):
            return found
        raise UsageError(f"{self.given!r:.80} is not on this machine: fetch it with `streamer models pull NAME`")

    def checkpoint(self) -> Checkpoint:
        """Return the weights as they are stored. Raises ModelError when the format holds graphs."""
        found, path = formats.find(self.path)
        return found.load(path)

    def ctranslate2(self) -> Path:
        """Return the weights as CTranslate2 has them. Raises PeerUnavailable when its converter cannot be installed."""
        if (self.path / "model.bin").is_file():
            return self.path
        converted = self.temporary / f"{self.name}-ctranslate2"
        if not converted.exists():
            to_ctranslate2(self.path, converted, "float16", self.peers_folder)
        return converted

    def openai(self) -> Path:
        """Return the weights as openai-whisper has them."""
        path = self.temporary / f"{self.name}.pt"
        if not path.exists():
            write_pt(path, self.checkpoint())
        return path

    def alignment_heads(self) -> Sequence[tuple[int, int]]:
        """Return layer and number of each head of the decoder whose cross-attention tells the words' times."""
        return known_heads(self.checkpoint().dims, self.name)

    def of_peer(self, system: str) -> tuple[Path, Path]:
        """Return the interpreter and the weights of a program. Raises PeerUnavailable when it cannot be installed."""
        if system == "openai-whisper":  # is installed beside us
            return Path(sys.executable), self.openai()
        return Path(SYSTEMS[system].python(self.peers_folder)), self.ctranslate2()
