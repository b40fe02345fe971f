"""Numbers of Whisper's special tokens. All models number them in one order, so that their position decides.

Names that a file gives them are only checked: they have changed over the years, and early files name few.
Source: openai-whisper's `tokenizer.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from streamer.errors import ModelError
from streamer.languages import LANGUAGE_NAMES

# In the order of their tokens. Large-v3 added the last.
LANGUAGES = tuple(LANGUAGE_NAMES)

N_TIMESTAMPS = 1501  # <|0.00|> to <|30.00|> in steps of 20 ms

LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")

# Other names that files have for some tokens, and openai-whisper's.
RENAMED = {"<|iw|>": "<|he|>", "<|jv|>": "<|jw|>", "<|nocaptions|>": "<|nospeech|>"}

_END, _TRANSLATE = "<|endoftext|>", "<|translate|>"
_BEFORE_LANGUAGES = (_END, "<|startoftranscript|>")
_BEHIND_LANGUAGES = (
    _TRANSLATE,
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
    *(f"<|{i // 50}.{i % 50 * 2:02}|>" for i in range(N_TIMESTAMPS)),
)


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Numbers of Whisper's special tokens in one vocabulary; tokens of text come before them."""

    end_of_text: int
    start_of_transcript: int
    languages: range
    translate: int
    transcribe: int
    start_of_language_model: int  # begins text without audio, and has no other use
    start_of_previous: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int  # `<|0.00|>`; the other timestamps follow, 20 ms apart
    timestamp_end: int  # behind `<|30.00|>`, where what a fine-tune has added to the vocabulary begins

    @classmethod
    def at(cls, end_of_text: int, n_languages: int) -> "SpecialTokens":
        """Return those of a vocabulary whose text ends before `end_of_text`."""
        first = end_of_text + len(_BEFORE_LANGUAGES)
        translate = first + n_languages
        end = translate + len(_BEHIND_LANGUAGES)
        numbers = (end_of_text + 1, range(first, translate), *range(translate, translate + 7), end)
        return cls(end_of_text, *numbers)

    def is_time(self, token: int) -> bool:
        return self.timestamp_begin <= token < self.timestamp_end

    @property
    def controls(self) -> tuple[int, ...]:
        """Tokens that steer a transcript and are never part of its text; those of languages apart."""
        return (
            self.start_of_transcript,
            self.translate,
            self.transcribe,
            self.start_of_previous,
            self.no_speech,
            self.start_of_language_model,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """openai-whisper's names of all of them, from the end of text on."""
        languages = (f"<|{code}|>" for code in LANGUAGES[: len(self.languages)])
        return (*_BEFORE_LANGUAGES, *languages, *_BEHIND_LANGUAGES)


# By vocabulary size. English-only models have tokens of languages, too.
ENGLISH_ONLY = SpecialTokens.at(50256, 99)
PUBLISHED: Mapping[int, SpecialTokens] = {
    51864: ENGLISH_ONLY,
    51865: SpecialTokens.at(50257, 99),
    51866: SpecialTokens.at(50257, 100),
}


def find_special(vocabulary: Mapping[str, int], n_vocab: int, where: str) -> SpecialTokens:
    """Return the special tokens of a model with `n_vocab` tokens.

    vocabulary : token to number; without the name of the first special token, all of it is text. Without the name of
        the first behind the languages, the room that the model has for them gives their number.

    Raises ModelError if they do not fit into the model.
    """
    end_of_text = vocabulary.get(_END, 1 + max(vocabulary.values()))
    translate = vocabulary.get(_TRANSLATE, n_vocab - len(_BEHIND_LANGUAGES))
    n_languages = translate - end_of_text - len(_BEFORE_LANGUAGES)
    special = SpecialTokens.at(end_of_text, n_languages)
    if (
        not 1 <= n_languages <= len(LANGUAGES)
        or special.timestamp_end > n_vocab
        or (_TRANSLATE not in vocabulary and special != PUBLISHED.get(n_vocab, special))
    ):
        n_common = len(_BEFORE_LANGUAGES) + len(_BEHIND_LANGUAGES)
        raise ModelError(
            f"{where} has {end_of_text} tokens of text, the model {n_vocab} tokens in all: expected room for"
            f" {n_common} special tokens and 1 to {len(LANGUAGES)} languages; name the tokenizer.json of the model"
            " with --tokenizer FILE"
        )
    return special


def complete(vocabulary: Mapping[str, int], special: SpecialTokens, where: str) -> dict[str, int]:
    """Return the vocabulary with the special tokens that it does not name.

    Raises ModelError if it gives one of their numbers to another token, or one of their names to another number.
    """
    texts = {number: text for text, number in vocabulary.items()}
    whole = dict(vocabulary)
    for number, name in enumerate(special.names, special.end_of_text):
        text = texts.get(number, name)
        named_rightly = text == name or (number in special.languages and LANGUAGE.fullmatch(text))
        if not named_rightly or whole.setdefault(text, number) != number:
            raise ModelError(
                f"{where} has {text!r:.60} as token {whole.get(text, number)}, Whisper has {name} as token {number}:"
                " expected text, then <|endoftext|>, then the other special tokens in Whisper's order; name the model's"
                " own tokenizer.json with --tokenizer FILE"
            )
    return whole
