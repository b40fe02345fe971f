"""The ports of graphs fit each other."""

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.errors import ModelError
from streamer.whisper.graphs.ports import Ports, beam_slots, check_ports, ports
from tests.reference.test_build import DIMS


@pytest.mark.parametrize("window_s", [5, 30])
def test_what_one_stage_gives_the_next_takes(window_s: int) -> None:
    encoder, cross_kv = (ports(stage, DIMS, 2, window_s=window_s) for stage in ("encoder", "cross_kv"))
    block, beams = (
        ports("decoder", DIMS, 2, window_s=window_s, n_tokens=n, n_slots=slots)
        for n, slots in ((16, DIMS.cache_size), (3, beam_slots(DIMS, 3)))
    )
    assert encoder.outputs["last_hidden_state"] == cross_kv.inputs["encoder_hidden_states"]
    for name, shape in cross_kv.outputs.items():
        past = name.replace("present_", "past_")
        assert block.inputs[past] == beams.inputs[past] == shape
    assert block.inputs["past_key_values.1.decoder.key"] == (1, 2, DIMS.cache_size, 8)
    assert beams.inputs["attention_mask"] == (3, beam_slots(DIMS, 3) + 3)
    assert block.outputs["cross_attention"] == (1, 2, 16, 50 * window_s)


def relu(**names: str) -> ov.Model:
    """Return a graph of (1, 4); names : input, output; without one, its port has no name"""
    x = ops.parameter([1, 4], np.float32)
    y = ops.result(ops.relu(x))
    for node, name in ((x, names.get("input")), (y, names.get("output"))):
        if name:
            node.output(0).set_names({name})
    return ov.Model([y], [x], "relu")


WANTED = Ports({"x": (1, -1)}, {"y": (1, 4)})


def test_a_graph_with_the_ports_that_are_expected_passes() -> None:
    check_ports(Path("a.xml"), relu(input="x", output="y"), WANTED, "")
    check_ports(Path("a.xml"), relu(input="x", output="y"), Ports(WANTED.inputs, {}), "")  # more outputs do no harm


@pytest.mark.parametrize(
    ("model", "wanted", "problem"),
    [
        (relu(input="z", output="y"), WANTED, "no input x, it has 'z': expected a Whisper's graph; try again"),
        (relu(input="x", output="z"), WANTED, "has no output y, it has 'z'"),
        (relu(input="z"), Ports({}, {}), "has the input 'z': expected only ; try again"),
        (relu(input="x", output="present_x"), Ports(WANTED.inputs, {}), "has the output 'present_x'"),
        (
            relu(input="x", output="y"),
            Ports({"x": (1, 5)}, {}),
            r"has the input x \[1,4\] f32: expected \[1, 5\] of f32",
        ),
        (relu(input="x", output="y"), Ports({"x": (4,)}, {}), r"has the input x \[1,4\] f32: expected \[4\]"),
        (relu(input="input_ids"), Ports({"input_ids": (1, 4)}, {}), r"f32: expected \[1, 4\] of i32 or i64; try again"),
    ],
)
def test_ports_of_another_graph_are_named(model: ov.Model, wanted: Ports, problem: str) -> None:
    with pytest.raises(ModelError, match=f"^a.xml .*{problem}"):
        check_ports(Path("a.xml"), model, wanted, "try again")


def test_a_graph_with_state_is_refused() -> None:
    x = ops.parameter([1, 4], np.float32)
    x.output(0).set_names({"x"})
    total = ops.add(x, ops.read_value(ops.constant(np.zeros((1, 4), np.float32)), "memory", ov.Type.f32, [1, 4]))
    model = ov.Model([ops.result(total)], [ops.assign(total, "memory")], [x], "stateful")
    with pytest.raises(ModelError, match=r"keeps state from call to call: .*; try again"):
        check_ports(Path("a.xml"), model, Ports({"x": (1, 4)}, {}), "try again")
