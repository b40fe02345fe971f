"""`streamer speakers enrol`, `list` and `forget`: people whose voices are known by name."""

from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console

from streamer.after.speakers import enrolled
from streamer.after.speakers.live import RecordedSpeakers
from streamer.audio.sources.file import read_audio
from streamer.commands.terminal import say
from streamer.errors import AudioFileError
from streamer.outside import escaped
from streamer.settings.table import Settings

# Least speech for a voice.
MIN_SPEECH_S = 3.0

# Blocks of a tenth of a second; a voice is known by then.
MAX_BLOCKS = 3000

# How similar windows of one person are to what they have in common; those of several people are less so.
MIN_SIMILARITY = 0.6


def enrol(settings: Settings, name: str, file: Path, console: Console) -> int:
    """Keep the voice of the one who speaks in a recording. Returns the exit code.

    Raises AudioFileError if it has too little speech, or that of several people.
    """
    folder = enrolled.enrolled_folder(settings.speakers.enrolled)
    enrolled.path_of(folder, name)  # now: a bad name costs no time
    blocks, diarization = RecordedSpeakers(settings).recognize(islice(read_audio(file), MAX_BLOCKS))
    for _ in blocks:
        pass
    vectors = diarization.vectors
    speech_s = 1 + len(vectors) / 2  # a window of a second and a half each half second
    if speech_s < MIN_SPEECH_S:
        raise AudioFileError(f"{file} has less than {MIN_SPEECH_S:g} s of speech: record one person for half a minute")
    voice = vectors.mean(axis=0) / np.linalg.norm(vectors.mean(axis=0))
    similarity = float(np.mean(vectors @ voice))
    if similarity < MIN_SIMILARITY:
        raise AudioFileError(
            f"the voices in {file} differ (their similarity is {similarity:.2f}, expected {MIN_SIMILARITY} or more):"
            " record one person alone, in a quiet place"
        )
    enrolled.enrol(folder, name, voice)
    say(console, escaped(f"{name} is enrolled, from {speech_s:.0f} s of speech, in {folder}"))
    return 0


def list_speakers(settings: Settings, console: Console) -> int:
    """Print who is enrolled, a name a line. Returns the exit code."""
    for name in enrolled.read_enrolled(enrolled.enrolled_folder(settings.speakers.enrolled)):
        say(console, escaped(name))
    return 0


def forget(settings: Settings, name: str) -> int:
    """Delete what is kept of a person. Returns the exit code. Raises UsageError if there is nothing."""
    enrolled.forget(enrolled.enrolled_folder(settings.speakers.enrolled), name)
    return 0
