"""A microphone where there is no sound hardware: a PulseAudio null sink whose monitor PortAudio records.

PortAudio reads its environment once, so what captures must be a process of its own, started with `.env`.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import WAIT_S

TOOLS = ("pulseaudio", "pactl", "paplay")
ALSA_CONF = Path("/usr/share/alsa/alsa.conf")
ALSA_PULSE_PLUGIN = "alsa-lib/libasound_module_pcm_pulse.so"


class VirtualMicrophone:
    """A microphone that can be spoken into, pulled out and plugged in again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

        # Environment for processes that capture from it.
        self.env = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(directory),
            "PULSE_SERVER": f"unix:{directory}/pulse.sock",
            "ALSA_CONFIG_PATH": str(directory / "alsa.conf"),
        }

        # Number of the null sink's module; empty while it is pulled out.
        self._module = ""

    def plug(self) -> None:
        """Plug it in, as the default microphone."""
        assert not self._module, "it is plugged in"
        self._module = self._pactl("load-module", "module-null-sink", "sink_name=vmic", "rate=48000").strip()
        self._pactl("set-default-source", "vmic.monitor")
        self._pactl("set-default-sink", "vmic")

    def unplug(self) -> None:
        """Pull it out."""
        self._pactl("unload-module", self._module)
        self._module = ""

    def plug_speakers(self) -> None:
        """Plug in loudspeakers, as the default output; the microphone does not hear them."""
        self._pactl("load-module", "module-null-sink", "sink_name=speakers", "sink_properties=device.description=Boxes")
        self._pactl("set-default-sink", "speakers")

    def play(self, path: Path, sink: str = "vmic") -> subprocess.Popen[bytes]:
        """Speak the recording at `path` into it, at real-time pace; the process ends with the recording."""
        return subprocess.Popen(["paplay", f"--device={sink}", str(path)], env=self.env)

    def is_ready(self) -> bool:
        """Say whether the sound server answers."""
        return subprocess.run(["pactl", "info"], env=self.env, capture_output=True, check=False).returncode == 0

    def _pactl(self, *arguments: str) -> str:
        return subprocess.run(["pactl", *arguments], env=self.env, capture_output=True, check=True, text=True).stdout


@contextmanager
def running_virtual_microphone() -> Iterator[VirtualMicrophone]:
    """Start a sound server of our own, with a microphone plugged in, and stop it at the end."""
    # Not pytest's tmp_path: the path of a socket may have a hundred characters or so.
    with tempfile.TemporaryDirectory(prefix="vmic") as name:
        directory = Path(name)
        directory.chmod(0o700)
        (directory / "alsa.conf").write_text(
            f"<{ALSA_CONF}>\npcm.!default {{ type pulse }}\nctl.!default {{ type pulse }}\n", encoding="utf-8"
        )
        (directory / "vmic.pa").write_text(
            f"load-module module-native-protocol-unix socket={directory}/pulse.sock auth-anonymous=1\n",
            encoding="utf-8",
        )
        microphone = VirtualMicrophone(directory)
        command = ["pulseaudio", "-n", "-F", str(directory / "vmic.pa"), "--daemonize=no", "--exit-idle-time=-1"]
        with (directory / "pulse.log").open("wb") as log:
            server = subprocess.Popen(
                [*command, "--use-pid-file=no"], env={**microphone.env, "HOME": name}, stdout=log, stderr=log
            )
        try:
            deadline_s = time.monotonic() + WAIT_S
            while not microphone.is_ready():
                assert server.poll() is None, (directory / "pulse.log").read_text(encoding="utf-8")
                assert time.monotonic() < deadline_s, "pulseaudio does not answer"
                time.sleep(0.1)
            microphone.plug()
            yield microphone
        finally:
            server.terminate()
            server.wait()


def why_not() -> str:
    """Say why there can be no virtual microphone here; nothing where there can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed (apt-get install pulseaudio pulseaudio-utils)"
    libraries = (Path("/usr/lib"), Path("/usr/lib64"))
    if not ALSA_CONF.exists() or not any(next(path.glob(f"**/{ALSA_PULSE_PLUGIN}"), None) for path in libraries):
        return "ALSA's PulseAudio plugin not installed (apt-get install libasound2-plugins)"
    return ""


@pytest.fixture
def virtual_microphone() -> Iterator[VirtualMicrophone]:
    """A virtual microphone, plugged in."""
    if reason := why_not():
        pytest.skip(f"no virtual microphone: {reason}")
    with running_virtual_microphone() as microphone:
        yield microphone
