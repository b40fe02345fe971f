"""`streamer type` where something is missing: one line that says what."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon import Outcome
from tests.stand_ins import StandIns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tools are Linux's")


@pytest.mark.parametrize(
    ("environ", "arguments", "exit_code", "message"),
    [
        ({"WAYLAND_DISPLAY": ""}, (), 1, "no desktop is here: expected WAYLAND_DISPLAY or DISPLAY in the environment"),
        (
            {"PATH": "/nowhere"},
            (),
            1,
            "nothing that types or copies is installed: expected wtype, or for GNOME ydotool 1.0",
        ),
        ({"WAYLAND_DISPLAY": "", "DISPLAY": ":97"}, (), 1, "the X server ':97' cannot be reached"),
        ({}, (), 1, "start one with `streamer run`"),
        ({}, ("--key", "F9"), 2, "wayland lets no program see a key"),
    ],
)
def test_what_is_missing_is_one_line(
    run_here: Callable[..., Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    arguments: tuple[str, ...],
    exit_code: int,
    message: str,
) -> None:
    tools = StandIns(tmp_path / "bin")
    tools.add("wtype")
    monkeypatch.delenv("DISPLAY", raising=False)
    found = {"PATH": str(tools.folder), "WAYLAND_DISPLAY": "wayland-9", "XDG_CACHE_HOME": str(tmp_path), **environ}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    done = run_here("type", "--daemon", "127.0.0.1:9", *arguments)
    assert message in done.error()
    assert done.exit_code == exit_code
