"""OpenVINO graphs from anywhere: whatever is wrong with the files is one line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.whisper.device.devices import the_core
from streamer.whisper.ir import first_line, probe_graphs, read_graph
from tests.unit.whisper.weights import checks


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph whose second constant is 24 bytes at the end of the weights."""
    x = ops.parameter([2, 3], np.float32, "x")
    y = ops.add(ops.multiply(x, np.full((2, 3), 2, np.float32)), np.arange(6, dtype=np.float32).reshape(2, 3))
    path = tmp_path_factory.mktemp("ir") / "graph.xml"
    ov.save_model(ov.Model([ops.result(y)], [x], "graph"), path, compress_to_fp16=False)
    return path


@pytest.fixture
def graph(whole: Path, tmp_path: Path) -> Path:
    for suffix in (".xml", ".bin"):
        shutil.copy(whole.with_suffix(suffix), tmp_path)
    return tmp_path / "graph.xml"


def refuse(path: Path, *parts: str, by: Callable[[Path], object] = read_graph) -> None:
    checks.refuse(lambda _: by(path), path.parent, *parts)


def probe(path: Path) -> None:
    probe_graphs([path])


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_whole_graph_is_read(graph: Path) -> None:
    probe_graphs([graph, graph])
    compiled = the_core().compile_model(read_graph(graph), "CPU")
    np.testing.assert_array_equal(compiled([np.ones((2, 3), np.float32)])[0], [[2, 3, 4], [5, 6, 7]])


@pytest.mark.parametrize("n_bytes", [0, 1, 47])
def test_truncated_weights(graph: Path, n_bytes: int) -> None:
    weights = graph.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:n_bytes])
    refuse(graph, "graph.xml cannot be read (", "graph.bin is damaged", "fetch both again")


def test_missing_weights(graph: Path) -> None:
    graph.with_suffix(".bin").unlink()
    refuse(graph, "graph.bin is missing", "fetch both again")
    refuse(graph, "graph.bin is missing", by=probe)


def test_a_missing_graph(graph: Path) -> None:
    graph.unlink()
    refuse(graph, "graph.xml is missing", "fetch both again")


@pytest.mark.parametrize(
    ("offset", "size"),
    [(str(1 << 40), "24"), ("24", str(1 << 60)), ("-8", "24"), ("9" * 5000, "24"), ("x", "24"), ("24", "4")],
)
def test_weights_that_are_elsewhere(graph: Path, offset: str, size: str) -> None:
    change(graph, 'offset="24" size="24"', f'offset="{offset}" size="{size}"')
    refuse(graph, "graph.xml cannot be read (", "fetch both again")


@pytest.mark.parametrize(
    "text",
    [b"", b"<net>", b"<?xml version='1.0' encoding='nonsense'?><net/>", b"<html></html>", b"\x80\x02}q\x00."],
    ids=["empty", "cut", "encoding", "page", "pickle"],
)
def test_what_is_no_graph(graph: Path, text: bytes) -> None:
    graph.write_bytes(text)
    refuse(graph, "graph.xml cannot be read (", "fetch both again")
    probe(graph)  # which says nothing of what is no crash


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('from-layer="0"', 'from-layer="77"', "Cannot create"),
        ('version="11"', 'version="9999"', "cannot be read"),
        ('type="Add"', 'type="Nonsense"', "Nonsense"),
    ],
)
def test_what_openvino_refuses(graph: Path, old: str, new: str, problem: str) -> None:
    change(graph, old, new)
    refuse(graph, "graph.xml cannot be read (", problem, "fetch both again")


def test_a_graph_that_crashes_openvino_is_one_line(graph: Path, whole: Path) -> None:
    # An operation with fewer inputs than it has.
    x = ops.parameter([4], np.float16, "x")
    ov.save_model(ov.Model([ops.result(ops.convert(x, "f32"))], [x], "graph"), graph)
    change(graph, 'type="Convert"', 'type="Broadcast"')
    refuse(graph, "has graphs that crash OpenVINO (one of graph.xml, ", by=lambda path: probe_graphs([path, whole]))


def test_the_reason_of_an_openvino_error_is_its_last_sentence() -> None:
    stack = "Exception from src/a.cpp:1:\nException from src/b.cpp:2:\nCheck 'x' failed at src/c.cpp:3:\nNo such.\n\n"
    assert first_line(RuntimeError(stack)) == "No such."
    assert first_line(RuntimeError("")) == "no reason given"
    assert len(first_line(RuntimeError("x" * 5000))) == 200
