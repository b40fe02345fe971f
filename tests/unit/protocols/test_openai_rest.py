"""What forms ask for, and what segments become in each format."""

import json
from typing import Any

import pytest
from msgspec import structs
from openai.types.audio import TranscriptionVerbose
from starlette.datastructures import ImmutableMultiDict

from streamer.errors import UsageError
from streamer.events import from_json
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
from streamer.protocols.recordings import ModelInfo, RecordingOptions
from tests.unit.protocols.recorded import segment

SEGMENTS = [segment(1, "Ask not what"), segment(2, "your country can do.", 2.5)]


def asked(*fields: tuple[str, str]) -> Asked:
    return structs.replace(read_query(ImmutableMultiDict(fields), Asked), task="transcribe")


def answered(*fields: tuple[str, str]) -> tuple[str, str]:
    return answer(asked(*fields), SEGMENTS, 4.1, "en")


def test_an_empty_form_asks_for_json_of_the_daemons_own_model() -> None:
    assert asked() == Asked(task="transcribe")
    assert asked().options == RecordingOptions(task="transcribe")
    assert (asked().model, asked().format, asked().granularities, asked().stream) == ("", "json", [], False)


def test_a_form_is_read_and_what_is_not_known_is_ignored() -> None:
    fields = [("model", "whisper-1"), ("language", "English"), ("prompt", " NPU,\nOpenVINO "), ("temperature", "0.4")]
    fields += [("response_format", "verbose_json"), ("timestamp_granularities[]", "word"), ("stream", "True")]
    found = asked(*fields, ("timestamp_granularities[]", "segment"), ("include[]", "logprobs"), ("colour", "blue"))
    assert found.options == RecordingOptions(language="en", task="transcribe", prompt="NPU, OpenVINO", temperature=0.4)
    assert (found.model, found.format, found.stream) == ("whisper-1", "verbose_json", True)
    assert found.granularities == ["word", "segment"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in ("1.5", "-1", "nan", "warm", "1e999")),
        *(("response_format", "mp3"), ("stream", "perhaps"), ("timestamp_granularities[]", "line")),
    ],
)
def test_a_bad_value_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name.replace("[", "\\[")):
        asked((name, value))


def test_json_is_the_text_and_how_long_it_was() -> None:
    content_type, body = answered()
    assert content_type == "application/json"
    text = "Ask not what your country can do."
    assert json.loads(body) == {"text": text, "usage": {"type": "duration", "seconds": 5}}


@pytest.mark.parametrize(
    ("granularities", "shown"),
    [
        *(([], {"segments"}), (["segment"], {"segments"}), (["word"], {"words"})),
        (["word", "segment"], {"segments", "words"}),
    ],
)
def test_verbose_json_has_segments_and_words_as_asked(granularities: list[str], shown: set[str]) -> None:
    fields = [("timestamp_granularities[]", name) for name in granularities]
    body = json.loads(answered(("response_format", "verbose_json"), *fields)[1])
    assert body.keys() & {"segments", "words"} == shown
    assert (body["language"], body["duration"], body["task"]) == ("english", 4.1, "transcribe")
    parsed = TranscriptionVerbose.model_validate(body, strict=True)
    if parsed.segments:
        texts = [(found.id, found.text) for found in parsed.segments]
        assert texts == [(0, " Ask not what"), (1, " your country can do.")]
        first = body["segments"][0]
        assert first.keys() == type(parsed.segments[0]).model_fields.keys()
        assert (first["tokens"], first["temperature"], first["compression_ratio"]) == ([1, 2], 0.2, 1.5)
    if parsed.words:
        assert [word.word for word in parsed.words] == body["text"].split()
        assert parsed.words[3].start == 2.5


def test_subtitles_and_text_are_no_json() -> None:
    assert answered(("response_format", "text"))[1] == "Ask not what your country can do.\n"
    assert answered(("response_format", "srt"))[1].startswith("1\n00:00:00,000 --> 00:00:00,900\nAsk not what\n\n2\n")
    assert answered(("response_format", "vtt"))[1].startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.900\n")
    assert {answered(("response_format", name))[0] for name in ("text", "srt", "vtt")} == {RESPONSE_FORMATS["text"]}
    assert write("txt", [SEGMENTS[0].final], 2.0) == "Ask not what\n"
    types = [json.loads(line)["type"] for line in write("jsonl", [SEGMENTS[0].final], 2.0, "nano.en").splitlines()]
    assert types == ["ready", "final", "end"]


def test_a_translation_is_english() -> None:
    verbose = Asked(task="translate", format="verbose_json")
    assert json.loads(answer(verbose, SEGMENTS, 4.1, "de")[1])["language"] == "english"
    plain = answer(Asked(task="translate"), SEGMENTS, 4.1, "de")[1]
    assert json.loads(plain).keys() == {"text"}


def test_silence_is_an_empty_text_in_every_format() -> None:
    for name in RESPONSE_FORMATS:
        body = answer(asked(("response_format", name)), [], 1.0, "")[1]
        if RESPONSE_FORMATS[name] == "application/json":
            assert json.loads(body)["text"] == ""


def test_deltas_join_to_the_text() -> None:
    stream = TextStream(finals=True)
    events = "".join([*map(stream.delta, SEGMENTS), stream.done()]).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    data: list[dict[str, Any]] = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [item["type"] for item in data] == [*["transcript.text.delta"] * 2, "transcript.text.done"]
    assert from_json(json.dumps(data[0]["final"])) == SEGMENTS[0].final
    assert "final" not in TextStream().delta(SEGMENTS[0])
    assert "".join(item["delta"] for item in data[:-1]) == data[-1]["text"] == "Ask not what your country can do."


def test_errors_and_models_have_all_their_keys() -> None:
    for status in (400, 401, 403, 404, 413, 429, 500, 503):
        error: Any = error_body(status, "model x is not here")["error"]
        assert error.keys() == {"message", "type", "param", "code"}
    expected = {"message": "model x is not here", "type": "invalid_request_error", "param": None}
    assert error_body(404, "model x is not here")["error"] == {**expected, "code": "model_not_found"}
    described = describe_model(ModelInfo(name="openai/whisper-tiny", created=7, loaded=False))
    assert described.items() >= {"object": "model", "created": 7, "owned_by": "openai"}.items()
