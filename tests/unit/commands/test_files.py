"""Which recordings names stand for, and where their texts go."""

import contextlib
from pathlib import Path

import pytest

from streamer.commands.files import find_recordings, plan_texts
from streamer.errors import UsageError


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """A folder of recordings, and of what is none."""
    folder = tmp_path / "talks"
    (folder / "deeper").mkdir(parents=True)
    for name in ("b.mp4", "a.OPUS", "notes.txt", ".c.mp4", "deeper/d.webm"):
        (folder / name).touch()
    return folder


def test_a_folder_stands_for_its_recordings_and_those_of_its_subfolders(talks: Path) -> None:
    (talks / ".hidden").mkdir()
    (talks / ".hidden" / "e.mp4").touch()
    with contextlib.suppress(OSError):  # not every user of Windows may make links
        (talks / "deeper" / "around").symlink_to(talks, target_is_directory=True)
    found = [talks / "a.OPUS", talks / "b.mp4", talks / "deeper" / "d.webm", Path("-")]
    assert find_recordings([str(talks), str(talks / "b.mp4"), "-"]) == found


def test_a_pattern_that_the_shell_left_is_expanded(talks: Path) -> None:
    assert find_recordings([f"{talks}/**/*.webm", f"{talks}/?.mp4"]) == [talks / "deeper" / "d.webm", talks / "b.mp4"]
    (talks / "[x].mp4").touch()
    assert find_recordings([f"{talks}/[x].mp4"]) == [talks / "[x].mp4"]


@pytest.mark.parametrize("name", ["empty", "talks/*.wav"])
def test_no_recordings_is_an_error(talks: Path, name: str) -> None:
    (talks.parent / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no recordings"):
        find_recordings([str(talks.parent / name)])


def test_a_name_that_is_nothing_is_left_to_the_reader() -> None:
    assert find_recordings(["x" * 5000, "a\0b"]) == [Path("x" * 5000), Path("a\0b")]


def planned(*names: str, format: str | None = None, output: str | None = None, task: str = "") -> list[tuple[str, str]]:
    """Return format and file of each text."""
    plan = plan_texts([Path(name) for name in names], format, output, task=task)
    return [(text.format, str(text.target or "").replace("\\", "/")) for texts in plan.values() for text in texts]


def test_the_format_comes_from_the_ending_where_none_is_given() -> None:
    assert planned("talk.mp4", output="podcast.srt") == [("srt", "podcast.srt")]
    assert planned("talk.mp4", output="podcast.VTT") == [("vtt", "podcast.VTT")]
    assert planned("talk.mp4", output="podcast.md") == [("text", "podcast.md")]
    assert planned("talk.mp4", output="podcast.srt", format="txt") == [("text", "podcast.srt")]
    assert planned("talk.mp4") == [("text", "")]


def test_a_directory_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert planned("talk.mp4", output="new/", format="srt") == [("srt", "new/talk.srt")]
    assert planned("talk.mp4", output="new") == [("text", "new/talk.txt")]
    assert planned("a.mp4", "b.mp4", output="more/and more") == [
        ("text", "more/and more/a.txt"),
        ("text", "more/and more/b.txt"),
    ]
    assert planned("-", output=f"{tmp_path / 'dir.srt'}/", format="vtt")[0][1].endswith("dir.srt/stdin.vtt")
    assert {path.name for path in tmp_path.iterdir()} == {"new", "more", "dir.srt"}


def test_all_is_what_openai_whisper_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["talk.txt", "talk.vtt", "talk.srt", "talk.tsv", "talk.json"]
    assert [target for _, target in planned("talk.mp4", format="all")] == names


def test_a_translation_beside_the_transcript_has_a_file_of_its_own(tmp_path: Path) -> None:
    assert planned("talk.mp4", output="podcast.srt", task="both") == [("srt", "podcast.srt"), ("srt", "podcast.en.srt")]
    # These tell the two apart by themselves; on a terminal they take turns.
    assert planned("talk.mp4", output="podcast.jsonl", task="both") == [("jsonl", "podcast.jsonl")]
    assert planned("talk.mp4", task="both") == [("text", "")]
    with pytest.raises(UsageError, match="translation as srt on standard output would be one broken file"):
        planned("talk.mp4", format="srt", task="both")
    with pytest.raises(UsageError, match="would both be"):
        planned("talk.mp4", "talk.en.mp4", output=f"{tmp_path}/", format="srt", task="both")


def test_recordings_of_one_name_have_a_text_each(tmp_path: Path) -> None:
    planned_files = [target for _, target in planned("talk.mp4", "talk.m4a", "x.m4a", output=f"{tmp_path}/")]
    assert [Path(name).name for name in planned_files] == ["talk.mp4.txt", "talk.m4a.txt", "x.txt"]


def test_recordings_of_one_name_in_several_folders_keep_their_folders(tmp_path: Path) -> None:
    names = ("in/mon/talk.mp4", "in/tue/talk.mp4", "in/tue/talk.m4a", "in/tue/x.m4a", "in/talk.mp4")
    targets = [target for _, target in planned(*names, output=f"{tmp_path / 'out'}/", format="srt")]
    out = (tmp_path / "out").as_posix()
    assert [target.removeprefix(f"{out}/") for target in targets] == [
        *("mon/talk.srt", "tue/talk.mp4.srt", "tue/talk.m4a.srt", "x.srt", "talk.srt")
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"mon", "tue"}


def test_texts_that_would_destroy_something_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is one file"):
        planned("a.mp4", "b.mp4", output="both.srt")
    with pytest.raises(UsageError, match="one broken file"):
        planned("a.mp4", "b.mp4", format="srt")
    with pytest.raises(UsageError, match="would both be"):
        planned("a.mp4", "a.mp3", "a.mp4.wav", output=f"{tmp_path}/")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        planned("a.mp4", output=f"{tmp_path / 'file'}/")
    with pytest.raises(UsageError, match="would replace it"):
        planned(str(tmp_path / "file"), output=str(tmp_path / "file"))
