"""Wyoming: events over TCP, as Home Assistant and its satellites speak them.

Source: the package wyoming 1.10, and Home Assistant, which reads only after it has sent all audio. An event is a line
of JSON, then more JSON and a payload, whose lengths are in the line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, PcmEncoding
from streamer.errors import ProtocolError, StreamerError
from streamer.events import End, Error, Event, Final, Flushed
from streamer.outside import one_line
from streamer.protocols.adapter import Action, Adapter, Do, Finish, Hangup, Open, Say, Write, plain
from streamer.protocols.native import StreamStart
from streamer.protocols.text import hotwords, note_model
from streamer.version import __version__

# Integers, by the bytes of a sample.
ENCODINGS: dict[int, PcmEncoding] = {1: "u8", 2: "s16le", 3: "s24le", 4: "s32le"}

MAX_LINE_BYTES = 2**16
MAX_DATA_BYTES = 2**20
MAX_PAYLOAD_BYTES = 2**20

# Of unread requests while a transcript is finished.
MAX_WAITING_BYTES = 2**22


class _Line(msgspec.Struct):
    type: str
    data: dict[str, Any] | None = None
    data_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_DATA_BYTES)] | None = None
    payload_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_PAYLOAD_BYTES)] | None = None


class _Format(msgspec.Struct, frozen=True):
    """The encoding of a chunk of audio."""

    rate: Annotated[int, msgspec.Meta(ge=MIN_SAMPLE_RATE, le=MAX_SAMPLE_RATE)]
    width: Annotated[int, msgspec.Meta(ge=1, le=4)]  # bytes a sample
    channels: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHANNELS)]


class _Request(msgspec.Struct):
    """The fields of `transcribe`."""

    name: str | None = None
    language: Annotated[str, msgspec.Meta(max_length=32)] | None = None
    transcript_names: list[str] | None = None
    transcript_terms: list[str] | None = None


@dataclass(frozen=True, slots=True)
class WyomingEvent:
    """An event of the protocol."""

    type: str
    data: dict[str, Any]
    payload: bytes


class EventReader:
    """Parses a stream of bytes, cut anywhere, into events."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        # The line of an event whose data or payload is incomplete.
        self._line: _Line | None = None

    def feed(self, data: bytes) -> None:
        """Add bytes. Raises ProtocolError if the buffer is full."""
        if len(self._buffer) + len(data) > MAX_WAITING_BYTES:
            raise ProtocolError(
                f"more than {MAX_WAITING_BYTES} bytes before the transcript: wait for it before the next request"
            )
        self._buffer += data

    def next(self) -> WyomingEvent | None:
        """Return the next event, None if it is incomplete. Raises ProtocolError for an invalid one."""
        line = self._line
        try:
            if line is None:
                end = self._buffer.find(b"\n", 0, MAX_LINE_BYTES)
                if end < 0 and len(self._buffer) >= MAX_LINE_BYTES:
                    raise ProtocolError(f"an event's line is too long: expected less than {MAX_LINE_BYTES} bytes")
                if end < 0:
                    return None
                line = self._line = msgspec.json.decode(self._take(end + 1), type=_Line)
            n_data, n_payload = line.data_length or 0, line.payload_length or 0
            if len(self._buffer) < n_data + n_payload:
                return None
            self._line = None
            data = line.data or {}
            if n_data:
                data |= msgspec.json.decode(self._take(n_data), type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # deep nesting, and invalid UTF-8
            raise ProtocolError(f"invalid event: {plain(error)}") from None
        return WyomingEvent(line.type, data, self._take(n_payload))

    def _take(self, n_bytes: int) -> bytes:
        taken = bytes(self._buffer[:n_bytes])
        del self._buffer[:n_bytes]
        return taken


class Wyoming(Adapter):
    """One client's connection: it sends lines, and receives bytes cut anywhere.

    Each transcript has a session of its own. Requests wait until the transcript of the one before was sent.
    """

    def __init__(self, info: str) -> None:
        """Serve a client; `info` answers `describe`, see the function of that name."""
        self._info = info
        self._reader = EventReader()
        # The current request, and the format of its audio; a session is open if that is not None.
        self._request = _Request()
        self._format: _Format | None = None
        # Finals so far, each with its leading space, and their language.
        self._chunks: list[str] = []
        self._language = ""
        # Whether audio-stop was received and the session has not ended; and whether its transcript was sent already.
        self._finishing = self._answered = False
        # Whether the client has sent all, and whether an error has ended the connection.
        self._complete = self._failed = False

    def receive(self, message: str | bytes) -> Sequence[Action]:
        """Handle bytes of the client; none: it has sent all, and may wait for transcripts."""
        self._complete = not message
        try:
            self._reader.feed(message.encode("utf-8") if isinstance(message, str) else message)
        except ProtocolError as error:
            return self._fail(error)
        return self._advance()

    def on_event(self, event: Event) -> Sequence[Action]:
        """Send each final as a chunk, and after the last one the transcript.

        It does not wait for what is revised later, which it could not send.
        """
        match event:
            case Final() if event.text and not self._answered:
                return self._chunk(event)
            case Error(fatal=True):
                return self._fail(event)
            case Flushed() if self._finishing and not self._answered:
                self._answered = True
                return self._transcript()
            case End() if not self._failed:
                transcript = [] if self._answered else self._transcript()
                self._format, self._finishing, self._answered = None, False, False
                return [*transcript, *self._advance()]
        return []

    def refused(self, error: StreamerError) -> Sequence[Action]:
        return self._fail(error)

    def _advance(self) -> list[Action]:
        """Process received events, up to the end of a request whose transcript is pending."""
        actions: list[Action] = []
        try:
            while not self._finishing and (event := self._reader.next()) is not None:
                actions += self._process(event)
        except (StreamerError, msgspec.ValidationError) as error:
            return [*actions, *self._fail(error)]
        return [*actions, Hangup()] if self._complete and not self._finishing else actions

    def _process(self, event: WyomingEvent) -> list[Action]:
        match event.type:
            case "describe":
                return [Say(self._info)]
            case "ping":
                return [_say("pong", text=msgspec.convert(event.data.get("text"), str | None))]
            case "transcribe":
                self._request = msgspec.convert(event.data, _Request)
            case "audio-chunk":
                return self._write(msgspec.convert(event.data, _Format), event.payload)
            case "audio-stop":
                if self._format is None:
                    return self._transcript()
                self._finishing = True
                return [Do("flush"), Finish()]
        return []  # each chunk repeats the fields of audio-start

    def _write(self, format: _Format, audio: bytes) -> list[Action]:
        opening: list[Action] = []
        if self._format is None:
            self._format = format
            opening = [Open(self._start(self._request, format))]
        elif format != self._format:
            raise ProtocolError(
                "the format of the audio changed: expected the rate, width and channels of the first audio-chunk"
            )
        return [*opening, Write(audio)]

    def _start(self, request: _Request, format: _Format) -> StreamStart:
        if request.name:
            note_model(request.name)
        return StreamStart(
            format=ENCODINGS[format.width],
            sample_rate=format.rate,
            channels=format.channels,
            language=request.language,
            hotwords=hotwords([*(request.transcript_names or ()), *(request.transcript_terms or ())]),
            words=True,
        )

    def _chunk(self, final: Final) -> list[Action]:
        opening = [] if self._chunks else [_say("transcript-start", language=final.language)]
        # Words keep their leading space; those of Chinese, for example, have none.
        apart = self._chunks and (not final.words or final.words[0].word.startswith(" "))
        self._chunks.append(f" {final.text}" if apart else final.text)
        self._language = final.language
        return [*opening, _say("transcript-chunk", text=self._chunks[-1])]

    def _transcript(self) -> list[Action]:
        """Answer the request with a transcript, which may be empty, and prepare for the next one."""
        opening = [] if self._chunks else [_say("transcript-start")]
        language = {"language": self._language} if self._language else {}
        transcript = _say("transcript", text="".join(self._chunks), **language)
        self._request = _Request()
        self._chunks, self._language = [], ""
        return [*opening, transcript, _say("transcript-stop")]

    def _fail(self, error: StreamerError | msgspec.ValidationError | Error) -> list[Action]:
        # Home Assistant ignores the error and waits for a transcript or the connection's end.
        self._failed = self._finishing = True
        if isinstance(error, msgspec.ValidationError):
            error = ProtocolError(f"invalid event: {plain(error)}")
        message, code = error.message if isinstance(error, Error) else str(error), error.code
        return [Say(error_line(message, code)), Hangup(1008)]


def describe(model: str, languages: Sequence[str]) -> str:
    """Return the answer to `describe`: program, model and languages."""
    whisper = {"name": "OpenAI", "url": "https://github.com/openai/whisper"}
    known = {"installed": True, "version": __version__}
    offered = {"name": model, "attribution": whisper, "description": model, "languages": list(languages), **known}
    program = {
        "name": "streamer",
        "attribution": {"name": "streamer", "url": ""},
        "description": "Real-time transcription with Whisper",
        "models": [offered],
        "supports_transcript_streaming": True,
        **known,
    }
    return _say("info", asr=[program]).text


def error_line(message: str, code: str) -> str:
    """Return an `error` event."""
    return _say("error", text=one_line(message), code=code).text


def _say(kind: str, **data: object) -> Say:
    return Say(msgspec.json.encode({"type": kind, "data": data}).decode("utf-8") + "\n")
