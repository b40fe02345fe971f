"""One page for the whole cluster, from what its machines say of themselves."""

import math
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from streamer.plugins.cluster.messages import VERSION, GatewayAlive, WorkerAlive
from streamer.plugins.cluster.metrics import MAX_MACHINES, demand, register_cluster
from streamer.plugins.cluster.neighbours import Neighbours
from tests.daemon import REPOSITORY


def worker(name: str = "w", *, load: float = 0.45, capacity: int = 10, **more: object) -> WorkerAlive:
    fields = {"sessions": 5, "room": True} | more
    return WorkerAlive(worker=name, version=VERSION, model="nano.en", load=load, capacity=capacity, **fields)  # type: ignore[arg-type]


@dataclass
class FakeView(Neighbours):
    all_workers: list[WorkerAlive] = field(default_factory=list)
    all_gateways: list[GatewayAlive] = field(default_factory=list)

    def workers(self) -> list[WorkerAlive]:
        return self.all_workers

    def gateways(self) -> list[GatewayAlive]:
        return self.all_gateways


@dataclass
class Page:
    view: FakeView = field(default_factory=FakeView)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.on_stall = register_cluster(self.registry, self.view)

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"streamer_cluster_{name}", labels)
        assert value is not None, name
        return value


def test_what_is_needed_is_held_against_what_workers_can_do() -> None:
    assert demand([worker(load=0.45, capacity=10), worker(load=0.9, capacity=20)]) == pytest.approx((25, 30))


def test_what_a_draining_or_failing_worker_has_is_needed_elsewhere() -> None:
    leaving = [worker(draining=True), worker(failing="no device")]
    assert demand([worker(load=0.0), *leaving]) == pytest.approx((10, 10))


def test_a_worker_that_does_not_know_its_capacity_counts_as_the_others() -> None:
    assert demand([worker(capacity=8, load=0.0), worker(capacity=0, load=0.0)]) == (0, 16)
    assert demand([worker(capacity=0, load=0.0)]) == (0, 1)


def test_without_workers_the_ratio_is_one() -> None:
    page = Page()
    assert page.value("load_ratio") == 1.0
    page.view.all_workers = [worker(load=0.45, capacity=10), worker("v", load=0.0, capacity=10)]
    assert page.value("load_ratio") == pytest.approx(0.25)


def test_machines_are_counted_by_state_and_what_is_at_work_as_sums() -> None:
    page = Page()
    page.view.all_workers = [
        worker("a", recordings=2),
        worker("b", room=False),
        worker("c", room=False, draining=True, failing="it leaves"),
        worker("d", failing="no device"),
    ]
    page.view.all_gateways = [
        GatewayAlive(gateway="g", sessions=5),
        GatewayAlive(gateway="h", sessions=1, draining=True),
    ]
    states = {state: page.value("workers", state=state) for state in ("ready", "full", "draining", "failing")}
    assert states == {"ready": 1, "full": 1, "draining": 1, "failing": 1}
    assert (page.value("gateways", state="ready"), page.value("gateways", state="draining")) == (1, 1)
    assert (page.value("sessions"), page.value("streams"), page.value("recordings")) == (20, 6, 2)


def test_counters_go_on_rising_when_a_machine_leaves_or_begins_anew() -> None:
    page = Page()
    seen = []
    for counted in ({"a": 5.0, "b": 7.0}, {"a": 6.0}, {"a": 2.0, "b": 8.0}, {}):
        page.view.all_workers = [worker(name, counters={"fenced": value}) for name, value in counted.items()]
        seen.append(page.value("fenced_total"))
    # `a` counts to 6, begins anew and counts to 2; `b` is away for a while.
    assert seen == [12, 13, 16, 16]


def test_moves_are_counted_by_reason() -> None:
    page = Page()
    page.view.all_gateways = [
        GatewayAlive(gateway=name, counters={"moves_lost": 2.0, "moves_drain": 1.0}) for name in "gh"
    ]
    moves = {reason: page.value("moves_total", reason=reason) for reason in ("lost", "drain", "load")}
    assert moves == {"lost": 4, "drain": 2, "load": 0}


def test_stalls_are_counted_by_reason_and_strange_reasons_together() -> None:
    page = Page()
    page.on_stall("lost", 1.7)
    for number in range(50):
        page.on_stall(f'strange"{number}\n', 0.1)
    assert page.value("stall_seconds_bucket", reason="lost", le="2.0") == 1
    assert page.value("stall_seconds_bucket", reason="lost", le="1.0") == 0
    assert page.value("stall_seconds_count", reason="other") == 50


def test_nothing_that_machines_say_becomes_a_label_or_a_wrong_number() -> None:
    page = Page()
    before = generate_latest(page.registry).count(b"\n")
    strange = 'x"}\n# HELP y'
    page.view.all_workers = [
        worker(strange, load=math.nan, capacity=-3, sessions=-1, failing=strange, counters={strange: 1.0}),
        worker("w", load=math.inf, counters={"fenced": math.nan, "audio_s": -1.0}),
    ]
    page.view.all_gateways = [GatewayAlive(gateway=strange, sessions=-5, counters={f"moves_{strange}": 1.0})]
    text = generate_latest(page.registry)
    assert b"HELP y" not in text
    assert text.count(b"\n") == before
    for line in text.decode().splitlines():
        assert line.startswith("#") or 0 <= float(line.rpartition(" ")[2]) < 1e12, line


def test_no_more_machines_are_remembered_than_a_cluster_may_have() -> None:
    page = Page()
    page.view.all_workers = [worker(str(number), counters={"fenced": 1.0}) for number in range(MAX_MACHINES + 50)]
    assert page.value("fenced_total") == MAX_MACHINES + 50
    page.view.all_workers = page.view.all_workers[-1:]
    assert page.value("fenced_total") == MAX_MACHINES + 50


def test_the_documentation_has_each_metric() -> None:
    documented = (REPOSITORY / "docs" / "cluster.md").read_text(encoding="utf-8")
    names = {sample.name for metric in Page().registry.collect() for sample in metric.samples}
    names = {name.removesuffix("_bucket") for name in names if not name.endswith(("_sum", "_count", "_created"))}
    assert not sorted(name for name in names if f"`{name}`" not in documented)
