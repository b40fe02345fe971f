"""`python -m tools.npu`, with a compiler that a test scripts."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.whisper.support import NANO
from tools.npu import __main__ as npu
from tools.npu import compiler as npu_compiler
from tools.npu.compiler import Compiled, Compiler, why_refused


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


def test_a_refusal_says_what_the_compiler_reported() -> None:
    failed = "FAILED compile: Exception from core.cpp:120:\nvclCreate result: 0x78000004 - Compilation failed\n"
    assert why_refused("[INFO] 10:00:00.000 [vpux] net\n" + failed).endswith("0x78000004 - Compilation failed")
    reported = "[ERROR] 10:00:00.123 [vpux-compiler] OptimizeCopies Pass failed : shape = [1, 1, 1, 1500]\n"
    expected = "[vpux-compiler] OptimizeCopies Pass failed : shape = [1, 1, 1, 1500]"
    assert why_refused(reported + "[ERROR] 10:00:00.124 [vpux-compiler] Failed Pass\n" + failed) == expected


# A program in the place of wine, called as `wine compile.exe Z:MODEL.xml Z:BLOB ...`. The first run has no memory.
WINE = f"""#!{sys.executable}
import pathlib, sys
if not pathlib.Path("ran").exists():
    pathlib.Path("ran").touch()
    sys.exit("FAILED compile: std::bad_alloc")
print("[INFO] Estimated inference latency: 12.5 us")
pathlib.Path(sys.argv[3].removeprefix("Z:").replace(chr(92), "/")).write_bytes(b"blob")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="stands in for wine, which is for other systems")
def test_a_compiler_without_memory_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wine = tmp_path / "wine"
    wine.write_text(WINE, encoding="utf-8")
    wine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(npu_compiler, "PAUSE_S", 0.0)
    compiled = Compiler(tmp_path).compile(tmp_path / "graph.xml", "4000", {})
    assert (compiled.refused, compiled.estimate_us) == ("", 12.5)
    assert not list(tmp_path.glob("*.blob"))
