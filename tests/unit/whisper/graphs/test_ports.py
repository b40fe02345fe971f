"""The ports of graphs fit each other."""

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.whisper.graphs.ports import Ports, beam_slots, check_ports, ports
from tests.reference.test_build import DIMS
from tests.refusals import Refusal, refusals


@pytest.mark.parametrize("window_s", [5, 30])
def test_each_stage_takes_what_the_one_before_gives(window_s: int) -> None:
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
    # Half a context for a prompt and for each of three beams, and the start of the transcript.
    assert beams.inputs["attention_mask"] == (3, 4 * DIMS.n_text_ctx // 2 + 8 + 3)
    assert block.outputs["cross_attention"] == (1, 2, 16, 50 * window_s)


def relu(input: str = "", output: str = "", shape: tuple[int, ...] = (1, 4), *, state: bool = False) -> ov.Model:
    """Return a graph whose ports have these names; without one, a port has none."""
    x = ops.parameter(list(shape), np.float32)
    x.output(0).set_names({input} if input else set())
    if state:
        total = ops.add(x, ops.read_value(ops.constant(np.zeros((1, 4), np.float32)), "memory", ov.Type.f32, [1, 4]))
        return ov.Model([ops.result(total)], [ops.assign(total, "memory")], [x], "stateful")
    y = ops.result(ops.relu(x))
    y.output(0).set_names({output} if output else set())
    return ov.Model([y], [x], "relu")


def test_a_graph_with_the_ports_that_are_expected_passes_and_more_outputs_do_no_harm() -> None:
    for outputs in ({"y": (1, 4)}, {}):
        check_ports(Path("a.xml"), relu("x", "y"), Ports({"x": (1, -1)}, outputs), "")


@refusals("whisper_ports")
def test_ports_of_another_graph_are_named(refusal: Refusal) -> None:
    given = dict(refusal.given)
    wanted = Ports(given.pop("inputs"), given.pop("outputs"))
    with refusal.expected():
        check_ports(Path("a.xml"), relu(**given), wanted, "try again")
