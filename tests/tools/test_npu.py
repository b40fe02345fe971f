"""`python -m tools.npu`, with a compiler that a test scripts."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.whisper.support import NANO
from tools.npu import __main__ as npu
from tools.npu.compiler import Compiled, Compiler


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "results.json"
    monkeypatch.setattr(npu, "RESULTS", path)
    monkeypatch.setattr("os.nice", lambda _: 0)
    return path


def script(monkeypatch: pytest.MonkeyPatch, compiled: Compiled) -> None:
    """Have every graph compile to this."""

    class Scripted:
        def compile(self, model: Path, platform: str, properties: Mapping[str, object]) -> Compiled:
            assert model.is_file()
            assert properties["PERFORMANCE_HINT"] == "LATENCY"
            return compiled

    monkeypatch.setattr(Compiler, "install", lambda folder: Scripted())


COMMAND = [str(NANO), "--weights", "int8-sym", "--platforms", "4000", "--graphs", "cross_kv"]


def test_graphs_that_run_asks_for_are_compiled_and_compared(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(monkeypatch, Compiled(1000.0, 2.0, 3.0, 4.0))
    assert npu.main([*COMMAND, "--write"]) == 0
    known = json.loads(results.read_text(encoding="utf-8"))["nano.en int8-sym 4000"]
    assert sorted(known) == ["cross_kv", "cross_kv (10 s)", "cross_kv (5 s)"]
    assert npu.main(COMMAND) == 0
    capsys.readouterr()

    script(monkeypatch, Compiled(1101.0, 2.0, 3.0, 4.0))
    assert npu.main(COMMAND) == 1
    assert "cross_kv: 1.10 ms, 2 MB, compiled in 3 s with 4 MB; SLOWER than 1.00 ms" in capsys.readouterr().out

    script(monkeypatch, Compiled(refused="compile: unsupported"))
    assert npu.main(COMMAND) == 1
    assert "cross_kv: REFUSED: compile: unsupported" in capsys.readouterr().out


def test_without_wine_it_is_skipped_in_one_line(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert npu.main([*COMMAND, "--folder", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("npu: skipped: wine is not installed")


def test_an_unknown_model_or_platform_is_reported(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(monkeypatch, Compiled())
    assert npu.main(["nowhere"]) == 2
    assert "'nowhere' is not on this machine" in capsys.readouterr().err
    assert npu.main(["huge", "--random"]) == 2
    assert "no size is called 'huge'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        npu.main(["base", "--platforms", "9999"])
