"""What `GET /metrics` of a gateway shows of the whole cluster, from the signs of life of its machines.

All gateways show the same except stalls, which each measures for its own sessions. Labels are our own words: names of
machines, models and tokens are none. docs/cluster.md has a table of all.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamer.engine.load import MAX_LOAD
from streamer.plugins.cluster.messages import WorkerAlive
from streamer.plugins.cluster.neighbours import Neighbours

# Why a session goes to another worker.
REASONS = ("lost", "silent", "slow", "drain", "load", "failing", "resumed")

# Upper bounds of the histogram's buckets, in seconds.
STALL_BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0)

# Counters of workers, by the names that these give them.
WORKER_COUNTERS = {
    "fenced": ("streamer_cluster_fenced", "Sessions that a worker let go as another had taken them."),
    "moved_away": ("streamer_cluster_moved_away", "Sessions that left a worker while they went on."),
    "taken_over": ("streamer_cluster_taken_over", "Sessions that a worker went on with from a checkpoint."),
    "audio_s": ("streamer_cluster_audio_seconds", "Audio that workers took in."),
    "recordings_done": ("streamer_cluster_recordings_done", "Recordings that were transcribed."),
}

# Machines whose last counters are kept, so that one that comes back is not counted twice.
MAX_MACHINES = 20_000


def register_cluster(registry: CollectorRegistry, view: Neighbours) -> Callable[[str, float], None]:
    """Add the cluster's metrics to a registry. Returns a function to call with the reason and seconds of each stall."""
    stalls = Histogram(
        "streamer_cluster_stall_seconds",
        "Time from the last sign of a session's old worker to the first of its new one, at this gateway.",
        ["reason"],
        buckets=STALL_BUCKETS_S,
        registry=registry,
    )
    # A worker says why it gives a session away: what is none of our words is `other`.
    by_reason = {reason: stalls.labels(reason) for reason in (*REASONS, "other")}
    registry.register(_ClusterCollector(view))
    return lambda reason, stall_s: by_reason.get(reason, by_reason["other"]).observe(stall_s)


def demand(workers: Sequence[WorkerAlive]) -> tuple[float, float]:
    """Return what sessions need, and what workers that take sessions can do, in sessions that speak all the time.

    What draining and failing workers have goes to others: it is needed, but they are no capacity. One that does not
    know its capacity yet counts as the average of those that do, or as one session.
    """
    known = [worker.capacity for worker in workers if worker.capacity > 0]
    average = sum(known) / len(known) if known else 1.0
    needed = capacity = 0.0
    for worker in workers:
        own = worker.capacity if worker.capacity > 0 else average
        needed += _counted(worker.load) / MAX_LOAD * own
        capacity += 0.0 if worker.draining or worker.failing else own
    return needed, capacity


class _ClusterCollector(Collector):
    """Metrics computed when they are collected."""

    def __init__(self, view: Neighbours) -> None:
        self._view = view
        # Sums of all machines' counters, which go on rising when a machine leaves.
        self._totals: defaultdict[str, float] = defaultdict(float)
        # Counters of each machine at the last collection, the newest last.
        self._before: dict[str, dict[str, float]] = {}

    def collect(self) -> Iterable[Metric]:
        workers, gateways = self._view.workers(), self._view.gateways()
        for worker in workers:
            self._add_up(f"worker {worker.worker}", worker.counters, WORKER_COUNTERS)
        for gateway in gateways:
            self._add_up(f"gateway {gateway.gateway}", gateway.counters, [f"moves_{reason}" for reason in REASONS])
        needed, capacity = demand(workers)
        streams = sum(max(0, gateway.sessions) for gateway in gateways)
        ratio = needed / capacity if capacity else 1.0
        for name, text, value in (
            ("demand_sessions", "What sessions need now, in sessions that speak all the time.", needed),
            ("capacity_sessions", "Such sessions that workers keep in real time.", capacity),
            ("load_ratio", "The first over the second, for an autoscaler; 1 if no worker takes sessions.", ratio),
            ("sessions", "Sessions at workers.", sum(max(0, worker.sessions) for worker in workers)),
            ("streams", "Clients' streams at gateways.", streams),
            ("recordings", "Recordings at work.", sum(max(0, worker.recordings) for worker in workers)),
        ):
            yield GaugeMetricFamily(f"streamer_cluster_{name}", text, value=value)
        states = Counter(_state_of(worker) for worker in workers)
        yield _labelled("workers", "Workers that are alive.", "state", ("ready", "full", "draining", "failing"), states)
        states = Counter("draining" if gateway.draining else "ready" for gateway in gateways)
        yield _labelled("gateways", "Gateways that are alive.", "state", ("ready", "draining"), states)
        for counter, (name, text) in WORKER_COUNTERS.items():
            yield CounterMetricFamily(name, text, value=self._totals[counter])
        moves = CounterMetricFamily("streamer_cluster_moves", "Sessions that moved, by reason.", labels=["reason"])
        for reason in REASONS:
            moves.add_metric([reason], self._totals[f"moves_{reason}"])
        yield moves

    def _add_up(self, machine: str, counters: dict[str, float], names: Iterable[str]) -> None:
        before = self._before.pop(machine, {})
        self._before[machine] = {name: _counted(counters.get(name, 0.0)) for name in names}
        for name, value in self._before[machine].items():
            last = before.get(name, 0.0)
            self._totals[name] += value - last if value >= last else value  # else it began anew
        if len(self._before) > MAX_MACHINES:
            del self._before[next(iter(self._before))]


def _state_of(worker: WorkerAlive) -> str:
    return "draining" if worker.draining else "failing" if worker.failing else "ready" if worker.room else "full"


def _labelled(name: str, text: str, label: str, values: Sequence[str], counts: Counter[str]) -> Metric:
    family = GaugeMetricFamily(f"streamer_cluster_{name}", text, labels=[label])
    for value in values:
        family.add_metric([value], counts[value])
    return family


def _counted(value: float) -> float:
    """Return a counter of another machine; 0 if it is no possible count."""
    return value if math.isfinite(value) and value >= 0 else 0.0
