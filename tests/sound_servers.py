"""Sound servers for one application's sound: stand-ins for PulseAudio's tools, and a real PipeWire."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.waiting import wait_until

PIPEWIRE_TOOLS = ("pipewire", "wireplumber", "pipewire-pulse", "dbus-run-session", "pactl", "parec", "paplay")

PACTL = """#!/bin/sh
case "$1" in subscribe) exec cat "$SOUND/reports" ;; esac
exec cat "$SOUND/streams"
"""

# Gives what is written to the stream's pipe, and ends with it.
PAREC = """#!/bin/sh
echo "$*" >>"$SOUND/calls"
for argument; do case "$argument" in --monitor-stream=*) exec cat "$SOUND/${argument#*=}" ;; esac; done
"""

# The others end if they are there before the socket is.
PIPEWIRE = """
pipewire &
until test -S "$XDG_RUNTIME_DIR/pipewire-0"; do sleep 0.05; done
wireplumber &
exec pipewire-pulse
"""


class StandIn:
    """A sound server of pipes in a directory, with a `pactl` and a `parec` that read them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environ = {"SOUND": str(directory), "PATH": f"{directory}:/usr/bin:/bin"}
        self._streams: dict[int, dict[str, str]] = {}
        self._reports = -1
        for name, text in (("pactl", PACTL), ("parec", PAREC)):
            (directory / name).write_text(text, encoding="utf-8")
            (directory / name).chmod(0o755)
        (directory / "calls").touch()
        os.mkfifo(directory / "reports")
        self.list("[]")

    @property
    def calls(self) -> list[str]:
        """Return what recorders were called with."""
        return (self.directory / "calls").read_text(encoding="utf-8").splitlines()

    def list(self, text: str) -> None:
        """Let `pactl` list this."""
        (self.directory / "new").write_text(text, encoding="utf-8")
        (self.directory / "new").rename(self.directory / "streams")

    def connect(self) -> None:
        """Wait until changes are subscribed to."""
        self._reports = self._open("reports")

    def report(self) -> None:
        """Say that streams have changed."""
        os.write(self._reports, b"Event 'change' on sink-input #1\n")

    def disconnect(self) -> None:
        """Go away."""
        os.close(self._reports)
        self._reports = -1

    def play(self, index: int, name: str, binary: str = "") -> None:
        """Let an application begin to play."""
        os.mkfifo(self.directory / str(index))
        self._streams[index] = {"application.name": name, "application.process.binary": binary}
        self._publish()

    def recorded(self, index: int) -> int:
        """Wait until a stream is recorded; return what its audio is written to."""
        return self._open(str(index))

    def end(self, index: int, pipe: int) -> None:
        """Let a stream end."""
        self._streams.pop(index)
        self._publish()
        os.close(pipe)

    def _publish(self) -> None:
        self.list(json.dumps([{"index": i, "properties": names} for i, names in self._streams.items()]))
        if self._reports >= 0:
            self.report()

    def _open(self, name: str) -> int:
        found: list[int] = []

        def is_read() -> bool:
            try:
                found.append(os.open(self.directory / name, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # nothing reads it yet
                return False
            return True

        wait_until(is_read)
        return found[0]


def write(pipe: int, value: float, n_samples: int = 1600) -> None:
    """Let a stream play."""
    assert os.write(pipe, np.full(n_samples, value, dtype="<f4").tobytes()) == 4 * n_samples


def why_no_pipewire() -> str:
    """Return why there can be no PipeWire here; empty if there can."""
    missing = [tool for tool in PIPEWIRE_TOOLS if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed (apt-get install pipewire-pulse wireplumber)" if missing else ""


@contextmanager
def running_pipewire() -> Iterator[Mapping[str, str]]:
    """Run PipeWire with two outputs, `vmic` and `speakers`; give the environment of its clients."""
    # Not pytest's tmp_path: the path of a socket may have a hundred characters or so.
    with tempfile.TemporaryDirectory(prefix="pw") as name:
        environ = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        environ |= {"HOME": name, "XDG_RUNTIME_DIR": name, "PULSE_SERVER": f"unix:{name}/pulse/native"}
        command = ["dbus-run-session", "--", "sh", "-c", PIPEWIRE]
        with Path(name, "log").open("wb") as log:
            server = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        try:

            def has_outputs() -> bool:
                assert server.poll() is None, Path(name, "log").read_text(encoding="utf-8")
                listed = subprocess.run(
                    ["pactl", "list", "short", "sinks"], env=environ, capture_output=True, check=False
                )
                return b"auto_null" in listed.stdout

            wait_until(has_outputs)
            for sink in ("vmic", "speakers"):
                subprocess.run(
                    ["pactl", "load-module", "module-null-sink", f"sink_name={sink}"], env=environ, check=True
                )
            yield environ
        finally:
            os.killpg(server.pid, 15)
            server.wait()
