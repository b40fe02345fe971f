"""OpenVINO graphs from anywhere: whatever is wrong with the files is one line."""

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.errors import ModelError
from streamer.whisper.device.devices import the_core
from streamer.whisper.ir import probe_graphs, read_graph
from tests.unit.whisper.support import check_one_line


def write(path: Path) -> Path:
    """Write a graph whose second constant is 24 bytes at the end of the weights."""
    x = ops.parameter([2, 3], np.float32, "x")
    y = ops.add(ops.multiply(x, np.full((2, 3), 2, np.float32)), np.arange(6, dtype=np.float32).reshape(2, 3))
    ov.save_model(ov.Model([ops.result(y)], [x], "graph"), path, compress_to_fp16=False)
    return path


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return write(tmp_path / "graph.xml")


def refuse(path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_graph(path)
    check_one_line(caught.value)
    assert str(path.with_suffix("")) in str(caught.value)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_whole_graph_is_read(graph: Path) -> None:
    probe_graphs([graph])
    compiled = the_core().compile_model(read_graph(graph), "CPU")
    np.testing.assert_array_equal(compiled([np.ones((2, 3), np.float32)])[0], [[2, 3, 4], [5, 6, 7]])


@pytest.mark.parametrize("suffix", [".xml", ".bin"])
def test_a_missing_file_is_refused(graph: Path, suffix: str) -> None:
    graph.with_suffix(suffix).unlink()
    refuse(graph)
    with pytest.raises(ModelError):
        probe_graphs([graph])


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        *((".xml", text) for text in (b"", b"<net>", b"<html></html>", b"\x80\x02}q\x00.")),
        (".xml", b"<?xml version='1.0' encoding='nonsense'?><net/>"),
        *((".bin", bytes(n_bytes)) for n_bytes in (0, 1, 47)),
    ],
)
def test_what_is_not_a_graph_or_truncated_is_refused(graph: Path, suffix: str, content: bytes) -> None:
    graph.with_suffix(suffix).write_bytes(content)
    refuse(graph)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(
            ('offset="24" size="24"', f'offset="{offset}" size="{size}"')
            for offset, size in ((1 << 40, 24), (24, 1 << 60), (-8, 24), ("9" * 5000, 24), ("x", 24), (24, 4))
        ),
        ('from-layer="0"', 'from-layer="77"'),
        ('version="11"', 'version="9999"'),
        ('type="Add"', 'type="Nonsense"'),
    ],
)
def test_a_graph_with_something_wrong_in_it_is_refused(graph: Path, old: str, new: str) -> None:
    change(graph, old, new)
    refuse(graph)


def test_only_a_graph_that_crashes_openvino_is_refused_by_the_probe(graph: Path, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.xml")
    graph.write_bytes(b"")
    probe_graphs([graph, whole])  # reading it is refused
    # An operation with fewer inputs than it has.
    x = ops.parameter([4], np.float16, "x")
    ov.save_model(ov.Model([ops.result(ops.convert(x, "f32"))], [x], "graph"), graph)
    change(graph, 'type="Convert"', 'type="Broadcast"')
    with pytest.raises(ModelError) as caught:
        probe_graphs([graph, whole])
    check_one_line(caught.value)
