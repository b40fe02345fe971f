"""What modules refuse that are not in a room, and the sentences of these refusals."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from streamer import LiveText
from streamer.check import check_options
from streamer.errors import ProtocolError
from streamer.events import from_json
from streamer.extras import requires
from streamer.languages import code_of, codes_of
from streamer.settings.load import load_settings
from streamer.whisper.model import WhisperModel
from tests.refusals import Refusal, refusals


def check(given: dict[str, object]) -> None:
    settings = load_settings(None, {}, given)
    if any(name.startswith("stream.") for name in given):
        check_options(settings, streaming=False)  # files are read as fast as they are transcribed
    check_options(settings, streaming=True)


@refusals("modules")
def test_a_refusal_says_what_was_expected(refusal: Refusal, model: WhisperModel) -> None:
    def begin(options: dict[str, Any]) -> None:
        with LiveText(model, **options):
            pass

    calls: dict[str, Callable[[Any], object]] = {
        "language": code_of,
        "languages": codes_of,
        "module": lambda module: requires(module, extra="grammar", purpose="--grammar"),
        "settings": check,
        "live_text": begin,
        "event": from_json,
    }
    ((what, given),) = refusal.given.items()
    with refusal.expected():
        calls[what](given)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"type":"speech","state":"start","time":' + "9" * 400 + "}"])
def test_json_that_python_chokes_on_is_not_an_event(text: str) -> None:
    with pytest.raises(ProtocolError):
        from_json(text)


@pytest.mark.parametrize("module", ["json", "json.decoder", "antigravity"])
def test_what_is_installed_is_enough_and_is_not_imported(module: str) -> None:
    before = set(sys.modules)
    requires(module, extra="grammar", purpose="--grammar")
    assert set(sys.modules) == before
