"""What requests ask of whole recordings, and what they are answered, whatever their protocol."""

from dataclasses import dataclass

from streamer.events import Final
from streamer.protocols.native import StreamTask


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """How to transcribe a recording. None: as the daemon is set."""

    # Language code such as `en`, or `auto`.
    language: str | None = None
    task: StreamTask | None = None
    prompt: str | None = None
    hotwords: tuple[str, ...] | None = None
    temperature: float | None = None

    # At most five, or `decoding.beam_size`.
    beam_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that a request may name."""

    name: str

    # When its files were written, in Unix seconds.
    created: int
    loaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSegment:
    """A segment of a recording, with what OpenAI's interface tells beside the text."""

    # Always with words.
    final: Final

    # First frame, of 10 ms, of the window in which it was heard.
    seek: int

    # Timestamps included.
    tokens: tuple[int, ...]

    # Of the whole window.
    temperature: float
    compression_ratio: float
