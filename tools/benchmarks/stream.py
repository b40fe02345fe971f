"""Plays recordings through systems at the pace at which they were spoken, one system after the other."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import soundfile
from rich.console import Console

from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from tools.benchmarks.recordings import Recording
from tools.benchmarks.results import Folder
from tools.benchmarks.systems import StreamingSystem, without_settings

# How the offline decoder is asked. With timestamps nano.en leaves out a tenth of what is said, which would make every
# stream look good beside it.
OFFLINE_FLAGS = ("--without-timestamps",)


def play(
    systems: Sequence[StreamingSystem], recordings: Sequence[Recording], folder: Folder, console: Console
) -> dict[str, str]:
    """Play every recording through every system into a folder of timelines; return the failures."""
    failures: dict[str, str] = {}
    for system in systems:
        try:
            system.start()
            for recording in recordings:
                doing = f"{system.name}: {recording.name}, {recording.audio_s:.0f} s at real-time pace"
                console.print(doing, markup=False, highlight=False)
                try:
                    folder.save(system.stream(recording.name, recording.samples()))
                except StreamerError as error:
                    failures[f"{system.name}, {recording.name}"] = str(error)
                    console.print(f"{system.name}, {recording.name}: {error}", style="red", markup=False)
        except StreamerError as error:
            failures[system.name] = str(error)
            console.print(f"{system.name}: {error}", style="red", markup=False)
        finally:
            system.stop()
    folder.save_failures(failures)
    return failures


def transcribe_offline(
    recordings: Sequence[Recording], folder: Folder, flags: Sequence[str] = OFFLINE_FLAGS
) -> Mapping[str, str]:
    """Let the offline decoder write down the recordings in which something is said; return their texts by name.

    Raises StreamerError where it fails.
    """
    spoken = [recording for recording in recordings if recording.text and folder.offline(recording.name) is None]
    texts = {}
    with tempfile.TemporaryDirectory() as place:
        spoken_folder, written = Path(place) / "spoken", Path(place) / "written"
        spoken_folder.mkdir()
        written.mkdir()
        paths = [spoken_folder / f"{recording.name}.wav" for recording in spoken]
        for recording, path in zip(spoken, paths, strict=True):
            soundfile.write(path, recording.samples(), SAMPLE_RATE)
        if paths:
            command = [sys.executable, "-m", "streamer", "transcribe", *map(str, paths), *flags, "-o", str(written)]
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                env=without_settings(),
                check=False,
            )
            if done.returncode != 0:
                last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
                raise StreamerError(f"`streamer transcribe` ended with {done.returncode}: {last[0]}; mend that first")
        for path in paths:
            # One file becomes a file where the target is a directory, too.
            texts[path.stem] = (written / f"{path.stem}.txt").read_text(encoding="utf-8")
            folder.save_offline(path.stem, texts[path.stem])
    return texts
