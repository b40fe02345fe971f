"""Text to Whisper's tokens and back.

Source: openai-whisper's `tokenizer.py` (the start-of-transcript sequence); `vocabulary` reads a tokenizer's files.
"""

import copy
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from streamer.errors import ConfigError
from streamer.languages import nearest
from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.special import ENGLISH_ONLY, LANGUAGE, find_special

_CONTROL = re.compile(r"<\|.*\|>", re.DOTALL)  # how a token is spelled that is no text


class Tokenizer:
    """Byte-level BPE with Whisper's special tokens."""

    def __init__(self, backend: tokenizers.Tokenizer, *, multilingual: bool | None = None, where: str) -> None:
        """Take over a backend, as `vocabulary` builds it; `where` names it in messages.

        multilingual : whether the start of a transcript names language and task; None: unless the vocabulary is that of
            the published English-only models
        """
        # None while it is packed, see `pack`.
        self._backend: tokenizers.Tokenizer | None = backend
        self._packed = b""
        self.where = where
        texts: dict[int, str] = {number: text for text, number in backend.get_vocab(with_added_tokens=True).items()}
        # Highest token, special ones included, and one: numbers below may be free.
        self.n_vocab: int = 1 + max(texts)
        self.special = find_special(backend.get_vocab(), self.n_vocab, where)
        special = self.special
        behind = sorted(number for number in texts if number >= special.timestamp_end)
        # Language code to token. A fine-tune may have added some.
        self.languages: dict[str, int] = {
            match[1]: number for number in (*special.languages, *behind) if (match := LANGUAGE.fullmatch(texts[number]))
        }
        # What a fine-tune has added to the vocabulary as text, such as [UM].
        self.added_text = frozenset(number for number in behind if not _CONTROL.fullmatch(texts[number]))
        apart = backend.get_added_tokens_decoder()
        # The bytes that each token spells; none for special tokens and free numbers. A character may be spread over
        # several tokens.
        self.spelled: tuple[bytes, ...] = tuple(
            (texts[number].encode("utf-8") if number in apart else vocabulary.spell(texts[number]))
            if number in texts and self.is_text(number)
            else b""
            for number in range(self.n_vocab)
        )
        # Whether the start of a transcript names language and task.
        self.multilingual = special != ENGLISH_ONLY if multilingual is None else multilingual

    @classmethod
    def load(cls, path: Path, *, n_vocab: int, multilingual: bool | None = None) -> "Tokenizer":
        """Load a model's tokenizer from its directory, or from a file. Raises ModelError if it is unfit."""
        path = vocabulary.find(path)
        return cls(vocabulary.load(path, n_vocab), multilingual=multilingual, where=str(path))

    def as_multilingual(self, multilingual: bool) -> "Tokenizer":
        """Return it for a model that says whether it is multilingual."""
        other = copy.copy(self)
        other.multilingual = multilingual
        return other

    def to_json(self) -> bytes:
        return str(self._unpacked().to_str()).encode("utf-8")

    def pack(self) -> None:
        """Keep what `encode` needs in 1 MB instead of 15, until it is called again."""
        if self._backend is not None:
            self._packed = zlib.compress(self.to_json())
            self._backend = None

    def _unpacked(self) -> tokenizers.Tokenizer:
        backend = self._backend
        if backend is None:
            backend = self._backend = tokenizers.Tokenizer.from_str(zlib.decompress(self._packed).decode("utf-8"))
        return backend

    @property
    def known_languages(self) -> list[str]:
        """The languages that the model transcribes."""
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
                    "this model knows English only: expected task transcribe; choose a multilingual model to translate"
                )
            if language != "en":
                raise ConfigError(f"this model knows English only, not {language!r}: choose a multilingual model")
            return [self.special.start_of_transcript]
        if language not in self.languages:
            raise ConfigError(
                f"this model does not know the language {language!r}: expected auto or one of its"
                f" {len(self.languages)}, such as {next(iter(self.languages))}{nearest(language, self.languages)}"
            )
        task_token = self.special.translate if task == "translate" else self.special.transcribe
        return [self.special.start_of_transcript, self.languages[language], task_token]

    def is_text(self, token: int) -> bool:
        return token < self.special.end_of_text or token in self.added_text

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ordinary text; what reads like a special token is left out."""
        tokens: list[int] = self._unpacked().encode(text, add_special_tokens=False).ids
        return [token for token in tokens if self.is_text(token)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; special tokens are left out."""
        n_vocab, spelled = self.n_vocab, self.spelled
        return b"".join(spelled[token] for token in tokens if token < n_vocab).decode("utf-8", errors="replace")
