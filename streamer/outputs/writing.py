"""Rules of scripts: where sentences end, and which words have no space between them."""

import re
from collections.abc import Iterator

from streamer.languages import WITHOUT_SPACES

SENTENCE_ENDS = ".?!。？！؟۔।։።។။"
CLOSING = "\"'”’»)]」』）"

# Before a space, or behind a mark that needs none. Japanese goes on behind quoted speech.
_BOUNDARY = re.compile(
    rf"[{re.escape(SENTENCE_ENDS)}…]+[{re.escape(CLOSING)}]*\s+"
    rf"|[。？！]+(?:[{re.escape(CLOSING)}]+(?![\u3040-\u309f]))?(?![{re.escape(CLOSING)}\s])"
)
# A full stop after these ends no sentence: initials, ordinals, titles.
_ABBREVIATED = re.compile(r"(?:^|\W)(?:[A-Za-zÀ-ɏͰ-ӿ]|\d{1,2}|Mrs?|Ms|Dr|Prof|St)\.\s*$")
# With their punctuation.
_SPACELESS = re.compile(f"[{WITHOUT_SPACES}\u3000-\u303f\uff00-\uff65]")


def sentence_starts(text: str) -> Iterator[int]:
    """Yield where a sentence begins behind another one. In doubt the sentence goes on."""
    for boundary in _BOUNDARY.finditer(text):
        end = boundary.end()
        if end < len(text) and not text[end].islower() and not _ABBREVIATED.search(text, 0, end):
            yield end


def space_between(before: str, after: str) -> str:
    """Return what stands between two parts of a text: a space, or nothing if their script has none."""
    return "" if _SPACELESS.match(before[-1:]) and _SPACELESS.match(after[:1]) else " "
