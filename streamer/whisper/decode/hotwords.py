"""Hot words: names and rare words that are expected, made likelier while they are being spelled.

A prefix tree holds the tokens of all phrases. A phrase that is begun is given more with every token, and with its last
all of its boost. The tokens that turn away from it are given nothing: what the phrase was given so far is lost to them,
since differences between logits are all that counts. So in the end exactly the phrases that are there have counted.

Source: shallow fusion with a prefix tree, Zhao et al. (2019), "Shallow-Fusion End-to-End Contextual Biasing"; the links
between phrases that overlap are Aho and Corasick's (1975).
"""

import unicodedata
from collections.abc import Sequence

import numpy as np

from streamer.arrays import FloatArray
from streamer.errors import ConfigError
from streamer.whisper.tokens.tokenizer import LANGUAGES_WITHOUT_SPACES, REPLACEMENT_CHARACTER, Tokenizer

# Logits for a whole phrase. With nano.en and a hundred rare words, two in five of the errors on these are gone, for
# half a percentage point more on other words; from 6 on, hot words come where nobody said them.
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
                f"the hot word {phrase!r:.60} cannot be used: expected 1 to {MAX_PHRASE_LENGTH} characters that can be"
                " printed; correct it or leave it out"
            )
    return cleaned


def hotwords_prompt(phrases: Sequence[str]) -> str:
    """Return the phrases as text that came before, which makes a model that heeds its prompt spell them so."""
    return ", ".join(phrases) + "." if phrases else ""


class HotWords:
    """Phrases that are favoured; how they are spelled depends on the language of the text."""

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[str], boost: float = HOTWORDS_BOOST) -> None:
        """Take phrases; `boost` is what a whole one gets, in logits."""
        self._tokenizer = tokenizer
        self._phrases = phrases
        self._boost = boost

        # By whether words have spaces between them. To build the tree of many phrases takes as long as a pass.
        self._filters: dict[bool, HotWordsFilter] = {}

    def in_language(self, language: str) -> "HotWordsFilter":
        """Return the filter for text in a language."""
        spaced = language not in LANGUAGES_WITHOUT_SPACES
        if spaced not in self._filters:
            self._filters[spaced] = HotWordsFilter(self._tokenizer, self._phrases, self._boost, spaced=spaced)
        return self._filters[spaced]


class HotWordsFilter:
    """A logit filter that favours phrases.

    What is added is right where the likeliest token is taken, and where tokens are drawn. Beams are compared with each
    other by probabilities that sum to 1: there a likely token gains less than its bonus.
    """

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[str], boost: float, *, spaced: bool) -> None:
        """Build the tree.

        phrases : each is spelled as given, and with a capital at its beginning; behind a space, and where text is
            written without spaces also without
        boost : logits that a whole phrase gets
        """
        self._tree = _Tree(_spellings(tokenizer, phrases, spaced), boost)
        within = [spaced and _within_word(spelled) for spelled in tokenizer.spelled]

        # 1 for text that goes on with a word: the phrase before it was but the beginning of that word.
        self._within_word = np.array(within, dtype=np.float32)

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        node = self._tree.find(tokens)
        if node.complete:
            logits[: len(self._within_word)] -= node.complete * self._within_word
        for nexts in {self._tree.root, node}:
            logits[nexts.next_tokens] += nexts.next_promised


class _Node:
    """A place in the tree: what was spelled so far of one or several phrases."""

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}

        # Node of the longest end of what was spelled that also begins a phrase; the root has none.
        self.shorter: _Node | None = None

        # Boosts of the phrases that end here.
        self.complete = 0.0

        # What was given on the way here: of phrases that end here, or else of the one that got most.
        self.promised = 0.0

        # Tokens after which something is promised, and how much: at the root all of it, elsewhere what differs.
        self.next_tokens = np.empty(0, dtype=np.intp)
        self.next_promised = np.empty(0, dtype=np.float32)


class _Tree:
    """A prefix tree of phrases whose nodes also know of the phrases that begin inside of others."""

    def __init__(self, spellings: Sequence[tuple[int, ...]], boost: float) -> None:
        self.root = _Node()
        self._depth = max((len(spelling) for spelling in spellings), default=0)
        for spelling in spellings:
            node = self.root
            for i, token in enumerate(spelling):
                node = node.children.setdefault(token, _Node())
                node.promised = max(node.promised, boost * (i + 1) / len(spelling))
            node.complete = boost
        for node in self._link():
            self._list_nexts(node)

    def find(self, tokens: Sequence[int]) -> _Node:
        """Return the node of the longest end of the tokens that begins a phrase."""
        node = self.root
        for token in tokens[max(0, len(tokens) - self._depth) :]:
            node = self._after(node, token)
        return node

    def _after(self, node: _Node, token: int) -> _Node:
        at: _Node | None = node
        while at is not None:
            if token in at.children:
                return at.children[token]
            at = at.shorter
        return self.root

    def _link(self) -> list[_Node]:
        """Find the shorter nodes, and what these add; return all nodes, those near the root first."""
        nodes = [self.root]
        for node in nodes:  # which grows
            for token, child in node.children.items():
                child.shorter = self._after(node.shorter, token) if node.shorter else self.root
                child.complete += child.shorter.complete
                child.promised = max(child.promised, child.complete, child.shorter.promised)
                nodes.append(child)
        return nodes

    def _list_nexts(self, node: _Node) -> None:
        nexts: dict[int, float] = {}
        at: _Node | None = node
        while at is not None and (at.shorter or node is self.root):
            for token, child in at.children.items():
                nexts.setdefault(token, child.promised)
            at = at.shorter
        if node is not self.root:
            at_root = self.root.children
            nexts = {t: p - (at_root[t].promised if t in at_root else 0.0) for t, p in nexts.items()}
        node.next_tokens = np.array(list(nexts), dtype=np.intp)
        node.next_promised = np.array(list(nexts.values()), dtype=np.float32)


def _spellings(tokenizer: Tokenizer, phrases: Sequence[str], spaced: bool) -> list[tuple[int, ...]]:
    """Return the phrases as tokens, each spelling once."""
    spellings = []
    for phrase in phrases:
        for written in (phrase, phrase[:1].upper() + phrase[1:]):
            spellings.append(tuple(tokenizer.encode(f" {written}")))
            if not spaced:
                spellings.append(tuple(tokenizer.encode(written)))
    return [spelling for spelling in dict.fromkeys(spellings) if spelling]


def _within_word(spelled: bytes) -> bool:
    """Whether a token's text, put behind a word, makes the word longer."""
    first = spelled.decode("utf-8", errors="replace")[:1]
    # An unfinished character counts as a letter.
    return first.isalnum() or first == REPLACEMENT_CHARACTER or unicodedata.category(first or " ").startswith("M")
