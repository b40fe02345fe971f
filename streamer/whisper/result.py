"""What a decoder has to say about one window of audio."""

import math
import re
import unicodedata
from dataclasses import dataclass, replace
from typing import Self

# Encoded windows that are held at a time: one that is decoded, and one that is encoded meanwhile or waits.
N_BUFFERS = 2

# A note on a sound other than words, such as `[Music]`, `(applause)` or `*sighs*`.
_NOTE = re.compile(r"\[[^\[\]]*\]|\([^()]*\)|\*[^*]*\*|［[^［］]*］|（[^（）]*）|【[^【】]*】")


def has_words(text: str) -> bool:
    """Return whether a text has a letter or a digit, of any script, outside of notes such as `[Music]`."""
    return any(map(str.isalnum, _NOTE.sub("", text)))


def is_mark(text: str) -> bool:
    """Return whether a word is punctuation that belongs to the word before it; a vowel sign or an accent is none."""
    is_sign = unicodedata.category(text[:1] or " ").startswith("M")
    return not is_sign and not text[:1].isspace() and not any(map(str.isalnum, text))


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word as Whisper writes it, with its tokens and its place in the window, or, once `placed`, in the session."""

    # Text with its leading space, punctuation and case.
    text: str

    # The tokens that spell it.
    tokens: tuple[int, ...]

    # First and last sample, counted from the start of the window.
    start_samples: int
    end_samples: int

    # Arithmetic mean of its tokens' probabilities, 0 to 1.
    probability: float

    # How far the decoder had to look for it (see `timing.attended_samples`); if unknown, its end.
    attended_samples: int = -1

    # Sum of its tokens' log-probabilities, 0 at most; if unknown, as if all were equally probable.
    log_prob: float = math.nan

    def __post_init__(self) -> None:
        """Take the end, and the probability, for what is not given."""
        if self.attended_samples < 0:
            object.__setattr__(self, "attended_samples", self.end_samples)
        if math.isnan(self.log_prob):
            log_prob = math.log(self.probability) if self.probability > 0 else -math.inf
            object.__setattr__(self, "log_prob", len(self.tokens) * log_prob if self.tokens else 0.0)

    def moved_by(self, n_samples: int) -> Self:
        """Return the word that many samples later."""
        return replace(
            self,
            start_samples=self.start_samples + n_samples,
            end_samples=self.end_samples + n_samples,
            attended_samples=self.attended_samples + n_samples,
        )

    @property
    def duration_samples(self) -> int:
        return self.end_samples - self.start_samples

    @property
    def likelihood(self) -> float:
        """Geometric mean of its tokens' probabilities: one unlikely token makes an unlikely word."""
        return math.exp(self.log_prob / max(1, len(self.tokens)))


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The text of one window, as words."""

    words: tuple[TimedWord, ...]
    language: str

    # Probability of the no-speech token at the start of the transcript, 0 to 1.
    no_speech_prob: float

    # Mean log-probability of the tokens that were decoded; those that were given do not count.
    avg_logprob: float

    # Length of the text over its length when compressed: repetitive text compresses well.
    compression_ratio: float = 0.0

    # Whether decoding ran into a loop; the words are those before it.
    looped: bool = False

    # Whether it is in that language, as far as the audio shows: no longer if another speaker goes on in another one.
    language_sure: bool = True

    # A language that is spoken, as far as the audio shows, and that the session does not allow: no word was
    # decoded; empty: none.
    language_outside: str = ""

    # The language that is spoken otherwise, if that is likely; empty: none.
    other_language: str = ""

    # That the text was decoded at; above 0 its tokens were drawn.
    temperature: float = 0.0

    # Whether the text is not to be trusted, after all attempts (see `fallback.has_failed`).
    failed: bool = False

    # Whether further attempts ended because another session waited.
    cut_short: bool = False

    # What it took: calls of the decoder, in all attempts. Of the attempt that counts: tokens that were found, the end
    # of text and what was cut off as a loop included; tokens that were given before these; and how many of the given
    # ones are the first of the hypothesis.
    n_calls: int = 0
    n_sampled: int = 0
    n_given: int = 0
    n_begins_with: int = 0

    def is_silence(self, no_speech_threshold: float, logprob_threshold: float) -> bool:
        """Whether it has no speech, by openai-whisper's rule: no speech is likely, and what was decoded is not."""
        return self.no_speech_prob > no_speech_threshold and self.avg_logprob < logprob_threshold
