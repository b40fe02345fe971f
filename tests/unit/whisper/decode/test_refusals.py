"""What is said of grammars, patterns, hot words and tokens that cannot be used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamer.whisper.decode.grammar import Grammar
from streamer.whisper.decode.hotwords import check_hotwords
from streamer.whisper.decode.suppression import (
    check_suppress_regex,
    matching_tokens,
    parse_suppress_tokens,
    suppressed_tokens,
)
from tests.refusals import Refusal, refusals


def read_grammar(folder: Path, content: str | None) -> None:
    path = folder / "x.gbnf"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    Grammar.read(path)


USES: dict[str, Callable[[Path, Any], object]] = {
    "grammar": lambda _, text: Grammar(text, "root", "g.gbnf"),
    "file": read_grammar,
    "missing": lambda folder, _: read_grammar(folder, None),
    "hotwords": lambda _, phrases: check_hotwords(phrases),
    "n_hotwords": lambda _, n: check_hotwords([f"w{i}" for i in range(n)]),
    "suppress_tokens": lambda _, setting: suppressed_tokens(parse_suppress_tokens(setting), (), 10),
    "suppress_regex": lambda _, pattern: check_suppress_regex(pattern),
    "repeats": lambda _, n: matching_tokens(".*" * n, [b"abababababab"] * 10),
}


@refusals("decode")
def test_what_cannot_be_used_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    ((use, given),) = refusal.given.items()
    with refusal.expected(tmp_path):
        USES[use](tmp_path, given)
