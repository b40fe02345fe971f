"""Plug-ins of other packages: the documented one, broken ones, and those that take a name of ours."""

import importlib.metadata
import math
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamer import entry_points
from tests.daemon import REPOSITORY, Outcome, environment
from tests.waiting import WAIT_S

SPEECH = REPOSITORY / "tests" / "data" / "speech.flac"


def installed(folder: Path, points: str, **modules: str) -> dict[str, str]:
    """Put a package where the program finds it; return the environment for that."""
    information = folder / "streamer_other-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: streamer-other\nVersion: 1.0\n", "utf-8")
    (information / "entry_points.txt").write_text(points, "utf-8")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    return environment({"PYTHONPATH": os.pathsep.join((str(folder), str(REPOSITORY)))})


def run(variables: dict[str, str], *arguments: str) -> Outcome:
    command = [sys.executable, "-m", "streamer", *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=variables, check=False, timeout=WAIT_S)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_the_documented_plugin_can_be_installed_and_run(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "plugins.md").read_text(encoding="utf-8")
    for language, name in (("toml", "pyproject.toml"), ("python", "streamer_udp.py")):
        (fence,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        (tmp_path / name).write_text(fence, encoding="utf-8")
    place = tmp_path / "place"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(place), str(tmp_path)], check=True, timeout=WAIT_S)
    variables = environment({"PYTHONPATH": os.pathsep.join((str(place), str(REPOSITORY)))})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(WAIT_S)
        port = receiver.getsockname()[1]
        flags = ["--to", f"udp:127.0.0.1:{port}", "--udp-prefix", "> ", "--input", str(SPEECH), "--speed", "0"]
        ran = run(variables, "run", *flags, "--exit-at-end", "--no-captions", "--port", "0")
        assert ran.exit_code == 0, ran.stderr
        assert receiver.recv(65_536).startswith(b"> ")


def names(**values: str) -> list[importlib.metadata.EntryPoint]:
    return [importlib.metadata.EntryPoint(name, value, "streamer.tests") for name, value in values.items()]


def test_what_fits_is_loaded_and_what_does_not_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = names(pow="math:pow", pi="math:pi", gone="no_such_module:x", none="math:no_such_name")
    packages = [SimpleNamespace(entry_points=points) for points in (first, names(pow="math:sqrt", sin="math:sin"))]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: packages)
    module = runpy.run_path(entry_points.__file__)
    assert module["names"]("streamer.tests") == ["gone", "none", "pi", "pow", "sin"]
    assert module["names"]("streamer.others") == []
    assert module["load"]("streamer.tests", "pow", callable) is math.pow
    for _ in range(2):
        assert module["load_all"]("streamer.tests", callable) == {"pow": math.pow, "sin": math.sin}
    assert [message.split()[1] for message in caplog.messages] == ["gone", "none", "pi"]


def test_a_broken_plugin_costs_a_warning_and_itself(tmp_path: Path) -> None:
    points = "[streamer.commands]\nshout = broken:SHOUT\n[streamer.settings]\nshouting = broken:Settings\n"
    points += "[streamer.outputs]\nshout = broken:make\n"
    variables = installed(tmp_path, points, broken="raise ImportError('no module named loudness\\x1b[2J')")
    helped = run(variables, "--help")
    assert (helped.exit_code, " run " in helped.stdout, "shout" in helped.stdout) == (0, True, False)
    settings, command = helped.stderr.splitlines()
    assert (" shouting of streamer-other " in settings, " shout of streamer-other " in command) == (True, True)
    assert "loudness [2J" in settings
    # What the configuration says of it is let through, so that the daemon starts.
    assert run({**variables, "STREAMER_SHOUTING_VOLUME": "11"}, "config", "show").exit_code == 0
    ran = run(variables, "run", "--to", "shout", "--input", str(SPEECH), "--port", "0")
    assert (ran.exit_code, "--to shout" in ran.error()) == (2, True)


OTHER = """
from pathlib import Path
from typing import Annotated
import msgspec
from streamer.commands.signature import Arg, Flags
from streamer.protocols.root import Root
from streamer.server.routes import SOCKETS, Socket, all_sockets
from streamer.settings.setting import Help
from streamer.settings.table import Settings

class Theirs(msgspec.Struct, frozen=True, kw_only=True):
    '''Theirs.'''
    port: Annotated[int, Help("theirs")] = 1
    level: Annotated[int, Help("theirs", flag="--port", commands=("run",))] = 1
    theirs: Annotated[str, Help("theirs")] = ""

def run(settings: Annotated[Settings, Flags()]) -> int:
    '''Theirs.'''
    return 3

def unknown(settings: Annotated[Settings, Flags(("nothing.known",))]) -> int:
    '''Theirs.'''
    return 3

def twice(*, config: Annotated[Path | None, Arg("theirs")] = None) -> int:
    '''Theirs.'''
    return 3

def show(settings: Annotated[Settings, Flags(("server.theirs",))]) -> int:
    '''Theirs.'''
    ours = all(all_sockets()[path] is socket for path, socket in SOCKETS.items())
    print("ours" if ours else "theirs", "/v1/theirs" in all_sockets())
    return 0

STREAM = Socket(lambda query, headers: Root(), path="/v1/stream")
THEIRS = Socket(lambda query, headers: Root(), path="/v1/theirs")
"""
POINTS = """
[streamer.commands]
run = other:run
show = other:show
unknown = other:unknown
twice = other:twice
[streamer.settings]
server.other = other:Theirs
[streamer.protocols]
stream = other:STREAM
theirs = other:THEIRS
"""


def test_no_plugin_takes_the_place_of_what_is_ours(tmp_path: Path) -> None:
    variables = installed(tmp_path, POINTS, other=OTHER)
    ran = run(variables, "show", "--theirs", "x")
    assert (ran.exit_code, ran.stdout) == (0, "ours True\n"), ran.stderr
    shown = run(variables, "config", "show").stdout
    assert ("  port: 8765 " in shown, "  theirs: " in shown) == (True, True)
    assert "the daemon: captions live audio" in run(variables, "--help").stdout
    # Commands and flags that cannot be added cost a warning each.
    helped = run(variables, "run", "--help")
    assert helped.stdout.count("\n  --port ") == 1
    assert (helped.stderr.count("\n"), "server.level" in helped.stderr) == (1, True)
    for name in ("unknown", "twice"):
        warning, error = run(variables, name).stderr.splitlines()
        assert (f" {name} " in warning, f"'{name}'" in error) == (True, True)
