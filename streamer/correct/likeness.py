"""How words are compared: by their letters, and by how they may sound."""

import unicodedata

from doublemetaphone import doublemetaphone

_LETTERS = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ß": "ss", "æ": "ae", "œ": "oe", "ı": "i"})


def letters_of(text: str) -> str:
    """Return the letters and digits of a text alone, in lower case, without accents."""
    folded = unicodedata.normalize("NFKD", text.casefold().translate(_LETTERS))
    return "".join(char for char in folded if char.isalnum())


def sounds_of(letters: str) -> tuple[str, ...]:
    """Return how letters may sound (Double Metaphone); once empty where there are no rules for them."""
    if not (letters.isascii() and letters.isalpha()):
        return ("",)
    return tuple(filter(None, dict.fromkeys(doublemetaphone(letters)))) or ("",)
