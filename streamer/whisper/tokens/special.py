"""Whisper's special tokens, in the order in which the published models number them.

Source: openai-whisper's `tokenizer.py`. The order serves only where a file says nothing of them: what a file names is
taken by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streamer.errors import ModelError
from streamer.languages import LANGUAGE_NAMES

# Large-v3 added the last.
LANGUAGES = tuple(LANGUAGE_NAMES)

_BEFORE_LANGUAGES = ("<|endoftext|>", "<|startoftranscript|>")
_AFTER_LANGUAGES = (
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
    *(f"<|{i // 50}.{i % 50 * 2:02}|>" for i in range(1501)),  # 0 to 30 s in steps of 20 ms
)

# Every model has these.
_COMMON = frozenset({*_BEFORE_LANGUAGES, *_AFTER_LANGUAGES})

_NO_SPEECH = "<|nospeech|>"
_NO_SPEECH_OF_OLD = "<|nocaptions|>"


@dataclass(frozen=True, slots=True)
class Published:
    """What the models of one vocabulary size have in common."""

    repository: str  # where Hugging Face has their tokenizer
    n_text: int  # tokens that spell text: all that come before the special ones


# By vocabulary size. English-only models have room for 99 languages too.
PUBLISHED: Mapping[int, Published] = {
    51864: Published("openai/whisper-tiny.en", 50256),
    51865: Published("openai/whisper-tiny", 50257),
    51866: Published("openai/whisper-large-v3", 50257),
}


def special_names(n_languages: int) -> tuple[str, ...]:
    """Return the names of the special tokens of a model that knows the first `n_languages`, in their order."""
    return (*_BEFORE_LANGUAGES, *(f"<|{code}|>" for code in LANGUAGES[:n_languages]), *_AFTER_LANGUAGES)


_KNOWN = frozenset({*special_names(len(LANGUAGES)), _NO_SPEECH_OF_OLD})


def named_in(vocabulary: Mapping[str, int]) -> set[str]:
    """Return the names of Whisper's special tokens in a vocabulary."""
    return {name for name in _KNOWN if name in vocabulary}


def complete(vocabulary: Mapping[str, int], n_vocab: int, where: str) -> dict[str, int]:
    """Return the vocabulary with those special tokens behind it that it does not name.

    The room that the model has for them tells how many languages it knows. Early fine-tunes name all but the times.

    Raises ModelError where they do not fill the model's vocabulary exactly.
    """
    named = named_in(vocabulary)
    present = {_NO_SPEECH if name == _NO_SPEECH_OF_OLD else name for name in named}
    if present >= _COMMON:
        return dict(vocabulary)
    first = 1 + max(vocabulary.values())
    n_text = min((vocabulary[name] for name in named), default=first)
    n_languages = len(present - _COMMON) or n_vocab - first - len(_COMMON - present)
    missing = [name for name in special_names(max(0, n_languages)) if name not in present]
    published = PUBLISHED.get(n_vocab)
    if (
        not 1 <= n_languages <= len(LANGUAGES)
        or first + len(missing) != n_vocab
        or (published and published.n_text != n_text)
    ):
        raise ModelError(
            f"{where} has {n_text} tokens of text, the model {n_vocab} tokens in all: expected room for"
            f" {len(_COMMON)} special tokens and 1 to {len(LANGUAGES)} languages; name the tokenizer.json of the model"
            " with --tokenizer FILE"
        )
    return {**vocabulary, **{name: first + i for i, name in enumerate(missing)}}
