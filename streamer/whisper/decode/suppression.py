"""Which tokens never come: by number (openai-whisper's `suppress_tokens`), by text (whisper.cpp's `suppress_regex`)."""

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence

from streamer.errors import ConfigError
from streamer.whisper.tokens.tokenizer import Tokenizer

MODEL_TOKENS = -1  # in a list: what the model's settings suppress
MAX_PATTERN_LENGTH = 1000
MATCH_TIMEOUT_S = 10.0  # for the whole vocabulary; usual patterns need a tenth of a second, some for ever

# Gets a pattern and texts, tells which match.
_MATCHER = """
import json, re, sys, warnings
warnings.simplefilter("ignore")
pattern, texts = json.load(sys.stdin)
match = re.compile(pattern).fullmatch
json.dump([i for i, text in enumerate(texts) if match(text)], sys.stdout)
"""


def parse_suppress_tokens(setting: str) -> tuple[int, ...]:
    """Read numbers of tokens with commas between; -1: the model's own list. Raises ConfigError for anything else."""
    try:
        tokens = tuple(int(number) for number in setting.split(",")) if setting.strip() else ()
    except ValueError:
        tokens = (MODEL_TOKENS - 1,)
    if any(token < MODEL_TOKENS for token in tokens):
        raise ConfigError(
            f"suppress_tokens is {setting!r:.60}: expected numbers of tokens with commas between, -1 for the model's"
            " own list, or nothing"
        )
    return tokens


def suppressed_tokens(wanted: Sequence[int], of_model: Sequence[int], n_vocab: int) -> tuple[int, ...]:
    """Return the numbers of the tokens to suppress, in order.

    wanted : what `parse_suppress_tokens` returns
    of_model : `GenerationConfig.suppress_tokens`: the list of the model's file, which for the published models is
        openai-whisper's; where there is no file, openai-whisper's itself

    Raises ConfigError where the model has no such token.
    """
    tokens = {token for token in wanted if token != MODEL_TOKENS}
    if tokens and max(tokens) >= n_vocab:
        raise ConfigError(
            f"suppress_tokens names the token {max(tokens)!s:.60}: this model's are numbered from 0 to {n_vocab - 1}"
        )
    if MODEL_TOKENS in wanted:
        tokens.update(of_model)
    return tuple(sorted(tokens))


def check_suppress_regex(pattern: str) -> None:
    """Raise ConfigError where a pattern is no regular expression, or an outsized one."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ConfigError(
            f"suppress_regex has {len(pattern)} characters: expected up to {MAX_PATTERN_LENGTH}; list tokens with"
            " suppress_tokens instead"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on what later Pythons will read otherwise
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"suppress_regex {pattern!r:.60} is no regular expression ({error!s:.80}): expected Python's syntax"
        ) from None


def matching_tokens(pattern: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the numbers of the tokens of text whose whole text, with its leading space, matches a regular expression.

    A byte of an unfinished character counts as U+FFFD. Special tokens are not looked at.

    Raises ConfigError where the pattern is none, or takes for ever: it is tried in a process of its own, since
    Python's matcher cannot be stopped.
    """
    check_suppress_regex(pattern)
    texts = [spelled.decode("utf-8", errors="replace") for spelled in tokenizer.spelled]
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-I", "-c", _MATCHER],
            input=json.dumps([pattern, texts]).encode("ascii"),
            capture_output=True,
            timeout=MATCH_TIMEOUT_S,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        raise ConfigError(
            f"suppress_regex {pattern!r:.60} takes more than {MATCH_TIMEOUT_S:g} s or all of the memory to match: write"
            " it without repeats of repeats"
        ) from None
    # A number without text cannot be sampled for what it spells.
    return tuple(index for index in json.loads(done.stdout) if texts[index])
