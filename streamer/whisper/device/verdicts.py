"""Which devices passed the checks at load with which stages of a model, kept beside the compiled graphs.

What failed is not tried again, and what passed is not compared with the CPU again, until driver, OpenVINO, model or
this program's version change.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import openvino as ov

from streamer.errors import InferenceError, ModelError
from streamer.version import __version__
from streamer.whisper import cache
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.devices import describe_device, the_core
from streamer.whisper.files import converted, read_json, write_text

_FILE = "verdict.json"
_MOST_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """What the checks said of a stage on a device. It names no path."""

    # What is wrong, and what to do; empty: nothing.
    problem: str
    stage: str

    # What the model is published as, and what its weights are; empty if that is not known.
    model: str

    # The device's name and driver, and OpenVINO's version.
    device: str
    openvino: str

    # Lengths of windows that it was tried with.
    windows_s: list[int]

    # The sum of the times that its graphs took to compile, at once; less if they were in the cache.
    compile_s: float

    # Names of the cache's entries that hold its graphs.
    graphs: list[str]


class Verdicts:
    """The verdicts on a compilation's stages and their present devices; the CPU needs none."""

    def __init__(self, compilation: Compilation, model: str, files: Iterable[Path]) -> None:
        """Keep verdicts in memory, and in the cache of compiled graphs if the compilation has one.

        model : what it is published as; files : its files and folders
        """
        self._compilation = compilation
        self._base = compilation.cache_dir
        self._model = model
        self._stamps = [stamp for path in files for stamp in _stamps(path)]
        self._kept: dict[str, DeviceVerdict] = {}

    def unjudged(self) -> list[str]:
        """Return the stages on accelerators that have no verdict there, or whose graphs are in the cache no longer."""
        return [stage for stage in self.accelerated() if self._find(stage) is None]

    def accelerated(self) -> list[str]:
        """Return the stages that are not on the CPU."""
        return [stage for stage, device in self._compilation.devices.items() if device != "CPU"]

    def refused(self) -> dict[str, InferenceError]:
        """Return the errors of stages that failed on their devices before, by stage."""
        found = {stage: self._find(stage) for stage in self.accelerated()}
        again = "found at an earlier load; `streamer models verify` tries it again"
        return {
            stage: InferenceError(f"{verdict.problem} ({again})", stage)
            for stage, verdict in found.items()
            if verdict is not None and verdict.problem
        }

    def keep(self, problems: Mapping[str, str]) -> None:
        """Keep verdicts, by stage; an empty text says that it passed."""
        core = the_core()
        for stage in set(self.accelerated()) & set(problems):
            compilation = self._compilation
            compile_s = sum(s for graph, s in compilation.compile_s.items() if graph.stage == stage)
            verdict = DeviceVerdict(
                problem=problems[stage],
                stage=stage,
                model=self._model,
                device=describe_device(core, compilation.devices[stage]).about,
                openvino=ov.get_version(),
                windows_s=list(compilation.windows_s),
                compile_s=round(compile_s, 1),
                graphs=[entry.name for graph, entry in compilation.entries.items() if graph.stage == stage],
            )
            self._kept[self._key(stage)] = verdict
            if self._base is not None:
                directory = self._entry(self._base, stage)
                cache.use(directory)
                with contextlib.suppress(OSError):  # what cannot be kept is found again
                    write_text(directory / _FILE, json.dumps(asdict(verdict)))

    def forget(self, stages: Iterable[str]) -> None:
        """Have stages judged anew at the next load."""
        for stage in stages:
            self._kept.pop(self._key(stage), None)
            if self._base is not None:
                with contextlib.suppress(OSError):
                    (self._entry(self._base, stage) / _FILE).unlink(missing_ok=True)

    def _find(self, stage: str) -> DeviceVerdict | None:
        verdict = self._kept.get(self._key(stage))
        if verdict is None and self._base is not None:
            directory = self._entry(self._base, stage)
            verdict = _read(directory / _FILE)
            if verdict is not None:
                cache.use(directory)
                if not verdict.problem and not all(any((self._base / name).glob("*.blob")) for name in verdict.graphs):
                    return None  # what is compiled anew is judged anew
        if verdict is None or verdict.problem or {*self._compilation.windows_s} <= {*verdict.windows_s}:
            return verdict
        return None

    def _key(self, stage: str) -> str:
        return json.dumps([str(fact) for fact in self._facts(stage)])

    def _entry(self, base: Path, stage: str) -> Path:
        return cache.entry(base, cache.VERDICT, self._facts(stage))

    def _facts(self, stage: str) -> Sequence[object]:
        return [__version__, stage, *self._compilation.facts(stage), *self._stamps]


def kept_verdicts(base: Path) -> Iterator[DeviceVerdict]:
    """Yield all verdicts in a cache, the newest first."""
    entries = sorted(base.glob(f"{cache.VERDICT}-*"), key=lambda path: -path.stat().st_mtime)
    for directory in entries:
        verdict = _read(directory / _FILE)
        if verdict is not None:
            yield verdict


def _read(path: Path) -> DeviceVerdict | None:
    """Return a verdict; None if the file is missing or damaged."""
    if path.is_file():
        with contextlib.suppress(ModelError):
            return converted(read_json(path, max_bytes=_MOST_BYTES), DeviceVerdict, path)
    return None


def _stamps(path: Path) -> list[tuple[str, int, int]]:
    """Return what changes if a file, or one in a folder, does: its name, bytes and time."""
    files = [path] if path.is_file() else sorted(file for file in path.glob("*") if file.is_file())
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
