"""Division of finals into pieces of a maximum length."""

from collections.abc import Sequence

from streamer.events import Final
from streamer.outputs.breaks import best_break
from streamer.outside import one_line

WORD_BYTES = 10  # difference between the lengths of a final's pieces


def pieces(final: Final, limit_bytes: int) -> list[tuple[float, str]]:
    """Cut a final between words into texts of at most `limit_bytes` in UTF-8, each with the second at which it begins.

    They have about the same length, so that no piece is a single last word. A word longer than the limit stays whole.
    """
    words = [(word.start, word.word) for word in final.words]
    n_bytes = len(final.text.encode("utf-8"))
    limit_bytes = min(limit_bytes, n_bytes // -(-n_bytes // limit_bytes) + WORD_BYTES)
    found: list[tuple[float, str]] = []
    piece: list[tuple[float, str]] = []
    for start_s, word in words or [(final.start, f" {word}") for word in final.text.split()]:
        if not one_line(word):
            continue
        piece.append((start_s, word))
        while len(piece) > 1 and len(_text(piece).encode("utf-8")) > limit_bytes:
            begin = best_break([word for _, word in piece])
            found.append((piece[0][0], _text(piece[:begin])))
            piece = piece[begin:]
    return [*found, (piece[0][0], _text(piece))] if piece else found


def _text(piece: Sequence[tuple[float, str]]) -> str:
    return one_line("".join(word for _, word in piece))
