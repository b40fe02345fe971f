"""The texts of files, as `streamer transcribe` writes them from the events of a session."""

import io
import logging
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from streamer.commands import transcribe
from streamer.commands.files import Text
from streamer.commands.transcribe import Files
from streamer.constants import SAMPLE_RATE
from streamer.errors import InferenceError, TruncatedAudioError
from streamer.events import End, Event, Final, Gap
from streamer.outputs.subtitles import SubtitleOptions
from streamer.settings.table import Settings
from streamer.whisper.model import WhisperModel
from tests.builders import final, ready
from tests.unit.audio.sources.test_container import tone, write
from tests.unit.whisper.support import SPEECH

TALK = Path("talk.mp4")


def events(*texts: tuple[str, str], error: Exception | None = None) -> Generator[Event]:
    """Yield the events of a session with finals of (text, task); raise an error at its end."""
    yield ready()
    for text, task in texts:
        yield final(text, task=task)
    yield End()
    if error is not None:
        raise error


def written(events: Generator[Event], *texts: Text, path: Path = TALK, track: int = 1) -> int:
    files = Files({path: None}, track, {path: texts}, SubtitleOptions(), Console(file=io.StringIO()))
    return files.write(path, events)


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


@pytest.mark.parametrize(
    ("n_tracks", "track", "hint"),
    [
        (1, 1, ""),
        (2, 1, "; it has audio track 2 too: choose with --track N"),
        (3, 2, "; it has audio tracks 1, 3 too: choose with --track N"),
    ],
)
def test_other_tracks_are_named_if_one_has_no_speech(
    n_tracks: int, track: int, hint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "talk.mp4", tone(0.2), "mp4", *[tone(0.2)] * (n_tracks - 1))
    assert written(events(), Text("text", tmp_path / "talk.txt"), path=path, track=track) == 0
    assert caplog.messages == [f"talk.mp4: no speech found, its text is empty{hint}"]


def test_the_text_of_a_truncated_file_is_kept_and_that_of_a_failure_is_not(tmp_path: Path) -> None:
    text = Text("text", tmp_path / "talk.txt")
    assert written(events(("Hi.", ""), error=InferenceError("the device is gone")), text) == 1
    assert not list(tmp_path.iterdir())
    assert written(events(("Hi.", ""), error=TruncatedAudioError("talk.mp4", 1.0, 2.0)), text) == 1
    assert (tmp_path / "talk.txt").read_text(encoding="utf-8") == "Hi.\n"


def test_speech_without_text_is_a_gap_and_a_warning(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def transcribed(*_: object, on_unclear: Callable[[int, int], None], **_2: object) -> Iterator[Final]:
        on_unclear(4 * SAMPLE_RATE, 7 * SAMPLE_RATE)
        yield final("So it began.", start=0.0)
        yield final("So it went on.", start=7.0)
        for start in range(10, 16):
            on_unclear(start * SAMPLE_RATE, (start + 1) * SAMPLE_RATE)

    monkeypatch.setattr(transcribe, "transcribe", transcribed)
    transcriber = transcribe._offline(Settings(), model, 1, words=True)
    found = [event for event in transcriber(SPEECH, lambda done, of: None) if isinstance(event, Final | Gap)]
    assert [event.start for event in found] == [0, 4, 7, 10, 11, 12, 13, 14, 15]
    assert {event.reason for event in found if isinstance(event, Gap)} == {"unclear"}
    (message,) = (record.message for record in caplog.records if record.levelno == logging.WARNING)
    assert message.endswith(
        "speech without text: 4.0 to 7.0 s, 10.0 to 11.0 s, 11.0 to 12.0 s, 12.0 to 13.0 s, 13.0 to 14.0 s, and 2 more"
    )
