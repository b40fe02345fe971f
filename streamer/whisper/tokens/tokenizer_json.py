"""`tokenizer.json`, as Hugging Face's tokenizers library writes it.

Only vocabulary, merges and added tokens are taken from it. How text is cut and put together is the same for all of
Whisper's, and a file could bring a pattern that never ends.
"""

from pathlib import Path
from typing import Any

import tokenizers

from streamer.whisper.tokens.bpe import build
from streamer.whisper.tokens.files import no_tokenizer, parse_object, read_text
from streamer.whisper.tokens.merges import add, split_pair


def read(path: Path, n_vocab: int) -> tokenizers.Tokenizer:
    """Read the file of a model with `n_vocab` tokens.

    Raises ModelError where it is missing, broken, or of another model.
    """
    return parse(parse_object(read_text(path), path), n_vocab, str(path))


def parse(data: dict[str, Any], n_vocab: int, where: str) -> tokenizers.Tokenizer:
    """Take the tokenizer from the content of the file; raise ModelError as `read` does."""
    model = data.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise no_tokenizer(where, "its model is no BPE")
    for part in ("pre_tokenizer", "decoder"):
        if not isinstance(data.get(part), dict) or data[part].get("type") != "ByteLevel":
            raise no_tokenizer(where, f"its {part} is not ByteLevel")
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise no_tokenizer(where, "its model lacks vocab or merges")
    added = data.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise no_tokenizer(where, "its added_tokens are no list of tokens")
    numbers = [(token.get("content"), token.get("id")) for token in added]
    return build(
        add(vocabulary, numbers, where),
        [split_pair(merge, where) for merge in merges],
        [text for text, _ in numbers],
        n_vocab,
        where,
    )
