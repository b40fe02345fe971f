"""The texts of files, as `streamer transcribe` writes them from the events of a session."""

import io
import logging
from collections.abc import Generator
from pathlib import Path

import pytest
from rich.console import Console

from streamer.commands.files import Text
from streamer.commands.transcribe import Files
from streamer.errors import InferenceError, TruncatedAudioError
from streamer.events import End, Event
from streamer.outputs.subtitles import SubtitleOptions
from tests.builders import final, ready

TALK = Path("talk.mp4")


def events(*texts: tuple[str, str], error: Exception | None = None) -> Generator[Event]:
    """Yield the events of a session with finals of (text, task); raise an error at its end."""
    yield ready()
    for text, task in texts:
        yield final(text, task=task)
    yield End()
    if error is not None:
        raise error


def written(events: Generator[Event], *texts: Text) -> int:
    files = Files({TALK: None}, 1, {TALK: texts}, SubtitleOptions(), Console(file=io.StringIO()))
    return files.write(TALK, events)


def test_a_translation_has_a_text_of_its_own(tmp_path: Path) -> None:
    said, translated = tmp_path / "talk.txt", tmp_path / "talk.en.txt"
    texts = (Text("text", said, "transcribe"), Text("text", translated, "translate"))
    assert written(events(("Guten Tag.", ""), ("Good day.", "translate")), *texts) == 0
    assert said.read_text(encoding="utf-8") == "Guten Tag.\n"
    assert translated.read_text(encoding="utf-8") == "Good day.\n"


def test_a_file_without_speech_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert written(events(), Text("text", tmp_path / "talk.txt")) == 0
    assert caplog.messages == ["talk.mp4: no speech found, its text is empty"]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert written(events(("Hi.", "")), Text("text", tmp_path / "talk.txt")) == 0
    assert not caplog.messages


def test_the_text_of_a_truncated_file_is_kept_and_that_of_a_failure_is_not(tmp_path: Path) -> None:
    text = Text("text", tmp_path / "talk.txt")
    assert written(events(("Hi.", ""), error=InferenceError("the device is gone")), text) == 1
    assert not list(tmp_path.iterdir())
    assert written(events(("Hi.", ""), error=TruncatedAudioError("talk.mp4", 1.0, 2.0)), text) == 1
    assert (tmp_path / "talk.txt").read_text(encoding="utf-8") == "Hi.\n"
