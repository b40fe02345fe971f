"""OpenVINO graphs from anywhere: whatever is wrong with the files is one line."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper import ir
from streamer.whisper.device.devices import the_core
from streamer.whisper.ir import first_line, probe_graphs, read_graph
from tests.whisper.weights import checks
from tests.whisper.weights.checks import at_most


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
    refuse(graph, f"graph.bin has {n_bytes} bytes, graph.xml needs 48", "truncated", "fetch both again")


def test_missing_weights(graph: Path) -> None:
    graph.with_suffix(".bin").unlink()
    refuse(graph, "graph.bin is missing", "fetch both again")
    refuse(graph, "graph.bin is missing", by=probe)


def test_a_missing_graph(graph: Path) -> None:
    graph.unlink()
    refuse(graph, "graph.xml is missing", "fetch both again")


def test_a_graph_of_many_megabytes_is_not_read(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ir, "MAX_XML_BYTES", 1 << 10)
    refuse(graph, "graph.xml has more than 0 MiB", "fetch it again")


@pytest.mark.parametrize(
    ("offset", "size", "problem"),
    [
        (str(1 << 40), "24", "graph.bin has 48 bytes, graph.xml needs 1099511627800"),
        ("24", str(1 << 60), "graph.bin has 48 bytes, graph.xml needs 1152921504606847000"),
        (str(2**64 - 8), "24", "a constant outside of all weights"),
        ("24", str(2**64 - 16), "a constant outside of all weights"),
        ("-8", "24", "a constant outside of all weights"),
        ("9" * 5000, "24", "graph.xml is not an OpenVINO graph (Exceeds the limit"),
        ("x", "24", "graph.xml is not an OpenVINO graph (invalid literal"),
        ("24", "4", "graph.xml cannot be read (Attribute and shape size are inconsistent"),
    ],
)
def test_weights_that_lie_elsewhere(graph: Path, offset: str, size: str, problem: str) -> None:
    change(graph, 'offset="24" size="24"', f'offset="{offset}" size="{size}"')
    refuse(graph, problem, "fetch ")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<net>",
        b"<?xml version='1.0' encoding='nonsense'?><net/>",
        b"<html></html>",
        b"\x80\x02}q\x00.",
        b"<net>" + b"<a>" * 100_000 + b"</a>" * 100_000 + b"</net>",
        b'<!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><net>&b;</net>',
        b"<!DOCTYPE net ["
        + b"".join(b'<!ENTITY a%d "%s">' % (i, b"&a%d;" % (i - 1) * 10 if i else b"a") for i in range(12))
        + b"]><net>&a11;</net>",
    ],
    ids=["empty", "cut", "encoding", "page", "pickle", "deep", "entities", "a tera of entities"],
)
def test_what_is_no_graph(graph: Path, text: bytes) -> None:
    graph.write_bytes(text)
    with at_most(32 << 20):
        refuse(graph, "graph.xml ", "fetch it again")
        with contextlib.suppress(ModelError):
            probe(graph)


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
    refuse(graph, "graph.xml cannot be read (", problem, "fetch it again")


def test_lengths_whose_product_overflows(graph: Path) -> None:
    text = graph.read_text(encoding="utf-8")
    wide = text.replace('shape="2, 3"', f'shape="{2**33}, {2**31}"').replace('size="24"', 'size="0"')
    assert wide != text
    graph.write_text(wide, encoding="utf-8")
    refuse(graph, "graph.xml ")


def test_a_graph_that_crashes_openvino_is_one_line(graph: Path, whole: Path) -> None:
    # An operation with fewer inputs than it has.
    x = ops.parameter([4], np.float16, "x")
    ov.save_model(ov.Model([ops.result(ops.convert(x, "f32"))], [x], "graph"), graph)
    change(graph, 'type="Convert"', 'type="Broadcast"')
    refuse(graph, "graph.xml cannot be read (OpenVINO crashes", by=lambda path: probe_graphs([whole, path]))


def test_a_graph_that_takes_for_ever_is_one_line(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ir, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(ir, "READ_TIMEOUT_S", 0.5)
    refuse(graph, "graph.xml cannot be read (OpenVINO needs more than 0.5 s)", by=probe)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=20)), max_size=4))
@example(edits=[(0, b"<net/><!--")])
def test_damaged_text_is_a_graph_or_one_line(graph: Path, whole: Path, edits: list[tuple[int, bytes]]) -> None:
    text = bytearray(whole.read_bytes())
    for position, piece in edits:
        text[position : position + len(piece)] = piece
    graph.write_bytes(text)
    message = scan(graph)
    assert "\n" not in message
    assert len(message) < 600


def scan(path: Path) -> str:
    try:
        ir._scan(path)
    except ModelError as error:
        return str(error)
    return ""


def test_the_reason_of_an_openvino_error_is_its_last_sentence() -> None:
    stack = "Exception from src/a.cpp:1:\nException from src/b.cpp:2:\nCheck 'x' failed at src/c.cpp:3:\nNo such.\n\n"
    assert first_line(RuntimeError(stack)) == "No such."
    assert first_line(RuntimeError("")) == "no reason given"
    assert len(first_line(RuntimeError("x" * 5000))) == 200
