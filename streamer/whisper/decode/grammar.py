"""Text that a grammar allows, as llguidance follows it: tokens that do not fit become unlikely. Source: whisper.cpp."""

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

# What whisper.cpp takes off the logits of text that does not fit: as good as never, where anything else is possible.
GRAMMAR_PENALTY = 100.0

MAX_BYTES = 1 << 16

# So that no grammar or regular expression takes more than about a second and 100 MB, to build or for a step: what needs
# more is refused.
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
        """Take the rules that `root` begins; `where` names them in messages. Raises ConfigError for broken ones."""
        self.where = where
        try:
            self._lark = to_lark(text, root)
            # The first step over single bytes shows whether the whole can be built.
            matcher = self.matcher(llguidance.LLTokenizer("byte"))
            matcher.compute_bitmask()
            problem = reason(matcher)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise ConfigError(
                f"{where} cannot be followed ({one_line(problem):.150}): expected a small grammar in GBNF, such as"
                ' root ::= "yes" | "no"; correct or shorten it'
            )

    @classmethod
    def read(cls, path: Path, root: str = "root") -> "Grammar":
        """Read a file of rules. Raises ConfigError where it cannot be read or is not a usable grammar."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise ConfigError(f"{path} is longer than {MAX_BYTES} bytes: expected a small grammar; shorten it")
            text = data.decode("utf-8-sig")
        except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a zero byte in the name
            problem = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"{str(path)!r:.200} cannot be read ({problem}): expected a grammar, a .gbnf file in UTF-8"
            ) from None
        return cls(text, root, str(path))

    def matcher(self, tokenizer: llguidance.LLTokenizer) -> llguidance.LLMatcher:
        """Return what follows texts of a tokenizer."""
        return llguidance.LLMatcher(tokenizer, self._lark, log_level=0, limits=LIMITS)


class GrammarFilter:
    """Text that a grammar allows; where it is left all the same, nothing is asked any more.

    A penalty, as in whisper.cpp, and no ban: where other rules forbid all that would fit, there is still a way on.
    Other than there, the end of the text is penalised too while the grammar is not complete. Timestamps are free.
    Tokens that a fine-tune has added to the vocabulary never fit.

    One thread at a time; it may be used for any number of windows.
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
        """See LogitFilter. Raises ConfigError where the grammar leaves too much open to be followed."""
        text = [token for token in tokens if token < self._special.end_of_text]
        logits[self._special.timestamp_end :] -= self._penalty
        for _ in range(2):
            # A byte for each token, 0 where it does not fit.
            fits = np.frombuffer(self._matcher.compute_logit_bias() if self._follow(text) else b"", dtype=np.uint8)
            if not self._matcher.is_error():
                np.subtract(logits[: len(fits)], self._penalty, out=logits[: len(fits)], where=fits == 0)
                return
            # It remembers what it has seen, up to a limit: perhaps this text alone stays below it.
            self._matcher, self._taken = self._grammar.matcher(self._tokenizer), []
        raise ConfigError(
            f"{self._grammar.where} leaves too many ways open: expected a small grammar; let what repeats repeat less"
        )

    def _follow(self, text: list[int]) -> bool:
        """Make the matcher take a text; return whether all of it fits."""
        n_same = 0
        while n_same < min(len(self._taken), len(text)) and self._taken[n_same] == text[n_same]:
            n_same += 1
        self._matcher.rollback(len(self._taken) - n_same)
        n_taken = self._matcher.try_consume_tokens(text[n_same:])
        self._taken = text[: n_same + n_taken]
        return len(self._taken) == len(text)


@lru_cache(maxsize=2)
def _ll_tokenizer(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    """Return a tokenizer as the library has it; kept, since that takes a quarter of a second."""
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary(tokenizer)), slices=[])


class _Vocabulary:
    """What the library has to know of a tokenizer: the bytes of each token of text, and the end of text."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.special.end_of_text
        self.tokens = [*tokenizer.spelled[: self.eos_token_id], b"<|endoftext|>"]
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of text, which nobody asks for."""
        return []


def reason(matcher: llguidance.LLMatcher) -> str:
    """Return the line that says why a matcher cannot be used; nothing if it can."""
    error = matcher.get_error()
    if error.startswith("NoExtension"):
        return "no text fits it"
    # Of a regular expression there is more than a line; positions are those in Lark.
    said = re.search(r"^error: (.*)", error, re.MULTILINE) or re.match(r"(?:at )?(?:\d+\(\d+\): )?(.*)", error)
    return said[1] if said else ""
