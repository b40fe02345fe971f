"""`streamer history redo`: a session's audio transcribed again, and both texts beside each other."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from streamer.commands.history import Session, clock, find_history, find_session, local_time, missing, short_name
from streamer.commands.signature import MODEL, Flags
from streamer.commands.terminal import end_on_sigterm
from streamer.constants import SAMPLE_RATE
from streamer.errors import UsageError
from streamer.events import Final, Gap
from streamer.outside import printable
from streamer.settings.table import Settings

if TYPE_CHECKING:
    from streamer.history.reader import HistoryFile, KeptSession
    from streamer.whisper.model import WhisperModel

MAX_HOLE_SAMPLES = 5 * SAMPLE_RATE  # audio on both sides of a shorter hole is transcribed as one
NEAR_S = 1.0  # words farther from a line than this are a line of their own


def redo(name: Session, *, settings: Annotated[Settings, Flags(("server.history", *MODEL), decoding="all")]) -> int:
    """Transcribe a session's audio again, and print both texts.

    Needs audio, which a daemon with --history-audio keeps. A line that reads otherwise is printed twice: after - as it
    was, after + as MODEL has it. The history stays as it is.

    Example: streamer history redo last --model small.en
    """
    from streamer.check import check_options
    from streamer.history import audio as history_audio
    from streamer.outputs.subtitles.cues import file_line
    from streamer.setup.loading import load_chosen

    end_on_sigterm()
    file = find_history(settings)
    session = find_session(file, name)
    spans = history_audio.find_spans(file, session.id, max_hole=MAX_HOLE_SAMPLES)
    if not spans:
        raise UsageError(
            f"session {short_name(session.id)} has no audio: expected a session of a daemon that keeps audio; start it"
            " with --history-audio own"
        )
    check_options(settings, streaming=False)
    settings, model = load_chosen(settings, live=False)
    lines = [
        (event.start, event.end, missing(event) if isinstance(event, Gap) else file_line(event.text))
        for event in file.transcript(session, newest=True)
        if isinstance(event, Final | Gap)
    ]
    models = f"- {printable(session.ready.model)}, + {model.name}"
    sys.stdout.write(f"# {local_time(session.started)}, {printable(session.source)}: {models}\n")
    for start_s, before, after in _beside(lines, _words_again(file, session, spans, settings, model)):
        marked = [(" ", after)] if before == after else [("-", before), ("+", after)]
        for mark, text in marked:
            if text:
                sys.stdout.write(f"{clock(start_s)} {mark} {text}\n")
        sys.stdout.flush()
    return 0


def _words_again(
    file: "HistoryFile",
    session: "KeptSession",
    spans: Iterable[tuple[int, int]],
    settings: Settings,
    model: "WhisperModel",
) -> Iterator[tuple[float, str]]:
    """Transcribe spans of a session, in samples; yield the middle of each word, in seconds, and the word."""
    from streamer.history import audio as history_audio
    from streamer.offline import transcribe
    from streamer.whisper.options import decode_options

    decoding = decode_options(settings.decoding, model, settings.speech, words=True)
    for start, end in spans:
        for final in transcribe(model, history_audio.read(file, session.id, start, end), decoding):
            for word in final.words:
                yield start / SAMPLE_RATE + (word.start + word.end) / 2, word.word


def _beside(
    lines: Sequence[tuple[float, float, str]], words: Iterable[tuple[float, str]]
) -> Iterator[tuple[float, str, str]]:
    """Yield (start in seconds, text, text made of words) for lines, and for words that are near none.

    lines : (start, end, text)
    words : (middle, word), in order
    """
    from streamer.outputs.subtitles.cues import file_line

    # Until when words belong to a line, when it starts, and its text.
    places: list[tuple[float, float, str]] = []
    last_s = 0.0
    for i, (start_s, end_s, text) in enumerate(lines):
        if start_s - last_s > 2 * NEAR_S:
            places.append((start_s - NEAR_S, last_s, ""))
        next_s = lines[i + 1][0] if i + 1 < len(lines) else math.inf
        places.append((min(end_s + NEAR_S, (end_s + next_s) / 2), start_s, text))
        last_s = end_s
    places.append((math.inf, last_s, ""))
    rest = iter(words)
    word = next(rest, None)
    for until_s, start_s, text in places:
        found, first_s = "", start_s
        while word is not None and word[0] < until_s:
            first_s = first_s if found or text else word[0]
            found += word[1]
            word = next(rest, None)
        yield first_s, text, file_line(found)
