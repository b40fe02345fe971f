"""Plug-ins of other packages: the documented one, broken ones, and those that take a name of ours."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import REPOSITORY, SAMPLE, Outcome, environment
from tests.waiting import WAIT_S

# What the program says of a plug-in that cannot be imported.
LEFT_OUT = "plug-in {name} of streamer-other is left out: "


def installed(folder: Path, entry_points: str, **modules: str) -> dict[str, str]:
    """Put a package where the program finds it; return the environment for that."""
    information = folder / "streamer_other-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: streamer-other\nVersion: 1.0\n", "utf-8")
    (information / "entry_points.txt").write_text(entry_points, "utf-8")
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
        flags = ["--to", f"udp:127.0.0.1:{port}", "--udp-prefix", "> ", "--input", str(SAMPLE), "--speed", "0"]
        ran = run(variables, "run", *flags, "--exit-at-end", "--no-captions", "--port", "0")
        assert ran.exit_code == 0, ran.stderr
        assert receiver.recv(65_536).startswith(b"> ")


def test_a_broken_plugin_costs_a_warning_and_itself(tmp_path: Path) -> None:
    points = "[streamer.commands]\nshout = broken:SHOUT\n[streamer.settings]\nshouting = broken:Settings\n"
    variables = installed(tmp_path, points, broken="raise ImportError('no module named loudness\\x1b[2J')")
    helped = run(variables, "--help")
    assert helped.exit_code == 0
    assert " run " in helped.stdout
    assert "shout" not in helped.stdout
    warnings = helped.stderr.splitlines()
    assert [LEFT_OUT.format(name=name) in line for name, line in zip(("shouting", "shout"), warnings, strict=True)]
    assert "loudness [2J" in warnings[0]
    # What the configuration says of it is let through, so that the daemon starts.
    config = tmp_path / "config.yaml"
    config.write_text("shouting:\n  volume: 11\n", encoding="utf-8")
    shown = run({**variables, "STREAMER_SHOUTING_VOLUME": "11"}, "config", "show", "--config", str(config))
    assert shown.exit_code == 0, shown.stderr


def test_what_a_plugin_names_has_to_be_what_the_group_takes(tmp_path: Path) -> None:
    points = "[streamer.commands]\nshout = plain:SHOUT\n"
    helped = run(installed(tmp_path, points, plain="SHOUT = 'shout'"), "--help")
    assert (helped.exit_code, "shout" in helped.stdout) == (0, False)
    assert "is not what streamer.commands takes" in helped.stderr


def test_a_plugin_whose_flags_cannot_be_added_costs_these_flags(tmp_path: Path) -> None:
    other = """
import msgspec
from streamer.commands.table import Subcommand, argument
from streamer.settings.setting import section, setting

@section
class Theirs(msgspec.Struct, frozen=True, kw_only=True):
    '''Theirs.'''
    level: int = setting(1, "theirs", flag="--port", commands=("run",))

UNKNOWN = Subcommand("unknown", "theirs", "other:show", ("nothing.known",))
TWICE = Subcommand("twice", "theirs", "other:show", (argument("--config"),))
"""
    points = "[streamer.commands]\nunknown = other:UNKNOWN\ntwice = other:TWICE\n"
    points += "[streamer.settings]\ntheirs = other:Theirs\n"
    helped = run(installed(tmp_path, points, other=other), "run", "--help")
    assert (helped.exit_code, helped.stdout.count("\n  --port ")) == (0, 1), helped.stderr
    assert len(helped.stderr.splitlines()) == 3
    assert "the plug-in's command unknown is left out: KeyError 'nothing.known'" in helped.stderr
    assert "theirs.level has no flag of `streamer run`" in helped.stderr


def test_no_plugin_takes_the_place_of_a_command_a_setting_or_an_address_of_ours(tmp_path: Path) -> None:
    other = """
import msgspec
from streamer.commands.table import Subcommand
from streamer.protocols.root import Root
from streamer.server.routes import SOCKETS, Socket, all_sockets
from streamer.settings.setting import section, setting

@section
class Server(msgspec.Struct, frozen=True, kw_only=True):
    '''Theirs.'''
    port: int = setting(1, "theirs")
    theirs: str = setting("", "theirs")

def show() -> int:
    ours = all(all_sockets()[path] is socket for path, socket in SOCKETS.items())
    print("ours" if ours else "theirs", "/v1/theirs" in all_sockets())
    return 0

RUN = Subcommand("run", "theirs", "other:show")
SHOW = Subcommand("show", "theirs", "other:show", ("server.theirs",))
STREAM = Socket(lambda query, headers: Root(), path="/v1/stream")
THEIRS = Socket(lambda query, headers: Root(), path="/v1/theirs")
"""
    points = (
        "[streamer.commands]\nrun = other:RUN\nshow = other:SHOW\n[streamer.settings]\nserver.other = other:Server\n"
    )
    points += "[streamer.protocols]\nstream = other:STREAM\ntheirs = other:THEIRS\n"
    variables = installed(tmp_path, points, other=other)
    ran = run(variables, "show", "--theirs", "x")
    assert (ran.exit_code, ran.stdout) == (0, "ours True\n"), ran.stderr
    shown = run(variables, "config", "show")
    assert "  port: 8765 " in shown.stdout
    assert "  theirs: " in shown.stdout
    assert "the daemon: captions live audio" in run(variables, "--help").stdout


def test_an_output_whose_plugin_is_broken_says_so(tmp_path: Path) -> None:
    points = "[streamer.outputs]\nshout = broken:make\n"
    variables = installed(tmp_path, points, broken="import nothing_of_this_name")
    ran = run(variables, "run", "--to", "shout", "--input", str(SAMPLE), "--port", "0")
    assert (ran.exit_code, ran.error()) == (
        2,
        "streamer: error: --to shout cannot be used: its plug-in is broken; the warning above says why",
    )
