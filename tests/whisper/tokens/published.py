"""The published vocabularies as openai-whisper has them, and the same in Hugging Face's files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import tokenizers
import whisper
import whisper.tokenizer
from tokenizers import decoders, models, pre_tokenizers

from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.vocabulary import BYTE_CHARACTERS
from tests.whisper.support import NANO, Untyped

ASSETS = Path(whisper.__file__).parent / "assets"

# Written for these tests, a language or a script each.
TEXTS = {
    "empty": "",
    "English": " \"It's half past nine,\" she said; we'll see (I'd say) what they've done.",
    "German": "Grüße aus Köln: Fußgänger überqueren die Straße, völlig übermüdet.",
    "French": "L'été dernier, où étiez-vous ? Ça m'a plu, naïve cœur.",
    "Spanish": "¿Dónde está el niño? ¡Mañana será otro día!",
    "Polish": "Zażółć gęślą jaźń, łódź płynie rzeką.",
    "Turkish": "İstanbul'da ışıklar söndü, çocuklar güldü.",
    "Vietnamese": "Hôm nay trời đẹp quá, chúng ta đi dạo nhé.",
    "Greek": "Καλημέρα, τι ώρα φεύγει το πλοίο;",
    "Russian": "Сегодня мы едем на дачу, а завтра — в город.",
    "Armenian": "Բարեւ, ինչպե՞ս եք։",
    "Georgian": "გამარჯობა, როგორ ხარ?",
    "Hebrew": "שלום, מה שלומך היום? הַיּוֹם טוֹב",
    "Arabic": "مرحبا، كيف حالك اليوم؟ السَّلَامُ عَلَيْكُم",
    "Hindi": "नमस्ते, आज मौसम बहुत अच्छा है। क्षत्रिय",
    "Tamil": "வணக்கம், இன்று எப்படி இருக்கிறீர்கள்?",
    "Thai": "วันนี้อากาศดีมากนะครับ น้ำใจ",
    "Burmese": "မင်္ဂလာပါ နေကောင်းလား",
    "Khmer": "សួស្តី អ្នកសុខសប្បាយទេ",
    "Chinese": "今天天气很好，我们去公园散步吧。龘𠮷",
    "Japanese": "昨日、友達とラーメンを食べました！「おいしい」",
    "Korean": "안녕하세요, 오늘 날씨가 좋네요.",
    "Amharic": "ሰላም እንዴት ነህ",
    "emoji": " 🙂 👩‍👩‍👧‍👦 👍🏽 🇪🇺 ❤️",
    "combining": "e\N{COMBINING ACUTE ACCENT} a\N{COMBINING DIAERESIS}\N{COMBINING MACRON} Z͑͗a͜l̷g̡o",
    "digits": "1,234.50 ٣٤٥ ²³ Ⅷ 2026-11-21 3rd",
    "spaces": "  two   three \t tab\n\n  lines \r\n hard\N{NO-BREAK SPACE} em\N{EM SPACE}wide\N{IDEOGRAPHIC SPACE} ",
    "controls": "\0 \x7f \N{REPLACEMENT CHARACTER} \N{ZERO WIDTH SPACE}\N{LINE SEPARATOR}\x85\x1c",
    "symbols": "#()*+/:;<=>@[\\]^_`{|}~ ♪♪ -- ((x)) “curly” …",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A vocabulary of the published models."""

    asset: str
    n_languages: int
    n_vocab: int

    @property
    def path(self) -> Path:
        return ASSETS / f"{self.asset}.tiktoken"

    @property
    def multilingual(self) -> bool:
        return self.asset == "multilingual"


ENGLISH = Case("gpt2", 99, 51864)
MULTILINGUAL = Case("multilingual", 99, 51865)
LARGE_V3 = Case("multilingual", 100, 51866)
CASES = (ENGLISH, MULTILINGUAL, LARGE_V3)


@cache
def load(case: Case) -> Tokenizer:
    return Tokenizer.load(case.path, n_vocab=case.n_vocab)


def reference(case: Case, language: str | None = None) -> Untyped:
    """Return openai-whisper's tokenizer."""
    return whisper.tokenizer.get_tokenizer(case.multilingual, num_languages=case.n_languages, language=language)


@cache
def table(asset: str) -> list[bytes]:
    """Return what the tokens spell, in their order."""
    encoding = whisper.tokenizer.get_encoding(asset)
    return [encoding.decode_single_token_bytes(i) for i in range(encoding.eot_token)]


def written(token: bytes) -> str:
    """Return a token as GPT-2's files write it."""
    return "".join(BYTE_CHARACTERS[byte] for byte in token)


@cache
def gpt2_files(asset: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return a vocabulary and its merges as GPT-2's files have them: for each token the one merge that makes it."""
    ranks = {token: i for i, token in enumerate(table(asset))}
    merges = []
    for token, rank in ranks.items():
        if len(token) < 2:
            continue
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            i = joined.index(min(joined))
            assert joined[i] < rank
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        merges.append((written(parts[0]), written(parts[1])))
    return {written(token): rank for token, rank in ranks.items()}, merges


@cache
def special_tokens(case: Case) -> dict[str, int]:
    """Return openai-whisper's special tokens, in the order of their numbers."""
    return dict(sorted(reference(case).special_tokens.items(), key=lambda item: item[1]))


def write_gpt2_files(directory: Path, case: Case) -> None:
    """Write vocab.json and merges.txt, and nothing of special tokens."""
    vocabulary, merges = gpt2_files(case.asset)
    (directory / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges), ""]
    (directory / "merges.txt").write_text("\n".join(lines), encoding="utf-8")


def with_added(directory: Path, added: Mapping[str, int], n_vocab: int) -> Tokenizer:
    """Return nano.en's tokenizer with more tokens, as fine-tunes have them."""
    data = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))
    data["added_tokens"] += [{"content": name, "id": number} for name, number in added.items()]
    (directory / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    return Tokenizer.load(directory, n_vocab=n_vocab)


def huggingface_backend(case: Case) -> tokenizers.Tokenizer:
    """Build the tokenizer that transformers builds of the same files."""
    vocabulary, merges = gpt2_files(case.asset)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special_tokens(case)))
    return backend
