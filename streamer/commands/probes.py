"""What OpenVINO, PortAudio and the sound server answer, asked in another process: what is broken there may hang it."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from streamer.audio.sources.base import Source, SourceCallbacks
from streamer.errors import StreamerError

# The first question to a driver may make it start; a sound server answers at once or never.
INFERENCE_TIMEOUT_S = 60.0
AUDIO_TIMEOUT_S = 15.0
SYSTEM_TIMEOUT_S = 30.0
SPEED_TIMEOUT_S = 60.0  # it takes some seconds, on a machine that has something else to do some times as many

# How long a source may take to give its first audio.
FIRST_AUDIO_S = 5.0


@dataclass(frozen=True, slots=True)
class Inference:
    """What OpenVINO answered."""

    version: str = ""

    # Name and description of each device.
    devices: Mapping[str, str] = field(default_factory=dict)

    # Why it did not answer; empty where it did.
    error: str = ""


@dataclass(frozen=True, slots=True)
class Audio:
    """What PortAudio answered."""

    # Names of the inputs, and which of them is the system's choice; empty: none is.
    microphones: Sequence[str] = ()
    default: str = ""

    # What is wrong with the microphone that the settings name, once it was heard for a moment; empty: nothing.
    refusal: str = ""

    # Why it did not answer; empty where it did.
    error: str = ""


def answer_speed() -> dict[str, Any]:
    """Measure the CPU: return the fields of `fit.Speed`, or `error`."""
    from streamer.commands.fit import Speed

    try:
        return asdict(Speed.measured())
    except StreamerError as error:
        return {"error": str(error)}


def answer_inference() -> dict[str, Any]:
    """Ask OpenVINO which devices it finds: return the fields of `Inference`."""
    import openvino

    from streamer.whisper.device.devices import list_devices

    try:
        devices = list_devices()
    except StreamerError as error:
        return {"error": str(error)}
    return {
        "version": openvino.get_version().partition("-")[0],
        "devices": {
            device.name: (device.full_name or "unnamed") + (device.driver and f", driver {device.driver}")
            for device in devices
        },
    }


def answer_audio(microphone: str) -> dict[str, Any]:
    """Ask PortAudio which microphones there are; `microphone` is that of the settings. Return the fields of `Audio`."""
    from streamer.audio.sources.microphone import Microphone, list_microphones

    try:
        found = list_microphones()
    except StreamerError as error:
        return {"error": str(error)}
    return {
        "microphones": [item.name for item in found],
        "default": next((item.name for item in found if item.is_default), ""),
        "refusal": _heard(Microphone(microphone)),
    }


def answer_system() -> dict[str, Any]:
    """Hear what the computer plays for a moment: return its `name`, and as `error` what is wrong; empty: nothing."""
    from streamer.audio.sources.system import SystemSound

    error = _heard(sound := SystemSound())
    return {"name": sound.name, "error": error}


def _heard(source: Source) -> str:
    """Hear a source for a moment; say what is wrong, nothing where it gives audio."""
    heard = threading.Event()
    nothing = lambda *_: None  # noqa: E731
    try:
        source.start(SourceCallbacks(on_audio=lambda _: heard.set(), on_gap=nothing, on_error=nothing, on_end=nothing))
    except StreamerError as error:
        return str(error)
    heard.wait(FIRST_AUDIO_S)
    source.stop()
    return "" if heard.is_set() else f"{source.name} gives no audio: expected some, be it silence"


_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from streamer.commands import probes\n"
    "print(json.dumps(getattr(probes, sys.argv[2])(*sys.argv[3:])))"
)


def ask_apart(function: Callable[..., dict[str, Any]], *args: str, timeout_s: float) -> dict[str, Any]:
    """Call a function of this module in another process; return what it does, or `error` with why it did not."""
    try:
        process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path), function.__name__, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, ValueError) as error:
        return {"error": f"no other process can be started ({error})"}
    try:
        output, complaints = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        # What hangs in the kernel cannot be killed; it is left behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        return {"error": f"no answer within {timeout_s:g} s"}
    try:
        answer = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        last = next((line for line in reversed(complaints.splitlines()) if line.strip()), "it says nothing")
        return {"error": f"exit code {process.returncode}, {last.strip():.200}"}
    assert isinstance(answer, dict)
    return answer
