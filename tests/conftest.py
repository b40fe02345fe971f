"""What all tests share."""

import gc
import importlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from streamer.cli import main
from tests.daemon import CACHE_VARIABLE, MODEL_VARIABLE, SAMPLE, Outcome, environment
from tests.refusals import REWRITE, Refusal
from tests.virtual_mic import virtual_microphone

if TYPE_CHECKING:
    from streamer.whisper.model import WhisperModel

__all__ = ["virtual_microphone"]

if sys.platform == "linux" and "PYTEST_XDIST_WORKER" in os.environ:
    # Each of several test processes, with all that it starts, keeps to a core of its own: threads of OpenVINO that wait
    # for others which have no core to run on take many times as long.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % len(cores)]})

# Threads of torch wait for each other longer than steps of so small models take.
os.environ["OMP_NUM_THREADS"] = "1"

# The detector's library is loaded before torch: else it calls torch's OpenMP, which has read no limit (see
# streamer/audio/vad.py), and takes sixteen times the processor time.
importlib.import_module("streamer.audio.vad")

# What torch compiles for GPUs with; no test does, and it tells at the end what of it is left.
sys.modules["triton"] = None  # type: ignore[assignment]

# Time never decides a test, and a machine that is busy with something else is no reason to fail; nor is luck.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=30, derandomize=True)
hypothesis.settings.load_profile("untimed")

# Folders of which every test is slow: they start daemons, or import torch and transformers.
SLOW_FOLDERS = {Path(__file__).parent / name for name in ("e2e", "reference")}

_compiled = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(REWRITE, action="store_true", help="write the sentences of tests/golden/refusals anew")


@pytest.fixture
def refusal(request: pytest.FixtureRequest) -> Refusal:
    """A row of `tests/golden/refusals`."""
    row: Refusal = request.param
    return replace(row, rewrite=bool(request.config.getoption(REWRITE)))


def pytest_configure(config: pytest.Config) -> None:
    """Let all of a run's processes, daemons included, share one directory of compiled graphs, which goes with it."""
    # Where a shell started us in the background, all that is started here would ignore Ctrl-C as we do.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # What is imported and collected stays: to look for garbage among it takes half of the collection's time.
    gc.disable()
    os.environ[MODEL_VARIABLE] = "nano.en"
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.stash[_compiled] = tempfile.TemporaryDirectory(prefix="streamer-compiled-", ignore_cleanup_errors=True)
        os.environ[CACHE_VARIABLE] = config.stash[_compiled].name


def pytest_collection_finish() -> None:
    """Look for garbage from here on, and only in what tests make."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _compiled in config.stash:
        config.stash[_compiled].cleanup()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are processors: many tests wait for audio at the pace of speech."""
    return (os.cpu_count() or 1) + 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out published weights unless they are asked for, and do not even import slow folders without them.

    With torch and transformers the imports take seconds.
    """
    if collection_path == Path(__file__).parent / "reference" / "published":
        return bool(config.option.markexpr != "real")
    return True if config.option.markexpr == "not slow" and collection_path in SLOW_FOLDERS else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(REWRITE):
        items[:] = [item for item in items if "refusal" in getattr(item, "fixturenames", ())]
    for item in items:
        if SLOW_FOLDERS.intersection(item.path.parents):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """The directory of compiled graphs that all tests share."""
    return Path(os.environ[CACHE_VARIABLE])


@pytest.fixture(scope="session")
def model() -> "WhisperModel":
    """The embedded model on the CPU; a test that changes it loads its own."""
    # Here, as it takes a second which many a test does without.
    from streamer.whisper.device.devices import DeviceSettings
    from streamer.whisper.loading import LoadOptions
    from streamer.whisper.model import load_model

    return load_model(str(SAMPLE.parent), LoadOptions(DeviceSettings("CPU")))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with _as_it_was():
        yield


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command to its end as `tests.daemon.command` does, but in this process, which saves starting another."""
    for name in [name for name in os.environ if name not in environment()]:
        monkeypatch.delenv(name)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        with _as_it_was():
            try:
                exit_code = main([str(argument) for argument in arguments])
            except SystemExit as left:  # argparse's way
                exit_code = int(left.code or 0)
        return Outcome(exit_code, *capfd.readouterr())

    return run


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Undo what a command changes in its process: how it logs, and what signals do."""
    loggers = [logging.getLogger(name) for name in ("", "streamer", "streamer.access")]
    handlers, levels = loggers[0].handlers[:], [logger.level for logger in loggers]
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        loggers[0].handlers[:] = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
