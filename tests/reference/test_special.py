"""The numbers of the special tokens, which follow from a vocabulary's size and the few names that matter."""

import pytest
import whisper.tokenizer

from streamer.errors import ModelError
from streamer.whisper.tokens.special import ENGLISH_ONLY, LANGUAGES, PUBLISHED, SpecialTokens, complete, find_special
from tests.unit.whisper.tokens.published import CASES, Case, reference, special_tokens, table

N_COMMON = 1509  # special tokens without languages


def text_tokens(n_text: int) -> dict[str, int]:
    return {f"t{i}": i for i in range(n_text)}


def whole(n_text: int, n_languages: int) -> dict[str, int]:
    """A vocabulary that names all of its special tokens."""
    return complete(text_tokens(n_text), SpecialTokens.at(n_text, n_languages), "here")


def filled(named: dict[str, int], n_vocab: int) -> dict[str, int]:
    return complete(named, find_special(named, n_vocab, "here"), "here")


def test_languages_are_in_openai_whispers_order() -> None:
    assert list(whisper.tokenizer.LANGUAGES) == list(LANGUAGES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.n_vocab))
def test_numbers_and_names_equal_openai_whispers(case: Case) -> None:
    special, expected = PUBLISHED[case.n_vocab], reference(case)
    assert special.end_of_text == expected.eot == len(table(case.asset))
    assert dict(zip(special.names, range(special.end_of_text, case.n_vocab), strict=True)) == special_tokens(case)
    assert list(special.languages) == sorted(expected.all_language_tokens)
    assert special.start_of_transcript == expected.sot
    assert special.start_of_language_model == expected.sot_lm
    assert special.start_of_previous == expected.sot_prev
    for name in ("translate", "transcribe", "no_speech", "no_timestamps", "timestamp_begin"):
        assert getattr(special, name) == getattr(expected, name)
    assert special.timestamp_end == case.n_vocab


@pytest.mark.parametrize("n_languages", [1, 99, 100])
def test_the_room_gives_the_languages(n_languages: int) -> None:
    n_vocab = 300 + N_COMMON + n_languages
    assert find_special(text_tokens(300), n_vocab, "here") == SpecialTokens.at(300, n_languages)


@pytest.mark.parametrize("n_named", [1, 2, 3, 101, 102, 108, 109, 1000])
def test_any_of_the_first_may_be_named(n_named: int) -> None:
    everything = whole(300, 99)
    some = dict(list(everything.items())[: 300 + n_named])
    assert filled(some, 300 + N_COMMON + 99) == everything


def test_a_gap_before_the_named_ones_is_no_matter() -> None:
    """The published multilingual vocabulary has a token that spells nothing, which a file may leave out."""
    everything = whole(300, 5)
    early = {name: number for name, number in everything.items() if name != "t299" and "." not in name}
    assert {**filled(early, 300 + N_COMMON + 5), "t299": 299} == everything


def test_what_a_fine_tune_has_put_in_is_left_alone() -> None:
    more = {**whole(300, 2), "[UM]": 300 + N_COMMON + 2, "<|more|>": 9999}
    assert find_special(more, 20_000, "here") == SpecialTokens.at(300, 2)
    assert filled(more, 20_000) == more
    other = {name.replace("<|la|>", "<|gsw|>"): number for name, number in whole(300, 99).items()}
    assert filled(other, 300 + N_COMMON + 99) == other
    # An English-only model has the size of the multilingual ones with one token more.
    assert find_special({**whole(50256, 99), "[UM]": 51864}, 51865, "here") == ENGLISH_ONLY


@pytest.mark.parametrize(
    ("n_text", "n_vocab"),
    [
        *((300, n_vocab) for n_vocab in (300, 301, 300 + N_COMMON, 300 + N_COMMON + 101, 51865)),
        # Of another published model: the sizes alone would give 98 or 100 languages.
        *((50256, 51865), (50257, 51864), (50256, 51866), (50258, 51866)),
    ],
)
def test_sizes_that_do_not_add_up_are_refused(n_text: int, n_vocab: int) -> None:
    with pytest.raises(ModelError):
        find_special(text_tokens(n_text), n_vocab, "here")


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("<|startoftranscript|>", "<|endoftexts|>"),
        ("<|en|>", "<|English|>"),
        ("<|transcribe|>", "[UM]"),
        ("<|0.00|>", "<|0.02|>"),
        ("<|30.00|>", "t7"),
        ("<|nospeech|>", "<|de|>"),
    ],
)
def test_another_name_where_a_special_token_belongs_is_refused(name: str, other: str) -> None:
    everything = whole(300, 2)
    number = everything.pop(name)
    with pytest.raises(ModelError):
        complete({**everything, other: number}, SpecialTokens.at(300, 2), "here")


def test_a_special_name_at_another_place_is_refused() -> None:
    with pytest.raises(ModelError):
        complete({**text_tokens(300), "<|0.04|>": 5}, SpecialTokens.at(300, 2), "here")
