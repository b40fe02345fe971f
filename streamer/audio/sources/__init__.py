"""Sources of audio: a microphone, a file, a pipe; one interface."""

from streamer.audio.sources.base import Source, SourceCallbacks
from streamer.audio.sources.file import FileReplay, read_audio
from streamer.audio.sources.microphone import Microphone, MicrophoneInfo, list_microphones
from streamer.audio.sources.stdin import StdinPcm, standard_input

__all__ = [
    "FileReplay",
    "Microphone",
    "MicrophoneInfo",
    "Source",
    "SourceCallbacks",
    "StdinPcm",
    "list_microphones",
    "read_audio",
    "standard_input",
]
