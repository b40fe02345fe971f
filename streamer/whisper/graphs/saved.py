"""Our own saved form of a model: a directory of OpenVINO graphs, described by `streamer.json`.

    streamer.json                         what is here: dimensions, precisions, sizes and hashes of the files
    encoder.xml encoder.bin               one pair of files a stage
    cross_kv.xml cross_kv.bin
    decoder.xml decoder.bin               for any number of tokens, slots and windows (see `build.fix_sizes`)
    tokenizer.json generation_config.json preprocessor_config.json

At each load the sizes of the graphs' files are compared with those in `streamer.json`, and the hashes of their
descriptions, the `.xml`. `changed_files` compares all hashes, since it takes long to read the weights.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from uuid import uuid4

import msgspec
import openvino as ov

from streamer.errors import ModelError, StreamerError, UsageError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import converted, read_json, readable
from streamer.whisper.graphs.compress import PRECISIONS
from streamer.whisper.graphs.ports import STAGES, ports
from streamer.whisper.ir import first_line, read_graph

MANIFEST = "streamer.json"

# Of `streamer.json` and the graphs' ports. All versions are read. Decoders of version 1 are for one window at a time.
FORMAT_VERSION = 2

# Files beside the graphs.
COMPANIONS = ("tokenizer.json", "generation_config.json", "preprocessor_config.json")

_GRAPHS = tuple(f"{stage}{suffix}" for stage in STAGES for suffix in (".xml", ".bin"))

_AGAIN = "copy all of it again from one place, or convert the model again"

_Text = Annotated[str, msgspec.Meta(max_length=500, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z")]


@dataclass(frozen=True, slots=True)
class Description:
    """What `streamer.json` says of a model."""

    name: _Text
    origin: _Text  # what it is published as, such as openai/whisper-base.en; empty if that is not known
    dims: ModelDimensions
    alignment_heads: tuple[tuple[int, int], ...]  # layer and head of each row of the decoder's cross-attention
    precisions: Mapping[str, str]  # of each stage


@dataclass(frozen=True, slots=True)
class FileMark:
    """Size and hash of a file, by which it is known again."""

    n_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileMark":
        """Read a file and mark it. Raises OSError."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(file.tell(), digest.hexdigest())


class _Files(msgspec.Struct):
    """What `streamer.json` says of itself and the files beside it."""

    version: Annotated[int, msgspec.Meta(ge=1)]
    files: dict[str, FileMark]


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A saved model whose description has been read; its graphs are read when they are asked for."""

    directory: Path
    description: Description
    files: Mapping[str, FileMark]

    def read(self, stage: str) -> ov.Model:
        """Read a graph; weights stay on disk until used. Raises ModelError if it is broken or of another model."""
        path, about = self.directory / f"{stage}.xml", self.description
        model = read_graph(path)
        wanted = ports(stage, about.dims, len(about.alignment_heads), n_windows=-1)
        expected = {name: ov.PartialShape(list(shape)) for name, shape in {**wanted.inputs, **wanted.outputs}.items()}
        found = {name: port.partial_shape for port in (*model.inputs, *model.outputs) for name in port.names}
        # An input that is never set would read old memory.
        if set(found) != set(expected) or not all(found[name].compatible(expected[name]) for name in found):
            raise ModelError(f"{path} is not the {stage} of the model that {MANIFEST} describes; {_AGAIN}")
        return model

    def changed_files(self) -> list[str]:
        """Return the names of the files that are missing or hold something else than was written. Reads all of them."""
        changed = []
        for name, mark in self.files.items():
            try:
                same = FileMark.of(self.directory / name) == mark
            except OSError:
                same = False
            if not same:
                changed.append(name)
        return changed


def is_saved(directory: Path) -> bool:
    return (directory / MANIFEST).is_file()


def load(directory: Path) -> SavedModel:
    """Read what a directory says of its model.

    Raises ModelError if the description is missing, broken, or of a newer program, or a graph's file is missing or not
    the one that was written.
    """
    path = directory / MANIFEST
    data = read_json(path)
    version = data.get("version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ModelError(
            f"{path} is of version {version!r:.20}, this program reads up to {FORMAT_VERSION}: update the"
            " program, or convert the model again"
        )
    files = converted(data, _Files, path, _AGAIN).files
    description = converted(data, Description, path, _AGAIN)
    dims = ModelDimensions.from_openai(asdict(description.dims), path)
    precisions = description.precisions
    if set(precisions) != set(STAGES) or not set(PRECISIONS) >= set(precisions.values()):
        raise ModelError(
            f"{path} has precisions {precisions!r:.60}: expected one of {', '.join(PRECISIONS)} for each of"
            f" {', '.join(STAGES)}; {_AGAIN}"
        )
    limits = dims.n_text_layer, dims.n_text_head
    for layer, head in description.alignment_heads:
        if not 0 <= layer < limits[0] or not 0 <= head < limits[1]:
            raise ModelError(
                f"{path} has the alignment head {[layer, head]}: expected [layer, head] below {list(limits)}; {_AGAIN}"
            )
    # Names are compared and never followed: one that leads out of the directory is no name of ours.
    unexpected = sorted(set(files) - {*_GRAPHS, *COMPANIONS}) + sorted(set(_GRAPHS) - set(files))
    if unexpected:
        raise ModelError(
            f"{path} {'lists' if unexpected[0] in files else 'does not list'} the file {unexpected[0]!r:.60}: expected"
            f" the graphs of its stages and no others; {_AGAIN}"
        )
    for name in _GRAPHS:
        with readable(directory / name):
            _check_file(directory / name, files[name])
    return SavedModel(directory, description, files)


def _check_file(path: Path, mark: FileMark) -> None:
    if not path.is_file():
        raise ModelError(f"{path} is missing: {MANIFEST} lists it; {_AGAIN}")
    n_bytes = path.stat().st_size
    if n_bytes != mark.n_bytes:
        raise ModelError(
            f"{path} has {n_bytes} bytes, {MANIFEST} says {mark.n_bytes}: it is truncated or of another model; {_AGAIN}"
        )
    if path.suffix == ".xml" and FileMark.of(path) != mark:
        raise ModelError(
            f"{path} is not the file that {MANIFEST} was written with: it is damaged or of another model; {_AGAIN}"
        )


def check_target(target: Path, *, force: bool) -> None:
    """Raise UsageError unless a model can be saved there: in a new or empty place, or by `force` over a saved model."""
    try:
        if not os.path.lexists(target):
            parent = _nearest_parent(target)
            if not parent.is_dir() or not os.access(parent, os.W_OK):
                raise UsageError(
                    f"{target} cannot be made: {parent} is no directory that you may write to; choose another"
                )
        elif is_saved(target):
            if not force:
                raise UsageError(
                    f"{target} holds a model already: choose another directory, or replace it with --force"
                )
        elif not target.is_dir() or any(target.iterdir()):
            raise UsageError(
                f"{target} is there and is no saved model: expected a new or empty directory; choose another"
            )
    except OSError as error:
        raise UsageError(f"{target} cannot be read ({error.strerror}): choose another place") from None


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
    assert set(companions) <= set(COMPANIONS)
    check_target(target, force=force)
    target = target.absolute()
    try:
        with TemporaryDirectory(
            dir=_nearest_parent(target), prefix=f".{target.name}.", ignore_cleanup_errors=True
        ) as folder:
            new = Path(folder) / "new"
            new.mkdir()
            for stage in STAGES:
                on_stage(stage)
                _write_graph(new / f"{stage}.xml", graphs[stage](), description.precisions[stage])
            for name, content in companions.items():
                (new / name).write_bytes(content)
            _write_manifest(new, description)
            written = load(new)
            for stage in STAGES:
                written.read(stage)  # better to fail now than at the first use
            target.parent.mkdir(parents=True, exist_ok=True)
            _replace(target, new, Path(folder) / "old")
    except OSError as error:
        raise StreamerError(
            f"{target} cannot be written ({error.strerror or error}): make room, or choose another place"
        ) from None
    return replace(written, directory=target)


def _nearest_parent(target: Path) -> Path:
    """Return the first of a path's parents that exists, whatever it is."""
    return next((parent for parent in target.absolute().parents if os.path.lexists(parent)), target)


def _write_graph(path: Path, model: ov.Model, precision: str) -> None:
    # Two models of the same dimensions have the same description: with this, each stage knows its own.
    model.set_rt_info(uuid4().hex, ["streamer", "id"])
    try:
        # With 8 and 4 bits too: what is no matrix has been left as it was.
        ov.save_model(model, path, compress_to_fp16=precision != "f32")
    except RuntimeError as error:  # OpenVINO writes through a C++ stream, which does not say why
        raise OSError(first_line(error)) from None


def _write_manifest(directory: Path, description: Description) -> None:
    marks = {path.name: asdict(FileMark.of(path)) for path in sorted(directory.iterdir())}
    data = {"version": FORMAT_VERSION, **asdict(description), "files": marks}
    (directory / MANIFEST).write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _replace(target: Path, new: Path, old: Path) -> None:
    """Put a directory in the place of another, which comes back if that fails."""
    if target.exists():
        target.replace(old)
    try:
        new.replace(target)
    except BaseException:
        if old.exists():
            old.replace(target)
        raise
