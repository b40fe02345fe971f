"""The cache of compiled graphs: each is kept apart, and what nobody uses goes."""

import os
import shutil
import time
from pathlib import Path

import pytest

from streamer.whisper import cache
from streamer.whisper.cache import SPEED, UNUSED_AFTER_S, USED_NOW_S, cache_base, entry, prune, replacing, use
from tests.unit.whisper.support import NANO, load_on_cpu

LONG_AGO_S = 1_000_000_000


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
    found = [
        entry(tmp_path, kind, facts) for kind in ("NPU", "GPU.1", SPEED) for facts in ([], ["a"], ["a", 1], [("a", 1)])
    ]
    assert len(set(found)) == len(found)
    assert entry(tmp_path, "NPU", ["a", 1]) == found[2]
    assert not found[2].exists()
    use(found[2])
    assert found[2].is_dir()


def test_a_cache_that_cannot_be_made_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    path = entry(tmp_path / "file", "CPU", [])
    with replacing(path):
        pass
    assert not path.exists()


def test_what_was_not_used_for_long_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    old, used, read = entry(tmp_path, "GPU.1", [1]), entry(tmp_path, "CPU", [2]), entry(tmp_path, SPEED, [3])
    for path in (old, used, read):
        use(path)
    (old / "graph.blob").write_bytes(b"x")
    strangers = [tmp_path / "CPU-backup", tmp_path / "photos", tmp_path / "CPU-0123456789abcdef"]
    for path in strangers[:2]:
        path.mkdir()
    # A file and a link of our names are not ours either.
    strangers[2].write_text("", encoding="utf-8")
    for path in (old, used, read, *strangers):
        os.utime(path, (LONG_AGO_S - 1,) * 2)
    use(used)
    prune(tmp_path, LONG_AGO_S + UNUSED_AFTER_S)
    assert not old.exists()
    assert not read.exists()
    assert used.is_dir()
    assert all(path.exists() for path in strangers)


def test_the_oldest_go_where_all_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 25)
    paths = [entry(tmp_path, "CPU", [i]) for i in range(3)]
    for i, path in enumerate(paths):
        use(path)
        (path / "graph.blob").write_bytes(b"0123456789")
        os.utime(path, (LONG_AGO_S + i,) * 2)
    answer = entry(tmp_path, SPEED, [])
    use(answer)
    os.utime(answer, (LONG_AGO_S,) * 2)
    prune(tmp_path, LONG_AGO_S + USED_NOW_S)
    assert all(path.exists() for path in paths)
    prune(tmp_path, LONG_AGO_S + USED_NOW_S + 10)
    assert [path.exists() for path in paths] == [False, True, True]
    assert answer.is_dir()


def test_pruning_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prune(tmp_path / "missing")
    prune(Path("a\0b"))
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    prune(file)
    held = entry(tmp_path / "base", "CPU", [])
    use(held)

    def fail(*_: object, **__: object) -> None:
        raise PermissionError("in use")

    monkeypatch.setattr(os, "unlink", fail)
    monkeypatch.setattr(os, "rmdir", fail)
    prune(tmp_path / "base", now_s=1e12)
    assert held.is_dir()


def test_a_graph_that_is_compiled_anew_replaces_the_one_before(tmp_path: Path) -> None:
    directory = entry(tmp_path, "CPU", [])
    with replacing(directory) as kept:
        (kept / "1.blob").touch()
        assert not list(directory.glob("*.blob"))  # another process would read half of it
    with replacing(directory) as kept:  # found again, nothing is written
        assert kept == directory
    assert [path.name for path in directory.iterdir()] == ["1.blob"]
    with replacing(directory) as kept:
        (kept / "2.blob").touch()
    assert [path.name for path in directory.iterdir()] == ["2.blob"]


def test_a_model_that_nobody_loads_goes_while_another_is_used(tmp_path: Path) -> None:
    base = tmp_path / "cache"

    def load(model: Path) -> set[Path]:
        load_on_cpu(model, base)
        return set(base.iterdir())

    other = load(shutil.copytree(NANO, tmp_path / "other"))
    both = load(NANO)
    then_s = time.time() - UNUSED_AFTER_S / 2
    for path in both:
        os.utime(path, (then_s, then_s))
    assert load(NANO) == both
    prune(base, then_s + UNUSED_AFTER_S + 1)
    assert set(base.iterdir()) == both - other
    assert len(both) == 2 * len(other) == 6
