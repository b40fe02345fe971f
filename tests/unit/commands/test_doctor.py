"""`streamer doctor`: its table, and checks that crash or hang."""

import re
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from streamer.commands import doctor
from streamer.commands.doctor import CHECKS, REPORT, TABLE_WIDTH, check_apart, show
from streamer.commands.invocation import Invocation
from streamer.findings import Finding
from streamer.settings.table import ModelSettings, Settings
from streamer.setup.fit import Speed
from tests.findings import OK, PROBLEM, WARNING, expect
from tests.unit.commands.support import Paper
from tests.waiting import WAIT_S


@pytest.fixture(autouse=True)
def _no_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STREAMER_CONFIG", raising=False)
    monkeypatch.setattr("streamer.settings.load.default_config_path", lambda: tmp_path / "none.yaml")


def answered(monkeypatch: pytest.MonkeyPatch, code: str, timeout_s: float = WAIT_S) -> Finding:
    """Return the only finding of a check whose process runs `code`."""
    monkeypatch.setattr(doctor, "ANSWER", code)
    (found,) = check_apart("OpenVINO", Settings(), timeout_s).values()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_each_check_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Speed, "measured", lambda: Speed(flops=1e12, step_bytes=1e11, block_bytes=1e11))
    # What asks drivers and sound servers runs apart, as they may hang.
    is_apart = name in ("OpenVINO", "PortAudio", "System sound")
    found = check_apart(name, Settings(), WAIT_S) if is_apart else CHECKS[name].run(Settings())
    assert found
    assert not any("exit code" in finding.found for finding in found.values()), found


def test_names_that_are_not_text_are_checked_in_another_process() -> None:
    settings = Settings(model=ModelSettings(name="no\udcffmodel", cache_dir="/dev/null/\udcff"))
    found = check_apart("Files", settings, WAIT_S)
    expect(found["Model"], PROBLEM, r"no\udcffmodel")
    expect(found["Compiled graphs"], PROBLEM, "/dev/null/\udcff")


def test_which_model_auto_stands_for_is_found_by_the_speed() -> None:
    named = Settings(model=ModelSettings(name="nano.en"))
    assert ["Model" in CHECKS["Files"].run(settings) for settings in (Settings(), named)] == [False, True]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os, sys; print('driver: no', file=sys.stderr, flush=True); os._exit(66)", "66, driver: no"),
        ("raise RuntimeError('no driver')", "1, RuntimeError: no driver"),
        ("print('ALSA: hello')", "0, "),
    ],
)
def test_a_check_that_crashes_is_a_problem(monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    fine = """print('ALSA: hello'); print('{"OpenVINO": {"severity": "ok", "found": "fine"}}')"""
    expect(answered(monkeypatch, fine), OK, "fine")
    expect(answered(monkeypatch, code), PROBLEM, f"exit code {words}", CHECKS["OpenVINO"].remedy)


def test_a_check_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answered(monkeypatch, "import time; time.sleep(600)", 0.2)
    expect(found, PROBLEM, "0.2 s", CHECKS["OpenVINO"].remedy)
    assert [child.status() for child in psutil.Process().children() if "time.sleep(600)" in child.cmdline()] == []


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_shows_all_and_counts(width: int) -> None:
    bad, good = {"Three": Finding(PROBLEM, "bad", "mend it")}, {"One": Finding(OK, "[bold]fine")}
    paper = Paper(width)
    assert show({**good, "Two": Finding(WARNING, "so so " * 30, "mend [it]"), **bad}, paper) == 1
    assert max(map(len, paper.text.splitlines())) == min(width, TABLE_WIDTH)
    for word in ("[bold]fine", "to do: mend [it]", "ok", "warning", "problem"):
        assert word in paper.text
    assert paper.text.endswith("1 problem, 1 warning\n")
    paper = Paper()
    assert show(good, paper) == 0
    assert paper.text.endswith("no problems, no warnings\n")


def diagnosed(monkeypatch: pytest.MonkeyPatch, config: Path | None, found: Mapping[str, Finding]) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "check_apart", lambda name, settings: {name: found.get(name, Finding(OK, "fine"))})
    paper = Paper()
    monkeypatch.setattr(doctor, "make_console", lambda: paper)
    exit_code = doctor.doctor(invocation=Invocation(config, {}))
    assert all(name in paper.text for name in ("Program", *CHECKS))
    # Cells are folded.
    return exit_code, re.sub(r"[\s│]+", "", paper.text)


def test_all_checks_and_the_configuration_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    exit_code, text = diagnosed(monkeypatch, None, {"Port": Finding(WARNING, "so so", "mend it")})
    assert (exit_code, f"{tmp_path / 'none.yaml'}" in text, text.endswith("noproblems,1warning")) == (0, True, True)
    (tmp_path / "own.yaml").touch()
    assert str(tmp_path / "own.yaml") in diagnosed(monkeypatch, tmp_path / "own.yaml", {})[1]
    exit_code, text = diagnosed(monkeypatch, Path("nowhere.yaml"), {})
    assert (exit_code, "nowhere.yaml" in text, text.endswith("1problem,nowarnings")) == (1, True, True)


def test_the_report_is_text_without_the_persons_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"NPU": Finding(OK, f"AI Boost, {Path.home() / 'x.blob'}, " + "long " * 50)}
    monkeypatch.setattr(doctor, "check_apart", lambda name, settings: found if name == REPORT else {})
    paper = Paper(80)
    monkeypatch.setattr(doctor, "make_console", lambda: paper)
    assert doctor.doctor(report=True, invocation=Invocation(None, {})) == 0
    program, npu = paper.text.splitlines()
    assert program.startswith("Program: streamer ")
    assert npu.startswith(f"NPU: AI Boost, {Path('~') / 'x.blob'}, long long")
