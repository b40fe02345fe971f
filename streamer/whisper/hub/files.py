"""Which files of a repository make a model."""

import re
from collections.abc import Iterable, Sequence

from streamer.errors import ModelError

# Beside CTranslate2's model.bin of a Whisper; its translation models have two, or a shared one.
_VOCABULARIES = ("vocabulary.json", "vocabulary.txt")

# What lies beside the weights; of these, what there is.
_COMPANIONS = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "added_tokens.json",
    *_VOCABULARIES,
)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def choose(names: Iterable[str], repository: str) -> list[str]:
    """Choose one set of weights and what lies beside it. Raises ModelError where there is none, or several."""
    there = sorted(name for name in names if _PLAIN_NAME.fullmatch(name))
    companions = [name for name in there if name in _COMPANIONS or name.endswith(".tiktoken")]
    if "streamer.json" in there:  # made by `streamer models convert`
        return [*companions, "streamer.json", *(name for name in there if name.endswith((".xml", ".bin")))]
    if "config.json" not in there:  # LoRA, which a model takes in
        for adapter in ("adapter_model.safetensors", "adapter_model.bin"):
            if {"adapter_config.json", adapter} <= set(there):
                return ["adapter_config.json", adapter]
    for weights in (
        _set_of(there, "model", "safetensors"),
        ["weights.safetensors"],
        ["weights.npz"],
        _set_of(there, "pytorch_model", "bin"),
        ["model.bin"] if set(_VOCABULARIES) & set(there) else [],
    ):
        if weights and set(weights) <= set(there):
            return [*companions, *weights]
    if any(name.endswith("_encoder_decoder_cross_kv.xml") for name in there):  # a pre-exported OpenVINO triple
        return [*companions, *(name for name in there if name.endswith((".xml", ".bin")))]
    exported = {f"openvino_{half}_model.{kind}" for half in ("encoder", "decoder") for kind in ("xml", "bin")}
    if exported <= set(there):  # by optimum-intel
        return [*companions, *sorted(exported)]
    single = [name for name in there if name.endswith(".pt") or re.fullmatch(r"ggml-.*\.bin", name)]
    if len(single) == 1:
        return [*companions, *single]
    if single:
        raise ModelError(
            f"{repository} holds {len(single)} models ({some_of(single)}): name the one that you mean,"
            f" such as {repository}/{single[0]}"
        )
    raise ModelError(
        f"{repository} has no weights that are read here: expected model.safetensors, weights.safetensors, weights.npz,"
        " pytorch_model.bin, faster-whisper's model.bin, openvino_encoder_model.xml, one .pt or one ggml-*.bin, it has"
        f" {some_of(there)}; choose the repository that it was made from, such as openai/whisper-base"
    )


def _set_of(there: Sequence[str], stem: str, suffix: str) -> list[str]:
    """Return the names of weights in one file, else of a whole set of shards with its index; empty for half a set."""
    if f"{stem}.{suffix}" in there:
        return [f"{stem}.{suffix}"]
    found = [re.fullmatch(rf"{stem}-(\d{{5}})-of-(\d{{5}})\.{suffix}", name) for name in there]
    shards = [match for match in found if match]
    counts = {int(match[2]) for match in shards}
    if len(counts) != 1 or sorted(int(match[1]) for match in shards) != [*range(1, counts.pop() + 1)]:
        return []
    return [f"{stem}.{suffix}.index.json", *(match[0] for match in shards)]


def some_of(names: Iterable[str]) -> str:
    """Return the first names of many, for a message."""
    listed = list(names)
    more = f" and {len(listed) - 6} more" if len(listed) > 6 else ""
    return f"{', '.join(f'{name!r:.60}' for name in listed[:6])}{more}" if listed else "nothing"
