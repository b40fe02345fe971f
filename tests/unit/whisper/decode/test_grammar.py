"""Grammars: what they allow, compared with regular expressions, and decoding under a grammar."""

import itertools
import re
import tomllib
from collections.abc import Sequence

import llguidance
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamer.audio.mel import log_mel
from streamer.errors import ConfigError
from streamer.whisper.decode import grammar
from streamer.whisper.decode.grammar import Grammar, GrammarFilter
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.window import decode_window
from streamer.whisper.model import WhisperModel
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO, ROOT, SPEECH, read
from tests.unit.whisper.tokens.published import MULTILINGUAL, load

DATA = ROOT / "tests" / "data"
TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
EOT = TOKENIZER.special.end_of_text
SPELLED = TOKENIZER.spelled[:EOT]

BYTES = llguidance.LLTokenizer("byte")


def compiled(text: str, root: str = "root") -> Grammar:
    return Grammar(text, root, "g.gbnf")


class Follower:
    """What a grammar says of texts, byte by byte."""

    def __init__(self, found: Grammar) -> None:
        self._matcher = found.matcher(BYTES)

    def fits(self, data: bytes) -> bool:
        assert self._matcher.reset()
        return self._matcher.try_consume_tokens(list(data)) == len(data)

    def accepts(self, text: str) -> bool:
        return self.fits(text.encode("utf-8")) and self._matcher.is_accepting()


# Rules and regular expressions that say the same, and rules that no regular expression can follow.
RULES_AND_PATTERNS = tomllib.loads((DATA / "grammars.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("text", "pattern"), RULES_AND_PATTERNS["same"], ids=lambda value: repr(value)[:40])
def test_a_grammar_says_what_a_regular_expression_says(text: str, pattern: str) -> None:
    found = Follower(compiled(text))
    for length in range(5):
        for characters in itertools.product('abcdx2é[\\"' if length < 4 else "abc", repeat=length):
            written = "".join(characters)
            assert found.accepts(written) == bool(re.fullmatch(pattern, written)), written
            assert found.accepts(f" {written}") == bool(
                re.fullmatch(f" ?({pattern.removeprefix('(?s)')})", f" {written}", re.S)
            )


@pytest.mark.parametrize(("text", "accepted", "refused"), RULES_AND_PATTERNS["recursive"])
def test_a_rule_may_contain_itself(text: str, accepted: list[str], refused: list[str]) -> None:
    found = Follower(compiled(text))
    assert [word for word in accepted + refused if found.accepts(word)] == accepted


def problem_of(text: str, texts: Sequence[Sequence[int]] = ()) -> str:
    """Return what is said of a grammar, as it is read and in texts; nothing where all is well."""
    try:
        rule = GrammarFilter(compiled(text), TOKENIZER)
        for tokens in texts:
            rule.apply(logits_of(0), tokens)
    except ConfigError as error:
        return str(error)
    return ""


# What multiplies, or is too large.
HALVED = "\n".join(f"root{i} ::= root{i + 1} root{i + 1}" for i in range(40)) + '\nroot40 ::= "a"'


@given(st.text(st.sampled_from('ab-:=()[]{}^*+?|"\\.,#\n\r\t 019xuU'), max_size=60))
@example('"a"{%s}' % ("9" * 5000))
@example("(" * 40_000)
@example(f'"a" root0\n{HALVED}')
@example('((("a" | "ab"){1,1000}){1,1000}){1,1000}')
@example(".* [aeiou] .{40}")
@example('("a" | "ab" | root){3} | root root | "b" root "a"')
@settings(max_examples=40, deadline=None)
def test_any_text_is_a_grammar_that_can_be_followed_or_one_sentence(text: str) -> None:
    texts = [TOKENIZER.encode(" " + "aba" * n) for n in (0, 1, 11)]
    for problem in (problem_of(text), problem_of(f"root ::= {text}", texts)):
        assert not problem or (problem.isprintable() and len(problem) < 330)


@given(
    st.lists(st.tuples(*[st.integers(0, 0x10FFFE)] * 2).map(sorted), min_size=1, max_size=4), st.integers(0, 0x10FFFF)
)
@example([[0, 0x10FFFE]], 0xD7FF)
@example([[0x7F, 0x80], [0x7FF, 0x800], [0xFFFF, 0x10000]], 0x10000)
@settings(max_examples=40, deadline=None)
def test_a_class_has_the_characters_of_its_ranges(ranges: list[list[int]], code: int) -> None:
    written = "".join(rf"\U{first:08X}-\U{last:08X}" for first, last in ranges)
    ends = [end for pair in ranges for end in pair]
    if any(0xD800 <= end <= 0xDFFF for end in ends):
        return
    inside = Follower(compiled(f"root ::= [{written}] | [a]"))
    outside = Follower(compiled(f"root ::= [^{written}] | [a]"))
    for tried in {code, *ends, *(min(end + 1, 0x10FFFF) for end in ends), *(max(end - 1, 0) for end in ends)}:
        if not 0xD800 <= tried <= 0xDFFF and tried not in (ord(" "), ord("a")):
            contained = any(first <= tried <= last for first, last in ranges)
            assert inside.accepts(chr(tried)) == contained
            assert outside.accepts(chr(tried)) != contained


def logits_of(seed: int, n_vocab: int = TOKENIZER.n_vocab) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(n_vocab).astype(np.float32)


@pytest.mark.parametrize("text", [text for text, _ in RULES_AND_PATTERNS["same"][::4]])
def test_the_filter_penalises_the_tokens_that_do_not_fit(text: str) -> None:
    found = compiled(text)
    follower = Follower(found)
    rule = GrammarFilter(found, TOKENIZER, 50.0)
    tokens: list[int] = []
    for step in range(4):
        before = logits_of(step)
        after = before.copy()
        rule.apply(after, tokens)
        spelled = b"".join(SPELLED[token] for token in tokens)
        fits = [bool(more) and follower.fits(spelled + more) for more in SPELLED]
        complete = follower.accepts(spelled.decode("utf-8", errors="replace"))
        expected = before - 50.0 * ~np.array([*fits, complete, *[True] * (len(before) - EOT - 1)])
        np.testing.assert_allclose(after, expected, rtol=1e-6)
        token = int(after[: EOT + 1].argmax())
        if token == EOT:
            break
        tokens.append(token)


def sampled(rule: GrammarFilter, tokenizer: Tokenizer, seed: int) -> str:
    """Decode random logits: text of the grammar, whatever the model says."""
    tokens: list[int] = []
    for step in range(200):
        logits = logits_of(1000 * seed + step, tokenizer.n_vocab)
        rule.apply(logits, tokens)
        token = int(logits[: tokenizer.special.end_of_text + 1].argmax())
        if token == tokenizer.special.end_of_text:
            return tokenizer.decode(tokens)
        tokens.append(token)
    raise AssertionError("no end")


@pytest.mark.parametrize("tokenizer", [TOKENIZER, load(MULTILINGUAL)], ids=["nano", "multilingual"])
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("commands", r" ?(Turn (on|off) the ([a-z]+ )*[a-z]+|Set the [a-z]+ to [a-z-]+ degrees|Stop)\."),
        ("digits", r" ?([0-9]|[a-z]{2,5})(,? ?([0-9]|[a-z]{2,5}))*\.?"),
    ],
)
def test_whatever_the_model_says_the_text_is_the_grammar_s(tokenizer: Tokenizer, name: str, pattern: str) -> None:
    found = Grammar.read(DATA / f"{name}.gbnf")
    rule = GrammarFilter(found, tokenizer)
    texts = {sampled(rule, tokenizer, seed) for seed in range(12)}
    assert len(texts) > 2
    for text in texts:
        assert re.fullmatch(pattern, text)
        assert Follower(found).accepts(text)


def test_a_character_may_be_spread_over_tokens() -> None:
    rule = GrammarFilter(compiled('root ::= "日本" | "é"'), TOKENIZER)
    assert any(len(SPELLED[token]) < 3 for token in TOKENIZER.encode("日本"))
    assert {sampled(rule, TOKENIZER, seed).strip() for seed in range(20)} == {"日本", "é"}


def test_timestamps_are_free_and_change_nothing() -> None:
    begin = TOKENIZER.special.timestamp_begin
    rule = GrammarFilter(Grammar.read(DATA / "commands.gbnf"), TOKENIZER)
    plain, timed = logits_of(0), logits_of(0)
    rule.apply(plain, TOKENIZER.encode(" Turn on"))
    rule.apply(timed, [begin, *TOKENIZER.encode(" Turn"), begin + 50, begin + 50, *TOKENIZER.encode(" on")])
    np.testing.assert_array_equal(plain, timed)
    np.testing.assert_array_equal(plain[EOT + 1 :], logits_of(0)[EOT + 1 :])


def test_where_the_grammar_is_left_nothing_is_asked() -> None:
    rule = GrammarFilter(Grammar.read(DATA / "commands.gbnf"), TOKENIZER, penalty=1.0)
    logits = logits_of(0)
    rule.apply(logits, TOKENIZER.encode(" Hello"))
    np.testing.assert_array_equal(logits, logits_of(0))


def test_what_others_forbid_stays_forbidden_and_leaves_a_way() -> None:
    rule = GrammarFilter(compiled('root ::= "("'), TOKENIZER)
    logits = logits_of(0)
    forbidden = [i for i, spelled in enumerate(SPELLED) if b"(" in spelled or spelled == b" "]
    logits[forbidden] = -np.inf
    rule.apply(logits, [])
    assert np.isneginf(logits[forbidden]).all()
    assert np.isfinite(logits).sum() == len(logits) - len(forbidden)


def test_what_is_remembered_is_bounded_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled("root ::= .* [aeiou] .{20}")
    unlimited = GrammarFilter(found, TOKENIZER)
    monkeypatch.setattr(grammar, "LIMITS", llguidance.LLParserLimits(max_lexer_states=100, verbose_errors=False))
    rule = GrammarFilter(found, TOKENIZER)
    random = np.random.default_rng(0)
    for _ in range(200):
        history = [int(token) for token in random.choice(TOKENIZER.encode(" aba abba bab"), 6)]
        logits, expected = logits_of(0), logits_of(0)
        rule.apply(logits, history)
        unlimited.apply(expected, history)
        np.testing.assert_array_equal(logits, expected)


def test_a_grammar_that_leaves_too_much_open_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled("root ::= .* [aeiou] .{40}")
    monkeypatch.setattr(grammar, "LIMITS", llguidance.LLParserLimits(max_lexer_states=5, verbose_errors=False))
    rule = GrammarFilter(found, TOKENIZER)
    with pytest.raises(ConfigError):
        rule.apply(logits_of(0), TOKENIZER.encode(" " + "aba" * 9))


def test_speech_is_transcribed_as_the_grammar_has_it(model: WhisperModel) -> None:
    decoder = model.runtime.decoder
    decoder.use(model.runtime.encode(log_mel(read(SPEECH)[: 6 * 16_000], model.dims.n_mels), 0))
    rule = GrammarFilter(compiled('root ::= [A-Z] [a-z]* (" " [a-z]{1,15}){0,11} "!"'), model.tokenizer)
    options = DecodeOptions(generation=model.generation, live=True, filters=(rule,))
    window = decode_window(decoder, model.tokenizer, options, WindowTask(language="en"))
    assert re.fullmatch(r" [A-Z][a-z]*( [a-z]{1,15}){0,11}!", model.tokenizer.decode(window.tokens))
    assert len(window.tokens) > 10
