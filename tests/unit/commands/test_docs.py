"""The documentation that comes with the program, and what shells are told."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.commands import docs
from tests.daemon import REPOSITORY, Outcome
from tests.waiting import WAIT_S

Run = Callable[..., Outcome]


def test_pages_are_listed_and_printed(run_here: Run) -> None:
    pages = run_here("docs").stdout.split()
    assert pages == sorted(path.stem for path in (REPOSITORY / "docs").glob("*.md"))
    for page in pages:
        assert run_here("docs", page).stdout == (REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8")


def test_a_wheel_has_them_where_they_are_looked_for() -> None:
    assert [folder.relative_to(REPOSITORY).as_posix() for folder in docs.FOLDERS] == ["streamer/docs", "docs"]
    assert '"docs" = "streamer/docs"' in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_shell_is_told_how_to_complete(run_here: Run, shell: str) -> None:
    assert "_ARGCOMPLETE" in run_here("completion", shell).stdout


def test_what_could_come_next_is_answered(tmp_path: Path) -> None:
    answer, line = tmp_path / "answer", "streamer transcribe --vad-f"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    subprocess.run([sys.executable, "-m", "streamer"], env={**os.environ, **asked}, check=False, timeout=WAIT_S)
    assert "--vad-filter" in answer.read_text(encoding="utf-8")
