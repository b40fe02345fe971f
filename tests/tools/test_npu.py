"""`python -m tools.npu`, with a program in the place of wine."""

import json
import sys
from pathlib import Path

import pytest

from tests.unit.whisper.support import NANO
from tools.npu import __main__ as npu
from tools.npu import compiler

# Called as `wine compile.exe Z:MODEL.xml Z:BLOB ...`. The first run has no memory; then it does what `answer` says.
WINE = f"""#!{sys.executable}
import pathlib, sys
folder = pathlib.Path(__file__).parent
if not (folder / "ran").exists():
    (folder / "ran").touch()
    sys.exit("FAILED compile: std::bad_alloc")
answer = (folder / "answer").read_text()
print(answer)
if "FAILED" not in answer:
    pathlib.Path(sys.argv[3].removeprefix("Z:").replace(chr(92), "/")).write_bytes(b"blob")
"""
REFUSED = "[ERROR] 10:00:00.123 [vpux-compiler] OptimizeCopies Pass failed : shape\nFAILED compile: Exception"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="stands in for wine, which is for other systems")
def test_graphs_are_compiled_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for program in ("wine", compiler.MINGW):
        (tmp_path / program).write_text(WINE, encoding="utf-8")
        (tmp_path / program).chmod(0o755)
    (tmp_path / "openvino" / "libs").mkdir(parents=True)
    (tmp_path / "openvino" / "libs" / "compile.exe").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(compiler, "PAUSE_S", 0.0)
    monkeypatch.setattr(npu, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr("os.nice", lambda _: 0)
    command = [str(NANO), "--weights", "int8-sym", "--platforms", "4000", "--graphs", "cross_kv"]

    def run(answer: str, *more: str) -> tuple[int, str]:
        (tmp_path / "answer").write_text(answer, encoding="utf-8")
        code = npu.main([*command, "--folder", str(tmp_path), *more])
        return code, capsys.readouterr().out

    estimated = "[INFO] Estimated inference latency: {} us"
    assert run(estimated.format(1000.0), "--write")[0] == 0
    known = json.loads(npu.RESULTS.read_text(encoding="utf-8"))["nano.en int8-sym 4000"]
    assert sorted(known) == ["cross_kv", "cross_kv (10 s)", "cross_kv (5 s)"]
    command[-1] = "(5 s)"
    code, printed = run(estimated.format(1101.0))
    assert (code, "; SLOWER than 1.00 ms" in printed) == (1, True)
    code, printed = run(REFUSED)
    assert (code, "REFUSED: [vpux-compiler] OptimizeCopies Pass failed : shape" in printed) == (1, True)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert run("")[0] == 0  # skipped without wine
