"""Which words become stable, from a hypothesis and its predecessors: one small class a policy. No I/O, no clock.

Another policy is a class with `count`, a case in `policy_of`, and its name in the setting `stream.policy`.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamer.constants import SAMPLE_RATE
from streamer.session.settings import SessionSettings
from streamer.whisper.result import TimedWord

# Words that end nearer than this to the end of the audio may be cut off.
CUT_OFF_SAMPLES = SAMPLE_RATE // 5

# Texts of the words that earlier hypotheses had behind the stable ones, oldest first.
Earlier = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Audio:
    """What the words of a hypothesis were decoded from."""

    end: int  # in samples, as the words have it
    pause: bool  # whether it ends in a pause: its last word is not cut off


class Policy(Protocol):
    """Decides what is stable."""

    @property
    def n_earlier(self) -> int:
        """How many hypotheses before it looks at."""

    def count(self, words: Sequence[TimedWord], earlier: Earlier, audio: Audio) -> int:
        """Return how many of the first words become stable.

        words : those behind the stable ones, as far as they may become stable
        earlier : what earlier hypotheses had in their place
        """


@dataclass(frozen=True, slots=True)
class Agreement:
    """What several hypotheses in a row begin with is stable.

    Source: LocalAgreement-n, Liu et al., "Low-Latency Sequence-to-Sequence Speech Recognition and Translation by
    Partial Hypothesis Selection" (2020).
    """

    n: int  # 1 takes each as it is

    @property
    def n_earlier(self) -> int:
        return self.n - 1

    def count(self, words: Sequence[TimedWord], earlier: Earlier, audio: Audio) -> int:
        if len(earlier) < self.n - 1:
            return 0
        texts = [word.text for word in words]
        eligible = count_while(words, lambda word: word.end_samples <= audio.end - CUT_OFF_SAMPLES)
        return min([eligible, *(_common_prefix(texts, before) for before in earlier)])


@dataclass(frozen=True, slots=True)
class AlignAtt:
    """A probable word is stable if the decoder did not attend to the last of the audio for it, any other word a while
    later: with more audio it often becomes another one.

    Source: Papi et al., "AlignAtt: Using Attention-based Audio-Translation Alignments as a Guide for Simultaneous
    Speech Translation" (2023), which does not ask how probable words are.
    """

    margin_samples: int
    probability: float
    second_look_samples: int  # audio behind a word that is less probable

    @property
    def n_earlier(self) -> int:
        return 0

    def count(self, words: Sequence[TimedWord], earlier: Earlier, audio: Audio) -> int:
        margin = 0 if audio.pause else self.margin_samples

        def is_stable(word: TimedWord) -> bool:
            behind = audio.end - max(word.attended_samples, word.end_samples)
            return behind >= (margin if word.likelihood >= self.probability else self.second_look_samples)

        return count_while(words, is_stable)


def policy_of(settings: SessionSettings) -> Policy:
    """Return the policy that a session's settings name."""
    match settings.policy:
        case "alignatt":
            return AlignAtt(
                round(settings.attention_margin_s * SAMPLE_RATE),
                settings.commit_probability,
                round(settings.second_look_s * SAMPLE_RATE),
            )
        case _:
            return Agreement(settings.agreement)


def count_while(words: Sequence[TimedWord], condition: Callable[[TimedWord], bool]) -> int:
    """Count the first words that meet a condition."""
    return sum(1 for _ in itertools.takewhile(condition, words))


def _common_prefix(a: Sequence[str], b: Sequence[str]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
