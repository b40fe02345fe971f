"""Suppressed tokens, against openai-whisper's list and a plain loop; and what decoding refuses in its options."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamer.errors import ConfigError
from streamer.whisper.decode.grammar import Grammar
from streamer.whisper.decode.hotwords import check_hotwords
from streamer.whisper.decode.suppression import (
    check_suppress_regex,
    matching_tokens,
    parse_suppress_tokens,
    suppressed_tokens,
)
from tests.refusals import Refusal, refusals
from tests.unit.whisper.tokens.published import MULTILINGUAL, load, table

TOKENIZER = load(MULTILINGUAL)
TEXTS = [token.decode("utf-8", errors="replace") for token in table("multilingual")]
SHORT = ["".join(letters).encode() for n in range(1, 5) for letters in itertools.product("ab[", repeat=n)]


@pytest.mark.parametrize(
    ("setting", "tokens"), [("-1", (-1,)), ("", ()), (" ", ()), ("1,2,3", (1, 2, 3)), ("7, -1", (7, -1))]
)
def test_a_list_of_tokens_is_read_as_openai_whisper_reads_it(setting: str, tokens: tuple[int, ...]) -> None:
    assert parse_suppress_tokens(setting) == tokens


def test_minus_one_stands_for_the_model_s_own_list() -> None:
    assert suppressed_tokens((-1,), (5, 3), 10) == (3, 5)
    assert suppressed_tokens((9, -1, 3), (5, 3), 10) == (3, 5, 9)
    assert suppressed_tokens((9, 3), (5,), 10) == (3, 9)
    assert suppressed_tokens((), (5,), 10) == ()


@pytest.mark.parametrize(
    "pattern", [" ?[0-9]+", "[,.]", " .*", "[^a-zA-Z ]+", "", "[a-d].", "(?i)the", "\N{REPLACEMENT CHARACTER}"]
)
def test_a_pattern_suppresses_the_tokens_whose_whole_text_it_matches(pattern: str) -> None:
    expected = tuple(i for i, text in enumerate(TEXTS) if text and re.fullmatch(pattern, text))
    assert matching_tokens(pattern, TOKENIZER.spelled) == expected
    assert bool(expected) == bool(pattern)


def test_no_pattern_takes_for_ever() -> None:
    # Python's own matcher would not come to the end of a row of hyphens within a lifetime.
    expected = tuple(i for i, text in enumerate(TEXTS) if text.endswith("0") and "\n" not in text)
    assert matching_tokens("(?:-|--|.|..|.-|-.)*0", TOKENIZER.spelled) == expected
    with pytest.raises(ConfigError) as caught:
        matching_tokens(".*" * 500, TOKENIZER.spelled)
    assert len(str(caught.value)) < 300


HOSTILE = [
    *(("suppress_tokens", setting) for setting in ("9" * 4000, "9" * 5000)),
    *(("suppress_regex", pattern) for pattern in ("a{99999999999}", "(" * 490 + ")" * 490, "\udcff", "(" * 10_000)),
]


@pytest.mark.parametrize(("use", "given"), HOSTILE, ids=lambda value: value[:20])
def test_what_is_long_or_strange_is_one_sentence(tmp_path: Path, use: str, given: str) -> None:
    assert suppressed_tokens(parse_suppress_tokens("9"), (), 10) == (9,)
    with pytest.raises(ConfigError) as caught:
        USES[use](tmp_path, given)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@given(st.text(st.sampled_from("ab(|)*?."), max_size=12))
@example("(a|b*?)*b.")
@settings(max_examples=200, deadline=None)
def test_patterns_match_as_python_matches_them(pattern: str) -> None:
    try:
        matches = re.compile(pattern).fullmatch
        found = matching_tokens(pattern, SHORT)
    except (re.error, ConfigError):
        return
    assert found == tuple(i for i, text in enumerate(SHORT) if matches(text.decode()))


def read_grammar(folder: Path, content: str | None) -> None:
    path = folder / "x.gbnf"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    Grammar.read(path)


USES: dict[str, Callable[[Path, Any], object]] = {
    "grammar": lambda _, text: Grammar(text, "root", "g.gbnf"),
    "file": read_grammar,
    "missing": lambda folder, _: read_grammar(folder, None),
    "hotwords": lambda _, phrases: check_hotwords(phrases),
    "n_hotwords": lambda _, n: check_hotwords([f"w{i}" for i in range(n)]),
    "suppress_tokens": lambda _, setting: suppressed_tokens(parse_suppress_tokens(setting), (), 10),
    "suppress_regex": lambda _, pattern: check_suppress_regex(pattern),
    "repeats": lambda _, n: matching_tokens(".*" * n, [b"abababababab"] * 10),
}


@refusals("decode")
def test_what_cannot_be_used_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    ((use, given),) = refusal.given.items()
    with refusal.expected(tmp_path):
        USES[use](tmp_path, given)
