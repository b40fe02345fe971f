"""What segments of a recording become: OpenAI's formats, and Deepgram's answer."""

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
from tests.unit.protocols.recorded import segment

SEGMENTS = [segment(1, "Ask not what"), segment(2, "your country can do.", 2.5)]
TEXT = "Ask not what your country can do."


def answered(asked: Asked = Asked(), language: str = "en") -> Any:  # noqa: ANN401, B008 - JSON; frozen
    content_type, body = answer(asked, SEGMENTS, 4.1, language)
    assert content_type == RESPONSE_FORMATS[asked.format]
    return json.loads(body) if "json" in content_type else body


def test_an_empty_form_asks_for_json_of_the_daemons_own_model() -> None:
    asked = read_query(ImmutableMultiDict(), Asked)
    assert (asked, asked.options) == (Asked(), RecordingOptions())
    assert (asked.model, asked.format, asked.granularities, asked.stream) == ("", "json", [], False)


def test_a_form_is_read_and_what_is_not_known_is_ignored() -> None:
    fields = [("model", "whisper-1"), ("language", "English"), ("prompt", " NPU,\nOpenVINO "), ("temperature", "0.4")]
    fields += [("response_format", "verbose_json"), ("timestamp_granularities[]", "word"), ("stream", "True")]
    fields += [("timestamp_granularities[]", "segment"), ("include[]", "logprobs"), ("format", ""), ("model", "base")]
    found = read_query(ImmutableMultiDict(fields), Asked)
    assert found.options == RecordingOptions(language="en", prompt="NPU, OpenVINO", temperature=0.4)
    assert (found.model, found.format, found.stream) == ("base", "verbose_json", True)
    assert found.granularities == ["word", "segment"]
    short = read_query(ImmutableMultiDict([("timestamp_granularities", "word")]), Asked)
    assert short.granularities == ["word"]


def test_json_is_the_text_and_how_long_it_was_unless_it_is_a_translation() -> None:
    assert answered() == {"text": TEXT, "usage": {"type": "duration", "seconds": 5}}
    assert answered(Asked(task="translate")) == {"text": TEXT}


@pytest.mark.parametrize(
    ("granularities", "shown"),
    [
        ([], {"segments"}),
        (["segment"], {"segments"}),
        (["word"], {"words"}),
        (["word", "segment"], {"segments", "words"}),
    ],
)
def test_verbose_json_has_segments_and_words_as_asked(granularities: list[Any], shown: set[str]) -> None:
    body = answered(Asked(format="verbose_json", granularities=granularities))
    assert body.keys() & {"segments", "words"} == shown
    assert (body["language"], body["duration"], body["task"], body["text"]) == ("english", 4.1, "transcribe", TEXT)
    parsed = TranscriptionVerbose.model_validate(body, strict=True)
    for second in body.get("segments", [])[1:]:
        assert second.items() >= {"id": 1, "seek": 7, "start": 2.5, "end": 3.7, "text": " your country can do."}.items()
        assert (second["tokens"], second["temperature"], second["compression_ratio"]) == ([1, 2], 0.2, 1.5)
    if parsed.words:
        assert [word.word for word in parsed.words] == TEXT.split()
        assert (parsed.words[3].start, parsed.words[3].end) == (2.5, 2.8)


def test_a_translation_is_english_and_another_language_has_its_name() -> None:
    verbose = Asked(task="translate", format="verbose_json")
    assert (answered(verbose, "de")["language"], answered(verbose, "de")["task"]) == ("english", "translate")
    assert answered(Asked(format="verbose_json"), "de")["language"] == "german"


def test_subtitles_and_text_are_not_json() -> None:
    assert answered(Asked(format="text")) == f"{TEXT}\n"
    assert answered(Asked(format="srt")).startswith("1\n00:00:00,000 --> 00:00:00,900\nAsk not what\n\n2\n")
    assert answered(Asked(format="vtt")).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.900\n")
    assert write("txt", [SEGMENTS[0].final], 2.0) == "Ask not what\n"
    events = [json.loads(line) for line in write("jsonl", [SEGMENTS[0].final], 2.00049, "nano.en").splitlines()]
    assert [event["type"] for event in events] == ["ready", "final", "end"]
    assert (events[0]["model"], events[0]["language"], events[2]["time"]) == ("nano.en", "en", 2.0)


@pytest.mark.parametrize("name", RESPONSE_FORMATS)
def test_silence_is_an_empty_text_in_every_format(name: Any) -> None:  # noqa: ANN401 - a literal
    body = answer(Asked(format=name), [], 1.0, "")[1]
    assert json.loads(body)["text"] == "" if "json" in name else body.strip() in ("", "WEBVTT")


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
        (503, "no", "server_error", None),
    ],
)
def test_an_error_has_openais_keys(status: int, message: str, kind: str, code: str | None) -> None:
    error = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    assert error_body(status, message) == error
    assert json.loads(TextStream().error(status, message).removeprefix("data: ")) == error


def test_a_model_is_described_with_its_owner() -> None:
    described = describe_model(ModelInfo(name="openai/whisper-tiny", created=7, loaded=False))
    expected = {"object": "model", "created": 7, "owned_by": "openai", "loaded": False}
    assert described == {"id": "openai/whisper-tiny", **expected}
    assert describe_model(ModelInfo(name="base", created=7, loaded=True))["owned_by"] == "streamer"


# --- Deepgram ---------------------------------------------------------------------------------------------------------


def listened(segments: list[RecordedSegment], query: str = "") -> Any:  # noqa: ANN401 - JSON
    asked = deepgram.read_query(ImmutableMultiDict([tuple(field.split("=")) for field in query.split("&") if field]))
    return deepgram.write_answer(asked, segments, sha256="00", duration_s=4.0004, model="nano.en", language="de")


def test_a_recording_has_words_utterances_and_paragraphs_as_asked() -> None:
    spoken = [segment(1, "One, two."), segment(2, "Three!", 0.6), segment(3, "Four.", 1.8)]
    found = listened(spoken, "utterances=true&paragraphs=true&detect_language=true")
    (channel,), (first, second) = found["results"]["channels"], found["results"]["utterances"]
    best = channel["alternatives"][0]
    assert (channel["detected_language"], best["transcript"]) == ("de", "One, two. Three! Four.")
    assert [word["word"] for word in best["words"]] == ["one", "two", "three", "four"]
    assert (first["transcript"], first["start"], first["end"], first["channel"]) == ("One, two. Three!", 0.0, 0.9, 0)
    assert (second["transcript"], second["words"][0]["punctuated_word"]) == ("Four.", "Four.")
    paragraphs = best["paragraphs"]
    sentences = [[sentence["text"] for sentence in part["sentences"]] for part in paragraphs["paragraphs"]]
    assert sentences == [["One, two.", "Three!"], ["Four."]]
    assert paragraphs["transcript"] == "One, two. Three!\n\nFour."
    assert [(part["num_words"], part["start"], part["end"]) for part in paragraphs["paragraphs"]] == [
        (3, 0.0, 0.9),
        (1, 1.8, 2.1),
    ]


def test_an_utterance_of_a_recording_ends_at_the_silence_asked_for() -> None:
    spoken = [segment(1, "One."), segment(2, "Two.", 1.0)]
    counts = [len(listened(spoken, f"utterances=true&utt_split={s}")["results"]["utterances"]) for s in (0.7, 0.71)]
    assert counts == [2, 1]


def test_speakers_of_a_recording_have_numbers_if_that_is_asked_for() -> None:
    spoken = segment(1, "One two.")
    words = tuple(msgspec.structs.replace(word, speaker="Ann") for word in spoken.final.words)
    named = replace(spoken, final=msgspec.structs.replace(spoken.final, words=words))
    for query, speaker in (("diarize=true&utterances=true", 0), ("utterances=true", None)):
        results = listened([named], query)["results"]
        for part in (results["channels"][0]["alternatives"][0], results["utterances"][0]):
            assert [word.get("speaker") for word in part["words"]] == [speaker, speaker]


def test_a_recording_without_wishes_has_a_transcript_and_metadata_only() -> None:
    found = listened([])
    assert found["results"] == {"channels": [{"alternatives": [{"transcript": "", "confidence": 0.0, "words": []}]}]}
    (number,) = found["metadata"]["models"]
    assert found["metadata"]["model_info"][number]["name"] == "nano.en"
    expected = {"sha256": "00", "duration": 4.0, "channels": 1, "transaction_key": "deprecated"}
    assert found["metadata"].items() >= expected.items()
    assert listened([], "utterances=true")["results"]["utterances"] == []


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "Bad Request"), (401, "INVALID_AUTH"), (403, "INSUFFICIENT_PERMISSIONS"), (429, "TOO_MANY_REQUESTS")],
)
def test_an_http_error_has_deepgrams_three_keys(status: int, code: str) -> None:
    error = deepgram.describe_error(status, "no")
    assert error == {"err_code": code, "err_msg": "no", "request_id": error["request_id"]}
