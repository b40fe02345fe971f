"""Requests to transcribe recordings and their results, independent of the protocol."""

from dataclasses import dataclass

from streamer.events import Final
from streamer.settings.options import SessionOptions


class RecordingOptions(SessionOptions, frozen=True, kw_only=True):
    """How to transcribe a recording: what a client chooses of decoding, with at most five or `beam_size` beams."""

    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that a request may name."""

    name: str

    # When its files were written, in Unix seconds.
    created: int
    loaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSegment:
    """A segment of a recording, with the figures that OpenAI's interface returns for it."""

    # Always with words.
    final: Final

    # First frame (of 10 ms) of the window that it was decoded from.
    seek: int

    # Including timestamps.
    tokens: tuple[int, ...]

    # Of the whole window.
    temperature: float
    compression_ratio: float
