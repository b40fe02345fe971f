"""What several protocols do with text: words as other recognisers write them, and hints as our models take them."""

import functools
import logging
import unicodedata
from collections.abc import Iterable

from streamer.outside import one_line

logger = logging.getLogger(__name__)

# What `SessionOptions` takes.
MAX_PROMPT_CHARS = 2000
MAX_HOTWORDS = 100
MAX_HOTWORD_CHARS = 100

# Names that OpenAI has for its own models of speech: who sends one means whatever model the daemon has.
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

# Names of models that are told apart in the log.
MAX_MODEL_NAMES = 100


def bare(word: str) -> str:
    """Return a word in lower case, without white space and punctuation at its ends; empty where nothing is left."""
    kept = [i for i, char in enumerate(word) if not (char.isspace() or unicodedata.category(char).startswith("P"))]
    return word[kept[0] : kept[-1] + 1].lower() if kept else ""


def prompt(text: str | None) -> str | None:
    """Return a prompt as `SessionOptions` takes it: its end, which the model sees."""
    return one_line(text)[-MAX_PROMPT_CHARS:] if text else None


def hotwords(phrases: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return phrases as `SessionOptions` takes them: as many as it takes, those that are too long left out."""
    found = (one_line(phrase) for phrase in phrases or ())
    return tuple(phrase for phrase in found if 0 < len(phrase) <= MAX_HOTWORD_CHARS)[:MAX_HOTWORDS] or None


@functools.lru_cache(MAX_MODEL_NAMES)
def note_model(name: str) -> None:
    """Log, once, that clients ask for a model by a name of another program's: they get the daemon's own."""
    logger.info("a client asks for model %s: it gets the daemon's own", one_line(name[:60]))
