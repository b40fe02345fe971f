"""Requests to transcribe recordings and their results, independent of the protocol."""

from dataclasses import dataclass

from streamer.events import Final
from streamer.languages import code_of, codes_of
from streamer.settings.options import prompt
from streamer.settings.table import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """How to transcribe a recording. None: the daemon's setting. Raises ConfigError for an unknown language."""

    # By code, name or tag, or `auto`: kept as Whisper's code; and languages that `auto` may find, empty: all.
    language: str | None = None
    languages: tuple[str, ...] = ()
    task: Task | None = None
    prompt: str | None = None
    hotwords: tuple[str, ...] | None = None
    temperature: float | None = None

    # At most five, or `decoding.beam_size`.
    beam_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "language", code_of(self.language) if self.language else None)
        object.__setattr__(self, "languages", codes_of(self.languages))
        object.__setattr__(self, "prompt", prompt(self.prompt) or None)


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
