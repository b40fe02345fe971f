"""Sources of audio: a microphone, what the computer plays, a file, a pipe, an address; one interface."""

from streamer.audio.sources.address import Address, is_address
from streamer.audio.sources.base import Source, SourceCallbacks
from streamer.audio.sources.file import AudioFile, FileReplay, check_audio, read_audio
from streamer.audio.sources.microphone import Microphone, MicrophoneInfo, list_microphones
from streamer.audio.sources.mixed import Mixed
from streamer.audio.sources.stdin import StdinPcm, standard_input
from streamer.audio.sources.system import SystemSound

__all__ = [
    "Address",
    "AudioFile",
    "FileReplay",
    "Microphone",
    "MicrophoneInfo",
    "Mixed",
    "Source",
    "SourceCallbacks",
    "StdinPcm",
    "SystemSound",
    "check_audio",
    "is_address",
    "list_microphones",
    "read_audio",
    "standard_input",
]
