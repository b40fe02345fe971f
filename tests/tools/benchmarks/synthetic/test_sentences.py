"""Sentences: what is read, cut and made up can be written by the model and spoken by every synthesiser."""

import random
import re
from pathlib import Path

import pytest

from tools.benchmarks.synthetic import sentences, words

WRITTEN = re.compile(r"""[A-Za-z0-9'",.;:?!() -]+""")


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("  Two   spaces.\t", "Two spaces."),
        ("the “sponge,” three hours’ rise", 'the "sponge," three hours\' rise'),
        ("Müller sold bric-à-brac", "Muller sold bric-a-brac"),
        ("for, as she [Marina] told me", "for, as she (Marina) told me"),
        ("splendor -- it is gone -- again", "splendor, it is gone, again"),
        ("with gas, -- still a novelty", "with gas, still a novelty"),
        ("it was over—at last", "it was over, at last"),
        ("he waited...", "he waited."),
        ("by Maj. Smith, Jr., i.e., him", "by Major Smith, Junior, that is, him"),
        ("sold to Hill and Co.", "sold to Hill and Company."),
        ("at six p.m., Mr. Hill and Dr. Lee", "at six p.m., Mr. Hill and Dr. Lee"),
        ("forty-two - or so", "forty-two, or so"),
        ("to four:fifty p.m.", "to four fifty p.m."),
        (" -- ", ""),
    ],
)
def test_text_is_normalised(written: str, plain: str) -> None:
    assert sentences.normalise(written) == plain


def test_a_file_is_read_line_by_line_without_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("One.\n\n — \nThe café’s own.\n", encoding="utf-8")
    assert sentences.read(path) == ["One.", "The cafe's own."]


def test_a_missing_file_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sentences.read(tmp_path / "absent.txt")


def test_the_same_seed_makes_the_same_sentences() -> None:
    first, second = random.Random(3), random.Random(3)
    assert [sentences.made(first) for _ in range(50)] == [sentences.made(second) for _ in range(50)]


def test_made_sentences_can_be_written_and_spoken() -> None:
    rng = random.Random(4)
    made = [sentences.made(rng) for _ in range(5000)]
    for sentence in made:
        assert WRITTEN.fullmatch(sentence), sentence
        assert not any(character.isdigit() for character in sentence), sentence
        assert all(any(character.isalpha() for character in token) for token in sentence.split()), sentence
        assert 2 <= len(sentence.split()) <= sentences.MAX_WORDS
        assert sentence.lstrip('"')[0].isupper(), sentence
        assert sentence.rstrip('"')[-1] in ".?!", sentence
        assert not re.search(r"[,.;:?!][,;:?!]|\.\.|  | [,.;:?!]", re.sub(r"[ap]\.m\.", "noon", sentence)), sentence
    assert len(set(made)) > 4000
    assert 5 < sum(len(sentence.split()) for sentence in made) / len(made) < 10


def test_times_of_day_do_not_end_sentences() -> None:
    assert sentences._finished("a hour before six a.m. on Monday") == "An hour before six a.m. on Monday."
    assert sentences._finished("it is six p.m.. a unit") == "It is six p.m. A unit."
    assert sentences._finished("is it six p.m.?") == "Is it six p.m.?"


def test_every_pattern_can_be_filled() -> None:
    maker = sentences._Maker(random.Random(5))
    for patterns in (*words.PATTERNS.values(), *words.SLOTS.values()):
        for pattern in patterns:
            assert "{" not in maker.fill(pattern)


@pytest.mark.parametrize(
    ("number", "spoken"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (42, "forty-two"),
        (105, "one hundred and five"),
        (2000, "two thousand"),
        (1200, "one thousand two hundred"),
        (3004, "three thousand and four"),
        (2_500_000, "two million, five hundred thousand"),
    ],
)
def test_numbers_are_spoken(number: int, spoken: str) -> None:
    assert sentences.cardinal(number) == spoken


@pytest.mark.parametrize(
    ("number", "spoken"),
    [(1, "first"), (12, "twelfth"), (20, "twentieth"), (31, "thirty-first"), (100, "one hundredth")],
)
def test_ordinals_are_spoken(number: int, spoken: str) -> None:
    assert sentences.ordinal(number) == spoken


@pytest.mark.parametrize(
    ("number", "spoken"),
    [
        (1963, "nineteen sixty-three"),
        (1905, "nineteen oh five"),
        (1800, "eighteen hundred"),
        (2007, "two thousand and seven"),
        (2024, "twenty twenty-four"),
    ],
)
def test_years_are_spoken(number: int, spoken: str) -> None:
    assert sentences.year(number) == spoken


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("stop", "stops stopping stopped stopped"),
        ("carry", "carries carrying carried carried"),
        ("lie down", "lies_down lying_down lay_down lain_down"),
        ("write", "writes writing wrote written"),
        ("agree with", "agrees_with agreeing_with agreed_with agreed_with"),
        ("begin", "begins beginning began begun"),
        ("visit", "visits visiting visited visited"),
        ("fix", "fixes fixing fixed fixed"),
        ("get up", "gets_up getting_up got_up gotten_up"),
        ("play", "plays playing played played"),
    ],
)
def test_verbs_are_inflected(verb: str, forms: str) -> None:
    made = [sentences.inflect(verb, form) for form in ("s", "ing", "past", "en")]
    assert made == [form.replace("_", " ") for form in forms.split()]
