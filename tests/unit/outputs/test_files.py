"""`--to captions.srt`: whole at every moment, whatever happens."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.events import Event, Final, Gap, Speakers
from streamer.outputs import files
from streamer.outputs.files import FORMATS, N_WAITING, GrowingFile
from streamer.outputs.outputs import Outputs
from streamer.outputs.subtitles import SubtitleOptions
from streamer.settings.table import OutputSettings, OutputsSettings, Settings
from tests.unit.outputs.finals import labelled, revised, spaced, worded, written

FINALS = [worded(*spaced(f"This is sentence {i}.", start=10 * i), segment=i) for i in range(8)]

# Writes finals until it is killed, and says when it began.
ENDLESS = """
import itertools, sys
from pathlib import Path
from streamer.outputs.files import GrowingFile
from streamer.outputs.subtitles import SubtitleOptions
from tests.unit.outputs.finals import worded
file = GrowingFile(Path(sys.argv[1]), SubtitleOptions())
for i in itertools.count():
    file.handle(worded((f" Words {'x' * 30} {i}.", 10.0 * i, 10.0 * i + 5), segment=i))
    if i == 20:
        print("begun", flush=True)
"""


def growing(path: Path) -> GrowingFile:
    return GrowingFile(path, SubtitleOptions())


def fail_to_write(output: GrowingFile, event: Event, path: Path) -> None:
    """Let the disk be full, but for a few bytes, while an event is written."""
    resource = pytest.importorskip("resource")  # Windows has none
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, unlimited[1]))
    try:
        output.handle(event)
    except OSError:
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


@pytest.mark.parametrize("ending", FORMATS)
@given(st.lists(st.sampled_from(["final", "final", "revision", "same", "gap", "deleted", "full"]), max_size=8))
def test_the_file_is_always_what_transcribe_would_have_written(ending: str, happenings: list[str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"captions{ending}"
        output = growing(path)
        said: list[Event] = []
        for i, happening in enumerate(happenings):
            event: Event = labelled(FINALS[i], "S2")
            match happening:
                case "revision":
                    event = revised(
                        next((event for event in said if isinstance(event, Final)), FINALS[i]), "New.", "S2"
                    )
                case "same":
                    event = Speakers(same=("S2", "S1")).stamped(98, "s")
                case "gap":
                    output.handle(Gap(start=1.0, end=2.0, reason="overrun"))
                case "deleted":
                    path.unlink()
                case "full":
                    fail_to_write(output, event, path)
            output.handle(event)
            said.append(event)
            assert path.read_bytes().decode("utf-8") == written(FORMATS[ending], said, n_waiting=N_WAITING)
        output.close()
        assert [entry.name for entry in Path(folder).iterdir()] == [path.name]


def test_the_files_options_are_those_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    to, style = OutputsSettings(to=(str(path),)), OutputSettings(subtitle_style="whisper")
    outputs = Outputs(Settings(outputs=to, output=style))
    event = worded((" Yes.", 1.0, 1.06))
    outputs.handle(event)
    outputs.close()
    assert path.read_text() == written("srt", [event], subtitle_style="whisper")


@pytest.mark.parametrize("ending", FORMATS)
def test_what_stays_the_same_is_not_written_again(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"captions{ending}"
    output = growing(path)
    for said in FINALS[:3]:
        output.handle(said)
    n_marked = path.read_bytes().index(b"sentence 1")
    with path.open("r+b") as file:
        file.write(b"#" * n_marked)
    for event in (FINALS[3], revised(FINALS[2], "This is the second."), FINALS[4]):
        output.handle(event)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#" * n_marked + "sentence 1.")
    assert "This is the second." in text


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")
def test_the_file_has_whole_cues_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "captions.srt"
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        os.kill(process.pid, signal.SIGKILL)
    *blocks, rest = path.read_text(encoding="utf-8").split("\n\n")
    assert rest == ""
    assert len(blocks) > 20
    assert [block.split("\n")[0] for block in blocks] == [str(i) for i in range(1, len(blocks) + 1)]
    assert all(block.endswith(".") for block in blocks)


def test_what_was_there_is_kept(tmp_path: Path) -> None:
    for event in FINALS[:3]:
        growing(tmp_path / "talk.srt").handle(event)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    names = ("talk-1.srt", "talk-2.srt", "talk.srt")
    assert found == {name: written("srt", [event]) for name, event in zip(names, FINALS, strict=False)}


def test_a_long_file_is_kept_and_another_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 30)
    output = growing(tmp_path / "a.txt")
    for event in FINALS[:3]:
        output.handle(event)
    assert (tmp_path / "a-1.txt").read_text() == "This is sentence 0.\nThis is sentence 1.\n"
    assert (tmp_path / "a.txt").read_text() == "This is sentence 2.\n"


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    growing(tmp_path / "link.txt").handle(FINALS[0])
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "This is sentence 0.\n"
