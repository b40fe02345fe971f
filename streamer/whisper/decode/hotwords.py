"""Hot words: names and rare words that are expected, made likelier while they are being spelled.

Each token of a phrase adds a part of its bonus, the last one the rest. Tokens that do not continue the phrase get none
of it, so that a phrase that is only begun has lost its bonus: only differences between logits count.

Source: shallow fusion, Zhao et al. (2019), "Shallow-Fusion End-to-End Contextual Biasing".
"""

import unicodedata
from collections.abc import Sequence

import numpy as np

from streamer.arrays import FloatArray
from streamer.errors import ConfigError
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import LANGUAGES_WITHOUT_SPACES, REPLACEMENT_CHARACTER

# Logits for a whole phrase. With nano.en and a hundred rare words, two in five of the errors on these are gone, for
# half a percentage point more on other words; from 6 on, hot words appear that were not spoken.
HOTWORDS_BOOST = 3.0

MAX_PHRASES = 1000
MAX_PHRASE_LENGTH = 100  # characters


def check_hotwords(phrases: Sequence[str]) -> tuple[str, ...]:
    """Return the phrases in order, each once, trimmed. Raises ConfigError for too many, or one that cannot be used."""
    cleaned = tuple(dict.fromkeys(" ".join(phrase.split()) for phrase in phrases))
    if len(cleaned) > MAX_PHRASES:
        raise ConfigError(f"there are {len(cleaned)} hot words: expected up to {MAX_PHRASES}; keep those that matter")
    for phrase in cleaned:
        if not phrase or len(phrase) > MAX_PHRASE_LENGTH or not phrase.isprintable():
            raise ConfigError(
                f"the hot word {phrase!r:.60} cannot be used: expected 1 to {MAX_PHRASE_LENGTH} printable"
                " characters; correct it or leave it out"
            )
    return cleaned


def hotwords_prompt(phrases: Sequence[str]) -> str:
    """Return the phrases as a prompt, from which a model takes their spelling."""
    return ", ".join(phrases) + "." if phrases else ""


class HotWords:
    """Phrases that are favoured; their spelling depends on the language of the text."""

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[str], boost: float = HOTWORDS_BOOST) -> None:
        """Take phrases; `boost` is added for a whole one, in logits."""
        self._tokenizer = tokenizer
        self._phrases = phrases
        self._boost = boost
        # By whether words have spaces between them. To spell many phrases takes as long as decoding a window.
        self._filters: dict[bool, HotWordsFilter] = {}

    def in_language(self, language: str) -> "HotWordsFilter":
        """Return the filter for text in a language."""
        spaced = language not in LANGUAGES_WITHOUT_SPACES
        if spaced not in self._filters:
            self._filters[spaced] = HotWordsFilter(self._tokenizer, self._phrases, self._boost, spaced=spaced)
        return self._filters[spaced]


class HotWordsFilter:
    """A logit filter that favours phrases.

    The bonuses are exact if the likeliest token is taken, or tokens are drawn. Beams are compared with each other by
    probabilities that sum to 1: there a likely token gains less than its bonus.
    """

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[str], boost: float, *, spaced: bool) -> None:
        """Spell each phrase as given and with a capital, after a space; without `spaced` also without that space."""
        self._boost = boost
        texts = [f" {text}" for phrase in phrases for text in (phrase, phrase[:1].upper() + phrase[1:])]
        if not spaced:
            texts += [text[1:] for text in texts]
        self._spellings = {tuple(tokenizer.encode(text)) for text in texts} - {()}
        self._longest = max(map(len, self._spellings), default=0)

        # By beginnings of phrases: for each next token the bonus up to that token.
        self._nexts: dict[tuple[int, ...], dict[int, float]] = {(): {}}
        for spelling in self._spellings:
            for i, token in enumerate(spelling):
                nexts = self._nexts.setdefault(spelling[:i], {})
                nexts[token] = max(nexts.get(token, 0.0), boost * (i + 1) / len(spelling))
        self._firsts = self._nexts[()]
        self._first_tokens = np.array(list(self._firsts), dtype=np.intp)
        self._first_boosts = np.array(list(self._firsts.values()), dtype=np.float32)

        # 1 for tokens that make the word before them longer: a phrase there is only the beginning of that word.
        longer = [spaced and _continues_word(spelled) for spelled in tokenizer.spelled]
        self._continues_word = np.array(longer, dtype=np.float32)

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        last = tokens[max(0, len(tokens) - self._longest) :]
        ends = [tuple(last[i:]) for i, token in enumerate(last) if token in self._firsts]
        n_complete = sum(end in self._spellings for end in ends)
        if n_complete:
            logits[: len(self._continues_word)] -= n_complete * self._boost * self._continues_word
        logits[self._first_tokens] += self._first_boosts
        begun = [self._nexts[end] for end in ends if end in self._nexts]
        for token in set[int]().union(*begun):
            # All phrases that end here count; of those that go on, the one with the largest bonus.
            n_ended = sum((*end, token) in self._spellings for end in (*ends, ()))
            first = self._firsts.get(token, 0.0)
            logits[token] += max(n_ended * self._boost, first, *(nexts.get(token, 0.0) for nexts in begun)) - first


def _continues_word(spelled: bytes) -> bool:
    first = spelled.decode("utf-8", errors="replace")[:1]
    # An unfinished character counts as a letter.
    return first.isalnum() or first == REPLACEMENT_CHARACTER or unicodedata.category(first or " ").startswith("M")
