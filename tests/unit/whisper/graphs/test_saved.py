"""Saved models: what is read is what was written, all of it or nothing, and every broken one is one clear line."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError, StreamerError, UsageError
from streamer.whisper.graphs import build as graphs
from streamer.whisper.graphs import saved
from streamer.whisper.graphs.saved import Description, FileMark
from tests.reference.test_build import DIMS, HEADS, fix, run, some_inputs
from tests.unit.whisper.support import random_checkpoint
from tests.unit.whisper.weights import checks

COMPANIONS = {"tokenizer.json": b"{}", "preprocessor_config.json": b'{"feature_size": 8}'}
ALL = ("encoder", "cross_kv", "decoder")


def describe(precision: str = "f32", **changes: object) -> Description:
    fields: dict[str, Any] = {
        "name": "tiny",
        "origin": "someone/whisper-tiny",
        "dims": DIMS,
        "alignment_heads": tuple(HEADS),
        "precisions": dict.fromkeys(ALL, precision),
    }
    return Description(**{**fields, **changes})


def builders(seed: int = 0) -> dict[str, Callable[[], ov.Model]]:
    tensors = random_checkpoint(DIMS, seed).tensors
    return {
        "encoder": lambda: graphs.build_encoder(DIMS, tensors),
        "cross_kv": lambda: graphs.build_cross_kv(DIMS, tensors),
        "decoder": lambda: graphs.build_decoder(DIMS, tensors, HEADS),
    }


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "tiny"
    saved.save(directory, describe(), builders(), COMPANIONS)
    return directory


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "tiny"))


def manifest(directory: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((directory / saved.MANIFEST).read_text(encoding="utf-8"))
    return data


def rewrite(directory: Path, **changes: object) -> None:
    data = {**manifest(directory), **changes}
    (directory / saved.MANIFEST).write_text(json.dumps(data), encoding="utf-8")


def mark_again(directory: Path) -> None:
    """Make the manifest agree with the files, as somebody would who means harm."""
    files = {name: FileMark.of(directory / name) for name in manifest(directory)["files"]}
    rewrite(directory, files={name: {"n_bytes": m.n_bytes, "sha256": m.sha256} for name, m in files.items()})


def read_all(directory: Path) -> None:
    model = saved.load(directory)
    for stage in ALL:
        model.read(stage)


refuse = partial(checks.refuse, read_all)


def test_what_was_written_is_read(original: Path) -> None:
    assert saved.is_saved(original)
    model = saved.load(original)
    assert replace(model.description, files={}) == describe()
    assert tuple(model.description.precisions) == ALL
    assert {path.name for path in original.iterdir()} == {*model.description.files, saved.MANIFEST}
    assert model.changed_files() == []
    for name, content in COMPANIONS.items():
        assert (original / name).read_bytes() == content
    inputs = some_inputs(4, 3)
    expected = run(fix(builders()["decoder"](), 4), inputs)
    found = run(fix(model.read("decoder"), 4), inputs)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    mel = {"input_features": np.random.default_rng(0).standard_normal((1, 8, 3000), np.float32)}
    np.testing.assert_array_equal(
        run(model.read("encoder"), mel)["last_hidden_state"], run(builders()["encoder"](), mel)["last_hidden_state"]
    )


def test_without_alignment_heads_there_is_no_port_for_them(tmp_path: Path) -> None:
    tensors = random_checkpoint(DIMS).tensors
    build = {**builders(), "decoder": lambda: graphs.build_decoder(DIMS, tensors, [])}
    model = saved.save(tmp_path / "m", describe(alignment_heads=()), build, {})
    assert "cross_attention" not in {port.any_name for port in model.read("decoder").outputs}


@pytest.mark.parametrize("there", ["nothing", "an empty directory"])
def test_a_new_directory_is_made(tmp_path: Path, there: str) -> None:
    target = tmp_path / "deep" / "er" / "model"
    if there != "nothing":
        target.mkdir(parents=True)
    saved.save(target, describe(), builders(), {})
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_a_directory_that_is_taken_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds a model already: .*--force"):
        saved.save(model, describe(), builders(), {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years", encoding="utf-8")
    for force in (False, True):
        with pytest.raises(UsageError, match="is there and is no saved model"):
            saved.save(tmp_path / "mine", describe(), builders(), {}, force=force)
        with pytest.raises(UsageError, match="is there and is no saved model"):
            saved.save(tmp_path / "mine" / "thesis.txt", describe(), builders(), {}, force=force)
    assert (tmp_path / "mine" / "thesis.txt").read_text(encoding="utf-8") == "years"


def test_force_replaces_a_saved_model_wholly(model: Path) -> None:
    saved.save(model, describe(), builders(1), {}, force=True)
    graphs_alone = {f"{stage}.{suffix}" for stage in ALL for suffix in ("xml", "bin")}
    assert {path.name for path in model.iterdir()} == {*graphs_alone, saved.MANIFEST}
    assert [path.name for path in model.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize("step", ["build", "_write_graph", "read_graph", "replace"])
@pytest.mark.parametrize("force", [False, True])
def test_nothing_partial_is_left_when_a_step_of_writing_fails(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch, step: str, force: bool
) -> None:
    target = tmp_path / "new"
    if force:
        shutil.copytree(original, target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    move = Path.replace

    def interrupt() -> ov.Model:
        raise KeyboardInterrupt

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    def fail_at_the_end(path: Path, to: Path) -> Path:
        if path.name == "new":
            fail()
        return move(path, to)

    build = builders()
    if step == "build":
        build["decoder"] = interrupt
    elif step == "replace":
        monkeypatch.setattr(Path, "replace", fail_at_the_end)
    else:
        monkeypatch.setattr(saved, step, fail)
    with pytest.raises((KeyboardInterrupt, StreamerError)) as caught:
        saved.save(target, describe(), build, COMPANIONS, force=force)
    if step != "build":
        assert "new cannot be written (No space left on device): make room" in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes are POSIX's")
@pytest.mark.parametrize("limit", [0, 1000, 20_000])
def test_nothing_partial_is_left_when_the_disk_is_full(tmp_path: Path, limit: int) -> None:
    """OpenVINO writes through C++ streams: this shows that it notices."""
    import resource

    build = builders()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(StreamerError, match="make room, or choose another place") as caught:
            saved.save(tmp_path / "new", describe(), build, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not rename the current directory")
def test_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    assert saved.save(Path(), describe(), builders(), COMPANIONS).changed_files() == []
    assert saved.is_saved(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_file_in_the_place_of_the_parent(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StreamerError, match=r"new cannot be written \(.*\): make room, or choose another place"):
        saved.save(tmp_path / "file" / "new", describe(), builders(), {})


@pytest.mark.skipif(sys.platform == "win32", reason="there it takes a privilege")
@pytest.mark.parametrize("leads_to", ["nowhere", "new"])
def test_a_link_in_the_place_of_the_model_is_not_followed(tmp_path: Path, leads_to: str) -> None:
    (tmp_path / "new").symlink_to(leads_to)
    with pytest.raises(UsageError, match="new is there and is no saved model"):
        saved.save(tmp_path / "new", describe(), builders(), {}, force=True)
    with pytest.raises(StreamerError, match="below cannot be written"):
        saved.save(tmp_path / "new" / "below", describe(), builders(), {})


@pytest.mark.parametrize("stage", ALL)
@pytest.mark.parametrize("suffix", [".xml", ".bin"])
def test_a_missing_truncated_or_longer_file_is_named(model: Path, stage: str, suffix: str) -> None:
    path = model / f"{stage}{suffix}"
    content = path.read_bytes()
    for broken in (content[:-1], content[: len(content) // 2], b"", content + b"\0"):
        path.write_bytes(broken)
        refuse(model, f"{path.name} is not the file that ", "missing, damaged or of", "convert the model again")
    path.unlink()
    refuse(model, f"{path.name} is not the file that ")
    path.mkdir()
    refuse(model, f"{path.name} is not the file that ")


def test_a_damaged_description_of_a_graph_is_seen_at_each_load_and_damaged_weights_by_their_hash(model: Path) -> None:
    loaded = saved.load(model)
    weights = model / "encoder.bin"
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    assert loaded.changed_files() == ["encoder.bin"]
    (model / "tokenizer.json").unlink()
    assert loaded.changed_files() == ["encoder.bin", "tokenizer.json"]
    xml = model / "cross_kv.xml"
    xml.write_bytes(xml.read_bytes().replace(b"1500", b"1501", 1))
    refuse(model, "cross_kv.xml is not the file that ", "streamer.json lists")


@pytest.mark.parametrize("stage", ALL)
def test_a_stage_of_another_model_of_the_same_dimensions_is_seen(model: Path, tmp_path: Path, stage: str) -> None:
    saved.save(tmp_path / "other", describe(), builders(1), {})
    for suffix in (".xml", ".bin"):
        shutil.copy(tmp_path / "other" / f"{stage}{suffix}", model)
    refuse(model, f"{stage}.xml", "of another model")


def test_stages_that_were_exchanged_are_named(model: Path) -> None:
    for suffix in (".xml", ".bin"):
        shutil.copy(model / f"cross_kv{suffix}", model / f"encoder{suffix}")
    mark_again(model)
    refuse(model, "encoder.xml has no input input_features, it has 'encoder_hidden_states'")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"version": 3}, ["is of version 3, this program reads up to 2: update the program"]),
        ({"version": 10**400}, ["is of version 1000", "update the program"]),
        ({"version": True}, ["has version True"]),
        ({"version": None}, ["has version None"]),
        ({"dims": []}, ["has dims []: expected "]),
        ({"dims": {}}, ["has dims {}"]),
        ({"dims": {**asdict(DIMS), "n_mels": 2**60}}, ["has n_mels 1152921504606846976"]),
        ({"name": 7}, ["has name 7: expected "]),
        ({"precisions": {}}, ["has precisions {}: expected one of f32, f16, int8, int8-sym"]),
        ({"precisions": {"encoder": "f16", "decoder": "f16"}}, ["has precisions"]),
        ({"precisions": dict.fromkeys(ALL, "int4")}, ["has precisions", "or convert the model again"]),
        ({"precisions": {stage: ["f16"] for stage in ALL}}, ["has precisions"]),
        ({"alignment_heads": 3}, ["has alignment_heads 3"]),
        ({"alignment_heads": [[0]]}, ["has alignment_heads [[0]]: expected "]),
        ({"alignment_heads": [[0, True]]}, ["has alignment_heads [[0, True]]"]),
        ({"files": None}, ["has files None"]),
        ({"files": {}}, ["encoder.xml is not the file that"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_broken_manifest(model: Path, changes: dict[str, object], parts: list[str]) -> None:
    rewrite(model, **changes)
    refuse(model, "streamer.json", *parts)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "C:\\secret", "other.bin", "streamer.json", "", "\0"]
)
def test_a_file_that_is_not_ours_counts_as_changed(model: Path, name: str) -> None:
    rewrite(model, files={**manifest(model)["files"], name: {"n_bytes": 1, "sha256": ""}})
    assert saved.load(model).changed_files() == [name]


@pytest.mark.parametrize("entry", [None, [], {"n_bytes": 1.5, "sha256": ""}, {"n_bytes": 1}])
def test_a_broken_mark(model: Path, entry: object) -> None:
    rewrite(model, files={**manifest(model)["files"], "decoder.xml": entry})
    refuse(model, "has files {")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_no_object(model: Path, text: bytes) -> None:
    (model / saved.MANIFEST).write_bytes(text)
    refuse(model, "streamer.json")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), rest=st.binary(max_size=40))
def test_any_manifest_loads_or_is_one_line(model: Path, original: Path, data: st.DataObject, rest: bytes) -> None:
    content = (original / saved.MANIFEST).read_bytes()
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    (model / saved.MANIFEST).write_bytes(content[:first] + rest + content[last:])
    message = ""
    try:
        saved.load(model)
    except ModelError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 700
