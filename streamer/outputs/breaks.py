"""Where a text without spaces is divided.

Sources: Unicode Standard Annexes 14 (line breaking) and 29 (grapheme clusters); JIS X 4051 (kinsoku); W3C's notes on
the layout of Japanese, Thai and Lao. Words of Thai, Lao, Khmer and Burmese are not found: that takes a dictionary.
"""

import re
from collections.abc import Sequence
from unicodedata import category, combining, east_asian_width

# What begins no line, beside closing punctuation: small kana, marks of length and repetition, punctuation, units, and
# vowels and signs that are written behind a consonant.
_NOT_FIRST = frozenset(
    "ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶㇰㇱㇲㇳㇴㇵㇶㇷㇸㇹㇺㇻㇼㇽㇾㇿｧｨｩｪｫｬｭｮｯ"
    "ーｰ々〻ゝゞヽヾ゛゜、。，．・：；！？､｡･‼⁇⁈⁉…‥〜～゠!?,.:;\"'%‰°℃％"
    "ะาๅๆฯະາຽໆຯ។៕៖ៗ၊။"
)

# What ends no line, beside opening punctuation: signs before a number, and vowels that are written before a consonant.
_NOT_LAST = frozenset("\"'¥￥$＄£￡€₩#＃№@＠เแโใไເແໂໃໄ")

# Characters that continue a grapheme cluster and are no marks: joiners, vowels AM, sound marks, colours of skin, tags.
_CONTINUES = re.compile("[\u200c\u200d\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")

# Pairs within one cluster: conjoining Hangul, and flags.
_PAIR = re.compile("[\u1100-\u11ff]{2}|[\U0001f1e6-\U0001f1ff]{2}")

# Viramas that end a syllable instead of joining the next consonant.
_VISIBLE_VIRAMAS = "\u0e3a\u103a"

# Scripts of narrow letters that put no spaces between words.
_SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u1aaf\ua9e0-\ua9ff\uaa60-\uaa7f]")


def best_break(texts: Sequence[str]) -> int:
    """Return which of several texts in a row, after the first, is the best one to begin a line with.

    It is the last one before which the rules of the script allow a break; else the last one that begins with a whole
    character.
    """
    return max(range(1, len(texts)), key=lambda i: (_quality(texts[i - 1][-1:], texts[i][:1]), i))


def may_break(before: str, after: str) -> bool:
    """Return whether a line may end between two texts."""
    return _quality(before[-1:], after[:1]) == 2


def _quality(before: str, after: str) -> int:
    """Return 2 if the rules allow a break between two code points, 1 if they do not, 0 within a grapheme cluster."""
    if not before or not after or before.isspace() or after.isspace():
        return 2
    joins = before == "\u200d" or (combining(before) == 9 and before not in _VISIBLE_VIRAMAS)
    if joins or category(after).startswith("M") or _CONTINUES.match(after) or _PAIR.match(before + after):
        return 0
    if before in _NOT_LAST or category(before) in ("Ps", "Pi"):
        return 1
    if after in _NOT_FIRST or category(after) in ("Pe", "Pf"):
        return 1
    is_spaced = (not _SPACELESS.match(char) and east_asian_width(char) not in "WF" for char in (before, after))
    return 1 if all(is_spaced) else 2
