"""What clients of all protocols write as text: languages, prompts."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from starlette.datastructures import Headers, QueryParams

from streamer.errors import ConfigError
from streamer.protocols import deepgram, openai_realtime, openai_rest
from streamer.protocols.adapter import Action, Adapter, Open, Query, Say, read_query
from streamer.protocols.native import SessionOptions
from streamer.protocols.recordings import RecordingOptions
from streamer.protocols.stream import Stream
from streamer.protocols.text import MAX_PROMPT_CHARS
from streamer.protocols.whisperlive import WhisperLive
from streamer.protocols.wyoming import Wyoming
from streamer.settings.registry import SETTINGS
from streamer.settings.values import checked


def query(**fields: object) -> Query:
    """Return the fields of an address."""
    return QueryParams([(key, str(item)) for key, value in fields.items() for item in _items(value)])


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def opened(adapter: Adapter, *messages: Mapping[str, object], behind: bytes = b"") -> SessionOptions:
    """Return what an adapter opens a session with, or raise what it refuses."""
    actions: list[Action] = [*adapter.begin()]
    for message in messages:
        actions += adapter.receive(json.dumps(message) + ("\n" if behind else ""))
    if behind:
        actions += adapter.receive(behind)
    errors = [json.loads(action.text) for action in actions if isinstance(action, Say)]
    for said in errors:
        if said["type"] == "error":
            raise ConfigError(said["error"]["message"] if "error" in said else said["data"]["text"])
    return next(action.start for action in actions if isinstance(action, Open))


def realtime(**fields: object) -> SessionOptions:
    update = {"type": "session.update", "session": {"audio": {"input": {"transcription": fields}}}}
    audio = {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(480)).decode("ascii")}
    return opened(openai_realtime.make(query(), Headers()), update, audio)


def wyoming(**fields: object) -> SessionOptions:
    chunk = b'{"type":"audio-chunk","data":{"rate":16000,"width":2,"channels":1},"payload_length":2}\n\0\0'
    return opened(Wyoming(""), {"type": "transcribe", "data": fields}, behind=chunk)


def live(**fields: object) -> SessionOptions:
    return opened(deepgram.make_live(query(encoding="linear16", sample_rate="16000", **fields), {}))


def native(**fields: object) -> SessionOptions:
    if "prompt" in fields:
        fields["initial_prompt"] = fields.pop("prompt")
    return opened(Stream(), {"type": "start", **fields})


def whisperlive(**fields: object) -> SessionOptions:
    if "prompt" in fields:
        fields["initial_prompt"] = fields.pop("prompt")
    return opened(WhisperLive(), {"uid": "u", **fields})


def rest(**fields: object) -> RecordingOptions:
    return read_query(query(**fields), openai_rest.Asked).options


def setting(language: str) -> Any:  # noqa: ANN401 - has a language
    return SessionOptions(language=checked(SETTINGS["decoding.language"], language, "--language"))


Door = Callable[..., Any]
DOORS: dict[str, Door] = {
    "native": native,
    "WhisperLive": whisperlive,
    "Realtime": realtime,
    "Wyoming": wyoming,
    "Deepgram live": live,
    "Deepgram": lambda **fields: deepgram.read_query(query(**fields)).options,
    "REST": rest,
    "/whisper/MODEL": lambda **fields: read_query(query(**fields), openai_rest.AskedOfModel).options,
    "settings": setting,
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_a_language_as_people_write_it(door: str) -> None:
    written = {"en-US": "en", "pt_BR": "pt", "EN": "en", "deutsch": "de", "nb": "no", "iw-IL": "he", "und": "auto"}
    assert {spelling: DOORS[door](language=spelling).language for spelling in written} == written
    if door != "settings":
        assert DOORS[door](language="").language is None, "the daemon's own"
    with pytest.raises(ConfigError, match="language is 'klingon': expected auto, or") as refusal:
        DOORS[door](language="klingon")
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("door", ["native", "WhisperLive", "Realtime", "REST", "/whisper/MODEL"])
def test_every_door_keeps_the_end_of_a_long_prompt(door: str) -> None:
    for n_words in (200, 2000, 10_000):
        prompt = "".join(f" w{n:05}" for n in range(n_words)).strip()
        chosen = DOORS[door](prompt=prompt)
        assert (chosen.prompt if isinstance(chosen, RecordingOptions) else chosen.initial_prompt) == (
            prompt[-MAX_PROMPT_CHARS:].strip()
        )


@pytest.mark.parametrize("door", ["Deepgram live", "Deepgram"])
@pytest.mark.parametrize(
    ("asked", "language", "languages"),
    [
        ("en de-AT", "auto", ("en", "de")),
        ("true", "auto", ()),
        ("True EN", "auto", ("en",)),
        ("false", "fr", ()),
        ("", "fr", ()),
    ],
)
def test_deepgrams_detection_may_be_restricted(
    door: str, asked: str, language: str, languages: tuple[str, ...]
) -> None:
    chosen = DOORS[door](language="fr", detect_language=asked.split())
    assert (chosen.language, chosen.languages) == (language, languages)


@pytest.mark.parametrize("door", ["Deepgram live", "Deepgram"])
def test_deepgrams_detection_knows_no_klingon(door: str) -> None:
    with pytest.raises(ConfigError, match="languages is 'klingon'"):
        DOORS[door](detect_language=["en", "klingon"])
