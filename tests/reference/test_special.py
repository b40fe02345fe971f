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


def test_languages_are_in_openai_whispers_order() -> None:
    assert list(whisper.tokenizer.LANGUAGES) == list(LANGUAGES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.n_vocab))
def test_numbers_and_names_equal_openai_whispers(case: Case) -> None:
    special = PUBLISHED[case.n_vocab]
    expected = reference(case)
    assert special.end_of_text == expected.eot == len(table(case.asset))
    assert dict(zip(special.names, range(special.end_of_text, case.n_vocab), strict=True)) == special_tokens(case)
    assert list(special.languages) == sorted(expected.all_language_tokens)
    assert special.start_of_transcript == expected.sot
    assert special.translate == expected.translate
    assert special.transcribe == expected.transcribe
    assert special.start_of_language_model == expected.sot_lm
    assert special.start_of_previous == expected.sot_prev
    assert special.no_speech == expected.no_speech
    assert special.no_timestamps == expected.no_timestamps
    assert special.timestamp_begin == expected.timestamp_begin
    assert special.timestamp_end == case.n_vocab


@pytest.mark.parametrize("n_languages", [1, 2, 98, 99, 100])
def test_the_room_gives_the_languages(n_languages: int) -> None:
    n_vocab = 300 + N_COMMON + n_languages
    assert find_special(text_tokens(300), n_vocab, "here") == SpecialTokens.at(300, n_languages)


@pytest.mark.parametrize("n_named", [1, 2, 3, 50, 101, 102, 107, 108, 109, 1000])
def test_any_of_the_first_may_be_named(n_named: int) -> None:
    n_vocab = 300 + N_COMMON + 99
    everything = whole(300, 99)
    some = dict(list(everything.items())[: 300 + n_named])
    assert complete(some, find_special(some, n_vocab, "here"), "here") == everything


def test_a_gap_before_the_named_ones_is_no_matter() -> None:
    """The published multilingual vocabulary has a token that spells nothing, which a file may leave out."""
    everything = whole(300, 5)
    early = {name: number for name, number in everything.items() if name != "t299" and "." not in name}
    filled = complete(early, find_special(early, 300 + N_COMMON + 5, "here"), "here")
    assert {**filled, "t299": 299} == everything


def test_what_follows_the_times_is_left_alone() -> None:
    more = {**whole(300, 2), "[UM]": 300 + N_COMMON + 2, "<|more|>": 9999}
    special = find_special(more, 20_000, "here")
    assert special == SpecialTokens.at(300, 2)
    assert complete(more, special, "here") == more


def test_an_english_only_model_with_more_tokens_stays_one() -> None:
    """It has the size of the multilingual models by that."""
    assert find_special({**whole(50256, 99), "[UM]": 51864}, 51865, "here") == ENGLISH_ONLY


def test_a_fine_tune_may_put_another_language_in_the_place_of_one() -> None:
    named = {name.replace("<|la|>", "<|gsw|>"): number for name, number in whole(300, 99).items()}
    assert complete(named, SpecialTokens.at(300, 99), "here") == named


@pytest.mark.parametrize("n_vocab", [300, 301, 300 + N_COMMON, 300 + N_COMMON + 101, 51865])
def test_sizes_that_do_not_add_up(n_vocab: int) -> None:
    with pytest.raises(ModelError, match=rf"here has 300 tokens of text, the model {n_vocab} .*--tokenizer FILE"):
        find_special(text_tokens(300), n_vocab, "here")


@pytest.mark.parametrize(("n_text", "n_vocab"), [(50256, 51865), (50257, 51864), (50256, 51866), (50258, 51866)])
def test_ranks_of_another_published_model(n_text: int, n_vocab: int) -> None:
    """The sizes alone would give 98 or 100 languages."""
    with pytest.raises(ModelError, match=f"has {n_text} tokens of text, the model {n_vocab}"):
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
def test_another_name_where_a_special_token_belongs(name: str, other: str) -> None:
    everything = whole(300, 2)
    number = everything.pop(name)
    with pytest.raises(ModelError, match=r"^here has .* as token \d+, Whisper has .*--tokenizer FILE"):
        complete({**everything, other: number}, SpecialTokens.at(300, 2), "here")


def test_a_special_name_at_another_place() -> None:
    with pytest.raises(ModelError, match=r"has '<\|0\.04\|>' as token 5, Whisper has <\|0\.04\|> as token 312:"):
        complete({**text_tokens(300), "<|0.04|>": 5}, SpecialTokens.at(300, 2), "here")
