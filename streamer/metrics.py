"""The engine's figures for Prometheus."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamer.stream.worker import Engine


def register_engine(registry: CollectorRegistry, engine: Engine[Any]) -> None:
    """Let a registry show what an engine has done."""
    registry.register(_EngineCollector(engine))


class _EngineCollector(Collector):
    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats
        for name, text, value in (
            ("streamer_encodes", "Windows encoded.", stats.encodes),
            ("streamer_decodes", "Windows decoded.", stats.decodes),
            ("streamer_encode_seconds", "Time spent encoding.", stats.encode_s),
            ("streamer_decode_seconds", "Time spent decoding.", stats.decode_s),
            ("streamer_windows_replaced", "Encoded windows that a newer one replaced.", stats.windows_replaced),
            ("streamer_failures", "Windows that a device failed on.", stats.failures),
        ):
            yield CounterMetricFamily(name, text, value=value)
        yield GaugeMetricFamily("streamer_sessions", "Sessions being transcribed.", value=self._engine.n_sessions)
