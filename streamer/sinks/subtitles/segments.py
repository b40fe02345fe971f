"""Segments of at most so many characters, as whisper.cpp's `--max-len` and `--split-on-word` make them.

Two things differ: characters are counted, not bytes, and a word is never divided, not even between its tokens.
"""

import msgspec

from streamer.events import Final, Word
from streamer.sinks.subtitles.cues import SubtitleOptions, evenly, file_line, has_words


def divide(final: Final, options: SubtitleOptions) -> list[Final]:
    """Divide a segment so that each part has at most `options.max_len` characters, or is one word.

    A part ends where the next one begins; the first begins and the last ends where the segment does.
    """
    if not options.max_len or not file_line(final.text):
        return [final]
    timed = has_words(final)
    parts: list[list[Word]] = []
    n_chars = 0
    for word in final.words if timed else evenly(final.text, final.start, final.end):
        divisible = word.word.startswith(" ") or not options.split_on_word
        if not parts or (n_chars + len(word.word) > options.max_len and divisible):
            parts.append([])
            n_chars = 0
        parts[-1].append(word)
        n_chars += len(word.word)
    if len(parts) < 2:
        return [final]
    starts = [final.start, *(part[0].start for part in parts[1:]), final.end]
    return [
        msgspec.structs.replace(
            final,
            start=starts[i],
            end=starts[i + 1],
            text="".join(word.word for word in part).strip(),
            words=tuple(part) if timed else (),
        )
        for i, part in enumerate(parts)
    ]
