"""What `GET /metrics` shows, for Prometheus: the server's figures, the engine's, and the process's.

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

from streamer import __version__
from streamer.events import EVENT_TYPES, GapReason
from streamer.server.outbox import Outbox

if TYPE_CHECKING:
    from streamer.engine.engine import Engine
    from streamer.outputs.outputs import Outputs
    from streamer.server.history import History


# Upper bounds of the histograms' buckets, in seconds.
DELAY_BUCKETS_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
PASS_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class ServerMetrics:
    """Connections and events, in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.subscribers = Gauge(
            "streamer_subscribers", "Clients that read the daemon's captions now.", registry=registry
        )
        self.streams = Gauge("streamer_streams", "Clients that send their own audio now.", registry=registry)
        self.events_sent = Counter(
            "streamer_events_sent", "Events sent to clients, by type.", ["type"], registry=registry
        )
        self.partials_superseded = Counter(
            "streamer_partials_superseded",
            "Partials not sent because newer text of the same segment replaced them in a client's queue.",
            registry=registry,
        )
        self.too_slow = Counter(
            "streamer_subscribers_too_slow", "Clients closed because they fell too far behind.", registry=registry
        )
        self.received_bytes = Counter(
            "streamer_received_bytes", "Bytes of messages and bodies from clients, without framing.", registry=registry
        )
        self.sent_bytes = Counter(
            "streamer_sent_bytes", "Bytes of messages and bodies to clients, without framing.", registry=registry
        )
        # What waits for each client. An outbox leaves with its client.
        self._outboxes: WeakSet[Outbox] = WeakSet()
        Gauge(
            "streamer_events_waiting_max", "Events that wait for the slowest client.", registry=registry
        ).set_function(lambda: max(map(len, self._outboxes.copy()), default=0))
        self._refusals = Counter(
            "streamer_refusals",
            "Connections, requests and streams that were turned away.",
            ["reason"],
            registry=registry,
        )
        for event_type in EVENT_TYPES:  # so that each type is there, at 0, from the start
            self.events_sent.labels(event_type)

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def watch(self, outbox: Outbox) -> None:
        """Let an outbox count for as long as it is used."""
        self._outboxes.add(outbox)


def register_engine(registry: CollectorRegistry, engine: "Engine[Any]") -> None:
    """Let a registry show what an engine, which has not begun, will have done."""
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


def register_process(registry: CollectorRegistry) -> None:
    """Let a registry show what runs, and what the process takes of the machine."""
    build = {"version": __version__, "python": platform.python_version(), "openvino": version("openvino")}
    Info("streamer_build", "What runs.", registry=registry).info(build)
    registry.register(_Collected(_of_process))


def register_history(registry: CollectorRegistry, history: "History") -> None:
    """Let a registry show how often a history could not be written, and what it lacks."""
    registry.register(_Collected(partial(_of_history, history)))


def register_outputs(registry: CollectorRegistry, outputs: "Outputs") -> None:
    """Let a registry show what went where `--to` sends captions."""
    registry.register(_Collected(partial(_of_outputs, outputs)))


class _Collected(Collector):
    """Figures that are looked up when somebody asks for them."""

    def __init__(self, look_up: Callable[[], Iterable[Metric]]) -> None:
        self._look_up = look_up

    def collect(self) -> Iterable[Metric]:
        return self._look_up()


def _of_outputs(outputs: "Outputs") -> Iterable[Metric]:
    for name, text, count in (
        ("streamer_output_finals", "Finals that an output took.", "n_sent"),
        ("streamer_output_dropped", "Finals that an output never got.", "n_dropped"),
        ("streamer_output_failures", "Attempts to reach an output that failed.", "n_failures"),
    ):
        family = CounterMetricFamily(name, text, labels=["output"])
        for output in outputs.all:
            family.add_metric([output.name], getattr(output, count))
        yield family


def _of_history(history: "History") -> Iterable[Metric]:
    yield CounterMetricFamily(
        "streamer_history_failures",
        "Attempts to write the history that failed; the next one writes what waits.",
        value=history.n_failures,
    )
    yield CounterMetricFamily(
        "streamer_history_lost",
        "Events that are missing in the history, since too many waited until it could be written.",
        value=history.n_lost,
    )


def _of_engine(engine: "Engine[Any]") -> Iterable[Metric]:
    stats = engine.stats
    for name, text, value in (
        ("streamer_encodes", "Windows encoded.", stats.encodes),
        ("streamer_decodes", "Windows decoded.", stats.decodes),
        ("streamer_decoder_calls", "Calls of the decoder, for whatever number of tokens.", stats.decoder_calls),
        (
            "streamer_decoder_tokens",
            "Tokens that were found, accepted drafts and ends of text included.",
            stats.decoder_tokens,
        ),
        (
            "streamer_given_tokens",
            "Tokens that were given before these: prompts, start sequences, and words that were settled.",
            stats.given_tokens,
        ),
        ("streamer_settled_tokens", "Given tokens of words that were settled.", stats.settled_tokens),
        ("streamer_encode_seconds", "Time spent encoding.", stats.encode_s),
        ("streamer_decode_seconds", "Time spent decoding.", stats.decode_s),
        ("streamer_windows_replaced", "Encoded windows that a newer one replaced.", stats.windows_replaced),
        ("streamer_failures", "Windows, and sessions, that failed.", stats.failures),
    ):
        yield CounterMetricFamily(name, text, value=value)
    gaps = CounterMetricFamily("streamer_gap_seconds", "Audio that was not transcribed.", labels=["reason"])
    for reason in get_args(GapReason):
        gaps.add_metric([reason], stats.gap_s[reason])
    yield gaps
    audio = CounterMetricFamily("streamer_audio_seconds", "Audio that came in, by source.", labels=["source"])
    for source, audio_s in stats.audio_s.items():
        audio.add_metric([source], audio_s)
    yield audio
    yield GaugeMetricFamily(
        "streamer_windows_waiting", "Windows that are due and not encoded yet.", value=engine.n_waiting
    )
    yield GaugeMetricFamily("streamer_sessions", "Sessions being transcribed.", value=engine.n_sessions)
    yield GaugeMetricFamily(
        "streamer_load_ratio",
        "Share of the time that sessions need at the rarest acceptable passes.",
        value=engine.load.ratio,
    )


def _of_process() -> Iterable[Metric]:
    """Yield the standard metrics of a process, on all systems: prometheus_client's own knows Linux only."""
    process = psutil.Process()
    with process.oneshot():
        cpu, memory = process.cpu_times(), process.memory_info()
        yield CounterMetricFamily("process_cpu_seconds", "Time of processors taken.", value=cpu.user + cpu.system)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Memory in use.", value=memory.rss)
        yield GaugeMetricFamily("process_virtual_memory_bytes", "Memory addressed.", value=memory.vms)
        yield GaugeMetricFamily("process_threads", "Threads.", value=process.num_threads())
        yield GaugeMetricFamily(
            "process_start_time_seconds", "When the process began (Unix time).", value=process.create_time()
        )
    if sys.platform != "win32":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield GaugeMetricFamily("process_open_fds", "Open file descriptors.", value=process.num_fds())
        yield GaugeMetricFamily("process_max_fds", "Most file descriptors that may be open.", value=limit)
