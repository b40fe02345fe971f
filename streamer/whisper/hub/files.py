"""Which files of a repository make a model."""

import fnmatch
import re
from collections.abc import Iterable, Sequence

from streamer.errors import ModelError

# What lies beside the weights; of these, what there is.
_COMPANIONS = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "added_tokens.json",
    "vocabulary.json",
    "vocabulary.txt",
)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def choose(names: Iterable[str], repository: str) -> list[str]:
    """Choose one set of weights and what lies beside it. Raises ModelError if there are no weights, or several."""
    from streamer.whisper.weights import formats, huggingface

    there = sorted(name for name in names if _PLAIN_NAME.fullmatch(name))
    companions = [name for name in there if name in _COMPANIONS or name.endswith(".tiktoken")]
    if "config.json" not in there:  # LoRA, which a model takes in
        for adapter in ("adapter_model.safetensors", "adapter_model.bin"):
            if {"adapter_config.json", adapter} <= set(there):
                return ["adapter_config.json", adapter]
    # Other formats are second to Hugging Face's.
    sets = [names for format_ in (huggingface, *formats.FORMATS) for names in format_.FILES]
    for patterns in sets:
        found = [_matching(there, pattern, repository) for pattern in patterns]
        if all(found):
            return list(dict.fromkeys([*companions, *(name for names in found for name in names)]))
    if any(name.endswith("_encoder_decoder_cross_kv.xml") for name in there):  # a pre-exported OpenVINO triple
        return [*companions, *(name for name in there if name.endswith((".xml", ".bin")))]
    raise ModelError(
        f"{repository} has no weights in a supported format: expected"
        f" {', '.join(dict.fromkeys(patterns[0] for patterns in sets))}, it has {some_of(there)}; choose the repository"
        " that it was converted from, such as openai/whisper-base"
    )


def _matching(there: Sequence[str], pattern: str, repository: str) -> list[str]:
    """Return the one file that a pattern means, or all shards of a whole set."""
    found = fnmatch.filter(there, pattern)
    if not found or "-of-" in pattern:
        counts = [re.search(r"-of-(\d{5})\.", name) for name in found]
        return found if all(count and int(count[1]) == len(found) for count in counts) else []
    if len(found) > 1:
        raise ModelError(
            f"{repository} holds {len(found)} models ({some_of(found)}): name one, such as {repository}/{found[0]}"
        )
    return found


def some_of(names: Iterable[str]) -> str:
    """Return the first names of many, for a message."""
    listed = list(names)
    more = f" and {len(listed) - 6} more" if len(listed) > 6 else ""
    return f"{', '.join(f'{name!r:.60}' for name in listed[:6])}{more}" if listed else "nothing"
