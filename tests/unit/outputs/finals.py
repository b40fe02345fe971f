"""Finals for the tests of outputs, and the text that a writer makes of them."""

import io
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from streamer.events import Event, Final, Revision
from streamer.outputs.subtitles import SubtitleOptions, open_writer
from tests import builders
from tests.builders import timed_words


def final(*words: tuple[str, float, float], text: str | None = None, segment: int = 0) -> Final:
    spoken = timed_words(*words, probability=0.5)
    return builders.final(
        "".join(word.word for word in spoken) if text is None else text,
        seq=segment + 2,
        session="s",
        segment=segment,
        words=spoken,
        start=words[0][1] if words else 0.0,
        end=words[-1][2] if words else 1.0,
    )


def labelled(event: Final, *speakers: str | None) -> Final:
    """Return a final whose words have these speakers, the others none."""
    named = itertools.zip_longest(event.words, speakers[: len(event.words)])
    words = tuple(msgspec.structs.replace(word, speaker=speaker) for word, speaker in named)
    return msgspec.structs.replace(event, words=words)


def revision(event: Final, text: str, *speakers: str | None) -> Revision:
    """Return a revision of a final; its words have these speakers, the others none."""
    words = labelled(final(*spaced(text, start=event.start)), *speakers).words
    return Revision(of=event.seq, by="glossary", text=text, words=words, edits=()).stamped(99, "s")


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
