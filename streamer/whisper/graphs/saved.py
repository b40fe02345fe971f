"""Our own saved form of a model: a directory of OpenVINO graphs, described by `streamer.json`.

    streamer.json                         what is here: dimensions, precisions, sizes and hashes of the files
    encoder.xml encoder.bin               one pair of files a stage
    cross_kv.xml cross_kv.bin
    decoder.xml decoder.bin               for any number of tokens, slots and windows (see `build.fix_sizes`)
    tokenizer.json generation_config.json preprocessor_config.json

Nothing in it is trusted. The graphs' files are held against the sizes in `streamer.json` (and their descriptions, the
`.xml`, against its hashes) at each load, and their ports against its dimensions. The weights are hashed by
`changed_files`, since that reads all of them.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import openvino as ov

from streamer.errors import ModelError, StreamerError, UsageError
from streamer.whisper import cache
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.files import converted, read_json, readable
from streamer.whisper.graphs.compress import PRECISIONS
from streamer.whisper.graphs.ports import STAGES, dtype_of, ports
from streamer.whisper.ir import first_line, probe_graphs, read_graph

logger = logging.getLogger(__name__)

MANIFEST = "streamer.json"

# Of `streamer.json` and the graphs' ports. All versions are read. Decoders of version 1 are for one window at a time.
FORMAT_VERSION = 2

# Files beside the graphs.
COMPANIONS = ("tokenizer.json", "generation_config.json", "preprocessor_config.json")


@dataclass(frozen=True, slots=True)
class Description:
    """What `streamer.json` says of a model."""

    name: str
    origin: str  # what it is published as, such as openai/whisper-base.en; empty where that is not known
    dims: ModelDimensions
    alignment_heads: Heads  # layer and head of each row of the decoder's cross-attention
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


class _Versioned(msgspec.Struct):
    """What `streamer.json` says in every version."""

    version: Annotated[int, msgspec.Meta(ge=1)]


_Text = Annotated[str, msgspec.Meta(max_length=500, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z")]
_Index = Annotated[int, msgspec.Meta(ge=0)]


class _Manifest(_Versioned):
    """What it says in those that are read; `Description` has more."""

    name: _Text
    origin: _Text
    dims: dict[str, Any]
    alignment_heads: tuple[tuple[_Index, _Index], ...]
    precisions: dict[str, str]
    files: dict[str, FileMark]


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A saved model whose description has been read; its graphs are read when they are asked for."""

    directory: Path
    version: int
    description: Description
    files: Mapping[str, FileMark]

    def read(self, stage: str) -> ov.Model:
        """Read a stage's graph; weights stay on disk until used. Raises ModelError where a file is not as it was."""
        xml = self.directory / f"{stage}.xml"
        self._check_files(stage)
        model = read_graph(xml)
        try:
            _check_ports(model, stage, self, xml)
        except UnicodeDecodeError:
            raise ModelError(
                f"{xml} has names that are not UTF-8: expected a graph of this program; {_AGAIN}"
            ) from None
        return model

    def facts(self) -> list[object]:
        """Return by what the graphs' files are known: hashes of the descriptions, and the marks of the file system.

        Who changes a file can set its size and time of modification as they were, but not its `st_ctime`.
        """
        weights = [(self.directory / f"{stage}.bin").stat() for stage in STAGES]
        return [
            ov.get_version(),
            *(self.files[f"{stage}.xml"] for stage in STAGES),
            *((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino) for stat in weights),
        ]

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

    def _check_files(self, stage: str) -> None:
        for suffix in (".xml", ".bin"):
            path = self.directory / f"{stage}{suffix}"
            with readable(path):
                _check_file(path, self.files[path.name])


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


_AGAIN = "copy all of it again from one place, or convert the model again"


def is_saved(directory: Path) -> bool:
    return (directory / MANIFEST).is_file()


def load(directory: Path, cache_dir: Path | None = None) -> SavedModel:
    """Read what a directory says of its model.

    cache_dir : remembers which graphs do no harm, so that each is tried once; None: each time

    Raises ModelError where the description is missing, broken, or of a newer program, where a graph's file is missing
    or not the one that was written, and where OpenVINO cannot even be asked to read it.
    """
    model = _load(directory)
    # The hashes keep out what was damaged, not what was made to do harm. That a graph does none is remembered in the
    # user's cache, and not beside the graph, where whoever made it could have written so.
    known = None if cache_dir is None else cache.entry(cache_dir, cache.READ, model.facts())
    if known is None or not known.is_dir():
        probe_graphs([directory / f"{stage}.xml" for stage in STAGES])
    if known is not None:
        cache.use(known)
    return model


def _load(directory: Path) -> SavedModel:
    path = directory / MANIFEST
    data = read_json(path)
    version = converted(data, _Versioned, path, _AGAIN).version
    if version > FORMAT_VERSION:
        raise ModelError(
            f"{path} is of version {version!r:.20}, this program reads up to {FORMAT_VERSION}: update the"
            " program, or convert the model again"
        )
    told = converted(data, _Manifest, path, _AGAIN)
    dims = ModelDimensions.from_openai(told.dims, path)
    if set(told.precisions) != set(STAGES) or not set(PRECISIONS) >= set(told.precisions.values()):
        raise ModelError(
            f"{path} has precisions {told.precisions!r:.60}: expected one of {', '.join(PRECISIONS)} for each of"
            f" {', '.join(STAGES)}; {_AGAIN}"
        )
    limits = dims.n_text_layer, dims.n_text_head
    for head in told.alignment_heads:
        if head[0] >= limits[0] or head[1] >= limits[1]:
            raise ModelError(
                f"{path} has the alignment head {list(head)}: expected [layer, head] below {list(limits)}; {_AGAIN}"
            )
    # Names are compared and never followed: one that leads out of the directory is no name of ours.
    needed = {f"{stage}{suffix}" for stage in STAGES for suffix in (".xml", ".bin")}
    strange = sorted(set(told.files) - needed - set(COMPANIONS)) + sorted(needed - set(told.files))
    if strange:
        raise ModelError(
            f"{path} {'lists' if strange[0] in told.files else 'does not list'} the file {strange[0]!r:.60}: expected"
            f" the graphs of its stages and no others; {_AGAIN}"
        )
    description = Description(told.name, told.origin, dims, told.alignment_heads, told.precisions)
    saved = SavedModel(directory, version, description, told.files)
    for stage in STAGES:
        saved._check_files(stage)
    return saved


def check_target(target: Path, *, force: bool) -> None:
    """Raise UsageError unless a model can be saved there: in a new or empty place, or by `force` over a saved model."""
    try:
        if not os.path.lexists(target):
            parent = next((parent for parent in target.absolute().parents if os.path.lexists(parent)), target)
            if parent.is_dir() and os.access(parent, os.W_OK):
                return
            raise UsageError(f"{target} cannot be made: {parent} is no directory that you may write to; choose another")
        if target.is_dir() and not any(target.iterdir()):
            return
        replaceable = is_saved(target)
    except OSError as error:
        raise UsageError(f"{target} cannot be looked at ({error.strerror}): choose another place") from None
    if not replaceable:
        raise UsageError(f"{target} is there and is no saved model: expected a new or empty directory; choose another")
    if not force:
        raise UsageError(f"{target} holds a model already: choose another directory, or replace it with --force")


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
    on_stage : is told each stage before it is built

    Raises UsageError where the target is taken, StreamerError where it cannot be written, and what the builders raise.
    """
    assert set(companions) <= set(COMPANIONS)
    check_target(target, force=force)
    target = target.absolute()
    made = [parent for parent in target.parents if not parent.exists()]
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.mkdir(parents=True)
        for stage in STAGES:
            on_stage(stage)
            _write_graph(partial / f"{stage}.xml", graphs[stage](), description.precisions[stage])
        for name, content in companions.items():
            (partial / name).write_bytes(content)
        _write_manifest(partial, description)
        _check_written(partial)
        _put_in_place(partial, target)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):  # whatever somebody else has put there meanwhile stays
                parent.rmdir()
        if isinstance(error, OSError):
            raise StreamerError(
                f"{target} cannot be written ({error.strerror or error}): make room, or choose another place"
            ) from None
        raise
    return _load(target)


def _write_graph(path: Path, model: ov.Model, precision: str) -> None:
    # Two models of the same dimensions have the same description: with this, each stage knows its own.
    model.set_rt_info(uuid.uuid4().hex, ["streamer", "id"])
    try:
        # With 8 and 4 bits too: what is no matrix has been left as it was.
        ov.save_model(model, path, compress_to_fp16=precision != "f32")
    except RuntimeError as error:
        # OpenVINO does not say why; it writes through a C++ stream.
        raise StreamerError(
            f"{path.parent.parent} cannot be written to ({first_line(error)}): make room, or choose another place"
        ) from None


def _write_manifest(directory: Path, description: Description) -> None:
    marks = {path.name: FileMark.of(path) for path in sorted(directory.iterdir())}
    data = {
        "version": FORMAT_VERSION,
        **asdict(description),
        "files": {name: asdict(mark) for name, mark in marks.items()},
    }
    (directory / MANIFEST).write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_written(directory: Path) -> None:
    """Read back what was written: better to fail now than at the first use."""
    saved = _load(directory)
    for stage in STAGES:
        saved.read(stage)


def _put_in_place(partial: Path, target: Path) -> None:
    """Rename the complete directory. What is there goes only when the new one is in its place."""
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.old")
    replaced = target.exists()
    if replaced:
        target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        if replaced:
            old.rename(target)
        raise
    if replaced:
        shutil.rmtree(old, ignore_errors=True)


def _check_ports(model: ov.Model, stage: str, saved: SavedModel, xml: Path) -> None:
    """Raise ModelError unless the graph's ports are exactly those of a stage of this model."""
    description = saved.description
    n_windows = 1 if saved.version == 1 else -1
    wanted = ports(stage, description.dims, len(description.alignment_heads), n_windows=n_windows)
    for kind, there, expected in (("input", model.inputs, wanted.inputs), ("output", model.outputs, wanted.outputs)):
        found = {name: port for port in there for name in port.names}
        strange = sorted(set(expected) - set(found)) + sorted(set(found) - set(expected))
        if strange or len(there) != len(expected):
            what = f"{strange[0]!r:.60}" if strange else "with one name each"
            lacks = "has no" if not strange or strange[0] in expected else "has the"
            raise ModelError(
                f"{xml} {lacks} {kind} {what}: expected the {stage} of the model that {MANIFEST} describes; {_AGAIN}"
            )
        for name, shape in expected.items():
            port = found[name]
            size, dtype = ov.PartialShape(list(shape)), ov.Type(dtype_of(name))
            if port.partial_shape != size or port.element_type != dtype:
                raise ModelError(
                    f"{xml} has the {kind} {name} of shape {port.partial_shape!s:.60} and type"
                    f" {port.element_type.get_type_name()}, {MANIFEST} asks for {size} and"
                    f" {dtype.get_type_name()}: they are of different models; {_AGAIN}"
                )
    positions = [description.dims.n_text_ctx, description.dims.n_text_state]
    tables = (node.shape for node in model.get_ops() if node.get_type_name() == "Constant")
    if stage == "decoder" and not any(list(table) == positions for table in tables):
        raise ModelError(
            f"{xml} has no table of {positions[0]} positions, which {MANIFEST} asks for: they are of different models;"
            f" {_AGAIN}"
        )
