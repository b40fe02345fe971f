"""Published models that have short names."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """A published model that has a short name."""

    repository: str
    n_bytes: int  # about what is fetched, in bytes


PUBLISHED: Mapping[str, Published] = {
    "tiny": Published("openai/whisper-tiny", 155_000_000),
    "tiny.en": Published("openai/whisper-tiny.en", 155_000_000),
    "base": Published("openai/whisper-base", 294_000_000),
    "base.en": Published("openai/whisper-base.en", 294_000_000),
    "small": Published("openai/whisper-small", 971_000_000),
    "small.en": Published("openai/whisper-small.en", 971_000_000),
    "medium": Published("openai/whisper-medium", 3_060_000_000),
    "medium.en": Published("openai/whisper-medium.en", 3_060_000_000),
    "large-v1": Published("openai/whisper-large", 6_180_000_000),
    "large-v2": Published("openai/whisper-large-v2", 6_180_000_000),
    "large-v3": Published("openai/whisper-large-v3", 3_090_000_000),
    "large-v3-turbo": Published("openai/whisper-large-v3-turbo", 1_620_000_000),
    "distil-small.en": Published("distil-whisper/distil-small.en", 336_000_000),
    "distil-medium.en": Published("distil-whisper/distil-medium.en", 793_000_000),
    "distil-large-v2": Published("distil-whisper/distil-large-v2", 1_520_000_000),
    "distil-large-v3": Published("distil-whisper/distil-large-v3", 1_520_000_000),
    "distil-large-v3.5": Published("distil-whisper/distil-large-v3.5", 3_030_000_000),
}

# Other names of the same, as openai-whisper has them.
ALIASES: Mapping[str, str] = {"large": "large-v3", "turbo": "large-v3-turbo"}

SHORT_NAMES = (*PUBLISHED, *ALIASES)
