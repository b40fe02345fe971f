"""OpenAI's REST interface for audio: what a form asks for, and a recording's segments as its answers."""

import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

import msgspec

from streamer.audio.constants import SAMPLE_RATE
from streamer.errors import UsageError
from streamer.events import End, Final, Ready
from streamer.languages import LANGUAGE_NAMES, code_of
from streamer.protocols.adapter import Query
from streamer.protocols.native import StreamTask
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions
from streamer.sinks.subtitles import open_writer

# Of answers, with their Content-Type.
RESPONSE_FORMATS = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "text/plain; charset=utf-8",
    "vtt": "text/plain; charset=utf-8",
}
TASKS: tuple[StreamTask, ...] = ("transcribe", "translate")
GRANULARITIES = ("word", "segment")

C = TypeVar("C", bound=str)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks for."""

    # Empty: the daemon's own.
    model: str
    options: RecordingOptions
    format: str

    # Some of GRANULARITIES.
    granularities: frozenset[str]
    stream: bool


def read_form(
    fields: Query,
    task: StreamTask | None = None,
    format_name: str = "response_format",
    formats: Iterable[str] = RESPONSE_FORMATS,
) -> Asked:
    """Read the fields of a form, or of a query; those that are not known are ignored.

    task : what the address asks for; None: the field `task` says it
    format_name, formats : the field that names the format, and what it may be

    Raises UsageError where a value cannot be.
    """
    granularities = [*fields.getlist("timestamp_granularities[]"), *fields.getlist("timestamp_granularities")]
    prompt = " ".join(fields.get("prompt", "").split())
    return Asked(
        model=fields.get("model", ""),
        options=RecordingOptions(
            language=code_of(fields.get("language", "")) or None,
            task=task or _choice(fields, "task", TASKS, None),
            prompt=prompt or None,
            temperature=_temperature(fields.get("temperature", "").strip()),
        ),
        format=_choice(fields, format_name, tuple(formats), "json"),
        granularities=frozenset(_known(value, "timestamp_granularities[]", GRANULARITIES) for value in granularities),
        stream=_choice(fields, "stream", ("true", "false"), "") == "true",
    )


def _choice(fields: Query, name: str, choices: Sequence[C], default: T) -> C | T:
    value = fields.get(name, "")
    return _known(value, name, choices) if value else default


def _known(value: str, name: str, choices: Sequence[C]) -> C:
    for choice in choices:
        if value.lower() == choice:
            return choice
    raise UsageError(f"{name} is {value!r:.40}: expected one of {', '.join(choices)}")


def _temperature(text: str) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not 0 <= value <= 1:
        raise UsageError(f"temperature is {text!r:.40}: expected a number from 0 to 1")
    return value


def text_of(segments: Iterable[RecordedSegment]) -> str:
    return "".join(map(_piece, segments)).strip()


def answer(asked: Asked, segments: Sequence[RecordedSegment], duration_s: float, language: str) -> tuple[str, str]:
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
            if asked.granularities != {"word"}:
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
            return RESPONSE_FORMATS[format], write(format, [segment.final for segment in segments])
    return RESPONSE_FORMATS["json"], _json(body)


def write(format: str, finals: Sequence[Final], model: str = "") -> str:
    """Return a transcript as one of the sinks writes it; its `text` is `txt` here, too."""
    stream = io.StringIO()
    writer = open_writer("text" if format == "txt" else format, stream)
    language = finals[0].language if finals else ""
    ready = Ready(model=model, device={}, sample_rate=SAMPLE_RATE, language=language)
    for seq, event in enumerate([ready, *finals, End()], 1):
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
    """Return a segment's text with the space before it, where its language has one."""
    return "".join(word.word for word in segment.final.words)


class TextStream:
    """The events of a text that comes segment by segment, as lines of `text/event-stream`."""

    def __init__(self, *, finals: bool = False) -> None:
        """Begin; with `finals` each delta has its segment as our own event, too, which OpenAI's clients ignore."""
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


# Type and code of an error by its HTTP status; of others by their first digit.
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
