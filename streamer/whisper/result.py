"""What a decoder has to say about one window of audio."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word as Whisper writes it, with its tokens and its place in the window."""

    # Text with its leading space, punctuation and case.
    text: str

    # The tokens that spell it.
    tokens: tuple[int, ...]

    # First and last sample, counted from the start of the window.
    start_samples: int
    end_samples: int

    # Mean of its tokens' probabilities, 0 to 1: geometric in streams; arithmetic, as the reference has it, in files.
    probability: float

    # How far the decoder had to look for it, in samples from the start of the window (see `timing.attended_samples`);
    # where nobody has measured it, its end.
    attended_samples: int = -1

    # Sum of its tokens' log-probabilities; where nobody has summed them up, that of tokens of its probability.
    log_prob: float = math.nan

    def __post_init__(self) -> None:
        """Make up what is not given."""
        if math.isnan(self.log_prob):
            log_prob = len(self.tokens) * math.log(max(self.probability, 1e-10))
            object.__setattr__(self, "log_prob", log_prob)
        if self.attended_samples < 0:
            object.__setattr__(self, "attended_samples", self.end_samples)

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

    # Mean log-probability of the tokens that were decoded.
    avg_logprob: float

    # Length of the text over its length when compressed: repetitive text compresses well.
    compression_ratio: float = 0.0

    # Whether decoding ran into a loop; the words are those before it.
    looped: bool = False

    # Of a language that was detected, how probable it is.
    language_probability: float = 1.0

    # Temperature that it was decoded at, and whether it fails its thresholds after all attempts.
    temperature: float = 0.0
    failed: bool = False

    # What it took: calls of the decoder; tokens that were found, the end of text and what was cut off as a loop
    # included; tokens that were given before these; and how many of the given ones are the first of the hypothesis.
    n_calls: int = 0
    n_sampled: int = 0
    n_given: int = 0
    n_begins_with: int = 0

    def is_silence(self, no_speech_threshold: float, logprob_threshold: float) -> bool:
        """Whether nobody spoke, by openai-whisper's rule: no speech is likely, and what was decoded is not."""
        return self.no_speech_prob > no_speech_threshold and self.avg_logprob < logprob_threshold
