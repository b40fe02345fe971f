"""The ports of graphs fit each other."""

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from streamer.whisper.graphs.ports import Ports, check_ports
from tests.refusals import Refusal, refusals


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
