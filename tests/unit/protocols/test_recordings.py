"""Answers to recordings: OpenAI's formats, and Deepgram's."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from openai.types.audio import TranscriptionVerbose
from starlette.datastructures import ImmutableMultiDict

from streamer.events import from_json
from streamer.protocols import deepgram
from streamer.protocols.adapter import read_query
from streamer.protocols.openai_rest import (
    RESPONSE_FORMATS,
    Asked,
    TextStream,
    answer,
    describe_model,
    error_body,
    write,
)
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions
from tests.conversations import Conversation, conversations
from tests.unit.protocols.recorded import segment

SEGMENTS = [segment(1, "Ask not what"), segment(2, "your country can do.", 2.5)]
TEXT = "Ask not what your country can do."


def spoken_by(speaker: str, recorded: RecordedSegment) -> RecordedSegment:
    words = tuple(msgspec.structs.replace(word, speaker=speaker) for word in recorded.final.words)
    return replace(recorded, final=msgspec.structs.replace(recorded.final, words=words))


def answered(request: str) -> Any:  # noqa: ANN401 - JSON, or the text of another format
    """Return the answer to a request such as `openai response_format=text`; `spoken`, `silent` are of the recording."""
    service, *fields = request.split()
    query = ImmutableMultiDict([(name, value) for name, value in (field.split("=") for field in fields)])
    segments = [] if "silent" in query else [spoken_by(query.get("speaker", ""), each) for each in SEGMENTS]
    language = query.get("spoken", "en")
    if service == "deepgram":
        of: dict[str, Any] = {"sha256": "00", "duration_s": 4.10049, "model": "nano.en", "language": language}
        return deepgram.write_answer(deepgram.read_query(query), segments, **of)
    asked = read_query(query, Asked)
    content_type, body = answer(asked, segments, 4.10049, language)
    assert content_type == RESPONSE_FORMATS[asked.format]
    if asked.format == "verbose_json":
        TranscriptionVerbose.model_validate_json(body, strict=True)
    return json.loads(body) if "json" in content_type else body


@pytest.mark.parametrize("talk", conversations("recordings", "server"))
def test_a_recording_is_answered_as_asked(talk: Conversation) -> None:
    for request, expected in zip(talk.steps[::2], talk.steps[1::2], strict=True):
        talk.expect(expected.text, answered(request.text))


def test_a_form_is_read_and_what_is_not_known_is_ignored() -> None:
    fields = [("model", "whisper-1"), ("language", "English"), ("prompt", " NPU,\nOpenVINO "), ("temperature", "0.4")]
    fields += [("stream", "True"), ("include[]", "logprobs"), ("response_format", ""), ("model", "base")]
    found = read_query(ImmutableMultiDict(fields), Asked)
    assert found.options == RecordingOptions(language="en", initial_prompt="NPU, OpenVINO", temperature=0.4)
    assert (found.model, found.format, found.stream) == ("base", "json", True)
    assert read_query(ImmutableMultiDict(), Asked) == Asked(model="", format="json", granularities=[], stream=False)


def test_files_have_a_beginning_and_an_end() -> None:
    assert write("txt", [SEGMENTS[0].final], 2.0) == "Ask not what\n"
    events = [json.loads(line) for line in write("jsonl", [SEGMENTS[0].final], 2.00049, "nano.en").splitlines()]
    assert [(event["seq"], event["type"]) for event in events] == [(1, "ready"), (2, "final"), (3, "end")]
    assert (events[0]["model"], events[0]["language"], events[2]["time"]) == ("nano.en", "en", 2.0)


def test_deltas_join_to_the_text() -> None:
    stream = TextStream(finals=True)
    events = "".join([*map(stream.delta, SEGMENTS), stream.done()]).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    data: list[dict[str, Any]] = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [item["type"] for item in data] == [*["transcript.text.delta"] * 2, "transcript.text.done"]
    assert from_json(json.dumps(data[0]["final"])) == SEGMENTS[0].final
    assert "final" not in TextStream().delta(SEGMENTS[0])
    assert "".join(item["delta"] for item in data[:-1]) == data[-1]["text"] == TEXT


@pytest.mark.parametrize(
    ("status", "message", "kind", "code"),
    [
        (400, "no", "invalid_request_error", None),
        (401, "no", "invalid_request_error", "invalid_api_key"),
        (404, "no", "invalid_request_error", "not_found"),
        (404, "model x is not here", "invalid_request_error", "model_not_found"),
        (429, "no", "rate_limit_error", "rate_limit_exceeded"),
        (500, "no", "server_error", None),
    ],
)
def test_an_error_has_openais_keys(status: int, message: str, kind: str, code: str | None) -> None:
    error = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    assert error_body(status, message) == error
    assert json.loads(TextStream().error(status, message).removeprefix("data: ")) == error


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "Bad Request"), (401, "INVALID_AUTH"), (403, "INSUFFICIENT_PERMISSIONS"), (429, "TOO_MANY_REQUESTS")],
)
def test_an_http_error_has_deepgrams_three_keys(status: int, code: str) -> None:
    error = deepgram.describe_error(status, "no")
    assert error == {"err_code": code, "err_msg": "no", "request_id": error["request_id"]}


def test_a_model_is_described_with_its_owner() -> None:
    for name, owner in (("openai/whisper-tiny", "openai"), ("base", "streamer")):
        described = describe_model(ModelInfo(name=name, created=7, loaded=False))
        assert described == {"id": name, "object": "model", "created": 7, "owned_by": owner, "loaded": False}
