"""The cache of compiled graphs: each is kept apart, and what is no longer used goes."""

import os
from pathlib import Path

import pytest

from streamer.whisper import cache
from streamer.whisper.cache import SPEED, UNUSED_AFTER_S, USED_NOW_S, cache_base, entry, prune, replacing, use

NOW_S = 1_000_000_000


def kept(base: Path, kind: str, number: int, *, age_s: float = 0, n_bytes: int = 0) -> Path:
    """Make an entry that was used that long before `NOW_S`, with a graph of some bytes."""
    path = entry(base, kind, [number])
    use(path)
    if n_bytes:
        (path / "graph.blob").write_bytes(bytes(n_bytes))
    os.utime(path, (NOW_S - age_s,) * 2)
    return path


def test_the_cache_is_where_the_settings_or_the_environment_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "b"))
    assert cache_base(str(tmp_path / "a")) == tmp_path / "a"
    assert cache_base("") == tmp_path / "b"
    monkeypatch.delenv("STREAMER_CACHE_DIR")
    assert cache_base("").name == "compiled"
    assert cache_base("~/x") == Path.home() / "x"


def test_each_set_of_facts_has_an_entry_of_its_own(tmp_path: Path) -> None:
    facts: list[list[object]] = [[], ["a"], ["a", 1], [("a", 1)]]
    found = [entry(tmp_path, kind, fact) for kind in ("NPU", "GPU.1", SPEED) for fact in facts]
    assert len(set(found)) == len(found)
    assert entry(tmp_path, "NPU", ["a", 1]) == found[2]
    assert not found[2].exists()
    use(found[2])
    assert found[2].is_dir()


def test_a_cache_that_cannot_be_made_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = entry(tmp_path / "file", "CPU", [])
    with replacing(path):
        pass
    assert not path.exists()


def test_what_was_not_used_for_long_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    old = [kept(tmp_path, kind, 1, age_s=UNUSED_AFTER_S + 1, n_bytes=1) for kind in ("GPU.1", SPEED)]
    used = [kept(tmp_path, "CPU", 2, age_s=UNUSED_AFTER_S), kept(tmp_path, "NPU", 3, age_s=UNUSED_AFTER_S + 1)]
    use(used[1])
    others = [tmp_path / "CPU-backup", tmp_path / "photos", tmp_path / "CPU-0123456789abcdef"]
    for path in others[:2]:
        path.mkdir()
    others[2].touch()  # a file of our names is not ours either
    for path in others:
        os.utime(path, (0, 0))
    prune(tmp_path, NOW_S)
    assert {*tmp_path.iterdir()} == {*used, *others}
    assert not any(path.exists() for path in old)


def test_the_oldest_go_if_all_take_too_much_unless_they_were_used_within_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 2)
    paths = [kept(tmp_path, "CPU", i, age_s=USED_NOW_S - i, n_bytes=1) for i in range(3)]
    answer = kept(tmp_path, SPEED, 0, age_s=USED_NOW_S + 1)
    prune(tmp_path, NOW_S)
    assert all(path.exists() for path in paths)
    prune(tmp_path, NOW_S + 3)
    assert [path.exists() for path in (*paths, answer)] == [False, True, True, True]


def test_pruning_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing", Path("a\0b"), tmp_path / "file"):
        prune(path)
    held = kept(tmp_path / "base", "CPU", 0)

    def fail(*_: object, **__: object) -> None:
        raise PermissionError("in use")

    monkeypatch.setattr(os, "unlink", fail)
    monkeypatch.setattr(os, "rmdir", fail)
    prune(tmp_path / "base", now_s=1e12)
    assert held.is_dir()


def test_a_graph_that_is_compiled_anew_replaces_the_one_before(tmp_path: Path) -> None:
    directory = entry(tmp_path, "CPU", [])
    with replacing(directory) as place:
        (place / "1.blob").touch()
        assert not list(directory.glob("*.blob"))  # another process would read half of it
    with replacing(directory) as place:  # found again, nothing is written
        assert place == directory
    assert [path.name for path in directory.iterdir()] == ["1.blob"]
    with replacing(directory) as place:
        (place / "2.blob").touch()
    assert [path.name for path in directory.iterdir()] == ["2.blob"]
