"""Division of finals into pieces of a maximum length."""

from streamer.events import Final
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
    for start_s, word in words or [(final.start, f" {word}") for word in final.text.split()]:
        begin_s, text = found[-1] if found else (start_s, "")
        longer = one_line(text + word)
        if found and len(longer.encode("utf-8")) <= limit_bytes:
            found[-1] = (begin_s, longer)
        elif alone := one_line(word):
            found.append((start_s, alone))
    return found
