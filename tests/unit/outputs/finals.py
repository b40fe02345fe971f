"""Events as golden files write them, and the text that a writer makes of them."""

import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from streamer.events import (
    End,
    Error,
    Event,
    Final,
    Flushed,
    Gap,
    Revision,
    Speakers,
    Speech,
    Translation,
    Turn,
    Word,
)
from streamer.outputs.subtitles import SubtitleOptions, open_writer
from tests import builders
from tests.builders import timed_words


def worded(*spoken: tuple[str, float, float], text: str | None = None, segment: int = 0) -> Final:
    """Return a final of words with their times, numbered behind the final of the segment before."""
    words = timed_words(*spoken, probability=0.5)
    times = {"start": spoken[0][1], "end": spoken[-1][2]} if spoken else {"end": 1.0}
    text = "".join(word.word for word in words) if text is None else text
    return builders.final(text, seq=segment + 2, session="s", segment=segment, words=words, **times)


def named(words: Sequence[Word], speakers: Sequence[str | None]) -> tuple[Word, ...]:
    """Return words with these speakers, the others none."""
    pairs = itertools.zip_longest(words, speakers[: len(words)])
    return tuple(msgspec.structs.replace(word, speaker=speaker or None) for word, speaker in pairs)


def labelled(event: Final, *speakers: str | None) -> Final:
    """Return a final whose words have these speakers, the others none."""
    return msgspec.structs.replace(event, words=named(event.words, speakers))


def revised(event: Final, text: str, *speakers: str | None) -> Revision:
    """Return a revision of a final; its words have these speakers, the others none."""
    words = named(builders.words(text, event.start), speakers)
    return Revision(of=event.seq, by="glossary", text=text, words=words, edits=()).stamped(99, "s")


def spaced(text: str, start: float = 0.0, step: float = 0.25) -> list[tuple[str, float, float]]:
    return [(f" {word}", start + i * step, start + (i + 1) * step) for i, word in enumerate(text.split())]


MAKERS: dict[str, Callable[..., Event]] = {
    "final": builders.final,
    "partial": builders.partial,
    "ready": lambda model: builders.ready(model=model),
    "revision": lambda text, **fields: Revision(by="glossary", text=text, edits=(), **fields),
    "translation": lambda text, of: Translation(of=of, text=text, language="en"),
    "same": lambda labels: Speakers(same=tuple(labels)),
    "gap": lambda reason, **times: Gap(reason=reason, **times),
    "error": lambda message, code: Error(code=code, message=message, fatal=False),
    "speech": lambda state, time=0.0: Speech(state=state, time=time),
    "turn": lambda probability, finished: Turn(time=2.0, probability=probability, finished=finished),
    "flushed": lambda time: Flushed(time=time),
    "end": lambda time: End(time=time),
}


def read_events(rows: Iterable[dict[str, Any]]) -> list[Event]:
    """Return events as a golden file has them, `{ final = "Yes.", start = 1.0 }`, numbered anew by each `ready`."""
    events: list[Event] = []
    number = 0
    for row in rows:
        (kind, said), *fields = row.items()
        given = dict(fields)
        words = timed_words(*given.pop("words")) if "words" in given else None
        if words is None and kind in ("final", "revision"):
            words = builders.words(said, given.get("start", 0.0))
        if words is not None:
            given["words"] = named(words, given.pop("speakers", ()))
        number = 1 if kind == "ready" else number + 1
        events.append(MAKERS[kind](said, **given).stamped(number, "s"))
    return events


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
