"""The published models, ours and openai-whisper's, and the last lines of `make real`."""

import os
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from streamer.errors import UsageError
from tests.reference.published.parity import MODELS, Pair
from tests.reference.standard import openai_whisper
from tests.unit.whisper.support import load_on_cpu
from tools.benchmarks.peers.environment import default_folder, n_cores
from tools.benchmarks.published import PublishedModel


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tokens were equal, by model and options, and what each numerical tie was."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "note":
                    terminalreporter.write_line(str(value))
                else:
                    sums[name] = [a + b for a, b in zip(sums[name], (*value, 1), strict=True)]
    for name, (n_equal, n, n_recordings) in sums.items():
        terminalreporter.write_line(f"{name}: {n_equal} of {n} equal, {n_recordings} recordings")


@pytest.fixture(scope="session", params=MODELS)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PublishedModel:
    """A published model on this machine; REAL_WEIGHTS names a folder that holds them by their names."""
    given = str(Path(os.environ.get("REAL_WEIGHTS", ""), request.param))
    model = PublishedModel(given, tmp_path_factory.mktemp(request.param), default_folder())
    try:
        assert model.path
    except UsageError as error:
        pytest.skip(str(error))
    return model


@pytest.fixture(scope="session")
def pair(published: PublishedModel) -> Pair:
    """Our model and openai-whisper's, in float32, of the same file."""
    torch.set_num_threads(n_cores())  # one is what tests of small models take
    ours = load_on_cpu(published.path, published.temporary, n_beams=5)
    theirs = openai_whisper(published.checkpoint(), ours.generation.alignment_heads).float()
    return Pair(published.name, ours, theirs)
