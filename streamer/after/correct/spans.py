"""Words as Whisper cuts them and as they are written, with their times; what all correctors know of words."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from streamer.events import Word

# What may stand around a word.
OPENING = "\"'“‘«¿¡("
CLOSING = ".,;:?!…\"'”’»)"

# In the languages that are spoken most often; in lower case.
NEGATIONS = re.compile(
    r".*n['’]t|no|not|never|none|nothing|nobody|nor|neither|cannot|without|nicht|nichts|kein(e|en|em|er|es)?|nie|niemals"
    r"|niemand|ohne|ne|n'.*|pas|jamais|non|rien|sans|nunca|jamás|nada|nadie|sin|não|nem|sem|mai|senza|niet|geen|nooit"
    r"|zonder|ikke|inte|aldrig|не|нет|ни|никогда|без|nigdy|bez"
)

_LATIN = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ß": "ss", "æ": "ae", "œ": "oe", "ı": "i"})


def letters_of(text: str) -> str:
    """Return the letters and digits of a text alone, in lower case, without accents."""
    folded = unicodedata.normalize("NFKD", text.casefold().translate(_LATIN))
    return "".join(char for char in folded if char.isalnum())


def written(words: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Return the parts of each written word: what has no space before it belongs to the word before."""
    groups: list[list[Word]] = []
    for word in words:
        if groups and not word.word[:1].isspace():
            groups[-1].append(word)
        else:
            groups.append([word])
    return [tuple(group) for group in groups]


def respelled(words: Sequence[Word], texts: Sequence[str]) -> Iterator[Word]:
    """Yield other words in the place of some, with the space before them.

    As many have the times of those that were; else they divide their time, each by its length.
    """
    begin, last = words[0].start, words[-1].end
    letter_s = (last - begin) / max(1, len("".join(texts)))
    probability = round(mean_probability(words), 3)
    speaker = words[0].speaker if len({word.speaker for word in words}) == 1 else None
    space = " " if words[0].word[:1].isspace() else ""
    for i, text in enumerate(texts):
        end = last if i == len(texts) - 1 else min(max(begin, round(begin + letter_s * len(text), 3)), last)
        if len(texts) == len(words):
            begin, end, speaker = words[i].start, words[i].end, words[i].speaker
        yield Word(
            word=f"{space}{text}",
            start=begin,
            end=end,
            probability=probability,
            stable=words[-1].stable,
            speaker=speaker,
        )
        begin, space = end, " "


def mean_probability(words: Sequence[Word]) -> float:
    return sum(word.probability for word in words) / len(words)
