"""Tokens to words. A word never ends inside of a character, which may be spread over several tokens.

Source: openai-whisper's `tokenizer.py` (`split_to_word_tokens`, the languages written without spaces).
"""

import string
from collections.abc import Sequence

from streamer.whisper.result import is_mark
from streamer.whisper.tokens.tokenizer import Tokenizer

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # what an unfinished UTF-8 sequence decodes to

# Languages that are written without spaces: their words are split by characters.
LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})

# A word and the tokens that spell it.
Spelling = tuple[str, tuple[int, ...]]


def split_to_words(tokenizer: Tokenizer, tokens: Sequence[int], language: str) -> list[Spelling]:
    """Split text that may go on into words with the space before them, and what punctuation is behind each as one more.

    A lone space goes with the word behind it. What is not finished is left out: a lone space at the end, or part of a
    character. So what is returned once is returned again when more tokens follow, except that a word may become longer.
    """
    pieces = split_to_characters(tokenizer, tokens)
    if pieces and (not pieces[-1][0] or pieces[-1][0].endswith(REPLACEMENT_CHARACTER)):
        pieces.pop()
    spaced = language not in LANGUAGES_WITHOUT_SPACES
    words: list[list[Spelling]] = []
    for text, piece in pieces:
        starts_word = text.startswith(" ") if spaced else any(map(str.isalnum, text))
        if not words or (starts_word and _joined(words[-1])[0].strip()):
            words.append([])
        words[-1].append((text, piece))
    if words and _joined(words[-1])[0].isspace():
        words.pop()
    found = []
    for word in words:
        n = len(word)
        while n > 1 and is_mark(_joined(word[n - 1 :])[0]):
            n -= 1
        found += [_joined(part) for part in (word[:n], word[n:]) if part]
    return found


def split_at_marks(tokenizer: Tokenizer, tokens: Sequence[int], language: str) -> list[Spelling]:
    """Split text into words as openai-whisper does: every mark of punctuation is a word, to be merged later.

    What follows a mark without a space is one word with it, so that "re-enter" is "re" and "-enter".
    """
    pieces = split_to_characters(tokenizer, tokens)
    if language in LANGUAGES_WITHOUT_SPACES:
        return pieces
    words: list[list[Spelling]] = []
    for text, piece in pieces:
        # Space alone strips to nothing, which is in any string, and so is a word too.
        if not words or text.startswith(" ") or text.strip() in string.punctuation:
            words.append([])
        words[-1].append((text, piece))
    return [_joined(word) for word in words]


def split_to_characters(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[Spelling]:
    """Split tokens into the smallest runs that end with a character; only the last may be unfinished."""
    pieces: list[Spelling] = []
    pending: list[int] = []
    for token in tokens:
        pending.append(token)
        text = tokenizer.decode(pending)
        # Only bytes at the end can still become a character. One of Whisper's tokens spells nothing.
        if text and not text.endswith(REPLACEMENT_CHARACTER):
            pieces.append((text, tuple(pending)))
            pending = []
    if pending:
        pieces.append((tokenizer.decode(pending), tuple(pending)))
    return pieces


def _joined(pieces: Sequence[Spelling]) -> Spelling:
    return "".join(text for text, _ in pieces), tuple(token for _, tokens in pieces for token in tokens)
