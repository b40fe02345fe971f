"""The special tokens of a vocabulary that does not name them all."""

import pytest
import whisper.tokenizer

from streamer.errors import ModelError
from streamer.whisper.tokens.special import LANGUAGES, PUBLISHED, complete, named_in, special_names
from tests.whisper.tokens.published import CASES, Case, special_tokens, table

N_COMMON = 1509  # special tokens without languages


def text_tokens(n_text: int) -> dict[str, int]:
    return {f"t{i}": i for i in range(n_text)}


def test_languages_are_in_openai_whispers_order() -> None:
    assert list(whisper.tokenizer.LANGUAGES) == list(LANGUAGES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.n_vocab))
def test_names_equal_openai_whispers(case: Case) -> None:
    assert list(special_names(case.n_languages)) == list(special_tokens(case))
    assert len(table(case.asset)) == PUBLISHED[case.n_vocab].n_text


@pytest.mark.parametrize("n_languages", [1, 2, 98, 99, 100])
def test_the_room_tells_the_languages(n_languages: int) -> None:
    n_vocab = 300 + N_COMMON + n_languages
    whole = complete(text_tokens(300), n_vocab, "here")
    assert [name for name in whole if name.startswith("<|")] == list(special_names(n_languages))
    assert sorted(whole.values()) == list(range(n_vocab))
    assert list(whole.values()) == sorted(whole.values())


@pytest.mark.parametrize("n_named", [1, 2, 50, 101, 102, 107, 108, 109, 1000])
def test_the_first_of_them_may_be_named(n_named: int) -> None:
    n_vocab = 300 + N_COMMON + 99
    whole = complete(text_tokens(300), n_vocab, "here")
    some = dict(list(whole.items())[: 300 + n_named])
    if 3 <= n_named <= 100:  # some languages and not all: the rest is anybody's guess
        with pytest.raises(ModelError, match="here has 300 tokens of text"):
            complete(some, n_vocab, "here")
    else:
        assert complete(some, n_vocab, "here") == whole


def test_a_name_counts_wherever_it_is() -> None:
    vocabulary = {"<|endoftext|>": 0, "a": 1, "<|startoftranscript|>": 2}
    whole = complete(vocabulary, 1 + N_COMMON + 1, "here")
    assert whole["<|endoftext|>"] == 0
    assert whole["<|en|>"] == 3
    assert whole["<|30.00|>"] == N_COMMON + 1


def test_a_gap_before_the_named_ones_is_no_matter() -> None:
    """The published multilingual vocabulary has a token that spells nothing, which a file may leave out."""
    whole = complete(text_tokens(300), 300 + N_COMMON + 5, "here")
    early = {name: number for name, number in whole.items() if name != "t299" and "." not in name}
    filled = complete(early, 300 + N_COMMON + 5, "here")
    assert {**filled, "t299": 299} == whole


def test_a_whole_vocabulary_is_left_alone() -> None:
    whole = complete(text_tokens(300), 300 + N_COMMON + 2, "here")
    older = {name.replace("nospeech", "nocaptions"): number for name, number in whole.items()}
    for vocabulary in (whole, older, {**whole, "<|more|>": 9999}):
        assert complete(vocabulary, 20_000, "here") == vocabulary


def test_the_older_name_of_the_no_speech_token_counts() -> None:
    whole = complete(text_tokens(300), 300 + N_COMMON + 1, "here")
    older = {name.replace("nospeech", "nocaptions"): number for name, number in whole.items() if "." not in name}
    assert "<|nospeech|>" not in complete(older, 300 + N_COMMON + 1, "here")


@pytest.mark.parametrize("n_vocab", [300, 301, 300 + N_COMMON, 300 + N_COMMON + 101, 51865])
def test_sizes_that_do_not_add_up(n_vocab: int) -> None:
    with pytest.raises(ModelError, match=rf"here has 300 tokens of text, the model {n_vocab} .*--tokenizer FILE"):
        complete(text_tokens(300), n_vocab, "here")


@pytest.mark.parametrize(("n_text", "n_vocab"), [(50256, 51865), (50257, 51864), (50256, 51866), (50258, 51866)])
def test_ranks_of_another_published_model(n_text: int, n_vocab: int) -> None:
    """The sizes alone would give 98 or 100 languages."""
    with pytest.raises(ModelError, match=f"has {n_text} tokens of text, the model {n_vocab}"):
        complete(text_tokens(n_text), n_vocab, "here")


def test_what_is_named() -> None:
    vocabulary = {"<|yue|>": 1, "<|0.02|>": 2, "<|nocaptions|>": 3, "<|0.01|>": 4, "<|xx|>": 5, "yue": 6}
    assert named_in(vocabulary) == {"<|yue|>", "<|0.02|>", "<|nocaptions|>"}


def test_where_the_published_ones_are() -> None:
    assert PUBLISHED[51864].repository == "openai/whisper-tiny.en"
    assert PUBLISHED[51865].repository == "openai/whisper-tiny"
    assert PUBLISHED[51866].repository == "openai/whisper-large-v3"
