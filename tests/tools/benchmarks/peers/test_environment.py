"""Environments of peers: made once, and one line where they cannot be."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.benchmarks.peers.environment import Environment, PeerUnavailable, last_line, run, variables_of_peer


class Installer:
    """Takes the place of venv and pip."""

    def __init__(self, place: Path, failing: str = "") -> None:
        self.calls: list[str] = []
        self._place = place
        self._failing = failing

    def __call__(self, command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[bytes]":
        call = " ".join(command[1:])
        self.calls.append(call)
        if "venv" in call:
            for folder, name in (("bin", "python"), ("Scripts", "python.exe")):
                (self._place / folder).mkdir(parents=True)
                (self._place / folder / name).touch()
        if self._failing and self._failing in call:
            return subprocess.CompletedProcess(command, 1, b"", b"Looking\nERROR: no wheel\n\nnotice: a new pip\n")
        return subprocess.CompletedProcess(command, 0, b"", b"")


def test_an_environment_is_made_once_and_again_when_it_should_hold_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "peer"
    installer = Installer(place)
    monkeypatch.setattr(subprocess, "run", installer)
    first = Environment("peer", (("torch==1",), ("--no-deps", "peer==2")))
    interpreter = first.python(tmp_path)
    assert interpreter.is_relative_to(place)
    pip = "-m pip install --disable-pip-version-check --quiet"
    assert installer.calls == [f"-m venv {place}", f"{pip} torch==1", f"{pip} --no-deps peer==2"]

    assert first.python(tmp_path) == interpreter
    assert len(installer.calls) == 3
    assert Environment("peer", (("torch==1",),)).python(tmp_path) == interpreter
    assert len(installer.calls) == 5


def test_what_cannot_be_installed_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer = Installer(tmp_path / "peer", failing="other")
    monkeypatch.setattr(subprocess, "run", installer)
    environment = Environment("peer", (("one",), ("other",), ("third",)))
    for n_calls in (3, 6):
        with pytest.raises(PeerUnavailable, match="peer: pip could not install other: ERROR: no wheel"):
            environment.python(tmp_path)
        assert len(installer.calls) == n_calls


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PeerUnavailable, match="name another folder with --peers-folder DIR"):
        Environment("peer", ()).python(tmp_path / "file")


def test_a_program_that_fails_is_told_with_its_last_line() -> None:
    assert run("peer", [sys.executable, "-c", "print('fine')"]).strip() == "fine"
    with pytest.raises(PeerUnavailable, match="peer: ValueError: no weights"):
        run("peer", [sys.executable, "-c", "raise ValueError('no weights')"])
    with pytest.raises(PeerUnavailable, match="peer: "):
        run("peer", ["./no-such-program"])


def test_peers_download_nothing_and_see_none_of_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMER_MODEL", "other")
    monkeypatch.setenv("PYTHONPATH", "here")
    variables = variables_of_peer({"OMP_NUM_THREADS": "1"})
    assert "STREAMER_MODEL" not in variables
    assert "PYTHONPATH" not in variables
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert variables["OMP_NUM_THREADS"] == "1"


def test_of_pips_output_the_error_is_told() -> None:
    assert last_line("Collecting x\nERROR: no wheel\n\nnotice: new pip\n") == "ERROR: no wheel"
    assert last_line(" one\ntwo \n") == "two"
    assert last_line("") == "it said nothing"
