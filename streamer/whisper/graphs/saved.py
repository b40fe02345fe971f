"""Our own saved form of a model: a directory of OpenVINO graphs, described by `streamer.json`.

    streamer.json                         what is here: dimensions, precisions, sizes and hashes of the files
    encoder.xml encoder.bin               one pair of files a stage
    cross_kv.xml cross_kv.bin
    decoder.xml decoder.bin               for any number of tokens, slots and windows (see `build.fix_sizes`)
    tokenizer.json generation_config.json preprocessor_config.json

At each load the sizes of the graphs' files are compared with those in `streamer.json`, and the hashes of the `.xml`
files. `changed_files` compares all hashes, which takes long for weights.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import openvino as ov

from streamer.errors import ModelError, StreamerError, UsageError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import converted, read_json, readable
from streamer.whisper.graphs.ports import STAGES, check_ports, ports
from streamer.whisper.ir import first_line, read_graph

MANIFEST = "streamer.json"

# Of `streamer.json` and the graphs' ports. All versions are read. Decoders of version 1 are for one window at a time.
FORMAT_VERSION = 2

# Files beside the graphs.
COMPANIONS = ("tokenizer.json", "generation_config.json", "preprocessor_config.json")

_GRAPHS = tuple(f"{stage}{suffix}" for stage in STAGES for suffix in (".xml", ".bin"))

_AGAIN = "copy all of it again from one place, or convert the model again"


@dataclass(frozen=True, slots=True)
class FileMark:
    """Size and hash of a file."""

    n_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileMark":
        """Return the mark of a file. Raises OSError."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(file.tell(), digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Description:
    """The contents of `streamer.json`."""

    name: str
    origin: str  # the published model, such as openai/whisper-base.en; empty if that is not known
    dims: ModelDimensions
    alignment_heads: tuple[tuple[int, int], ...]  # layer and head of each row of the decoder's cross-attention
    precisions: Mapping[str, str]  # of each stage
    files: Mapping[str, FileMark] = field(default_factory=dict)  # `save` adds them
    version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A saved model whose description has been read; each graph is read when it is needed."""

    directory: Path
    description: Description

    def read(self, stage: str) -> ov.Model:
        """Read a graph; weights stay on disk until used. Raises ModelError if it is broken or of another model."""
        path, about = self.directory / f"{stage}.xml", self.description
        model = read_graph(path)
        check_ports(path, model, ports(stage, about.dims, len(about.alignment_heads), n_windows=-1), _AGAIN)
        return model

    def changed_files(self, *, weights: bool = True) -> list[str]:
        """Return the names of files that are missing or differ from those that were written.

        weights : whether to read the weights too, or only compare their sizes
        """
        names = dict.fromkeys((*_GRAPHS, *self.description.files))
        return [name for name in names if not self._is_same(name, weights=weights)]

    def _is_same(self, name: str, *, weights: bool) -> bool:
        path, mark = self.directory / name, self.description.files.get(name)
        try:
            if mark is None or not path.is_file() or path.stat().st_size != mark.n_bytes:
                return False
            return (path.suffix == ".bin" and not weights) or FileMark.of(path) == mark
        except (OSError, ValueError):  # a name with a zero byte is a ValueError
            return False


def is_saved(directory: Path) -> bool:
    return (directory / MANIFEST).is_file()


def load(directory: Path) -> SavedModel:
    """Read the description of a directory's model.

    Raises ModelError if it is missing, broken, or of a newer program, or if a graph's file is missing or damaged.
    """
    path = directory / MANIFEST
    data = read_json(path)
    version = data.get("version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ModelError(
            f"{path} is of version {version!r:.20}, this program reads up to {FORMAT_VERSION}: update the"
            " program, or convert the model again"
        )
    model = SavedModel(directory, converted(data, Description, path, _AGAIN))
    ModelDimensions.from_openai(asdict(model.description.dims), path)
    if changed := [name for name in model.changed_files(weights=False) if name in _GRAPHS]:
        raise ModelError(
            f"{directory / changed[0]} is not the file that {path} lists: it is missing, damaged or of another model;"
            f" {_AGAIN}"
        )
    return model


def check_target(target: Path, *, force: bool) -> None:
    """Raise UsageError unless the target is new or empty, or by `force` a saved model."""
    with readable(target, "a new or empty directory"):
        if is_saved(target):
            if not force:
                raise UsageError(
                    f"{target} holds a model already: choose another directory, or replace it with --force"
                )
        elif os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(
                f"{target} is there and is no saved model: expected a new or empty directory; choose another"
            )


def save(
    target: Path,
    description: Description,
    graphs: Mapping[str, Callable[[], ov.Model]],
    companions: Mapping[str, bytes],
    *,
    force: bool = False,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> SavedModel:
    """Write a model: whole, or not at all.

    graphs : builds each stage's graph, compressed (see `compress`), when its turn comes; one is held at a time
    companions : contents of the files beside the graphs, by name
    on_stage : called with each stage before it is built

    Raises UsageError if the target is taken, StreamerError if it cannot be written, and what the builders raise.
    """
    check_target(target, force=force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.", ignore_cleanup_errors=True) as folder:
            new, old = Path(folder) / "new", Path(folder) / "old"
            new.mkdir()
            for stage in STAGES:
                on_stage(stage)
                _write_graph(new / f"{stage}.xml", graphs[stage](), description.precisions[stage])
            for name, content in companions.items():
                (new / name).write_bytes(content)
            marks = {path.name: FileMark.of(path) for path in sorted(new.iterdir())}
            text = json.dumps(asdict(replace(description, files=marks)), indent=2, ensure_ascii=False)
            (new / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
            written = load(new)
            for stage in STAGES:
                written.read(stage)  # better to fail now than at the first use
            if target.exists():
                target.replace(old)
            try:
                new.replace(target)
            except BaseException:
                if old.exists():
                    old.replace(target)
                raise
    except OSError as error:
        raise StreamerError(
            f"{target} cannot be written ({error.strerror or error}): make room, or choose another place"
        ) from None
    return replace(written, directory=target)


def _write_graph(path: Path, model: ov.Model, precision: str) -> None:
    # Two models of the same dimensions have the same description: with this, the `.xml` of each has its own hash.
    model.set_rt_info(uuid4().hex, ["streamer", "id"])
    try:
        # With 8 and 4 bits too: what is no matrix has been left as it was.
        ov.save_model(model, path, compress_to_fp16=precision != "f32")
    except RuntimeError as error:  # OpenVINO writes through a C++ stream, which does not say why
        raise OSError(first_line(error)) from None
