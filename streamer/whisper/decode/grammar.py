"""Text that a grammar allows, as llguidance follows it: tokens that do not fit become unlikely. Source: whisper.cpp."""

import itertools
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import llguidance
import numpy as np

from streamer.arrays import FloatArray
from streamer.errors import ConfigError
from streamer.outside import one_line
from streamer.whisper.decode.gbnf import to_lark
from streamer.whisper.tokens.tokenizer import Tokenizer

# What whisper.cpp takes off the logits of text that does not fit: as good as never if any other text is possible.
GRAMMAR_PENALTY = 100.0

# A grammar or regular expression that takes more than about a second and 100 MB, to build or for a step, is refused.
LIMITS = llguidance.LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=300_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


class Grammar:
    """A grammar that can be followed."""

    def __init__(self, text: str, root: str = "root", where: str = "the grammar") -> None:
        """Take rules in GBNF; `where` names them in messages. Raises ConfigError if they cannot be followed."""
        self.where = where
        try:
            self._lark = to_lark(text, root)
            # The first step shows whether the grammar can be built.
            matcher = self.matcher(llguidance.LLTokenizer("byte"))
            matcher.compute_bitmask()
            problem = reason(matcher)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise ConfigError(
                f"{where} is not a valid grammar ({one_line(problem):.150}): expected a small one in GBNF, such as"
                ' root ::= "yes" | "no"; correct or shorten it'
            )

    @classmethod
    def read(cls, path: Path, root: str = "root") -> "Grammar":
        """Read a file in GBNF. Raises ConfigError if it cannot be read, or is not a usable grammar."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a zero byte in the name
            problem = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"{str(path)!r:.200} cannot be read ({problem}): expected a grammar, a .gbnf file in UTF-8"
            ) from None
        return cls(text, root, str(path))

    def matcher(self, tokenizer: llguidance.LLTokenizer) -> llguidance.LLMatcher:
        """Return a matcher for a tokenizer's texts."""
        return llguidance.LLMatcher(tokenizer, self._lark, log_level=0, limits=LIMITS)


class GrammarFilter:
    """A logit filter that favours the text of a grammar.

    Tokens that do not fit get a penalty, as in whisper.cpp, so that decoding goes on even if other rules forbid all
    that fit. Unlike there, the end of text does not fit while the grammar is incomplete. Timestamps are free, and
    after a token that does not fit all are. Tokens that a fine-tune has added to the vocabulary never fit.

    One thread at a time may use it, for any number of windows.
    """

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, penalty: float = GRAMMAR_PENALTY) -> None:
        self._grammar = grammar
        self._tokenizer = _ll_tokenizer(tokenizer)
        self._penalty = penalty
        self._special = tokenizer.special
        self._matcher = grammar.matcher(self._tokenizer)

        # Tokens that the matcher has taken.
        self._taken: list[int] = []

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        """Penalise the tokens that do not fit. Raises ConfigError if the grammar leaves too much open."""
        text = [token for token in tokens if token < self._special.end_of_text]
        logits[self._special.timestamp_end :] -= self._penalty
        for _ in range(2):
            # A byte for each token, 0 if it does not fit.
            fits = np.frombuffer(self._matcher.compute_logit_bias() if self._follow(text) else b"", dtype=np.uint8)
            if not self._matcher.is_error():
                np.subtract(logits[: len(fits)], self._penalty, out=logits[: len(fits)], where=fits == 0)
                return
            # A matcher's memory of earlier texts counts towards its limits: try again with a new one.
            self._matcher, self._taken = self._grammar.matcher(self._tokenizer), []
        raise ConfigError(
            f"{self._grammar.where} is too ambiguous: expected a small grammar; use fewer or smaller repeats"
        )

    def _follow(self, text: list[int]) -> bool:
        """Make the matcher take a text; return whether all of it fits."""
        pairs = zip(self._taken, text, strict=False)
        n_same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._matcher.rollback(len(self._taken) - n_same)
        n_taken = self._matcher.try_consume_tokens(text[n_same:])
        self._taken = text[: n_same + n_taken]
        return len(self._taken) == len(text)


@lru_cache(maxsize=2)
def _ll_tokenizer(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    """Return llguidance's form of a tokenizer; kept, since building it takes a quarter of a second."""
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary(tokenizer)), slices=[])


class _Vocabulary:
    """The interface that llguidance expects of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.special.end_of_text
        self.tokens = [*tokenizer.spelled[: self.eos_token_id], b"<|endoftext|>"]
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of text; not used."""
        return []


def reason(matcher: llguidance.LLMatcher) -> str:
    """Return a line that says why a matcher cannot be used; empty if it can."""
    error = matcher.get_error()
    if error.startswith("NoExtension"):
        return "no text fits it"
    # Errors of regular expressions have several lines; positions in the Lark text are left out.
    message = re.search(r"^error: (.*)", error, re.MULTILINE) or re.match(r"(?:at )?(?:\d+\(\d+\): )?(.*)", error)
    return message[1] if message else ""
