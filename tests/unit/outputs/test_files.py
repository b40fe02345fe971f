"""`--to captions.srt`: whole at every moment, whatever happens."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamer.errors import ConfigError
from streamer.events import Gap
from streamer.outputs import files
from streamer.outputs.files import GrowingFile
from streamer.outputs.outputs import Outputs
from streamer.outputs.subtitles import SubtitleOptions
from streamer.settings.table import Settings
from tests.builders import ready
from tests.unit.outputs.finals import final, revision, spaced, written

FINALS = [final(*spaced(f"This is sentence {i}.", start=10 * i), segment=i) for i in range(3)]

# Writes finals until it is killed, and says when it began.
ENDLESS = """
import itertools, sys
from pathlib import Path
from streamer.outputs.files import GrowingFile
from streamer.outputs.subtitles import SubtitleOptions
from tests.unit.outputs.finals import final
file = GrowingFile(Path(sys.argv[1]), SubtitleOptions())
for i in itertools.count():
    file.handle(final((f" Words {'x' * 30} {i}.", 10.0 * i, 10.0 * i + 5), segment=i))
    if i == 20:
        print("begun", flush=True)
"""


def growing(path: Path) -> GrowingFile:
    return GrowingFile(path, SubtitleOptions())


@pytest.mark.parametrize(("ending", "format"), files.FORMATS.items())
def test_after_each_final_the_file_is_what_transcribe_would_have_written(
    tmp_path: Path, ending: str, format: str
) -> None:
    path = tmp_path / f"captions{ending}"
    output = growing(path)
    assert path.read_text(encoding="utf-8") == written(format, [])
    for i, event in enumerate(FINALS, 1):
        output.handle(event)
        assert path.read_bytes().decode("utf-8") == written(format, FINALS[:i])
    output.close()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_only_finals_are_written(tmp_path: Path) -> None:
    output = growing(tmp_path / "a.jsonl")
    output.handle(ready())
    output.handle(FINALS[0])
    output.handle(Gap(start=1.0, end=2.0, reason="overrun"))
    assert [json.loads(line)["type"] for line in (tmp_path / "a.jsonl").read_text().splitlines()] == ["final"]


def test_the_files_options_are_those_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    outputs = Outputs(Settings().having({"outputs.to": (str(path),), "output.subtitle_style": "whisper"}))
    event = final((" Yes.", 1.0, 1.06))
    outputs.handle(event)
    outputs.close()
    assert path.read_text() == written("srt", [event], subtitle_style="whisper")


@pytest.mark.parametrize("ending", files.FORMATS)
def test_what_stays_the_same_is_not_written_again(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"captions{ending}"
    output = growing(path)
    for i in range(3):
        output.handle(final(*spaced(f"This is sentence {i}.", start=10 * i), segment=i))
    n_marked = path.read_bytes().index(b"sentence 1")
    with path.open("r+b") as file:
        file.write(b"#" * n_marked)
    output.handle(final(*spaced("This is sentence 3.", start=30), segment=3))
    output.handle(revision(final(*spaced("This is sentence 2.", start=20), segment=2), "This is the second."))
    output.handle(final(*spaced("This is sentence 4.", start=40), segment=4))
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#" * n_marked + "sentence 1.")
    assert "This is the second." in text
    assert text.index("sentence 3.") < text.index("sentence 4.")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")
def test_the_file_has_whole_cues_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "captions.srt"
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        os.kill(process.pid, signal.SIGKILL)
    text = path.read_text(encoding="utf-8")
    assert len(text) > 20 * 30
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    assert [block.split("\n")[0] for block in blocks] == [str(i) for i in range(1, len(blocks) + 1)]
    assert all(block.endswith(".") for block in blocks)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not limit the size of files")
def test_a_final_that_could_not_be_written_is_written_once(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "a.txt"
    output = growing(path)
    output.handle(FINALS[0])
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, unlimited[1]))
    try:
        for _ in range(3):
            with pytest.raises(OSError, match="too large"):
                output.handle(FINALS[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert path.read_text() == "This is sentence 0.\n"
    output.handle(FINALS[1])
    output.handle(FINALS[2])
    assert path.read_text() == written("text", FINALS)


def test_what_was_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "talk.srt"
    for i in range(3):
        growing(path).handle(FINALS[i])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["talk-1.srt", "talk-2.srt", "talk.srt"]
    assert [(tmp_path / f"talk{n}.srt").read_text() for n in ("-1", "-2", "")] == [
        written("srt", [event]) for event in FINALS
    ]


def test_a_long_file_is_kept_and_another_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 30)
    output = growing(tmp_path / "a.txt")
    for event in FINALS:
        output.handle(event)
    assert (tmp_path / "a-1.txt").read_text() == "This is sentence 0.\nThis is sentence 1.\n"
    assert (tmp_path / "a.txt").read_text() == "This is sentence 2.\n"


def test_what_is_deleted_comes_back(tmp_path: Path) -> None:
    output = growing(tmp_path / "a.txt")
    output.handle(FINALS[0])
    (tmp_path / "a.txt").unlink()
    output.handle(FINALS[1])
    assert (tmp_path / "a.txt").read_text() == "This is sentence 0.\nThis is sentence 1.\n"


@pytest.mark.parametrize("name", ["captions.docx", "missing/captions.srt", "directory.srt"])
def test_what_cannot_be_written_is_refused_at_the_start(tmp_path: Path, name: str) -> None:
    (tmp_path / "directory.srt").mkdir()
    with pytest.raises(ConfigError, match=r"^--to .*: (expected|name)"):
        growing(tmp_path / name)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    growing(tmp_path / "link.txt").handle(FINALS[0])
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "This is sentence 0.\n"
