"""Text to Whisper's tokens and back; special tokens are found by name, never by number.

Source: openai-whisper's `tokenizer.py` (the order of the start-of-transcript sequence, the languages written without
spaces); where a vocabulary comes from is `vocabulary`'s concern.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from streamer.errors import ConfigError, ModelError
from streamer.whisper.tokens import vocabulary

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # what an unfinished UTF-8 sequence decodes to

# Languages that are written without spaces: their words are split by characters.
LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")

# Vocabulary size of the published models that hear English only, though they have tokens of languages.
_ENGLISH_ONLY_N_VOCAB = 51864


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Numbers of Whisper's special tokens in one vocabulary."""

    end_of_text: int
    start_of_transcript: int
    translate: int
    transcribe: int
    start_of_previous: int
    no_speech: int
    no_timestamps: int

    # `<|0.00|>`; the other timestamps follow, 20 ms apart.
    timestamp_begin: int

    # Begins text without audio, and has no other use; None where the vocabulary lacks it.
    start_of_language_model: int | None

    @property
    def controls(self) -> tuple[int, ...]:
        """Tokens that steer a transcript and are never part of its text; those of languages apart."""
        controls = (
            self.start_of_transcript,
            self.translate,
            self.transcribe,
            self.start_of_previous,
            self.no_speech,
            self.start_of_language_model,
        )
        return tuple(token for token in controls if token is not None)


class Tokenizer:
    """Byte-level BPE with Whisper's special tokens."""

    def __init__(self, backend: tokenizers.Tokenizer, *, multilingual: bool | None = None, where: str) -> None:
        """Take over a backend; `where` names it in messages.

        multilingual : whether the start of a transcript names language and task; None: if there are tokens of
            languages, unless the vocabulary is that of the published English-only models

        Raises ModelError where a special token is not in the vocabulary, or not in Whisper's order.
        """
        self._backend = backend
        self.where = where
        vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        # Highest token, special ones included, and one: numbers below may be free.
        self.n_vocab: int = max(vocabulary.values(), default=-1) + 1
        self.special = SpecialTokens(
            end_of_text=self._find("<|endoftext|>"),
            start_of_transcript=self._find("<|startoftranscript|>"),
            translate=self._find("<|translate|>"),
            transcribe=self._find("<|transcribe|>"),
            start_of_previous=self._find("<|startofprev|>"),
            no_speech=self._find("<|nospeech|>", "<|nocaptions|>"),
            no_timestamps=self._find("<|notimestamps|>"),
            timestamp_begin=self._find("<|0.00|>"),
            start_of_language_model=backend.token_to_id("<|startoflm|>"),
        )
        # Language code to token.
        self.languages: dict[str, int] = {
            match[1]: index
            for text, index in sorted(vocabulary.items(), key=lambda item: item[1])
            if (match := _LANGUAGE.fullmatch(text))
        }
        self._check_order()
        if multilingual is None:
            multilingual = bool(self.languages) and self.n_vocab != _ENGLISH_ONLY_N_VOCAB
        # Whether the start of a transcript names language and task.
        self.multilingual = multilingual
        if multilingual and not self.languages:
            raise ModelError(
                f"{where} has no language token such as <|en|>, generation_config.json says is_multilingual: expected"
                " files of one model; fetch both again from one place"
            )

    @classmethod
    def load(cls, path: Path, *, n_vocab: int, multilingual: bool | None = None) -> "Tokenizer":
        """Load a model's tokenizer from its directory, or from a file. Raises ModelError where it is unfit."""
        path = vocabulary.find(path)
        return cls(vocabulary.load(path, n_vocab), multilingual=multilingual, where=str(path))

    def as_multilingual(self, multilingual: bool) -> "Tokenizer":
        """Return it for a model that says if it is multilingual. Raises ModelError without languages."""
        return Tokenizer(self._backend, multilingual=multilingual, where=self.where)

    def to_json(self) -> bytes:
        return str(self._backend.to_str()).encode("utf-8")

    @property
    def known_languages(self) -> list[str]:
        """The languages that the model hears."""
        return list(self.languages) if self.multilingual else ["en"]

    def choose_language(self, wanted: str, task: str) -> str:
        """Return the language to decode in: as wanted, the only one, or `auto`. Raises as `start_sequence`."""
        known = self.known_languages
        chosen = known[0] if wanted == "auto" and len(known) == 1 else wanted
        self.start_sequence(known[0] if chosen == "auto" else chosen, task)
        return chosen

    def start_sequence(self, language: str, task: str) -> list[int]:
        """Return the tokens that start a transcript. Raises ConfigError for a language or task that the model lacks."""
        if not self.multilingual:
            if task == "translate":
                raise ConfigError(
                    "this model hears English only: expected task transcribe; choose a multilingual model"
                )
            if language != "en":
                raise ConfigError(f"this model hears English only, not {language!r}: choose a multilingual model")
            return [self.special.start_of_transcript]
        if language not in self.languages:
            raise ConfigError(
                f"the model does not know the language {language!r}: expected auto or one of"
                f" {', '.join(self.languages)}"
            )
        task_token = self.special.translate if task == "translate" else self.special.transcribe
        return [self.special.start_of_transcript, self.languages[language], task_token]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ordinary text; what reads like a special token is left out."""
        tokens: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return [token for token in tokens if token < self.special.end_of_text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; special tokens are left out."""
        return str(self._backend.decode([t for t in tokens if t < self.special.end_of_text], skip_special_tokens=False))

    def split_to_words(self, tokens: Sequence[int], language: str) -> list[tuple[str, tuple[int, ...]]]:
        """Split text tokens into words, each with its leading space and the tokens that spell it.

        A word never ends inside a character. Punctuation stays with the word that it follows, and a lone space with the
        word behind it; only the last word may be nothing but space.
        """
        spaced = language not in LANGUAGES_WITHOUT_SPACES
        words: list[tuple[str, tuple[int, ...]]] = []
        for text, piece in self._split_to_characters(tokens):
            starts_word = text.startswith(" ") if spaced else any(c.isalnum() for c in text)
            if not words or (starts_word and not words[-1][0].isspace()):
                words.append((text, piece))
            else:
                words[-1] = (words[-1][0] + text, words[-1][1] + piece)
        return words

    def _split_to_characters(self, tokens: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
        """Split tokens into the smallest runs that decode to whole characters."""
        pieces: list[tuple[str, tuple[int, ...]]] = []
        pending: list[int] = []
        for token in tokens:
            pending.append(token)
            text = self.decode(pending)
            # Only bytes at the end can still become a character. Broken bytes before them stay broken.
            # One of Whisper's tokens spells nothing, and goes with what follows.
            if text and not text.endswith(REPLACEMENT_CHARACTER):
                pieces.append((text, tuple(pending)))
                pending = []
        return pieces  # an unfinished character at the end is not shown

    def _check_order(self) -> None:
        """Raise ModelError unless text, special tokens and times follow each other, which decoding relies on."""
        special = self.special
        controls = (*special.controls, special.no_timestamps)
        in_order = all(special.end_of_text < token < special.timestamp_begin for token in controls)
        if not in_order or self._find("<|30.00|>") != special.timestamp_begin + 1500:
            raise ModelError(
                f"{self.where} numbers its special tokens in another order than Whisper does: expected text, then"
                " <|endoftext|>, then the others, then <|0.00|> to <|30.00|>; name the model's own tokenizer.json with"
                " --tokenizer FILE"
            )

    def _find(self, *names: str) -> int:
        for name in names:
            index = self._backend.token_to_id(name)
            if index is not None:
                return int(index)
        raise ModelError(f"{self.where} has no token {names[0]}: expected a Whisper tokenizer; fetch the file again")
