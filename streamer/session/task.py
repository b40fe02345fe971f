"""Spans of audio to encode, and how to decode them. Positions are absolute samples of the session."""

from dataclasses import dataclass

from streamer.constants import HOP_LENGTH
from streamer.settings.table import DecodingSettings


def down_to_frame(position: int) -> int:
    """Round a position down to a mel frame, at which windows begin."""
    return position // HOP_LENGTH * HOP_LENGTH


def up_to_frame(position: int) -> int:
    """Round a position up to a mel frame."""
    return -(-position // HOP_LENGTH) * HOP_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Audio to encode as a window, from one absolute sample to another."""

    utterance: int  # number of its utterance
    start: int
    end: int
    last: bool  # whether the utterance ends with it
    pause: bool  # whether it ends in a pause: its last word is not truncated
    first_word: int  # number of its first stable word
    issued_s: float  # when it was issued, in seconds of the caller's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How to decode a window."""

    prefix: tuple[int, ...]  # tokens that the hypothesis has to begin with
    prompt: str  # text before the window that the model is shown

    # Language code; with `auto` it is chosen among `languages`, all if that is empty. `known_languages` are those that
    # the session was sure of, the newest last.
    language: str
    task: str
    n_samples: int
    languages: tuple[str, ...] = ()
    known_languages: tuple[str, ...] = ()
    chosen: bool = False  # whether the language was chosen and not given: the decoder says whether it still is spoken
    first: bool = False  # whether no text has become final yet
    draft: tuple[int, ...] = ()  # what the newest hypothesis said after the prefix: a guess at the new text

    # Seconds that further attempts at higher temperatures may take if the text fails its thresholds.
    retry_s: float = 0.0

    # What the session chose of how its windows are decoded; None: what the daemon is set to.
    options: DecodingSettings | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A span and how to decode it. `Session.take` is given it back with what the decoder finds."""

    span: Span
    request: Request
    n_new_samples: int  # samples of the span that no span of its utterance before it had
