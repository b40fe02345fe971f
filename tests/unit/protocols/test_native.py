import json
from typing import Any

import pytest

from streamer.errors import ProtocolError
from streamer.protocols.native import SessionOptions, StreamStart, parse_message
from streamer.settings.table import CLIENT_OPTIONS


def start_of(text: str) -> StreamStart:
    kind, values = parse_message(text)
    assert kind == "start"
    return StreamStart(**values)


def test_everything_has_a_default() -> None:
    start = start_of('{"type":"start"}')
    assert start == StreamStart(format="s16le", sample_rate=16_000, channels=1)
    assert all(getattr(start, name) is None for name in SessionOptions.__struct_fields__)


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


def test_everything_can_be_said() -> None:
    audio: dict[str, Any] = {"format": "f32le", "sample_rate": 48_000, "channels": 2}
    assert set(EVERYTHING) == set(SessionOptions.__struct_fields__)
    expected = {**audio, **EVERYTHING, "languages": ("de", "en"), "hotwords": ("NPU", "Open VINO")}
    assert start_of(json.dumps({"type": "start", **audio, **EVERYTHING})) == StreamStart(**expected)


@pytest.mark.parametrize("key", EVERYTHING)
def test_everything_but_the_audio_can_be_set_and_set_back(key: str) -> None:
    value = EVERYTHING[key]
    kept = tuple(value) if isinstance(value, list) else value
    assert parse_message(json.dumps({"type": "set", key: value})) == ("set", {key: kept})
    assert parse_message(json.dumps({"type": "set", key: None})) == ("set", {key: None})


def test_lists_and_texts_may_be_empty() -> None:
    empty = {"languages": (), "initial_prompt": "", "hotwords": ()}
    assert parse_message('{"type":"set","languages":[],"initial_prompt":"","hotwords":[]}') == ("set", empty)


def test_resume_with_a_session_comes_back_to_a_stream() -> None:
    assert parse_message('{"type":"resume","session":"k3v9","after":7}') == ("resume", {"session": "k3v9", "after": 7})
    assert parse_message('{"type":"resume","session":"k3v9"}') == ("resume", {"session": "k3v9"})
    for wrong in ('"session":""', '"session":7', '"session":"a","after":-1', '"session":"a","x":1', '"after":7'):
        with pytest.raises(ProtocolError, match="resume message has"):
            parse_message(f'{{"type":"resume",{wrong}}}')


@pytest.mark.parametrize("kind", ["flush", "pause", "resume", "clear", "finish"])
def test_commands_say_nothing_more(kind: str) -> None:
    assert parse_message(json.dumps({"type": kind})) == (kind, {})
    with pytest.raises(ProtocolError, match=f"{kind} message has unknown key 'at'"):
        parse_message(json.dumps({"type": kind, "at": 1}))


def test_settings_that_a_client_may_choose_are_options_with_their_ranges() -> None:
    assert EVERYTHING.keys() - CLIENT_OPTIONS.keys() == {"languages", "words"}
    for key, setting in CLIENT_OPTIONS.items():
        if setting.within is None:
            continue
        low, high = setting.within
        for limit, beyond in ((low, low / 2), (high, high * 2)):
            parse_message(json.dumps({"type": "set", key: limit}))
            with pytest.raises(ProtocolError, match=f"from {low:g} to {high:g}"):
                parse_message(json.dumps({"type": "set", key: beyond}))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("hello", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["start"]', "list"),
        ("{}", "None"),
        ('{"type":"begin"}', "begin"),
        ('{"type":["start"]}', "start"),
        ('{"type":"start","rate":8000}', "rate"),
        ('{"type":"start","a\\nb":1}', "'a\\nb'"),
        ('{"type":"start","format":"mp3"}', "s16le or f32le"),
        ('{"type":"start","format":["s16le"]}', "s16le or f32le"),
        ('{"type":"start","sample_rate":0}', "4000 to 384000"),
        ('{"type":"start","sample_rate":16000.0}', "4000 to 384000"),
        ('{"type":"start","sample_rate":true}', "4000 to 384000"),
        ('{"type":"start","sample_rate":1e400}', "4000 to 384000"),
        ('{"type":"start","sample_rate":null}', "4000 to 384000"),
        ('{"type":"start","channels":33}', "1 to 32"),
        ('{"type":"start","language":7}', "language"),
        ('{"type":"start","languages":"de"}', "a list"),
        ('{"type":"start","languages":["de",1]}', "a list"),
        ('{"type":"start","task":"sing"}', "one of transcribe, translate, both"),
        ('{"type":"start","initial_prompt":7}', "one line"),
        ('{"type":"start","initial_prompt":"a\\u0000b"}', "one line"),
        ('{"type":"start","initial_prompt":"\\ud800"}', "one line"),
        (json.dumps({"type": "start", "hotwords": ["x"] * 101}), "at most 100"),
        ('{"type":"start","hotwords":[""]}', "1 to 100"),
        ('{"type":"start","beam_size":2.0}', "whole number"),
        ('{"type":"start","beam_size":"\\ud800"}', "whole number"),
        ('{"type":"start","hotwords":"\\ud800"}', "a list"),
        ('{"type":"start","task":"\\u001b\\ud800"}', "one of transcribe, translate, both"),
        ('{"type":"set","\\ud800":1}', "unknown key"),
        ('{"type":"start","words":1}', "true or false"),
        ('{"type":"start","pace_s":true}', "0.1 to 10"),
        ('{"type":"start","pace_s":NaN}', "0.1 to 10"),
        ('{"type":"start","vad_threshold":"0.5"}', "0.01 to 0.99"),
        ('{"type":"set","sample_rate":8000}', "'sample_rate'"),
        ('{"type":"set","format":"f32le"}', "'format'"),
    ],
)
def test_a_bad_message_is_refused_in_one_line_that_says_what_was_expected(message: str, said: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_message(message)
    assert said.replace("\n", "\\n") in str(caught.value)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert str(caught.value).encode("utf-8")
