"""Text that several protocols share: bare words, hints within the bounds of `SessionOptions`, names of models."""

import functools
import logging
import unicodedata
from collections.abc import Iterable

from streamer.outside import one_line
from streamer.settings.options import MAX_HOTWORD_CHARS, MAX_ITEMS

logger = logging.getLogger(__name__)

# OpenAI's names of its own speech models. Programs send them by default, so the daemon's model serves them.
OPENAI_MODELS = frozenset(
    {
        "whisper-1",
        "gpt-transcribe",
        "gpt-live-transcribe",
        "gpt-4o-transcribe",
        "gpt-4o-transcribe-diarize",
        "gpt-4o-mini-transcribe",
        "gpt-4o-mini-transcribe-2025-03-20",
        "gpt-4o-mini-transcribe-2025-12-15",
        "gpt-realtime-whisper",
    }
)

# Different names of models that the log mentions.
MAX_MODEL_NAMES = 100


def bare(word: str) -> str:
    """Return a word in lower case without white space and punctuation at its ends; may be empty."""
    kept = [i for i, char in enumerate(word) if not (char.isspace() or unicodedata.category(char).startswith("P"))]
    return word[kept[0] : kept[-1] + 1].lower() if kept else ""


def hotwords(phrases: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return as many phrases as `SessionOptions` accepts, without those that are too long."""
    found = (one_line(phrase) for phrase in phrases or ())
    return tuple(phrase for phrase in found if 0 < len(phrase) <= MAX_HOTWORD_CHARS)[:MAX_ITEMS] or None


@functools.lru_cache(MAX_MODEL_NAMES)
def note_model(name: str) -> None:
    """Log once that clients name a model of another program, which the daemon's own model serves."""
    logger.info("a client asks for model %s: the daemon's own model serves it", one_line(name[:60]))
