"""`streamer speakers enrol`, `list` and `forget`: people whose voices are known by name."""

from itertools import islice
from pathlib import Path
from typing import Annotated

from streamer.commands.signature import Arg, Flags
from streamer.commands.terminal import make_console, say
from streamer.errors import AudioFileError
from streamer.outside import escaped
from streamer.settings.table import Settings

# Least speech for a voice.
MIN_SPEECH_S = 3.0

# Blocks of a tenth of a second; a voice is known by then.
MAX_BLOCKS = 3000

# How similar windows of one person are to what they have in common; those of several people are less so.
MIN_SIMILARITY = 0.6


# Arguments of these commands.
Person = Annotated[str, Arg("what the person is called", "NAME")]
EnrolledSettings = Annotated[Settings, Flags(("speakers.enrolled",))]


def enrol(
    name: Person,
    file: Annotated[Path, Arg("recording of this person alone, of half a minute", "FILE")],
    *,
    settings: EnrolledSettings,
) -> int:
    """Learn the voice of the one who speaks in a recording.

    Example: streamer speakers enrol Anna anna.flac
    """
    import numpy as np

    from streamer.after.speakers import enrolled
    from streamer.after.speakers.live import RecordedSpeakers
    from streamer.audio.sources.file import read_audio

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
    say(make_console(), escaped(f"{name} is enrolled, from {speech_s:.0f} s of speech, in {folder}"))
    return 0


def list_speakers(*, settings: EnrolledSettings) -> int:
    """List the people who are enrolled.

    Example: streamer speakers list
    """
    from streamer.after.speakers import enrolled

    console = make_console()
    for name in enrolled.read_enrolled(enrolled.enrolled_folder(settings.speakers.enrolled)):
        say(console, escaped(name))
    return 0


def forget(name: Person, *, settings: EnrolledSettings) -> int:
    """Delete what is kept of a voice.

    Example: streamer speakers forget Anna
    """
    from streamer.after.speakers import enrolled

    enrolled.forget(enrolled.enrolled_folder(settings.speakers.enrolled), name)
    return 0
