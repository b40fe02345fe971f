"""Tokenizers of the published models, for weights that come without one, as all of openai-whisper's and MLX's do.

There are two published vocabularies. A tokenizer of any format, from anywhere, is right if it has the pinned digest.
"""

import hashlib
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from huggingface_hub import constants

from streamer import wheels
from streamer.errors import ModelError, StreamerError
from streamer.wheels import PackedFile
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.hub import cache, fetch
from streamer.whisper.hub.published import VOCABULARIES
from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.special import LANGUAGES
from streamer.whisper.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Packages that have the rank files among their data.
_PACKAGES = ("whisper", "mlx_whisper")


def published(dims: ModelDimensions, path: Path) -> Tokenizer:
    """Return the published tokenizer for a model's dimensions, from this machine or else fetched.

    path : of the model's weights, for messages

    Raises ModelError if no published model has such dimensions, or it can be neither found nor fetched.
    """
    known = VOCABULARIES.get((dims.n_vocab, dims.n_mels))
    if known is None:
        raise ModelError(
            f"{path} has no tokenizer beside it, and no published model has its {dims.n_vocab} tokens and {dims.n_mels}"
            " mel bins: expected tokenizer.json, vocab.json or a .tiktoken file; copy it from where the weights come"
            " from, or name it with --tokenizer FILE"
        )
    kept = cache.models_folder().with_name(known.ranks.name)
    for place in (kept, *_places(known.ranks.name)):
        with suppress(ModelError):
            return _load(place, dims, known.ranks, path)
    refusals = []
    try:
        return _load(fetch.fetch_tokenizer(known.repository), dims, known.ranks, path)
    except StreamerError as error:
        refusals.append(str(error).partition("; ")[0])
    try:
        if not constants.HF_HUB_OFFLINE:
            logger.info("fetching %s from %s", kept.name, wheels.INDEX)
            wheels.fetch({kept: known.ranks})
            return _load(kept, dims, known.ranks, path)
    except StreamerError as error:
        refusals.append(str(error).partition("; ")[0])
    raise ModelError(
        f"{path} has no tokenizer beside it, and the published one of its {dims.n_vocab} tokens is not on this machine:"
        f" {', and '.join(refusals)}; let it be fetched once, or name tokenizer.json of {known.repository} or"
        f" openai-whisper's {known.ranks.name} with --tokenizer FILE"
    )


def _places(name: str) -> Iterator[Path]:
    """Yield the files and directories on this machine that may have a vocabulary. No package is imported."""
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield Path(folder, "assets", name)
    yield from cache.models_folder().glob("*/")
    yield from Path(constants.HF_HUB_CACHE).glob("models--*hisper*/snapshots/*")


def _load(place: Path, dims: ModelDimensions, ranks: PackedFile, path: Path) -> Tokenizer:
    """Load a tokenizer. Raises ModelError if it has not the vocabulary of these ranks, or names other languages."""
    tokenizer = Tokenizer.load(place, n_vocab=dims.n_vocab)
    special = tokenizer.special
    digest = hashlib.sha256(vocabulary.to_ranks(tokenizer.spelled[: special.end_of_text])).hexdigest()
    if digest != ranks.sha256 or tuple(tokenizer.languages) != LANGUAGES[: len(special.languages)]:
        raise ModelError(f"{tokenizer.where} has other tokens than {ranks.name}")
    logger.info("%s has no tokenizer beside it: using the published one in %s", path, tokenizer.where)
    return tokenizer
