"""Lines and captions of scripts without spaces: they end where the rules of the script allow it."""

import itertools
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamer.outputs.breaks import best_break, may_break
from streamer.outputs.pieces import pieces
from streamer.outputs.subtitles.cues import columns
from streamer.outputs.subtitles.layout import LINE_CHARS
from tests.unit.outputs.finals import spaced, worded, written

KNOWN = tomllib.loads((Path(__file__).parents[2] / "golden" / "breaks.toml").read_text(encoding="utf-8"))
TEXTS: dict[str, str] = KNOWN["texts"]
BEGINS_NONE = "っゃゅょぁぃぅぇぉッャュョァィゥェォー」”）、。％ะาำๅๆະາຳໆ"
ENDS_NONE = "「“（￥เแโใไເແໂໃໄ្"


def check(lines: list[str], text: str) -> None:
    """Check lines without spaces."""
    assert "".join(lines) == text
    for above, below in itertools.pairwise(lines):
        assert below[0] not in BEGINS_NONE
        assert not unicodedata.category(below[0]).startswith("M")
        assert above[-1] not in ENDS_NONE
        assert not (above[-1:].isascii() and below[:1].isascii())  # within iPhone, or 1299


def shifted(text: str) -> Iterator[str]:
    """Yield a text from each of its characters on, so that lines would end behind each, too."""
    twice = text * 2
    starts = [i for i in range(LINE_CHARS) if may_break(twice[i - 1 : i], twice[i])]
    return (twice[i:] for i in starts)


@pytest.mark.parametrize("is_one_word", [False, True], ids=["words of a character", "one word"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_lines_of_subtitles_end_where_they_may(text: str, is_one_word: bool) -> None:
    for each in shifted(text):
        words = [each] if is_one_word else list(each)
        spoken = worded(*[(word, i * 0.1, (i + 1) * 0.1 * len(word)) for i, word in enumerate(words)])
        lines = [line for line in written("srt", [spoken]).splitlines() if line and not line.isascii()]
        check(lines, each)
        assert max(map(columns, lines)) <= LINE_CHARS


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_pieces_of_captions_end_where_they_may(text: str) -> None:
    for each in shifted(text):
        spoken = worded(*[(char, i * 0.1, (i + 1) * 0.1) for i, char in enumerate(each)])
        found = pieces(spoken, 84)
        check([piece for _, piece in found], each)
        assert max(len(piece.encode("utf-8")) for _, piece in found) <= 84


@pytest.mark.parametrize("row", KNOWN["best"], ids=lambda row: row["name"])
def test_the_last_allowed_break_is_the_best(row: dict[str, Any]) -> None:
    assert best_break(row["pieces"]) == row["begin"]


def test_pieces_end_between_words_and_have_the_times_of_their_first() -> None:
    said = worded(*spaced("one two three", start=10.0, step=0.5))
    assert pieces(said, 7) == [(10.0, "one two"), (11.0, "three")]
    assert pieces(worded(text="no times here"), 8) == [(0.0, "no times"), (0.0, "here")]
