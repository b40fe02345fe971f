"""OpenAI's REST interface for audio: fields of requests, and responses made of a recording's segments."""

import io
import json
import math
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec

from streamer.constants import SAMPLE_RATE
from streamer.events import End, Final, Ready
from streamer.languages import LANGUAGE_NAMES
from streamer.outputs.subtitles import open_writer
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions

# Of answers, with their Content-Type.
RESPONSE_FORMATS = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "text/plain; charset=utf-8",
    "vtt": "text/plain; charset=utf-8",
}
# Of `/whisper/MODEL`, besides `verbose_json`.
FILE_FORMATS = {
    "txt": "text/plain; charset=utf-8",
    "json": "application/json",
    "jsonl": "application/jsonl; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
    "tsv": "text/tab-separated-values; charset=utf-8",
}


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that forms and queries share, see `read_query`."""

    # Empty: the daemon's own.
    model: str = ""
    language: str = ""
    prompt: str = ""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    task: Literal["transcribe", "translate"] | None = None
    granularities: list[Literal["word", "segment"]] = msgspec.field(
        default_factory=list, name="timestamp_granularities[]"
    )
    stream: bool = False

    @property
    def options(self) -> RecordingOptions:
        return RecordingOptions(
            language=self.language,
            task=self.task,
            initial_prompt=self.prompt.strip() or None,
            temperature=self.temperature,
        )


class Asked(_Asked, frozen=True, kw_only=True):
    """A form of `/v1/audio`."""

    format: Literal["json", "verbose_json", "text", "srt", "vtt"] = msgspec.field(
        default="json", name="response_format"
    )


class AskedOfModel(_Asked, frozen=True, kw_only=True):
    """A query of `/whisper/MODEL`."""

    format: Literal["json", "verbose_json", "txt", "jsonl", "srt", "vtt", "tsv"] = "json"


AnyAsked = Asked | AskedOfModel


def text_of(segments: Iterable[RecordedSegment]) -> str:
    return "".join(map(_piece, segments)).strip()


def answer(asked: AnyAsked, segments: Sequence[RecordedSegment], duration_s: float, language: str) -> tuple[str, str]:
    """Return the Content-Type and the body of an answer in one of RESPONSE_FORMATS.

    duration_s, language : of the recording
    """
    text = text_of(segments)
    translated = asked.options.task == "translate"
    usage = {"type": "duration", "seconds": math.ceil(duration_s)}
    match asked.format:
        case "json":
            body: dict[str, object] = {"text": text} if translated else {"text": text, "usage": usage}
        case "verbose_json":
            body = {
                "task": asked.options.task or "transcribe",
                "language": "english" if translated else LANGUAGE_NAMES.get(language, language),
                "duration": round(duration_s, 3),
                "text": text,
            }
            if set(asked.granularities) != {"word"}:
                body["segments"] = [_segment(number, segment) for number, segment in enumerate(segments)]
            if "word" in asked.granularities:
                body["words"] = [
                    {"word": word.word.strip(), "start": word.start, "end": word.end}
                    for segment in segments
                    for word in segment.final.words
                ]
            body["usage"] = usage
        case "text":
            return RESPONSE_FORMATS["text"], f"{text}\n"
        case format:
            return RESPONSE_FORMATS[format], write(format, [segment.final for segment in segments], duration_s)
    return RESPONSE_FORMATS["json"], _json(body)


def write(format: str, finals: Sequence[Final], duration_s: float, model: str = "") -> str:
    """Return the transcript of a recording of `duration_s` in a format of `open_writer`; `txt` is its `text`."""
    stream = io.StringIO()
    writer = open_writer("text" if format == "txt" else format, stream)
    language = finals[0].language if finals else ""
    ready = Ready(model=model, device={}, sample_rate=SAMPLE_RATE, language=language)
    for seq, event in enumerate([ready, *finals, End(time=round(duration_s, 3))], 1):
        writer.handle(event.stamped(seq, ""))
    writer.close()
    return stream.getvalue()


def _segment(number: int, segment: RecordedSegment) -> dict[str, object]:
    final = segment.final
    return {
        "id": number,
        "seek": segment.seek,
        "start": final.start,
        "end": final.end,
        "text": _piece(segment),
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": final.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": final.no_speech_prob,
    }


def _piece(segment: RecordedSegment) -> str:
    """Return a segment's text with its leading space, if its language has spaces."""
    return "".join(word.word for word in segment.final.words)


class TextStream:
    """Events of a transcription in progress, as `text/event-stream`."""

    def __init__(self, *, finals: bool = False) -> None:
        """Begin; `finals`: each delta also has our own `final` event, which OpenAI's clients ignore."""
        self._finals = finals
        self._text = ""

    def delta(self, segment: RecordedSegment) -> str:
        piece = _piece(segment) if self._text else _piece(segment).lstrip()
        self._text += piece
        more = {"final": msgspec.to_builtins(segment.final)} if self._finals else {}
        return _event({"type": "transcript.text.delta", "delta": piece, **more})

    def done(self) -> str:
        return _event({"type": "transcript.text.done", "text": self._text}) + "data: [DONE]\n\n"

    def error(self, status: int, message: str) -> str:
        return _event(error_body(status, message))


def _event(data: object) -> str:
    return f"data: {_json(data)}\n\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def describe_model(model: ModelInfo) -> dict[str, object]:
    owner, slash, _ = model.name.partition("/")
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": owner if slash else "streamer",
        "loaded": model.loaded,
    }


# Type and code of an error by its HTTP status.
_ERRORS: dict[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}


def error_body(status: int, message: str) -> dict[str, object]:
    other = ("server_error", None) if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ("invalid_request_error", None)
    kind, code = _ERRORS.get(status, other)
    if status == HTTPStatus.NOT_FOUND and message.startswith("model "):
        code = "model_not_found"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
