"""What `GET /metrics` shows, for Prometheus: figures of the server, the engine, and the process.

docs/operations.md has a table of all.
"""

import platform
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args
from weakref import WeakSet

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamer.events import EVENT_TYPES, GapReason
from streamer.server.outbox import Outbox
from streamer.version import __version__

if TYPE_CHECKING:
    from streamer.engine.engine import Engine
    from streamer.history.writer import History
    from streamer.outputs.outputs import Outputs

# Upper bounds of the histograms' buckets, in seconds.
DELAY_BUCKETS_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
PASS_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

# Counters of `EngineStats`: its attribute, the metric's name if it differs, and its help text.
_ENGINE_COUNTERS = (
    ("encodes", "", "Windows encoded."),
    ("decodes", "", "Windows decoded."),
    ("decoder_calls", "", "Calls of the decoder, each for any number of tokens."),
    ("decoder_tokens", "", "Tokens decoded, accepted drafts and ends of text included."),
    ("given_tokens", "", "Tokens given before these: prompts, start sequences, and stable words."),
    ("settled_tokens", "", "Given tokens of stable words."),
    ("encode_s", "encode_seconds", "Time spent encoding."),
    ("decode_s", "decode_seconds", "Time spent decoding."),
    ("windows_replaced", "", "Encoded windows that a newer one replaced."),
    ("failures", "", "Windows, and sessions, that failed."),
)
_OUTPUT_COUNTERS = (
    ("n_sent", "finals", "Finals that an output took."),
    ("n_dropped", "dropped", "Finals that an output never got."),
    ("n_failures", "failures", "Attempts to reach an output that failed."),
)
_HISTORY_COUNTERS = (
    ("n_failures", "failures", "Attempts to write the history that failed; the next one writes what waits."),
    ("n_lost", "lost", "Events missing in the history, since too many waited to be written."),
)


class ServerMetrics:
    """Connections and events, in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        self.subscribers = gauge("streamer_subscribers", "Clients that read the daemon's captions now.")
        self.streams = gauge("streamer_streams", "Clients that send their own audio now.")
        self.events_sent = counter("streamer_events_sent", "Events sent to clients, by type.", ["type"])
        self.partials_superseded = counter(
            "streamer_partials_superseded",
            "Partials not sent because newer text of the same segment replaced them in a client's queue.",
        )
        self.too_slow = counter("streamer_subscribers_too_slow", "Clients closed because they fell too far behind.")
        moved = "Bytes of messages and bodies {} clients, without framing."
        self.received_bytes = counter("streamer_received_bytes", moved.format("from"))
        self.sent_bytes = counter("streamer_sent_bytes", moved.format("to"))
        refusals = "Connections, requests and streams that were refused."
        self._refusals = counter("streamer_refusals", refusals, ["reason"])
        # Each client's queue, for as long as it is used.
        self._outboxes: WeakSet[Outbox] = WeakSet()
        waiting = gauge("streamer_events_waiting_max", "Events that wait for the slowest client.")
        waiting.set_function(lambda: max(map(len, self._outboxes.copy()), default=0))
        for event_type in EVENT_TYPES:  # so that each type is there, at 0, from the start
            self.events_sent.labels(event_type)

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def watch(self, outbox: Outbox) -> None:
        """Count an outbox for as long as it is used."""
        self._outboxes.add(outbox)


def register_engine(registry: CollectorRegistry, engine: "Engine[Any]") -> None:
    """Register the metrics of an engine that has not started yet."""
    registry.register(_Collected(partial(_of_engine, engine)))
    delay = Histogram(
        "streamer_delay_seconds",
        "Time from the arrival of live audio to the event that first shows its last word, by type of event.",
        ["type"],
        buckets=DELAY_BUCKETS_S,
        registry=registry,
    )
    passes = Histogram(
        "streamer_pass_seconds",
        "Time that one window took, by stage.",
        ["stage"],
        buckets=PASS_BUCKETS_S,
        registry=registry,
    )
    delays = {event_type: delay.labels(event_type) for event_type in ("partial", "final")}
    engine.stats.on_delay = lambda event_type, delay_s: delays[event_type].observe(delay_s)
    engine.stats.on_encode = passes.labels("encode").observe
    engine.stats.on_decode = passes.labels("decode").observe


def register_model(registry: CollectorRegistry, is_loaded: Callable[[], bool]) -> None:
    """Register whether the daemon's model is in memory."""
    Gauge(
        "streamer_model_loaded", "1 while the model is in memory, 0 after model.unload_s.", registry=registry
    ).set_function(is_loaded)


def register_process(registry: CollectorRegistry) -> None:
    """Register the version, and the CPU time, memory, threads and files of the process."""
    build = {"version": __version__, "python": platform.python_version(), "openvino": version("openvino")}
    Info("streamer_build", "What runs.", registry=registry).info(build)
    registry.register(_Collected(_of_process))


def register_history(registry: CollectorRegistry, history: "History") -> None:
    """Register how often a history could not be written, and what it lacks."""
    registry.register(_Collected(lambda: _counters("history", history, _HISTORY_COUNTERS)))


def register_outputs(registry: CollectorRegistry, outputs: "Outputs") -> None:
    """Register what the outputs of `--to` took."""
    registry.register(_Collected(partial(_of_outputs, outputs)))


class _Collected(Collector):
    """Metrics that are computed at each request."""

    def __init__(self, compute: Callable[[], Iterable[Metric]]) -> None:
        self._compute = compute

    def collect(self) -> Iterable[Metric]:
        return self._compute()


def _counters(prefix: str, source: object, table: Iterable[tuple[str, str, str]]) -> Iterable[Metric]:
    for attribute, name, text in table:
        yield CounterMetricFamily(f"streamer_{prefix}_{name}", text, value=getattr(source, attribute))


def _by(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in values:
        family.add_metric([value], count)
    return family


def _of_outputs(outputs: "Outputs") -> Iterable[Metric]:
    for attribute, name, text in _OUTPUT_COUNTERS:
        counts = ((output.name, getattr(output, attribute)) for output in outputs.all)
        yield _by(f"streamer_output_{name}", text, "output", counts)


def _of_engine(engine: "Engine[Any]") -> Iterable[Metric]:
    stats = engine.stats
    for attribute, name, text in _ENGINE_COUNTERS:
        yield CounterMetricFamily(f"streamer_{name or attribute}", text, value=getattr(stats, attribute))
    gaps = ((reason, stats.gap_s[reason]) for reason in get_args(GapReason))
    yield _by("streamer_gap_seconds", "Audio that was not transcribed.", "reason", gaps)
    yield _by("streamer_audio_seconds", "Audio that came in, by source.", "source", stats.audio_s.items())
    for name, text, value in (
        ("windows_waiting", "Windows that are due and not encoded yet.", engine.n_waiting),
        ("sessions", "Sessions being transcribed.", engine.n_sessions),
        ("load_ratio", "Share of the time that sessions need at the rarest acceptable passes.", engine.load.ratio),
    ):
        yield GaugeMetricFamily(f"streamer_{name}", text, value=value)


def _of_process() -> Iterable[Metric]:
    """Yield the standard metrics of a process on all systems: prometheus_client's own collector knows only Linux."""
    process = psutil.Process()
    with process.oneshot():
        cpu, memory = process.cpu_times(), process.memory_info()
        gauges = {
            "resident_memory_bytes": ("Memory in use.", float(memory.rss)),
            "virtual_memory_bytes": ("Memory addressed.", float(memory.vms)),
            "threads": ("Threads.", float(process.num_threads())),
            "start_time_seconds": ("When the process began (Unix time).", process.create_time()),
        }
    if sys.platform != "win32":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        gauges["open_fds"] = ("Open file descriptors.", float(process.num_fds()))
        gauges["max_fds"] = ("Most file descriptors that may be open.", float(limit))
    yield CounterMetricFamily("process_cpu_seconds", "Time of processors taken.", value=cpu.user + cpu.system)
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(f"process_{name}", text, value=value)
