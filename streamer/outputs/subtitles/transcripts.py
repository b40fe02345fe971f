"""Transcripts: text, JSON, JSON Lines, and openai-whisper's tab-separated values."""

import copy
import io
import re
from typing import Any, TextIO

import msgspec

from streamer.events import Event, Final, Gap, Ready, Revision, Speakers, Word
from streamer.outputs.subtitles.cues import SubtitleOptions, evenly, file_line, has_words, milliseconds
from streamer.outputs.subtitles.revised import SpeakerNames, revised, speaker_of, turns

# DEL, C1 controls of terminals, and line breaks, which JSON does not escape.
_CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029]")


class Writer:
    """Base of the writers. The stream is flushed after each event, for readers of a pipe."""

    # Whether the text begins with the speaker's name after a change of the speaker.
    names_speakers = True

    # Finals that wait for their revisions, and for the names of their speakers.
    n_waiting: float = 0

    def __init__(self, stream: TextIO, options: SubtitleOptions) -> None:
        self._stream = stream
        self._options = options
        # Waiting finals by number, oldest first.
        self._waiting: dict[int, Final] = {}
        self._names = SpeakerNames()
        # The last speaker; empty if unknown.
        self._speaker = ""

    def handle(self, event: Event) -> None:
        """Write what the next event completes."""
        match event:
            case Final():
                self._waiting[event.seq] = event
                self._release(self.n_waiting)
            case Revision(of=of) if of in self._waiting:
                self._waiting[of] = revised(self._waiting[of], event)
            case Speakers() if self.n_waiting:
                self._names.learn(event)
            case Ready():  # numbers and speakers are those of another session
                self._release(0)
                self._names = SpeakerNames()

    def close(self) -> None:
        """Write what is held back. The stream stays open. May be called again."""
        self._release(0)
        self._stream.flush()

    def ending(self) -> str:
        """Return what `close` would write now."""
        stream = io.StringIO()
        kept = {id(final): final for final in self._waiting.values()}  # they do not change, so they need no copies
        copy.deepcopy(self, {id(self._stream): stream, **kept}).close()
        return stream.getvalue()

    def _release(self, n_waiting: float) -> None:
        while len(self._waiting) > n_waiting:
            final = self._waiting.pop(next(iter(self._waiting)))
            self._add(self._names.named(final))

    def _add(self, final: Final) -> None:
        """Write a final that does not change any more."""
        for part in _divided(final, self._options):
            for turn in turns(part):
                if file_line(part.text) and file_line(turn.text):
                    self._final(self._named(turn) if self.names_speakers else turn)

    def _final(self, final: Final) -> None:
        raise NotImplementedError

    def _named(self, turn: Final) -> Final:
        before, self._speaker = self._speaker, speaker_of(turn)
        if self._speaker == before:
            return turn
        name = f"{file_line(self._speaker) or '?'}: "
        words = turn.words
        if words:
            words = (msgspec.structs.replace(words[0], word=f" {name}{words[0].word.lstrip()}"), *words[1:])
        return msgspec.structs.replace(turn, text=name + turn.text, words=words)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class TextWriter(Writer):
    """One final a line."""

    def _final(self, final: Final) -> None:
        self._write(file_line(final.text) + "\n")


class JsonLinesWriter(Writer):
    """Every event as it is, one a line; the options have no effect."""

    def handle(self, event: Event) -> None:
        # JSON escapes only the controls up to U+001F. All of these are within strings.
        self._write(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", event.to_json()) + "\n")


class JsonWriter(Writer):
    """One object, written at close: the text, its segments, and gaps."""

    def __init__(self, stream: TextIO, options: SubtitleOptions) -> None:
        super().__init__(stream, options)

        # Everything final so far.
        self._texts: list[str] = []
        self._segments: list[Final] = []
        self._gaps: list[Gap] = []
        # From `ready`.
        self._model = ""
        # Whether the object has been written.
        self._closed = False

    def handle(self, event: Event) -> None:
        super().handle(event)
        match event:
            case Ready():
                self._model = event.model
            case Gap():
                self._gaps.append(event)

    def _add(self, final: Final) -> None:
        self._texts.append(file_line(final.text))
        for part in _divided(final, self._options):
            number = len(self._segments) + 1 if self._options.max_len else part.segment
            self._segments.append(msgspec.structs.replace(part, segment=number))

    def close(self) -> None:
        self._release(0)
        if self._closed:
            return
        self._closed = True
        transcript: dict[str, Any] = {
            "text": " ".join(text for text in self._texts if text),
            "language": self._segments[0].language if self._segments else "",
            "model": self._model,
            "segments": [_without_envelope(final) for final in self._segments],
            "gaps": [_without_envelope(gap) for gap in self._gaps],
        }
        self._write(msgspec.json.format(msgspec.json.encode(transcript), indent=2).decode("utf-8") + "\n")


class TsvWriter(Writer):
    """Start and end in milliseconds and text, separated by tabs, below a line of headings."""

    def __init__(self, stream: TextIO, options: SubtitleOptions) -> None:
        super().__init__(stream, options)
        self._write("start\tend\ttext\n")

    def _final(self, final: Final) -> None:
        # `file_line` has replaced tabs by spaces.
        self._write(f"{milliseconds(final.start)}\t{milliseconds(final.end)}\t{file_line(final.text)}\n")


def _divided(final: Final, options: SubtitleOptions) -> list[Final]:
    """Divide a segment so that each part has at most `options.max_len` characters, or is one word.

    As whisper.cpp's `--max-len` and `--split-on-word`, except that characters are counted, not bytes, and a word is
    never divided, not even between its tokens. A part ends at the start of the next one; the first starts and the last
    ends with the segment.
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


def _without_envelope(event: Event) -> dict[str, Any]:
    """Return an event as a transcript's JSON has it."""
    return {key: value for key, value in msgspec.to_builtins(event).items() if key not in ("type", "seq", "session")}
