"""What the command line refuses: one line, and nothing is written."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.server.tokens import TokenFile, new_token
from tests.daemon import Outcome
from tests.refusals import Refusal, refusals
from tests.unit.commands.support import keep_mornings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present directory of commands, with files that can be refused, and somebody's token on standard input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("a token of somebody\n"))
    Path("empty").mkdir()
    Path("file").touch()
    Path("bad.yaml").write_text("server:\n  prot: 1\n", encoding="utf-8")
    for name in ("clip.wav", "talk.wav"):
        soundfile.write(name, np.zeros(800, dtype=np.float32), SAMPLE_RATE)
    Path("talk.txt").write_bytes(b"\xff\xfe\xff")
    keep_mornings(Path("history.db"), "abc1", "abd2")
    TokenFile(Path("tokens.json")).change(lambda tokens: (*tokens, new_token("phone", scopes=("read",))[1]))
    return tmp_path


def files(folder: Path) -> dict[Path, bytes]:
    """Return the contents of all files, without those that SQLite keeps beside a database."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in found if path.name.partition(".db")[2] in ("", path.name)}


@refusals("commands")
def test_a_refused_command_is_one_line_and_changes_nothing(
    refusal: Refusal, folder: Path, run_here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMER_SERVER_TOKEN_FILE", "tokens.json")
    variables = [argument for argument in refusal.given if argument.startswith("STREAMER_")]
    for variable in variables:
        monkeypatch.setenv(*variable.split("="))
    before = files(folder)
    done = run_here(*refusal.given[len(variables) :])
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    says = re.sub(r"\(choose from .*\)", "(choose from ...)", line)  # versions of Python quote them differently
    says = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", says)
    refusal.check(str(done.exit_code), "", says)
    assert files(folder) == before
