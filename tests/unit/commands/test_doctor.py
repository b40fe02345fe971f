"""`streamer doctor`: its table, and checks that crash or hang."""

import io
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamer.commands import doctor
from streamer.commands.doctor import CHECKS, REPORT, TABLE_WIDTH, check_apart, diagnose, show
from streamer.commands.invocation import Invocation
from streamer.findings import Finding
from streamer.settings.table import Settings
from tests.findings import OK, PROBLEM, WARNING, expect
from tests.waiting import WAIT_S


def answered(monkeypatch: pytest.MonkeyPatch, code: str, timeout_s: float = WAIT_S) -> Finding:
    """Return the only finding of a check whose process runs `code`."""
    monkeypatch.setattr(doctor, "ANSWER", code)
    (found,) = check_apart("OpenVINO", Settings(), timeout_s).values()
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_answers_from_another_process(name: str) -> None:
    found = check_apart(name, Settings(), WAIT_S)
    assert found
    assert not any("exit code" in finding.found for finding in found.values()), found


def test_names_that_are_no_text_are_checked() -> None:
    settings = Settings().having({"model.name": "no\udcffmodel", "model.cache_dir": "/dev/null/\udcff"})
    found = check_apart("Files", settings, WAIT_S)
    expect(found["Model"], PROBLEM, r"there is no model 'no\udcffmodel'")
    expect(found["Compiled graphs"], PROBLEM, "/dev/null/\udcff cannot be made")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os, sys; print('driver: no', file=sys.stderr, flush=True); os._exit(66)", "exit code 66, driver: no"),
        ("raise SystemExit(3)", "exit code 3, without a message"),
        ("raise RuntimeError('no driver')", "exit code 1, RuntimeError: no driver"),
        ("print('ALSA: hello')", "exit code 0, without a message"),
    ],
)
def test_a_check_that_crashes(monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    expect(answered(monkeypatch, code), PROBLEM, words, "update the drivers of NPU and GPU")


def test_output_of_libraries_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """print('ALSA: hello'); print('{"OpenVINO": {"severity": "ok", "found": "fine"}}')"""
    expect(answered(monkeypatch, code), OK, "fine")


def test_a_check_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: Any, **arguments: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - passed on
        started.append(popen(*args, **arguments))
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    expect(answered(monkeypatch, "import time; time.sleep(600)", 0.2), PROBLEM, "no answer within 0.2 s", "pip install")
    assert [process.poll() is not None for process in started] == [True]


def test_another_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    (found,) = check_apart("Port", Settings()).values()
    expect(found, PROBLEM, "cannot be started", "install streamer again")


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_shows_all_and_counts(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    findings = {
        "One": Finding(OK, "[bold]fine"),
        "Two": Finding(WARNING, "so so " * 30, "mend [it]"),
        "Three": Finding(PROBLEM, "bad", "mend it"),
    }
    assert show(findings, console) == 1
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= min(width, TABLE_WIDTH)
    for word in ("[bold]fine", "to do: mend [it]", "ok", "warning", "problem"):
        assert word in text
    assert text.endswith("1 problem, 1 warning\n")


def diagnosed(monkeypatch: pytest.MonkeyPatch, config: Path | None, found: Mapping[str, Finding]) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "check_apart", lambda name, settings: {name: found.get(name, Finding(OK, "fine"))})
    console = Console(file=io.StringIO(), width=200)
    exit_code = diagnose(Invocation(config, {}), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(name in text for name in ("Program", *CHECKS))
    # Cells are folded.
    return exit_code, re.sub(r"[\s│]+", "", text)


def test_diagnose_shows_all_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STREAMER_CONFIG", raising=False)
    monkeypatch.setattr("streamer.settings.load.default_config_path", lambda: tmp_path / "none.yaml")
    exit_code, text = diagnosed(monkeypatch, None, {"Port": Finding(WARNING, "so so", "mend it")})
    assert exit_code == 0
    assert f"none:thedefaultshold;{tmp_path / 'none.yaml'}wouldberead" in text
    assert text.endswith("noproblems,1warning")
    (tmp_path / "own.yaml").touch()
    assert str(tmp_path / "own.yaml") in diagnosed(monkeypatch, tmp_path / "own.yaml", {})[1]


def test_the_report_is_text_without_the_persons_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"NPU": Finding(OK, f"AI Boost, {Path.home() / 'x.blob'}, " + "long " * 50)}
    monkeypatch.setattr(doctor, "check_apart", lambda name, settings: found if name == REPORT else {})
    console = Console(file=io.StringIO(), width=80)
    assert diagnose(Invocation(None, {}), console, report=True) == 0
    assert isinstance(console.file, io.StringIO)
    program, npu = console.file.getvalue().splitlines()
    assert program.startswith("Program: streamer ")
    assert npu.startswith(f"NPU: AI Boost, {Path('~') / 'x.blob'}, long long")


def test_the_report_of_this_machine() -> None:
    found = check_apart(REPORT, Settings(), WAIT_S)
    assert {"System", "OpenVINO", "CPU"} <= set(found)
    assert str(Path.home()) not in " ".join(finding.found for finding in found.values())


def test_refused_settings_are_a_problem_and_the_defaults_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    exit_code, text = diagnosed(monkeypatch, Path("nowhere.yaml"), {})
    assert exit_code == 1
    assert "nowhere.yamldoesnotexist" in text
    assert "1problem,nowarnings" in text
