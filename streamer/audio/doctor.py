"""What `streamer doctor` checks of microphones, of the computer's own sound and of applications."""

import os
import platform
import threading
from pathlib import Path

from streamer.audio.sources.application import describe_applications, list_streams
from streamer.audio.sources.base import Source, SourceCallbacks
from streamer.audio.sources.microphone import Microphone, list_microphones
from streamer.audio.sources.system import SystemSound
from streamer.errors import StreamerError
from streamer.findings import Finding, missing, ok

# How long a source may take to give its first audio.
FIRST_AUDIO_S = 5.0

# Devices of ALSA.
SOUND_DEVICES = Path("/dev/snd")


def check_microphone(name: str, *, needed: bool) -> dict[str, Finding]:
    """Check PortAudio and a microphone.

    name : as `input.microphone` names it; empty: the system's choice
    needed : whether the settings use it
    """
    try:
        found = list_microphones()
    except StreamerError as error:
        return {"PortAudio": missing(str(error), needed=needed)}
    if not found:
        microphone = missing("none", f"{_remedy()}; or name a file with --input FILE", needed=needed)
    elif refusal := _why_silent(Microphone(name)):
        microphone = missing(refusal, "correct input.microphone; `streamer devices` lists them", needed=needed)
    else:
        default = next((item.name for item in found if item.is_default), found[0].name)
        microphone = ok(f"{name!r:.80} works" if name else default)
    return {"PortAudio": ok(f"works, inputs: {len(found)}"), "Microphone": microphone}


def check_system_sound(*, needed: bool) -> dict[str, Finding]:
    """Check that what the computer plays can be captured."""
    sound = SystemSound()
    refusal = _why_silent(sound)
    return {"System sound": missing(refusal, needed=needed) if refusal else ok(sound.name)}


def check_applications() -> dict[str, Finding]:
    """Check that what one application plays can be captured, as the settings demand."""
    try:
        return {"Applications": ok(f"playing now: {describe_applications(list_streams())}")}
    except StreamerError as error:
        return {"Applications": missing(str(error), needed=True)}


def _why_silent(source: Source) -> str:
    """Return why a source gives no audio; empty if it gives some."""
    arrived = threading.Event()
    ignored = lambda *_: None  # noqa: E731
    try:
        source.start(
            SourceCallbacks(on_audio=lambda _: arrived.set(), on_gap=ignored, on_error=ignored, on_end=ignored)
        )
    except StreamerError as error:
        return str(error)
    arrived.wait(FIRST_AUDIO_S)
    source.stop()
    return "" if arrived.is_set() else f"{source.name} gives no audio: expected some, if only silence"


def _remedy() -> str:
    """Return what to do if PortAudio finds no microphone."""
    system = platform.system()
    if system == "Darwin":
        return "plug one in, and allow the terminal to use it (System Settings, Privacy, Microphone)"
    if system != "Linux":
        return "plug one in, and allow programs to use it (Settings, Privacy, Microphone)"
    nodes = sorted(SOUND_DEVICES.glob("pcm*c"))
    if not nodes:
        return "plug one in: Linux knows of no sound card that records; in a container, start it with --device /dev/snd"
    if not any(os.access(node, os.R_OK | os.W_OK) for node in nodes):
        return "sudo usermod -aG audio $USER, then log out and in again: this user may not use /dev/snd"
    return "see that the sound server runs: systemctl --user status pipewire pulseaudio"
