"""Grammars: the parser, the automaton against derivatives of regular expressions, and decoding under a grammar."""

import itertools
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamer.audio.mel import log_mel
from streamer.errors import ConfigError
from streamer.whisper.decode import gbnf, grammar
from streamer.whisper.decode.grammar import Grammar, GrammarFilter
from streamer.whisper.decode.spelling import token_bytes
from streamer.whisper.decode.window import WindowOptions, decode_window
from streamer.whisper.model import WhisperModel
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.whisper.support import NANO, ROOT, SPEECH, read
from tests.whisper.tokens.published import MULTILINGUAL, load

DATA = ROOT / "tests" / "data"
TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
EOT = TOKENIZER.special.end_of_text
SPELLED = token_bytes(TOKENIZER)

DEAD, START = 0, 1


def compiled(text: str, root: str = "root") -> Grammar:
    return Grammar(gbnf.parse(text, "g.gbnf"), root)


def accepts(found: Grammar, text: str) -> bool:
    return found.complete(found.follow(START, text.encode("utf-8")))


# What a text has to be, given by a grammar and, for comparison, by a regular expression.


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('root ::= "a" | "b"', "a|b"),
        ('root ::= "a" "b"? "c"*', "ab?c*"),
        ('root ::= ("ab" | "c")+ "d"', "(ab|c)+d"),
        ('root ::= "ab"{2} "c"{1,} "d"{0,2}', "(ab){2}c+d{0,2}"),
        ('root ::= "ab"*', "(ab)*"),
        ("root ::= [a-c] [^a-c]", "[a-c][^a-c]"),
        (r'root ::= [\x61\u0062\U00000063\]\[\\] "\"\\"', r'[abc\]\[\\]"\\'),
        ("root ::= [a-] [-a] [a^]", "[a-][-a][a^]"),
        ("root ::= . .", "(?s)[^\ud800-\udfff]{2}"),
        ('root ::= one two # three\none ::= "a"\n\n# comment\ntwo ::=\n  "b" |\n  "c"\n', "a(b|c)"),
        ('root ::= (\n "a" # first\n | "b"\n) "c"', "(a|b)c"),
        ('root ::= "a" | ', "a?"),
        ('root ::= "" "a" ("" | "b")*', "ab*"),
        ('root ::= "a" root | "b"', "a*b"),
        ('root ::= "a" other | "b"\r\nother ::= "c" root?\r\n', "(ac)*(ac|b)"),
        ('root ::= ("a"? "b"*)*', "[ab]*"),
        ('root ::= "é" [à-ü]', "é[à-ü]"),
        ('root ::= a-1 "2"\na-1 ::= "x"', "x2"),
    ],
)
def test_a_grammar_says_what_a_regular_expression_says(text: str, pattern: str) -> None:
    found = compiled(text)
    for length in range(5):
        for characters in itertools.product('abcdx2é[\\"' if length < 4 else "abc", repeat=length):
            written = "".join(characters)
            assert accepts(found, written) == bool(re.fullmatch(pattern, written)), written
            assert accepts(found, f" {written}") == bool(
                re.fullmatch(f" ?({pattern.removeprefix('(?s)')})", f" {written}", re.S)
            )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "g.gbnf has no rules"),
        ("# nothing", "g.gbnf has no rules"),
        ("root", "line 1, column 5: expected ::=, found the end of the file"),
        ('root = "a"', "line 1, column 6: expected ::=, found '='"),
        ('root ::= "a', 'line 1, column 12: expected " before the end of the line, found the end of the file'),
        ('root ::= "a\n"', 'line 1, column 12: expected " before the end of the line'),
        ("root ::= [a", "line 1, column 12: expected ] before the end of the line"),
        ('root ::= ("a"', r"line 1, column 14: expected an item, \| or \)"),
        ('root ::= "a")', r"line 1, column 13: expected an item, \| or the end of the line, found '\)'"),
        ("root ::= *", "line 1, column 10: expected an item before the sign"),
        ('root ::= "a" | +', "line 1, column 16: expected an item before the sign"),
        ('root ::= "a"{', r"line 1, column 13: expected \{3\}, \{3,\} or \{3,5\}"),
        ('root ::= "a"{,3}', r"column 13: expected \{3\}"),
        ('root ::= "a"{5,3}', r"column 13: \{5,3\} is no count"),
        ('root ::= "a"{1001}', "is no count: expected up to 1000"),
        (r'root ::= "\q"', "column 11: the escape .* is unknown"),
        (r'root ::= "\x0"', "column 11: the escape .* is unknown"),
        (r'root ::= "\ud800"', "there is no character U\\+D800"),
        (r'root ::= "\UFFFFFFFF"', "there is no character U\\+FFFFFFFF"),
        ("root ::= [z-a]", "column 10: the range 'z' to 'a' goes backwards"),
        ("root ::= []", "column 10: the class has no characters"),
        (r"root ::= [^\x00-\U0010FFFF]", "column 10: the class has no characters"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule 'root' comes twice"),
        ("root ::= a_b", "line 1, column 11: expected an item"),
        ('1 ::= "a"', "there is no rule 'root'"),
        ('root ::= "a"\n  b\n', "line 2, column 4: expected ::="),
        ("root ::= other", "line 1, column 10: there is no rule 'other'"),
        ('root ::= "a"\nb ::= ("c" | d)?', "line 2, column 14: there is no rule 'd'"),
        ('root ::= root "a" | "b"', "line 1, column 10: the rule 'root' contains itself"),
        ('root ::= a\na ::= "(" b ")"\nb ::= a | "x"', "line 3, column 7: the rule 'a' contains itself"),
        ('root ::= "a" (root)*', "the rule 'root' contains itself"),
        ('root ::= "a" root', "no text ever completes the rule 'root'"),
        ("root ::= root", "no text ever completes the rule 'root'"),
    ],
)
def test_a_broken_grammar_is_one_sentence_that_says_where(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compiled(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + "(" * 40_000,
        'root ::= "a"' + "*" * 10_000,
        'root ::= ((("a"{1000}){1000}){1000}){1000}',
        "root ::= (((((){1000}){1000}){1000}){1000}){1000}",
        "root ::= " + '"a"? ' * 10_000,
        'root ::= "a" root0\n'
        + "\n".join(f"root{i} ::= root{i + 1} root{i + 1}" for i in range(40))
        + '\nroot40 ::= "a"',
        "\n".join(f"r{i} ::= r{i + 1}" for i in range(3000)) + '\nr3000 ::= "a"\nroot ::= r0',
        "root ::= " + "[^a]{1000} " * 200,
    ],
)
def test_an_outsized_grammar_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"too large|too deep|parentheses are open"):
        compiled(text)


def problem_of(text: str) -> str:
    """Return what is said of a grammar, nothing where it is taken."""
    try:
        compiled(text)
    except ConfigError as error:
        return str(error)
    return ""


@given(st.text(st.sampled_from('ab-:=()[]{}^*+?|"\\.,#\n\r\t 019xuU'), max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_grammar_or_one_sentence(text: str) -> None:
    for problem in (problem_of(text), problem_of(f"root ::= {text}")):
        assert "\n" not in problem
        assert len(problem) < 300


@pytest.mark.parametrize("content", [b"root ::= \xff", b"#" * (gbnf.MAX_BYTES + 1), None])
def test_a_file_that_is_no_grammar_is_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "x.gbnf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.gbnf.*expected a"):
        Grammar.read(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Grammar.read(Path("a\0b"))


# The automaton against Brzozowski's derivatives of random expressions.


@dataclass(frozen=True)
class Expression:
    """A regular expression: `set` of characters, `seq` and `alt` of parts, `star` of one part."""

    kind: str
    parts: tuple["Expression", ...] = ()
    characters: str = ""

    def __str__(self) -> str:
        if self.kind == "set":
            return f"[{self.characters}]"
        if self.kind == "star":
            return f"({self.parts[0]})*"
        return "(" + (" " if self.kind == "seq" else " | ").join(map(str, self.parts)) + ")"


NOTHING = Expression("alt")
EMPTY = Expression("seq")


def seq(*parts: Expression) -> Expression:
    return NOTHING if NOTHING in parts else Expression("seq", parts)


def alt(*parts: Expression) -> Expression:
    return Expression("alt", tuple(part for part in dict.fromkeys(parts) if part != NOTHING))


def nullable(expression: Expression) -> bool:
    if expression.kind == "seq":
        return all(map(nullable, expression.parts))
    return expression.kind == "star" or any(map(nullable, expression.parts))


@cache
def derivative(expression: Expression, character: str) -> Expression:
    """Return what may follow the character."""
    match expression.kind:
        case "set":
            return EMPTY if character in expression.characters else NOTHING
        case "alt":
            return alt(*(derivative(part, character) for part in expression.parts))
        case "star":
            return seq(derivative(expression.parts[0], character), expression)
    if not expression.parts:
        return NOTHING
    first, *rest = expression.parts
    found = seq(derivative(first, character), *rest)
    return alt(found, derivative(seq(*rest), character)) if nullable(first) else found


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", "é", "ab", "bé", "aé\N{EURO SIGN}"]).map(lambda c: Expression("set", characters=c)),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map(lambda found: seq(*found)),
        st.lists(parts, min_size=1, max_size=3).map(lambda found: alt(*found)),
        parts.map(lambda part: Expression("star", (part,))),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
@example(Expression("star", (Expression("star", (EMPTY,)),)))
@settings(max_examples=200, deadline=None)
def test_the_automaton_accepts_what_derivatives_accept(expression: Expression) -> None:
    found = compiled(f"root ::= {expression}")

    def compare(state: int, expected: Expression, depth: int) -> None:
        assert (state != DEAD) == (expected != NOTHING)
        assert found.complete(state) == nullable(expected)
        if expected != NOTHING and depth:
            for character in "abé\N{EURO SIGN} ":
                after = derivative(expected, character)
                spelled = character.encode("utf-8")
                compare(found.follow(state, spelled), after, depth - 1)
                # No two of these characters begin alike: after a part of one, it has to be possible.
                assert all(
                    (found.follow(state, spelled[:n]) != DEAD) == (after != NOTHING) for n in range(1, len(spelled))
                )

    compare(START, alt(expression, seq(Expression("set", characters=" "), expression)), 4)


@given(
    st.lists(st.tuples(*[st.integers(0, 0x10FFFE)] * 2).map(sorted), min_size=1, max_size=4), st.integers(0, 0x10FFFF)
)
@example([[0, 0x10FFFE]], 0xD7FF)
@example([[0x7F, 0x80], [0x7FF, 0x800], [0xFFFF, 0x10000]], 0x10000)
@settings(max_examples=300, deadline=None)
def test_a_class_has_the_characters_of_its_ranges(ranges: list[list[int]], code: int) -> None:
    written = "".join(rf"\U{first:08X}-\U{last:08X}" for first, last in ranges)
    ends = [end for pair in ranges for end in pair]
    if any(0xD800 <= end <= 0xDFFF for end in ends):
        return
    inside = compiled(f"root ::= [{written}] | [a]")
    outside = compiled(f"root ::= [^{written}] | [a]")
    for tried in {code, *ends, *(min(end + 1, 0x10FFFF) for end in ends), *(max(end - 1, 0) for end in ends)}:
        if not 0xD800 <= tried <= 0xDFFF and tried not in (ord(" "), ord("a")):
            contained = any(first <= tried <= last for first, last in ranges)
            assert accepts(inside, chr(tried)) == contained
            assert accepts(outside, chr(tried)) != contained


# Decoding.


def test_no_way_leads_to_where_there_is_no_end() -> None:
    found = compiled('root ::= "a" endless | "ab"\nendless ::= "c" endless')
    assert found.follow(START, b"ac") == DEAD
    assert accepts(found, "ab")


def logits_of(seed: int, n_vocab: int = TOKENIZER.n_vocab) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(n_vocab).astype(np.float32)


@given(EXPRESSIONS, st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_the_filter_penalises_the_tokens_that_do_not_fit(expression: Expression, seed: int) -> None:
    found = compiled(f"root ::= {expression}")
    rule = GrammarFilter(found, TOKENIZER, 50.0)
    tokens: list[int] = []
    for step in range(4):
        before = logits_of(seed + step)
        after = before.copy()
        rule.apply(after, tokens)
        state = found.follow(START, b"".join(SPELLED[token] for token in tokens))
        fits = [bool(spelled) and found.follow(state, spelled) != DEAD for spelled in SPELLED]
        expected = before - 50.0 * ~np.array([*fits, found.complete(state), *[True] * (len(before) - EOT - 1)])
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
        assert accepts(found, text)


def test_a_character_may_be_spread_over_tokens() -> None:
    rule = GrammarFilter(compiled('root ::= "日本" | "é"'), TOKENIZER)
    assert any(len(SPELLED[token]) < 3 for token in TOKENIZER.encode("日本"))
    assert {sampled(rule, TOKENIZER, seed).strip() for seed in range(20)} == {"日本", "é"}


def test_a_state_follows_from_the_tokens_alone() -> None:
    histories: list[list[int]] = [
        TOKENIZER.encode(text) for text in (" Turn", " Stop", " Set the", "", " Turn on the", "x")
    ]
    random = np.random.default_rng(0)
    rule = GrammarFilter(Grammar.read(DATA / "commands.gbnf"), TOKENIZER)
    for i in random.integers(0, len(histories), 50):
        fresh = GrammarFilter(Grammar.read(DATA / "commands.gbnf"), TOKENIZER)
        one, other = logits_of(0), logits_of(0)
        rule.apply(one, histories[i])
        fresh.apply(other, histories[i])
        np.testing.assert_array_equal(one, other)


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
    commands = [TOKENIZER.encode(text) for text in (" Turn on the kitchen lights.", " Set the radio to ten degrees.")]
    histories = [tokens[:n] for n in range(12) for tokens in commands] * 2
    expected = []
    for history in histories:
        expected.append(logits_of(0))
        GrammarFilter(Grammar.read(DATA / "commands.gbnf"), TOKENIZER).apply(expected[-1], history)
    for limit in ("MAX_SIZE", "MAX_REJECTS", "MAX_TEXTS"):
        with monkeypatch.context() as patch:
            patch.setattr(grammar, limit, 800 if limit == "MAX_SIZE" else 5)
            found = Grammar.read(DATA / "commands.gbnf")
            rule = GrammarFilter(found, TOKENIZER)
            sizes = []
            for history, filtered in zip(histories, expected, strict=True):
                logits = logits_of(0)
                rule.apply(logits, history)
                np.testing.assert_array_equal(logits, filtered)
                sizes.append(found.size)
            assert (sizes != sorted(sizes)) == (limit == "MAX_SIZE")


def test_a_grammar_that_leaves_too_much_open_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_SIZE_OF_STEP", 10_000)
    rule = GrammarFilter(compiled("root ::= .* [aeiou] .{40}"), TOKENIZER)
    with pytest.raises(ConfigError, match=r"g\.gbnf leaves too many ways open"):
        rule.apply(logits_of(0), TOKENIZER.encode(" " + "aba" * 9))


def test_speech_is_transcribed_as_the_grammar_has_it(model: WhisperModel) -> None:
    decoder = model.runtime.decoder
    decoder.use(model.runtime.encode(log_mel(read(SPEECH), model.dims.n_mels), 0))
    rule = GrammarFilter(compiled('root ::= [A-Z] [a-z]* (" " [a-z]+)* "!"'), model.tokenizer)
    options = WindowOptions(language="en", filters=(rule,))
    window = decode_window(decoder, model.tokenizer, model.generation, options)
    assert re.fullmatch(r" [A-Z][a-z]*( [a-z]+)*!", model.tokenizer.decode(window.tokens))
    assert len(window.tokens) > 10
