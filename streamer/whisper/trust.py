"""Which compiled graphs are trusted: each is tried out once, and the verdict is kept beside it in the cache.

What is refused is not tried again, and what was found right is not compared with the CPU again, until driver, OpenVINO,
model or this program's version change.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import openvino as ov

from streamer.arrays import FloatArray
from streamer.errors import InferenceError, ModelError
from streamer.whisper import cache
from streamer.whisper.check import Check
from streamer.whisper.device.checks import (
    EXACT,
    TOLERANCE,
    check_decoder,
    check_freshness,
    check_speech,
    distance_of,
    known_speech,
    mel_of,
    run_stages,
)
from streamer.whisper.device.compile import CompiledStage, Recipe, compile_on_cpu
from streamer.whisper.device.devices import describe_device, the_core
from streamer.whisper.device.places import Place
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.sizes import Sizes
from streamer.whisper.files import converted, read_json, write_text
from streamer.whisper.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_FILE = "verdict.json"
_MOST_BYTES = 1 << 14


def self_checks(runtime: Runtime, tokenizer: Tokenizer, *, everywhere: bool = False) -> Iterator[Check]:
    """Check that compiled graphs agree with themselves.

    everywhere : whether what is left of one window in the next is looked for on the CPU, too: it takes time
    """
    token = tokenizer.special.start_of_transcript
    # One graph for all lengths is tried once: each more length takes memory for as long as it is loaded.
    is_one = runtime.decoder.takes_batches
    for window_s in runtime.windows_s[:1] if is_one else reversed(runtime.windows_s):
        decoder = runtime.decoder_of(runtime.window(window_s))
        yield from check_decoder(decoder, token, str(Sizes("decoder", None if is_one else window_s)))
    if everywhere or {*runtime.devices.values()} != {"CPU"}:
        for window_s in reversed(runtime.windows_s):
            yield from check_freshness(runtime, token, window_s)


def speech_checks(recipe: Recipe, runtime: Runtime, tokenizer: Tokenizer, stages: Sequence[str]) -> Iterator[Check]:
    """Compare stages with the CPU, whose graphs are compiled for that and released."""
    if not stages:
        return
    try:
        on_cpu = compile_on_cpu(recipe.graphs, recipe.windows_s, EXACT)
    except InferenceError as error:  # too little memory, of which no accelerator is guilty
        logger.warning("%s; the model is not compared with the CPU", error)
        return
    language = "en" if "en" in tokenizer.known_languages else tokenizer.known_languages[0]
    start = tokenizer.start_sequence(language, "transcribe")
    exact = Runtime(on_cpu, n_buffers=1)
    yield from check_speech(runtime, exact, start, tokenizer.special.end_of_text, stages)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of a graph on a device. It names no path."""

    # What is wrong, and what to do; empty: nothing.
    problem: str

    # As people call it, such as `encoder (15 s)`.
    graph: str

    # What the model is published as, and what its weights are; empty if that is not known.
    model: str

    # The device's name and driver, and OpenVINO's version.
    device: str
    openvino: str

    # Seconds that it took to compile; less if it was in the cache.
    compile_s: float

    # Those of the recipe.
    facts: str


class Verdicts:
    """The verdicts on a model's graphs; those on the CPU, with which others are compared, need none."""

    def __init__(self, model: str) -> None:
        """Know nothing yet. model : what it is published as"""
        self._model = model
        # By the name of the graph's entry in the cache.
        self._kept: dict[Path, Verdict] = {}

    def of(self, recipe: Recipe, stage: str, place: Place) -> Verdict | None:
        """Return the verdict on a stage, which is that on a graph that is wrong; None if one was not judged yet."""
        found = [self._find(recipe, sizes, place) for sizes in recipe.sizes_of(stage, place)]
        wrong = (verdict for verdict in found if verdict is not None and verdict.problem)
        return next(wrong, found[0] if None not in found else None)

    def unjudged(self, recipe: Recipe, chosen: Mapping[str, Place]) -> list[str]:
        """Return the stages that are not on the CPU, and have no verdict where they are."""
        return [stage for stage, place in accelerated(chosen).items() if self.of(recipe, stage, place) is None]

    def refused(self, recipe: Recipe, chosen: Mapping[str, Place]) -> dict[str, InferenceError]:
        """Return the errors of stages that were found wrong where they are, by stage."""
        found = {stage: self.of(recipe, stage, place) for stage, place in accelerated(chosen).items()}
        again = "found at an earlier load; `streamer models verify` tries it again"
        return {
            stage: InferenceError(f"{verdict.problem} ({again})", stage)
            for stage, verdict in found.items()
            if verdict is not None and verdict.problem
        }

    def keep(self, recipe: Recipe, stages: Mapping[str, CompiledStage], problems: Mapping[str, str]) -> None:
        """Keep what was found of stages that are not on the CPU; an empty text says that nothing is wrong."""
        for stage, problem in problems.items():
            place = stages[stage].place
            if place.device == "CPU":
                continue
            about = describe_device(the_core(), place.device).about
            for sizes, compiled in stages[stage].graphs.items():
                took_s = round(compiled.compile_s, 1)
                verdict = Verdict(problem, str(sizes), self._model, about, ov.get_version(), took_s, recipe.facts)
                self._kept[recipe.entry(sizes, place)] = verdict
                if (directory := recipe.directory(sizes, place)) is not None:
                    cache.use(directory)
                    with contextlib.suppress(OSError):  # what cannot be kept is found again
                        write_text(directory / _FILE, json.dumps(asdict(verdict)))

    def forget(self, recipe: Recipe, stages: Mapping[str, Place]) -> None:
        """Have stages judged anew at the next load."""
        for stage, place in stages.items():
            for sizes in recipe.sizes_of(stage, place):
                self._kept.pop(recipe.entry(sizes, place), None)
                if (directory := recipe.directory(sizes, place)) is not None:
                    with contextlib.suppress(OSError):
                        (directory / _FILE).unlink(missing_ok=True)

    def _find(self, recipe: Recipe, sizes: Sizes, place: Place) -> Verdict | None:
        kept = self._kept.get(recipe.entry(sizes, place))
        if kept is not None or (directory := recipe.directory(sizes, place)) is None:
            return kept
        verdict = _read(directory / _FILE)
        if verdict is None or verdict.facts != recipe.facts:
            return None
        cache.use(directory)
        # What is compiled anew is judged anew, unless it is known to be wrong.
        return verdict if verdict.problem or any(directory.glob("*.blob")) else None


def accelerated(chosen: Mapping[str, Place]) -> dict[str, Place]:
    """Return the stages that are not on the CPU."""
    return {stage: place for stage, place in chosen.items() if place.device != "CPU"}


def kept_verdicts(base: Path) -> Iterator[Verdict]:
    """Yield all verdicts in a cache, the newest first."""
    for path in sorted(base.glob(f"*/{_FILE}"), key=lambda path: -path.stat().st_mtime):
        verdict = _read(path)
        if verdict is not None:
            yield verdict


def _read(path: Path) -> Verdict | None:
    """Return a verdict; None if the file is missing or damaged."""
    if path.is_file():
        with contextlib.suppress(ModelError):
            return converted(read_json(path, max_bytes=_MOST_BYTES), Verdict, path)
    return None


class Trial:
    """Has a model's devices compute the same speech again and again, beside what they compute for people."""

    def __init__(self, runtime: Runtime, token: int, before: Callable[[], None]) -> None:
        """Make infer requests for the shortest windows, which need little.

        token : starts a transcript
        before : called before each run of a graph; it may wait
        """
        self.of = runtime
        self._runtime = runtime.another(runtime.windows_s[:1])
        self._runtime.call_before(before)
        self._token = token
        self._first: dict[str, FloatArray] = {}

    def problem(self) -> InferenceError | None:
        """Return what is wrong if a device computes something else by now than it did at first, or fails."""
        runtime = self._runtime
        try:
            found = run_stages(runtime, mel_of(known_speech(), runtime.windows_s[0], runtime), self._token)
        except InferenceError as error:
            return error
        self._first = self._first or found
        for stage, expected in self._first.items():
            distance, device = distance_of(expected, found[stage]), runtime.devices[stage]
            if device != "CPU" and not distance <= TOLERANCE:
                text = (
                    f"{device} computes the {stage} wrongly by now: in speech it differs from what it computed before"
                    f" by {distance:.2g}, expected at most {TOLERANCE}; see `streamer doctor`"
                )
                return InferenceError(text, stage, hopeless=True)
        return None
