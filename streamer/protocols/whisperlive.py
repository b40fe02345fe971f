"""WhisperLive: segments of text, each sent as it grows and then as completed.

Source: the clients of whisper-live 0.10. They keep a completed segment if it does not start before the end of the last
one, write the last incomplete one into their subtitles unless its text is that of the last completed one, and fail on
an empty list of segments.
"""

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from streamer.constants import PcmEncoding
from streamer.errors import BusyError, IdleError, StoppingError, StreamerError
from streamer.events import End, Error, Event, Final, Gap, Partial, Ready
from streamer.protocols.adapter import Action, Adapter, Finish, Hangup, Open, Say, Write, read_json, say_json
from streamer.protocols.native import StreamStart
from streamer.protocols.text import hotwords, note_model
from streamer.settings.table import Task

END_OF_AUDIO = b"END_OF_AUDIO"
ENCODINGS: dict[str, PcmEncoding] = {"float32": "f32le", "int16": "s16le", "uint8": "u8"}

# Clients write and show the text of this backend only.
BACKEND = "faster_whisper"

# Minutes that a client is asked to wait if the daemon is full; the real time is unknown.
WAIT_MINUTES = 1

# Delay of the close after that request: clients poll for it every 50 ms, and not after the close.
WAIT_CLOSE_S = 2.0

# Completed segments in a message: by default, and at most.
N_SEGMENTS = 10
MAX_SEGMENTS = 100

Segment = dict[str, Any]


class _ClientId(msgspec.Struct):
    # Clients drop messages without it.
    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class _FirstMessage(_ClientId):
    """The fields that have an effect here; others are for WhisperLive's own decoder."""

    language: Annotated[str, msgspec.Meta(max_length=32)] | None = None
    task: Task | None = None
    model: str | None = None
    audio_format: Literal["float32", "int16", "uint8"] = "float32"
    send_last_n_segments: int | None = None
    hotwords: str | list[str] | None = None  # phrases, a comma between them
    initial_prompt: str | None = None
    word_timestamps: bool | None = None


class WhisperLive(Adapter):
    """One client's connection."""

    def __init__(self) -> None:
        # The first message; None before it.
        self._config: _FirstMessage | None = None
        self._uid = ""
        # Whether END_OF_AUDIO was received.
        self._finished = False
        # The newest completed segments, as many as a message has.
        self._completed: deque[Segment] = deque()
        # The incomplete segment that was sent last; None before any.
        self._incomplete: Segment | None = None
        # Whether the client knows the language.
        self._language_known = False

    def receive(self, message: str | bytes) -> Sequence[Action]:
        if self._config is None:
            return self._configure(message)
        if self._finished:
            return []
        if isinstance(message, str):
            return [self._status("WARNING", "unexpected text frame: send audio in binary frames")]
        if message == END_OF_AUDIO:
            self._finished = True
            return [Finish()]
        return [Write(message)]

    def on_event(self, event: Event) -> Sequence[Action]:
        match event:
            case Ready():
                ready = self._say(message="SERVER_READY", backend=BACKEND)
                return [ready, *self._detected(event.language)]
            case Partial() if event.text:
                return self._show(self._segment(event))
            case Final():
                return [*self._detected(event.language), *self._complete(event)]
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
        """Report the reason and hang up."""
        if not self._uid:
            return super().refused(error)
        match error:
            case BusyError():
                wait = self._say(status="WAIT", message=WAIT_MINUTES)
                return [wait, Hangup(error.close_code, "no room: try again later", after_s=WAIT_CLOSE_S)]
            case StoppingError():  # a client does not reconnect after a status of ERROR
                return super().refused(error)
        return [self._status("ERROR", str(error)), Hangup(error.close_code, error.code)]

    def _configure(self, message: str | bytes) -> Sequence[Action]:
        what = "invalid first message"
        self._uid = read_json(message, _ClientId, what).uid
        config = self._config = read_json(message, _FirstMessage, what)
        if config.model:
            note_model(config.model)
        self._completed = deque(maxlen=min(max(config.send_last_n_segments or N_SEGMENTS, 1), MAX_SEGMENTS))
        phrases = config.hotwords.split(",") if isinstance(config.hotwords, str) else config.hotwords
        start = StreamStart(
            format=ENCODINGS[config.audio_format],
            language=config.language,
            task=config.task,
            hotwords=hotwords(phrases),
            initial_prompt=config.initial_prompt,
            words=bool(config.word_timestamps),
        )
        self._language_known = start.language not in (None, "auto")
        return [Open(start)]

    def _detected(self, language: str) -> list[Action]:
        """Send the detected language once, in a message of its own."""
        if self._language_known or language in ("", "auto"):
            return []
        self._language_known = True
        return [self._say(language=language)]

    def _complete(self, final: Final) -> list[Action]:
        if not final.text:
            return self._take_back()
        # First incomplete, with its final text: otherwise the text of the last partial stays in the subtitles.
        shown = self._show(self._segment(final))
        self._completed.append({**self._segment(final), "completed": True})
        return [*shown, self._segments()]

    def _take_back(self) -> list[Action]:
        """Replace an incomplete segment that became no text by the last completed one."""
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
            "text": f" {event.text}",  # clients skip a text that equals the stripped one before it
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
