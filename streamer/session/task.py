"""Utterances, spans of their audio to encode, and how to decode a span. Positions are absolute samples."""

from dataclasses import dataclass

from streamer.constants import HOP_LENGTH, SAMPLE_RATE
from streamer.settings.table import DecodingSettings

MAX_SILENCE_SAMPLES = 5 * SAMPLE_RATE  # speech after a longer silence gets a window of its own

# How often the windows of an utterance are decoded again: this often, and once more for each second of it.
MAX_AGAIN = 4


def down_to_frame(position: int) -> int:
    """Round a position down to a mel frame, at which windows begin."""
    return position // HOP_LENGTH * HOP_LENGTH


def up_to_frame(position: int) -> int:
    """Round a position up to a mel frame."""
    return -(-position // HOP_LENGTH) * HOP_LENGTH


@dataclass(slots=True)
class Utterance:
    """Speech between two long silences, and how far it has been transcribed."""

    start: int
    after_gap: bool = False  # whether no audio right before it was received: no window may span the gap
    open: bool = True  # whether speech goes on

    # Once it has ended: its end, and the least end of a window that contains all its words.
    end: int = 0
    words_end: int = 0

    # Whether it continues speech that was given up: its first window is due at once, whatever the pace.
    overdue: bool = False

    # How often a window was decoded again, for whatever reason; whether attempts at a better text were cut short.
    n_again: int = 0
    cut_short: bool = False

    # End of the newest window that was issued, and of the newest that was decoded; 0 before the first.
    issued_end: int = 0
    decoded_end: int = 0

    def complete_at(self, end: int) -> bool:
        """Return whether a window up to a position contains all words of the utterance."""
        return not self.open and end >= self.words_end

    def again(self, decoded_end: int | None = None) -> bool:
        """Make the newest window due once more. Returns False if that was done too often: then what is known counts.

        decoded_end : where decoded audio ends, if it no longer counts up to the end of that window
        """
        length = (self.issued_end if self.open else self.end) - self.start
        if self.n_again >= MAX_AGAIN + length // SAMPLE_RATE:
            return False
        self.n_again += 1
        self.issued_end, self.decoded_end = 0, self.decoded_end if decoded_end is None else decoded_end
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Audio to encode as a window, from one absolute sample to another."""

    utterance: Utterance
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
