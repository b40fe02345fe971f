"""`--to captions.srt`: whole at every moment, whatever happens."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.events import Event, Final, Gap, Speakers
from streamer.outputs.files import FORMATS, N_WAITING, GrowingFile
from streamer.outputs.outputs import Outputs
from streamer.outputs.subtitles import SubtitleOptions
from streamer.settings.table import OutputSettings, OutputsSettings, Settings
from tests.unit.outputs.finals import labelled, revised, spaced, worded, written

FINALS = [worded(*spaced(f"This is sentence {i}.", start=10 * i), segment=i) for i in range(8)]

# Writes finals and revisions of earlier ones until it is killed, and says which ones it has delivered.
ENDLESS = """
import itertools, sys
from pathlib import Path
from streamer.outputs.files import GrowingFile
from streamer.outputs.subtitles import SubtitleOptions
from tests.unit.outputs.finals import revised, worded
file = GrowingFile(Path(sys.argv[1]), SubtitleOptions())
finals = []
for i in itertools.count():
    finals.append(worded((f" <{i}> {'x' * (i % 7)}.", 10.0 * i, 10.0 * i + 5), segment=i))
    file.deliver(finals[i])
    print(i, flush=True)
    file.deliver(revised(finals[i * 5 // 6], f"<{i * 5 // 6}> {'y' * (i % 30)}."))
"""


def growing(path: Path) -> GrowingFile:
    return GrowingFile(path, SubtitleOptions())


def fail_to_write(output: GrowingFile, event: Event, path: Path) -> None:
    """Let the disk be full, but for a few bytes, while an event is written."""
    resource = pytest.importorskip("resource")  # Windows has none
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, unlimited[1]))
    try:
        output.deliver(event)
    except OSError:
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


@pytest.mark.parametrize("ending", FORMATS)
@given(st.lists(st.sampled_from(["final", "final", "revision", "same", "gap", "full"]), max_size=8))
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
                    output.deliver(Gap(start=1.0, end=2.0, reason="overrun"))
                case "full":
                    fail_to_write(output, event, path)
                    assert path.read_bytes().decode("utf-8") in (
                        expected(ending, said),
                        expected(ending, [*said, event]),
                    )
            output.deliver(event)
            said.append(event)
            assert path.read_bytes().decode("utf-8") == expected(ending, said)
        output.close()
        assert [entry.name for entry in Path(folder).iterdir()] == [path.name]


def expected(ending: str, said: list[Event]) -> str:
    return written(FORMATS[ending], said, n_waiting=N_WAITING)


def test_the_files_options_are_those_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    to, style = OutputsSettings(to=(str(path),)), OutputSettings(subtitle_style="whisper")
    outputs = Outputs(Settings(outputs=to, output=style))
    event = worded((" Yes.", 1.0, 1.06))
    outputs.put(event)
    outputs.close()
    assert path.read_text() == written("srt", [event], subtitle_style="whisper")


@pytest.mark.parametrize("ending", FORMATS)
def test_what_stays_the_same_is_not_written_again(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"captions{ending}"
    output = growing(path)
    for said in FINALS[:3]:
        output.deliver(said)
    n_marked = path.read_bytes().index(b"sentence 1")
    with path.open("r+b") as file:
        file.write(b"#" * n_marked)
    for event in (FINALS[3], revised(FINALS[2], "This is the second."), FINALS[4]):
        output.deliver(event)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#" * n_marked + "sentence 1.")
    assert "This is the second." in text


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")
@pytest.mark.parametrize("n_delivered", [1, 21, 300])
@pytest.mark.parametrize("ending", FORMATS)
def test_whenever_it_is_killed_all_that_was_delivered_is_there_in_whole_lines(
    tmp_path: Path, ending: str, n_delivered: int
) -> None:
    path = tmp_path / f"captions{ending}"
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        for _ in range(n_delivered):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        n_delivered += len(process.stdout.read().split(b"\n")) - 1
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    found = [int(number) for number in re.findall(r"(?:<|&lt;|\"text\":\" <)(\d+)(?:>|&gt;)[^\n]*[.}]\n", text)]
    assert found == sorted(found) if ending != ".jsonl" else found
    assert set(range(n_delivered)) <= set(found)


@pytest.mark.parametrize("ending", FORMATS)
def test_at_each_step_of_an_update_all_that_was_delivered_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    path, moments = tmp_path / f"captions{ending}", list[str]()

    class Watched(io.FileIO):
        def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
            return self.noted(super().write(data))

        def truncate(self, size: int | None = None) -> int:
            return self.noted(super().truncate(size))

        def noted(self, done: int) -> int:
            at = self.tell()
            self.seek(0)
            moments.append(self.readall().decode("utf-8"))
            self.seek(at)
            return done

    monkeypatch.setattr(Path, "open", lambda self, *_, **__: Watched(self, "r+"))
    output = growing(path)
    for i, event in enumerate(FINALS):
        output.deliver(event)
        n_before = len(moments)
        output.deliver(revised(event, f"Sentence {i}." if i % 2 else f"This is the corrected sentence {i}."))
        for moment in moments[n_before:]:
            assert len(set(re.findall(r"entence (\d)\.", moment))) > i
            assert moment.endswith("\n")
    assert len(moments) > 8


def test_what_was_there_is_kept(tmp_path: Path) -> None:
    for event in FINALS[:3]:
        growing(tmp_path / "talk.srt").deliver(event)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    names = ("talk-1.srt", "talk-2.srt", "talk.srt")
    assert found == {name: written("srt", [event]) for name, event in zip(names, FINALS, strict=False)}


@pytest.mark.parametrize("event", [FINALS[1], revised(FINALS[0], "New.")])
def test_a_file_that_was_moved_deleted_or_changed_is_begun_anew(tmp_path: Path, event: Event) -> None:
    for name in ("deleted", "moved", "changed"):
        path = tmp_path / name / "a.txt"
        path.parent.mkdir()
        output = growing(path)
        output.deliver(FINALS[0])
        match name:
            case "deleted":
                path.unlink()
            case "moved":
                path.rename(path.with_name("b.txt"))
            case "changed":
                path.write_text("mine")
        output.deliver(event)
        output.deliver(FINALS[2])
        assert path.read_text().endswith("This is sentence 2.\n")
        assert "sentence 0" not in path.read_text()
    assert (tmp_path / "moved" / "b.txt").read_text() == "This is sentence 0.\n"
    assert (tmp_path / "changed" / "a-1.txt").read_text() == "mine"


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    growing(tmp_path / "link.txt").deliver(FINALS[0])
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "This is sentence 0.\n"
