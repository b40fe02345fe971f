"""Which language a window is decoded in, while the session's is not given. Sans-I/O.

Whisper names a language for whatever it is given, and from a second of speech it is often wrong. Nothing that is
decoded in a wrong language may become stable, so it is said of each choice whether it is sure.
"""

from collections.abc import Mapping, Sequence

from streamer.constants import SAMPLE_RATE

# How much audio decides, and how probable the language must be: one that was spoken in the session before, a new one.
KNOWN_S, KNOWN_PROBABILITY = 1.5, 0.5
NEW_S, NEW_PROBABILITY = 2.0, 0.8

# In the first utterance, with this much audio, it need be no more probable than a known one; with this much it is
# taken as it is: people have waited for stable words long enough.
LONG_S = 4.0
LONGEST_S = 8.0

# If a window is this long and its language less probable, the speaker has probably changed to another one.
DOUBT_S, DOUBT_PROBABILITY = 2.0, 0.2

# Least probability of a language that is tried if there are no words in the likeliest; and of all that a session allows
# together, or another one is probably spoken.
OTHER_PROBABILITY = 0.05

# Another one is surely spoken if all that a session allows are together less probable than this. In 2 s of people's
# German and English their own was at 0.076 or more, in 3 s at 0.27.
OUTSIDE_PROBABILITY = 0.03


def choose_language(probabilities: Mapping[str, float], n_samples: int, known: Sequence[str]) -> tuple[str, bool]:
    """Return the language to decode a window in, and whether it is sure.

    probabilities : of each language that may be spoken, one at least
    n_samples : length of the window
    known : languages that the session was sure of, the newest last
    """
    length_s = n_samples / SAMPLE_RATE
    found = max(probabilities, key=probabilities.__getitem__)
    if found in known:
        sure = length_s >= KNOWN_S and probabilities[found] >= KNOWN_PROBABILITY
    else:
        easy = not known and length_s >= LONG_S
        sure = length_s >= NEW_S and probabilities[found] >= (KNOWN_PROBABILITY if easy else NEW_PROBABILITY)
    if sure:
        return found, True
    spoken = next((language for language in reversed(known) if language in probabilities), found)
    return spoken, length_s >= LONGEST_S


def only_among(probabilities: Mapping[str, float], allowed: Sequence[str]) -> dict[str, float]:
    """Return how probable each of the allowed languages is if one of them is spoken; as it is if probably none is."""
    total = sum(probabilities[language] for language in allowed)
    scale = total if total >= OTHER_PROBABILITY else 1.0
    return {language: probabilities[language] / scale for language in allowed}


def language_outside(probabilities: Mapping[str, float], n_samples: int, allowed: Sequence[str]) -> str:
    """Return the language that is spoken in a window if surely none of the allowed ones is; else an empty text."""
    total = sum(probabilities[language] for language in allowed)
    sure = n_samples >= NEW_S * SAMPLE_RATE and total < OUTSIDE_PROBABILITY
    return max(probabilities, key=probabilities.__getitem__) if sure else ""


def next_likely(probabilities: Mapping[str, float], language: str) -> str:
    """Return the likeliest of the other languages; empty if none is likely."""
    others = {other: probability for other, probability in probabilities.items() if other != language}
    found = max(others, key=others.__getitem__, default="")
    return found if others.get(found, 0.0) >= OTHER_PROBABILITY else ""


def is_doubtful(probability: float, n_samples: int) -> bool:
    """Return whether a window is probably not in the language that its utterance began in."""
    return n_samples >= DOUBT_S * SAMPLE_RATE and probability < DOUBT_PROBABILITY
