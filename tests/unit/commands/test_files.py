"""Which recordings names stand for, and where their texts go."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from streamer.commands.files import find_recordings, opened, plan_texts
from streamer.errors import TruncatedAudioError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        # Of a folder what is a recording and not hidden, each once; standard input.
        (["talks", "talks/b.mp4", "-"], ["talks/[x].mp4", "talks/a.OPUS", "talks/b.mp4", "talks/deeper/d.webm", "-"]),
        # Patterns that the shell left.
        (["talks/**/*.webm", "talks/?.mp4"], ["talks/deeper/d.webm", "talks/b.mp4"]),
        (["talks/[x].mp4"], ["talks/[x].mp4"]),
        # What is nothing is left to the reader.
        (["x" * 5000, "a\0b"], ["x" * 5000, "a\0b"]),
    ],
)
def test_names_stand_for_recordings(names: list[str], found: list[str]) -> None:
    for name in ("b.mp4", "a.OPUS", "[x].mp4", "notes.txt", ".c.mp4", "deeper/d.webm", ".hidden/e.mp4"):
        path = Path("talks", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    if "talks" in names:
        with contextlib.suppress(OSError):  # not every user of Windows may make links
            Path("talks/deeper/around").symlink_to(Path("talks").absolute(), target_is_directory=True)
    assert find_recordings(names) == [Path(name) for name in found]


BOTH = {"task": "both"}


@pytest.mark.parametrize(
    ("names", "options", "texts"),
    [
        ("talk.mp4", {}, "text:"),
        # The format is that of the ending.
        ("talk.mp4", {"output": "podcast.srt"}, "srt:podcast.srt"),
        ("talk.mp4", {"output": "podcast.VTT"}, "vtt:podcast.VTT"),
        ("talk.mp4", {"output": "podcast.md"}, "text:podcast.md"),
        ("talk.mp4", {"output": "podcast.srt", "format": "txt"}, "text:podcast.srt"),
        # A folder is one by its slash, or because it is there, or for several texts.
        ("talk.mp4", {"output": "new/", "format": "srt"}, "srt:new/talk.srt"),
        ("talk.mp4", {"output": "there"}, "text:there/talk.txt"),
        ("a.mp4 b.mp4", {"output": "more"}, "text:more/a.txt text:more/b.txt"),
        ("-", {"output": "dir.srt/", "format": "vtt"}, "vtt:dir.srt/stdin.vtt"),
        # As openai-whisper writes.
        ("talk.mp4", {"format": "all"}, "text:talk.txt vtt:talk.vtt srt:talk.srt tsv:talk.tsv json:talk.json"),
        # A translation has a file of its own, but for formats that have both; on a terminal they take turns.
        ("talk.mp4", {"output": "podcast.srt", **BOTH}, "srt:podcast.srt srt:podcast.en.srt"),
        ("talk.mp4", {"output": "podcast.jsonl", **BOTH}, "jsonl:podcast.jsonl"),
        ("talk.mp4", BOTH, "text:"),
        # Names that are taken get what tells them apart: the ending, the folder, or both.
        ("talk.mp4 talk.m4a x.m4a", {"output": "o/"}, "text:o/talk.mp4.txt text:o/talk.m4a.txt text:o/x.txt"),
        ("i/mon/a.mp4 i/tue/a.mp4 i/x.m4a", {"output": "o/"}, "text:o/mon/a.txt text:o/tue/a.txt text:o/x.txt"),
        ("i/t/a.mp4 i/t/a.m4a i/a.mp4", {"output": "o/"}, "text:o/t/a.mp4.txt text:o/t/a.m4a.txt text:o/a.txt"),
    ],
)
def test_each_recording_has_its_texts_and_their_folders_are_made(
    names: str, options: dict[str, Any], texts: str
) -> None:
    Path("there").mkdir()
    plan = plan_texts([Path(name) for name in names.split()], **{"format": None, "output": None, **options})
    found = [text for each in plan.values() for text in each]
    assert " ".join(f"{text.format}:{text.target.as_posix() if text.target else ''}" for text in found) == texts
    assert all(text.target is None or text.target.parent.is_dir() for text in found)


def test_a_text_appears_when_it_is_complete(tmp_path: Path) -> None:
    target, link = tmp_path / "a.txt", tmp_path / "link"
    link.symlink_to(target)
    with opened(link) as stream:
        stream.write("one")
        assert not target.exists()
    assert (target.read_text(encoding="utf-8"), link.is_symlink()) == ("one", True)


@pytest.mark.parametrize(
    ("error", "left"), [(ZeroDivisionError(), "one"), (TruncatedAudioError("a.wav", 1.0), "what there is")]
)
def test_of_a_text_that_is_cut_off_what_there_is_is_kept_and_of_a_failure_nothing(
    error: Exception, left: str, tmp_path: Path
) -> None:
    target = tmp_path / "a.txt"
    target.write_text("one", encoding="utf-8")
    with pytest.raises(type(error)), opened(target) as stream:  # noqa: PT012
        stream.write("what there is")
        raise error
    assert target.read_text(encoding="utf-8") == left
    assert [*tmp_path.iterdir()] == [target]
