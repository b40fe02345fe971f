"""WhisperLive: segments of text, each shown as it grows and then completed.

Source: the clients of whisper-live 0.10. They keep a completed segment if it starts no earlier than the last one ended,
write the incomplete one that they saw last into their subtitles unless it reads as the last completed one does, and
fail on an empty list of segments.
"""

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from streamer.audio.encodings import FLOAT32, LINEAR16, PCM
from streamer.errors import BusyError, IdleError, StoppingError, StreamerError
from streamer.events import End, Error, Event, Final, Gap, Partial, Ready
from streamer.protocols.adapter import Action, Adapter, Finish, Hangup, Open, Say, Write, read_json, say_json
from streamer.protocols.native import StreamStart, StreamTask
from streamer.protocols.text import hotwords, note_model, prompt

END_OF_AUDIO = b"END_OF_AUDIO"
ENCODINGS = {"float32": FLOAT32, "int16": LINEAR16, "uint8": PCM[1]}

# Clients write and show text of this one only.
BACKEND = "faster_whisper"

# What a client without a place is told to wait, in minutes; nobody knows when there is room.
WAIT_MINUTES = 1

# How long its connection stays open then: its program looks every 50 ms whether it was told, and not after the close.
WAIT_CLOSE_S = 2.0

# Completed segments in a message: where a client does not say how many, and at most.
N_SEGMENTS = 10
MAX_SEGMENTS = 100

Segment = dict[str, Any]


class _Name(msgspec.Struct):
    """Without this name in it, clients drop a message."""

    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class _Config(_Name):
    """A client's first message; what else it says is for WhisperLive's own decoder."""

    language: Annotated[str, msgspec.Meta(max_length=32)] | None = None
    task: StreamTask | None = None
    model: str | None = None
    audio_format: Literal["float32", "int16", "uint8"] = "float32"
    send_last_n_segments: int | None = None
    hotwords: str | list[str] | None = None  # phrases, a comma between them
    initial_prompt: str | None = None
    word_timestamps: bool | None = None


class WhisperLive(Adapter):
    """One client's connection (see `Adapter`)."""

    def __init__(self) -> None:
        # What the first message says; None before it.
        self._config: _Config | None = None
        self._uid = ""
        # Whether END_OF_AUDIO came.
        self._finished = False
        # The newest completed segments, as many as a message has.
        self._completed: deque[Segment] = deque()
        # The incomplete segment that the client saw last; None before any.
        self._incomplete: Segment | None = None
        # Whether the client knows the language.
        self._language_known = False

    def receive(self, message: str | bytes) -> Sequence[Action]:
        if self._config is None:
            return self._configure(message)
        if self._finished:
            return []
        if isinstance(message, str):
            return [self._status("WARNING", "a text frame is out of place: expected audio in binary frames")]
        if message == END_OF_AUDIO:
            self._finished = True
            return [Finish()]
        return [Write(ENCODINGS[self._config.audio_format].decode(message))]

    def on_event(self, event: Event) -> Sequence[Action]:
        match event:
            case Ready():
                ready = self._say(message="SERVER_READY", backend=BACKEND)
                return [ready, *self._tell_language(event.language)]
            case Partial() if event.text:
                return self._show(self._segment(event))
            case Final():
                return [*self._tell_language(event.language), *self._complete(event)]
            case Gap():
                return self._take_back()
            case Error(fatal=True, code=IdleError.code):
                return [self._say(message="DISCONNECT")]
            case Error(fatal=True):
                self.fail(event)
                return [self._status("ERROR", event.message)]
            case End():
                return [self.hangup]
        return []

    def refused(self, error: StreamerError) -> Sequence[Action]:
        """Tell the client why it gets no text."""
        if not self._uid:
            return super().refused(error)
        match error:
            case BusyError():
                wait = self._say(status="WAIT", message=WAIT_MINUTES)
                return [wait, Hangup(error.close_code, "no room: try again later", after_s=WAIT_CLOSE_S)]
            case StoppingError():  # who is told of an error does not come back
                return super().refused(error)
        return [self._status("ERROR", str(error)), Hangup(error.close_code, error.code)]

    def _configure(self, message: str | bytes) -> Sequence[Action]:
        what = "the first message is not WhisperLive's"
        self._uid = read_json(message, _Name, what).uid
        config = self._config = read_json(message, _Config, what)
        if config.model:
            note_model(config.model)
        self._completed = deque(maxlen=min(max(config.send_last_n_segments or N_SEGMENTS, 1), MAX_SEGMENTS))
        self._language_known = bool(config.language)
        phrases = config.hotwords.split(",") if isinstance(config.hotwords, str) else config.hotwords
        start = StreamStart(
            format=ENCODINGS[config.audio_format].format,
            language=config.language or None,
            task=config.task,
            hotwords=hotwords(phrases),
            initial_prompt=prompt(config.initial_prompt),
            words=bool(config.word_timestamps),
        )
        return [Open(start)]

    def _tell_language(self, language: str) -> list[Action]:
        """Name the language that was found, once; nothing else may be in that message."""
        if self._language_known or language in ("", "auto"):
            return []
        self._language_known = True
        return [self._say(language=language)]

    def _complete(self, final: Final) -> list[Action]:
        if not final.text:
            return self._take_back()
        # First incomplete, with the text that it keeps: else what the client saw last stays in its subtitles.
        shown = self._show(self._segment(final))
        self._completed.append({**self._segment(final), "completed": True})
        return [*shown, self._segments()]

    def _take_back(self) -> list[Action]:
        """Let the client forget an incomplete segment of which nothing came: show the last completed one instead."""
        text = self._completed[-1]["text"] if self._completed else " "
        if self._incomplete is None or self._incomplete["text"] == text:
            return []
        shown = self._show({**self._incomplete, "text": text})
        return [*shown, self._segments()] if self._completed else shown

    def _show(self, segment: Segment) -> list[Action]:
        self._incomplete = segment
        return [self._segments(segment)]

    def _segments(self, *incomplete: Segment) -> Say:
        return self._say(segments=[*self._completed, *incomplete])

    def _segment(self, event: Partial | Final) -> Segment:
        segment: Segment = {
            "start": _time(event.start),
            "end": _time(event.end),
            "text": f" {event.text}",  # a client skips what reads as the stripped text before it
            "completed": False,
        }
        if self._config is not None and self._config.word_timestamps:
            segment["words"] = [
                {"word": w.word, "start": _time(w.start), "end": _time(w.end), "probability": w.probability}
                for w in event.words
            ]
        return segment

    def _status(self, status: Literal["ERROR", "WARNING"], message: str) -> Say:
        return self._say(status=status, message=message)

    def _say(self, **fields: object) -> Say:
        return say_json({"uid": self._uid, **fields})


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"
