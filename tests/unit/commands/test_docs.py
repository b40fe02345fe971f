"""The documentation that comes with the program, and what shells are told."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.commands import docs
from tests.daemon import WAIT_S, Outcome
from tests.unit.whisper.support import ROOT

Run = Callable[..., Outcome]


def test_pages_are_listed_and_printed(run_here: Run) -> None:
    pages = run_here("docs").stdout.split()
    assert {"models", "protocol", "streaming"} <= set(pages)
    for page in pages:
        assert run_here("docs", page).stdout == (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["nothing", "../README"])
def test_other_pages_are_refused(run_here: Run, page: str) -> None:
    outcome = run_here("docs", page)
    assert outcome.exit_code == 2
    assert f"there is no page '{page}'" in outcome.stderr


def test_a_wheel_has_them_where_they_are_looked_for() -> None:
    assert [folder.relative_to(ROOT).as_posix() for folder in docs.FOLDERS] == ["streamer/docs", "docs"]
    assert '"docs" = "streamer/docs"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_shell_is_told_how_to_complete(run_here: Run, shell: str) -> None:
    assert "_ARGCOMPLETE" in run_here("completion", shell).stdout


def test_what_could_come_next_is_answered(tmp_path: Path) -> None:
    answer, line = tmp_path / "answer", "streamer transcribe --vad-f"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run([sys.executable, "-m", "streamer"], env={**os.environ, **asked}, check=False, timeout=WAIT_S)
    assert "--vad-filter" in answer.read_text(encoding="utf-8")
