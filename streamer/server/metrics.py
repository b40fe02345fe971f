"""What `GET /metrics` shows, for Prometheus: the server's figures, and the engine's."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamer.events import EVENT_TYPES, GapReason

if TYPE_CHECKING:
    from streamer.stream.engine import Engine


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
        for event_type in EVENT_TYPES:  # so that each type is there, at 0, from the start
            self.events_sent.labels(event_type)


def register_engine(registry: CollectorRegistry, engine: "Engine[Any]") -> None:
    """Let a registry show what an engine has done."""
    registry.register(_EngineCollector(engine))


class _EngineCollector(Collector):
    def __init__(self, engine: "Engine[Any]") -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats
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
        yield GaugeMetricFamily("streamer_sessions", "Sessions being transcribed.", value=self._engine.n_sessions)
        yield GaugeMetricFamily(
            "streamer_load_ratio",
            "Share of the busiest thread's time that sessions need at the rarest acceptable passes.",
            value=self._engine.load.ratio,
        )
