"""The texts of files, as `streamer transcribe` writes them from the events of a session."""

import logging
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamer.commands import transcribers
from streamer.commands.files import Text
from streamer.commands.transcribe import Files
from streamer.constants import SAMPLE_RATE
from streamer.events import End, Event, Final
from streamer.outputs.subtitles import SubtitleOptions
from tests.builders import final, ready
from tests.daemon import SAMPLE, Outcome, events_of, recording
from tests.unit.commands.support import Paper

TALK = Path("talk.mp4")
Run = Callable[..., Outcome]


def session(*texts: str, task: str = "", error: Exception | None = None) -> Generator[Event]:
    """Yield the events of a session with finals; the last is of a `task`. Raise an error at its end."""
    yield ready()
    for k, text in enumerate(texts, start=1):
        yield final(text, task=task if k == len(texts) else "")
    yield End()
    if error is not None:
        raise error


def written(events: Generator[Event], *texts: Text, track: int = 1) -> int:
    return Files({TALK: None}, track, {TALK: texts}, SubtitleOptions(), Paper()).write(TALK, events)


def test_a_translation_has_a_text_of_its_own(tmp_path: Path) -> None:
    said, translated = Text("text", tmp_path / "a.txt", "transcribe"), Text("text", tmp_path / "b.txt", "translate")
    assert written(session("Guten Tag.", "Good day.", task="translate"), said, translated) == 0
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "Guten Tag.\n"
    assert (tmp_path / "b.txt").read_text(encoding="utf-8") == "Good day.\n"


@pytest.mark.parametrize(
    ("n_tracks", "track", "named"), [(1, 1, ""), (2, 1, "audio track 2"), (3, 2, "audio tracks 1, 3")]
)
def test_a_file_without_speech_is_warned_of_with_its_other_tracks(
    n_tracks: int,
    track: int,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("streamer.audio.sources.file.count_tracks", lambda path: n_tracks)
    with caplog.at_level(logging.INFO):
        assert written(session("Hi."), Text("text", tmp_path / "talk.txt"), track=track) == 0
        assert not caplog.messages
        assert written(session(), Text("text", tmp_path / "talk.txt"), track=track) == 0
    (message,) = caplog.messages
    assert (named in message, "--track" in message) == (True, bool(named))


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """The first sentence of the sample."""
    soundfile.write(tmp_path / "talk.wav", recording(SAMPLE, 0.0, 3.0), SAMPLE_RATE)
    return tmp_path / "talk.wav"


def test_speech_without_text_is_a_gap_and_a_warning(run_here: Run, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def transcribed(*_: object, on_unclear: Callable[[int, int], None], **_2: object) -> Iterator[Final]:
        on_unclear(4 * SAMPLE_RATE, 7 * SAMPLE_RATE)
        yield final("So it began.", start=0.0)
        yield final("So it went on.", start=7.0)
        for start in range(10, 16):
            on_unclear(start * SAMPLE_RATE, (start + 1) * SAMPLE_RATE)

    monkeypatch.setattr(transcribers, "transcribe", transcribed)
    done = run_here("transcribe", talk, "--format", "jsonl")
    _, *events, _ = events_of(done.stdout)
    assert [getattr(event, "start") for event in events] == [0, 4, 7, 10, 11, 12, 13, 14, 15]  # noqa: B009
    assert {getattr(event, "reason", "") for event in events} == {"", "unclear"}
    (warning,) = (line for line in done.stderr.splitlines() if "talk.wav: speech without text" in line)
    assert ("4.0 to 7.0 s" in warning, warning.count(" to "), "2 more" in warning) == (True, 5, True)


@pytest.mark.parametrize("mode", [[], ["--stream"]])
def test_files_are_transcribed_into_a_folder_and_what_cannot_be_is_in_the_exit_code(
    run_here: Run, talk: Path, mode: list[str]
) -> None:
    silence = talk.with_name("silence.wav")
    soundfile.write(silence, np.zeros(SAMPLE_RATE, dtype=np.float32), SAMPLE_RATE)
    talk.with_name("text.wav").write_bytes(b"no audio")
    done = run_here("transcribe", *mode, talk.parent, "--device", "CPU", "-o", talk.parent / "texts")
    texts = {path.name: path.read_text(encoding="utf-8") for path in (talk.parent / "texts").iterdir()}
    assert texts.keys() == {"talk.txt", "silence.txt"}
    assert texts["talk.txt"].startswith("The Commission regards")
    assert (done.exit_code, done.stdout, texts["silence.txt"]) == (2, "", "")
    assert "text.wav" in done.error()


def test_a_closed_standard_input_is_refused_before_a_model_is_looked_at(
    run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("streamer.check.check_options", None)
    assert run_here("transcribe", "-").exit_code == 2
