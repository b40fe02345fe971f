"""Finals for the tests of the sinks, and what a writer makes of them."""

import io
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from streamer.events import Event, Final, Word
from streamer.outputs.subtitles import SubtitleOptions, open_writer


def final(*words: tuple[str, float, float], text: str | None = None, segment: int = 0) -> Final:
    return Final(
        seq=segment + 2,
        session="s",
        segment=segment,
        start=words[0][1] if words else 0.0,
        end=words[-1][2] if words else 1.0,
        text="".join(word for word, _, _ in words) if text is None else text,
        words=tuple(Word(word=w, start=a, end=b, probability=0.5, stable=True) for w, a, b in words),
        language="en",
        no_speech_prob=0.01,
        avg_logprob=-0.25,
    )


def labelled(event: Final, *speakers: str | None) -> Final:
    """Return a final whose words are said by these speakers, the rest by nobody known."""
    named = itertools.zip_longest(event.words, speakers[: len(event.words)])
    words = tuple(msgspec.structs.replace(word, speaker=speaker) for word, speaker in named)
    return msgspec.structs.replace(event, words=words)


def spaced(text: str, start: float = 0.0, step: float = 0.25) -> list[tuple[str, float, float]]:
    return [(f" {word}", start + i * step, start + (i + 1) * step) for i, word in enumerate(text.split())]


def written(
    format: str,
    events: Sequence[Event],
    *,
    n_waiting: int = 0,
    **options: Any,  # noqa: ANN401 - whatever there is
) -> str:
    """Write events with these SubtitleOptions."""
    stream = io.StringIO()
    writer = open_writer(format, stream, SubtitleOptions(**options), n_waiting=n_waiting)
    for event in events:
        writer.handle(event)
    writer.close()
    writer.close()
    assert not stream.closed
    return stream.getvalue()
