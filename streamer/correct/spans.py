"""From words as Whisper cuts them to words as they are written, and back, with their times."""

from collections.abc import Sequence

from streamer.events import Word


def written(words: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Return the parts of each written word: what has no space before it belongs to the word before."""
    groups: list[list[Word]] = []
    for word in words:
        if groups and not word.word[:1].isspace():
            groups[-1].append(word)
        else:
            groups.append([word])
    return [tuple(group) for group in groups]


def spelled(parts: Sequence[Word]) -> str:
    """Return what parts of a text spell, without space around it."""
    return "".join(part.word for part in parts).strip()


def respelled(parts: Sequence[Word], texts: Sequence[str]) -> list[Word]:
    """Return other words for a stretch of speech. Together they take its time, each by its length."""
    start, duration = parts[0].start, parts[-1].end - parts[0].start
    n_chars = sum(map(len, texts))
    words: list[Word] = []
    n_before = 0
    for text in texts:
        begin = start + duration * n_before / n_chars
        n_before += len(text)
        words.append(
            Word(
                word=f"{' ' if words or parts[0].word[:1].isspace() else ''}{text}",
                start=round(begin, 3),
                end=round(start + duration * n_before / n_chars, 3),
                probability=min(part.probability for part in parts),
                stable=True,
                speaker=parts[0].speaker if len({part.speaker for part in parts}) == 1 else None,
            )
        )
    return words
