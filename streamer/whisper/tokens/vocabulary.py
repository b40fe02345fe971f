"""Sources of a tokenizer, one a file; each gives a byte-level BPE with Whisper's special tokens."""

from pathlib import Path

import tokenizers

from streamer.errors import ModelError
from streamer.whisper.tokens import merges, ranks, tiktoken, tokenizer_json
from streamer.whisper.tokens.files import parse_object, read_text, unreadable
from streamer.whisper.tokens.special import PUBLISHED

__all__ = ["find", "from_table", "load", "published_repository"]


def find(path: Path) -> Path:
    """Return the tokenizer's file in a directory, or the file itself; raise ModelError where a directory has none."""
    try:
        if not path.is_dir():
            return path
        for name in ("tokenizer.json", "vocab.json"):
            if (path / name).is_file():
                return path / name
        rank_files = sorted(path.glob("*.tiktoken"))
    except OSError as error:
        raise unreadable(path, error) from None
    if len(rank_files) > 1:
        raise ModelError(
            f"{path} has {rank_files[0].name} and {rank_files[1].name}: expected one tokenizer; say which with"
            " --tokenizer FILE"
        )
    if rank_files:
        return rank_files[0]
    raise ModelError(
        f"{path / 'tokenizer.json'} is missing: expected the tokenizer of the model (or vocab.json with merges.txt, or"
        " a .tiktoken file); fetch it again, or name one with --tokenizer FILE"
    )


def load(path: Path, n_vocab: int) -> tokenizers.Tokenizer:
    """Load the tokenizer of a model with `n_vocab` tokens from its directory, or from a file.

    A directory holds tokenizer.json, else vocab.json and merges.txt, else one tiktoken file. A file is any of these.

    Raises ModelError where there is none, or it is broken or of another model.
    """
    path = find(path)
    if path.name == "tokenizer.json":
        return tokenizer_json.read(path, n_vocab)
    if path.name in ("vocab.json", "merges.txt"):
        return merges.read(path.with_name("vocab.json"), path.with_name("merges.txt"), n_vocab)
    # Under a name of the user's own, the content tells.
    text = read_text(path)
    if text.startswith(merges.HEADER):
        return merges.read(path.with_name("vocab.json"), path, n_vocab)
    if not text.lstrip().startswith("{"):
        return tiktoken.parse(text, n_vocab, str(path))
    data = parse_object(text, path)
    if isinstance(data.get("model"), int):  # an ordinary word
        return merges.read(path, path.with_name("merges.txt"), n_vocab)
    return tokenizer_json.parse(data, n_vocab, str(path))


def from_table(table: list[bytes], n_vocab: int, where: str) -> tokenizers.Tokenizer:
    """Return the tokenizer whose token i spells `table[i]`; special tokens that are not in the table follow it.

    Raises ModelError where the table is not Whisper's, or of another model; `where` names it in the message.
    """
    return ranks.build(table, n_vocab, where)


def published_repository(n_vocab: int) -> str | None:
    """Return the Hugging Face repository that holds the tokenizer of all published models of this size, if any."""
    published = PUBLISHED.get(n_vocab)
    return published.repository if published else None
