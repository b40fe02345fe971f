"""Rules of scripts: where sentences end, where a line may be broken, and which words have no space between them."""

import re
import unicodedata
from collections.abc import Iterator

SENTENCE_ENDS = ".?!。？！؟۔।։።។။"
CLOSING = "\"'”’»)]」』）"

# Before a space, or behind a mark that needs none. Japanese goes on behind quoted speech.
_BOUNDARY = re.compile(
    rf"[{re.escape(SENTENCE_ENDS)}…]+[{re.escape(CLOSING)}]*\s+"
    rf"|[。？！]+(?:[{re.escape(CLOSING)}]+(?![\u3040-\u309f]))?(?![{re.escape(CLOSING)}\s])"
)
# A full stop after these ends no sentence: initials, ordinals, titles.
_ABBREVIATED = re.compile(r"(?:^|\W)(?:[A-Za-zÀ-ɏͰ-ӿ]|\d{1,2}|Mrs?|Ms|Dr|Prof|St)\.\s*$")
# Thai, Lao, Burmese, Khmer, Japanese and Chinese.
_SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")
_SMALL_KANA = "ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶー々"


def sentence_starts(text: str) -> Iterator[int]:
    """Yield where a sentence begins behind another one. In doubt the sentence goes on."""
    for boundary in _BOUNDARY.finditer(text):
        end = boundary.end()
        if end < len(text) and not text[end].islower() and not _ABBREVIATED.search(text, 0, end):
            yield end


def space_between(before: str, after: str) -> str:
    """Return what stands between two parts of a text: a space, or nothing if their script has none."""
    return "" if _SPACELESS.match(before[-1:]) and _SPACELESS.match(after[:1]) else " "


def may_break(before: str, after: str) -> bool:
    """Return whether a line may be broken between two characters."""
    if before == " " or after == " ":
        return before == " " and after != " "
    begins_no_line = after in _SMALL_KANA or unicodedata.category(after) in ("Pe", "Pf", "Po")
    is_spaceless = _SPACELESS.match(before) or _SPACELESS.match(after)
    return bool(is_spaceless) and not begins_no_line and unicodedata.category(before) not in ("Ps", "Pi")
