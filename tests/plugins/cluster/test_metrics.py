"""One page for the whole cluster, from what its machines say of themselves."""

import math
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from streamer.plugins.cluster.messages import GatewayAlive, WorkerAlive
from streamer.plugins.cluster.metrics import MAX_MACHINES, demand, register_cluster
from streamer.plugins.cluster.neighbours import Neighbours
from tests.daemon import REPOSITORY
from tests.plugins.cluster.support import alive


class Page:
    """What a gateway shows that knows these machines."""

    def __init__(self) -> None:
        self.all_workers: list[WorkerAlive] = []
        self.all_gateways: list[GatewayAlive] = []
        self.registry = CollectorRegistry()
        known = SimpleNamespace(workers=lambda: self.all_workers, gateways=lambda: self.all_gateways)
        self.on_stall = register_cluster(self.registry, cast(Neighbours, known))

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"streamer_cluster_{name}", labels)
        assert value is not None, name
        return value


@pytest.mark.parametrize(
    ("workers", "needed", "capacity", "ratio"),
    [
        ([], 0, 0, 1),
        ([alive(load=0.45, capacity=10), alive("v", load=0.0, capacity=10)], 5, 20, 0.25),
        ([alive(load=0.45, capacity=10), alive("v", load=0.9, capacity=20)], 25, 30, 25 / 30),
        ([alive(load=0.9, capacity=8), alive("v", load=0.45, capacity=0)], 12, 16, 0.75),  # as the others
        ([alive(load=0.45, capacity=0)], 0.5, 1, 0.5),
    ],
)
def test_what_is_needed_is_held_against_what_workers_can_do(
    workers: list[WorkerAlive], needed: float, capacity: float, ratio: float
) -> None:
    page = Page()
    page.all_workers = workers
    found = [page.value(name) for name in ("demand_sessions", "capacity_sessions", "load_ratio")]
    assert found == pytest.approx([needed, capacity, ratio])
    drain, fail = alive(load=0.45, capacity=10, draining=True), alive(load=0.45, capacity=10, failing="no device")
    assert demand([drain, fail]) == pytest.approx((10, 0))


def test_machines_are_counted_by_state_and_what_is_at_work_as_sums() -> None:
    page = Page()
    page.all_workers = [
        alive("a", recordings=2),
        alive("b", room=False),
        alive("c", room=False, draining=True, failing="it leaves"),
        alive("d", failing="no device"),
    ]
    page.all_gateways = [GatewayAlive(gateway="g", sessions=5), GatewayAlive(gateway="h", sessions=1, draining=True)]
    assert [page.value("workers", state=state) for state in ("ready", "full", "draining", "failing")] == [1, 1, 1, 1]
    assert [page.value("gateways", state=state) for state in ("ready", "draining")] == [1, 1]
    assert (page.value("sessions"), page.value("streams"), page.value("recordings")) == (8, 6, 2)


def test_counters_go_on_rising_when_a_machine_leaves_or_begins_anew() -> None:
    page, seen = Page(), []
    for counted in ({"a": 5.0, "b": 7.0}, {"a": 6.0}, {"a": 2.0, "b": 8.0}, {}):
        page.all_workers = [alive(name, counters={"fenced": value}) for name, value in counted.items()]
        seen.append(page.value("fenced_total"))
    # `a` counts to 6, begins anew and counts to 2; `b` is away for a while.
    assert seen == [12, 13, 16, 16]


def test_moves_and_stalls_are_counted_by_reason_and_strange_reasons_together() -> None:
    page = Page()
    page.all_gateways = [GatewayAlive(gateway=g, counters={"moves_lost": 2.0, "moves_drain": 1.0}) for g in "gh"]
    assert [page.value("moves_total", reason=reason) for reason in ("lost", "drain", "load")] == [4, 2, 0]
    page.on_stall("lost", 1.7)
    for number in range(50):
        page.on_stall(f'strange"{number}\n', 0.1)
    assert [page.value("stall_seconds_bucket", reason="lost", le=le) for le in ("1.0", "2.0")] == [0, 1]
    assert page.value("stall_seconds_count", reason="other") == 50


def test_nothing_that_machines_say_becomes_a_label_or_a_wrong_number() -> None:
    page = Page()
    before = generate_latest(page.registry).count(b"\n")
    strange = 'x"}\n# HELP y'
    page.all_workers = [
        alive(strange, load=math.nan, capacity=-3, sessions=-1, failing=strange, counters={strange: 1.0}),
        alive("w", load=math.inf, counters={"fenced": math.nan, "audio_s": -1.0}),
    ]
    page.all_gateways = [GatewayAlive(gateway=strange, sessions=-5, counters={f"moves_{strange}": 1.0})]
    text = generate_latest(page.registry)
    assert b"HELP y" not in text
    assert text.count(b"\n") == before
    for line in text.decode().splitlines():
        assert line.startswith("#") or 0 <= float(line.rpartition(" ")[2]) < 1e12, line


def test_no_more_machines_are_remembered_than_a_cluster_may_have() -> None:
    page = Page()
    page.all_workers = [alive(str(number), counters={"fenced": 1.0}) for number in range(MAX_MACHINES + 1)]
    assert page.value("fenced_total") == MAX_MACHINES + 1
    page.all_workers = page.all_workers[1:]  # all but the first are known
    assert page.value("fenced_total") == MAX_MACHINES + 1


def test_the_documentation_has_each_metric() -> None:
    documented = (REPOSITORY / "docs" / "cluster.md").read_text(encoding="utf-8")
    names = {sample.name for metric in Page().registry.collect() for sample in metric.samples}
    names = {name.removesuffix("_bucket") for name in names if not name.endswith(("_sum", "_count", "_created"))}
    assert not sorted(name for name in names if f"`{name}`" not in documented)
