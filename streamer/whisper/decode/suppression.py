"""Which tokens never come: by number (openai-whisper's `suppress_tokens`), by text (whisper.cpp's `suppress_regex`)."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamer.errors import ConfigError
from streamer.extras import requires

if TYPE_CHECKING:
    import llguidance

MODEL_TOKENS = -1  # in a list: what the model's settings suppress


def parse_suppress_tokens(setting: str) -> tuple[int, ...]:
    """Read numbers of tokens with commas between; -1: the model's own list. Raises ConfigError for anything else."""
    with contextlib.suppress(ValueError):
        tokens = tuple(int(number) for number in setting.split(",")) if setting.strip() else ()
        if all(token >= MODEL_TOKENS for token in tokens):
            return tokens
    raise ConfigError(
        f"suppress_tokens is {setting!r:.60}: expected token numbers separated by commas, -1 for the model's own list,"
        " or nothing"
    )


def suppressed_tokens(wanted: Sequence[int], of_model: Sequence[int], n_vocab: int) -> tuple[int, ...]:
    """Return the numbers of the tokens to suppress, in order.

    wanted : what `parse_suppress_tokens` returns
    of_model : `GenerationConfig.suppress_tokens`

    Raises ConfigError if the model has no such token.
    """
    tokens = {token for token in wanted if token != MODEL_TOKENS}
    if tokens and max(tokens) >= n_vocab:
        raise ConfigError(
            f"suppress_tokens has token {max(tokens)!s:.60}: expected 0 to {n_vocab - 1}, this model's tokens"
        )
    if MODEL_TOKENS in wanted:
        tokens.update(of_model)
    return tuple(sorted(tokens))


def check_suppress_regex(pattern: str) -> None:
    """Raise ConfigError for a pattern that is not a regular expression; an empty one is none."""
    if pattern:
        _regex_matcher(pattern)


def matching_tokens(pattern: str, spelled: Sequence[bytes]) -> tuple[int, ...]:
    """Return the numbers of the tokens of text whose whole text, with its leading space, matches a regular expression.

    spelled : `Tokenizer.spelled`; a byte of an unfinished character counts as U+FFFD, and special tokens are empty

    llguidance matches in linear time and within limits; Python's matcher can take forever, and cannot be stopped.

    Raises ConfigError for a pattern that is not a regular expression or needs more than these limits.
    """
    matcher = _regex_matcher(pattern)
    matching = []
    for index, token in enumerate(spelled):
        text = [*token.decode("utf-8", errors="replace").encode()]
        if text and matcher.try_consume_tokens(text) == len(text) and matcher.is_accepting():
            matching.append(index)
        if matcher.is_error():
            raise ConfigError(
                f"suppress_regex {pattern!r:.60} is too complex to match: write it with fewer or smaller repeats"
            )
        matcher.reset()
    return tuple(matching)


def _regex_matcher(pattern: str) -> "llguidance.LLMatcher":
    """Return what matches text byte by byte. Raises ConfigError."""
    requires("llguidance", extra="grammar", purpose="--suppress-regex")
    import llguidance

    from streamer.whisper.decode.grammar import LIMITS, reason

    try:
        grammar = llguidance.LLMatcher.grammar_from_regex(pattern)
    except UnicodeEncodeError:  # bytes of the command line that are not UTF-8
        raise ConfigError(f"suppress_regex {pattern!r:.60} is not UTF-8: expected a regular expression") from None
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise ConfigError(
            f"suppress_regex {pattern!r:.60} cannot be used ({reason(matcher):.80}): expected a regular expression in"
            r" the syntax of Rust's regex crate, without \b, lookaround and backreferences"
        )
    return matcher
