"""What clients of all protocols ask for: languages, prompts, likely words, and the options of the native protocol."""

import base64
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, QueryParams

from streamer.errors import ConfigError, ProtocolError
from streamer.outside import one_line
from streamer.protocols import deepgram, openai_realtime, openai_rest
from streamer.protocols.adapter import Action, Adapter, Open, Query, Say, read_query
from streamer.protocols.native import StreamStart, parse_message
from streamer.protocols.stream import Stream
from streamer.protocols.text import hotwords, note_model
from streamer.protocols.whisperlive import WhisperLive
from streamer.protocols.wyoming import Wyoming
from streamer.settings.options import MAX_PROMPT_CHARS, SessionOptions
from streamer.settings.registry import SETTINGS
from streamer.settings.values import checked


def query(**fields: object) -> Query:
    """Return the fields of an address."""
    pairs = [(key, value if isinstance(value, list) else [value]) for key, value in fields.items()]
    return QueryParams([(key, str(item)) for key, items in pairs for item in items])


def opened(adapter: Adapter, *messages: str | bytes) -> SessionOptions:
    """Return what an adapter opens a session with, or raise what it refuses."""
    actions: list[Action] = [*adapter.begin()]
    for message in messages:
        actions += adapter.receive(message)
    for said in (json.loads(action.text) for action in actions if isinstance(action, Say)):
        if said["type"] == "error":
            raise ConfigError(said["error"]["message"] if "error" in said else said["data"]["text"])
    return next(action.start for action in actions if isinstance(action, Open))


def realtime(**fields: object) -> SessionOptions:
    update = {"type": "session.update", "session": {"audio": {"input": {"transcription": fields}}}}
    audio = {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(480)).decode("ascii")}
    return opened(openai_realtime.make(query(), Headers()), json.dumps(update), json.dumps(audio))


def wyoming(**fields: object) -> SessionOptions:
    request = json.dumps({"type": "transcribe", "data": fields}) + "\n"
    chunk = b'{"type":"audio-chunk","data":{"rate":16000,"width":2,"channels":1},"payload_length":2}\n\0\0'
    return opened(Wyoming(""), request, chunk)


def renamed(fields: dict[str, object]) -> dict[str, object]:
    return {{"prompt": "initial_prompt"}.get(key, key): value for key, value in fields.items()}


DOORS: dict[str, Callable[..., Any]] = {
    "native": lambda **fields: opened(Stream(), json.dumps({"type": "start", **renamed(fields)})),
    "WhisperLive": lambda **fields: opened(WhisperLive(), json.dumps({"uid": "u", **renamed(fields)})),
    "Realtime": realtime,
    "Wyoming": wyoming,
    "Deepgram live": lambda **fields: opened(
        deepgram.make_live(query(encoding="linear16", sample_rate="16000", **fields), {})
    ),
    "Deepgram": lambda **fields: deepgram.read_query(query(**fields)).options,
    "REST": lambda **fields: read_query(query(**fields), openai_rest.Asked).options,
    "/whisper/MODEL": lambda **fields: read_query(query(**fields), openai_rest.AskedOfModel).options,
    "settings": lambda language: SessionOptions(
        language=str(checked(SETTINGS["decoding.language"], language, "--language"))
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_a_language_as_people_write_it(door: str) -> None:
    written = {"en-US": "en", "pt_BR": "pt", "EN": "en", "deutsch": "de", "nb": "no", "iw-IL": "he", "und": "auto"}
    assert {spelling: DOORS[door](language=spelling).language for spelling in written} == written
    if door != "settings":
        assert DOORS[door](language="").language is None, "the daemon's own"
    with pytest.raises(ConfigError) as refusal:
        DOORS[door](language="klingon")
    assert "'klingon'" in str(refusal.value)


@pytest.mark.parametrize("door", ["native", "WhisperLive", "Realtime", "REST", "/whisper/MODEL"])
def test_every_door_keeps_the_end_of_a_long_prompt(door: str) -> None:
    for n_words in (200, 2000, 10_000):
        prompt = "".join(f" w{n:05}" for n in range(n_words)).strip()
        chosen = DOORS[door](prompt=prompt)
        assert chosen.initial_prompt == prompt[-MAX_PROMPT_CHARS:].strip()


@pytest.mark.parametrize("door", ["Deepgram live", "Deepgram"])
@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("en de-AT", ("auto", ("en", "de"))),
        ("true", ("auto", ())),
        ("True EN", ("auto", ("en",))),
        ("false", ("fr", ())),
        ("", ("fr", ())),
    ],
)
def test_deepgrams_detection_may_be_restricted(door: str, asked: str, chosen: tuple[str, tuple[str, ...]]) -> None:
    options = DOORS[door](language="fr", detect_language=asked.split())
    assert (options.language, options.languages) == chosen
    with pytest.raises(ConfigError):
        DOORS[door](detect_language=["en", "klingon"])


@pytest.mark.parametrize(
    ("asked", "silence_s"),
    [("10", 0.1), ("100", 0.1), ("10000", 10.0), ("60000", 10.0), ("false", None), ("true", None)],
)
def test_deepgrams_endpointing_is_the_silence_that_ends_speech(asked: str, silence_s: float | None) -> None:
    assert DOORS["Deepgram live"](endpointing=asked).min_silence_s == silence_s


@given(phrases=st.lists(st.text(max_size=5), max_size=5), more=st.sampled_from([0, 90, 200]))
def test_likely_words_are_lines_within_the_limits_of_a_session(phrases: list[str], more: int) -> None:
    found = hotwords(["x" * 101, *phrases, "x" * 100, *["more"] * more])
    lines = [*filter(None, map(one_line, phrases)), "x" * 100, *["more"] * more]
    assert found == tuple(lines[:100])
    parse_message(json.dumps({"type": "set", "hotwords": found}))  # raises nothing


def test_deepgrams_likely_words_are_no_more_than_a_session_takes() -> None:
    asked = {"keyterm": ["a"] * 100, "keywords": ["b:2"] * 100}
    assert DOORS["Deepgram"](**asked).hotwords == ("a",) * 100
    assert DOORS["Deepgram live"](keywords=["b:2", ":2"]).hotwords == ("b",)


def test_names_of_other_programs_models_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    note_model.cache_clear()  # another test of this process may have asked for the same name
    with caplog.at_level(logging.INFO):
        for name in ("small", "small", "gpt-4o-transcribe"):
            DOORS["WhisperLive"](model=name)
    assert len(caplog.records) == 2


# --- The native protocol ----------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "language": "auto",
    "languages": ["de", "en"],
    "task": "translate",
    "initial_prompt": "Grüße aus 世界",
    "hotwords": ["NPU", "Open VINO"],
    "beam_size": 5,
    "words": False,
    "vad_threshold": 0.7,
    "min_silence_s": 1,
    "turns": True,
    "turn_threshold": 0.6,
    "turn_silence_s": 3,
    "pace_s": 0.25,
}


def test_every_option_can_be_said_at_the_start() -> None:
    assert set(EVERYTHING) == set(SessionOptions.__struct_fields__)
    audio: dict[str, Any] = {"format": "f32le", "sample_rate": 48_000, "channels": 2, "keep": True}
    kind, values = parse_message(json.dumps({"type": "start", **audio, **EVERYTHING}))
    lists = {"languages": ("de", "en"), "hotwords": ("NPU", "Open VINO")}
    assert (kind, StreamStart(**values)) == ("start", StreamStart(**{**audio, **EVERYTHING, **lists}))


@pytest.mark.parametrize("key", EVERYTHING)
def test_every_option_can_be_set_and_set_back(key: str) -> None:
    value = EVERYTHING[key]
    kept = tuple(value) if isinstance(value, list) else value
    assert parse_message(json.dumps({"type": "set", key: value})) == ("set", {key: kept})
    assert parse_message(json.dumps({"type": "set", key: None})) == ("set", {key: None})
    if not isinstance(value, bool | int | float) and key not in ("language", "task"):
        assert parse_message(json.dumps({"type": "set", key: value[:0]})) == ("set", {key: kept[:0]})


@pytest.mark.parametrize("kind", ["flush", "pause", "resume", "clear", "finish"])
def test_commands_have_no_more_fields(kind: str) -> None:
    assert parse_message(json.dumps({"type": kind})) == (kind, {})
    with pytest.raises(ProtocolError):
        parse_message(json.dumps({"type": kind, "at": 1}))


def test_resume_with_a_session_comes_back_to_a_stream() -> None:
    assert parse_message('{"type":"resume","session":"k3v9","after":7}') == ("resume", {"session": "k3v9", "after": 7})
    assert parse_message('{"type":"resume","session":"k3v9"}') == ("resume", {"session": "k3v9"})
