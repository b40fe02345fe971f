"""The figures as Prometheus reads them."""

import re
import sys
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import CollectorRegistry

from streamer.engine.engine import Engine
from streamer.events import End
from streamer.outputs.outputs import Outputs
from streamer.server.metrics import (
    ServerMetrics,
    register_engine,
    register_history,
    register_model,
    register_outputs,
    register_process,
)
from streamer.server.outbox import Outbox
from streamer.settings.table import OutputsSettings, Settings
from streamer.version import __version__
from tests.daemon import REPOSITORY
from tests.fakes import FakeDecoder, FakeEncoder


def test_what_the_engine_did_is_told() -> None:
    encoder = FakeEncoder()
    engine = Engine(encoder, FakeDecoder(encoder, []))
    registry = CollectorRegistry()
    register_engine(registry, engine)
    stats = engine.stats
    stats.encodes, stats.decodes, stats.decoder_calls = 5, 4, 12
    stats.decoder_tokens, stats.given_tokens, stats.settled_tokens = 30, 70, 40
    stats.gap_s["overload"] = 2.5
    stats.on_encode(0.03)
    stats.on_delay("final", 0.7)
    stats.audio_s["own"] += 1.5
    for name, labels, value in (
        ("encodes_total", {}, 5),
        ("decodes_total", {}, 4),
        ("decoder_calls_total", {}, 12),
        ("decoder_tokens_total", {}, 30),
        ("given_tokens_total", {}, 70),
        ("settled_tokens_total", {}, 40),
        ("gap_seconds_total", {"reason": "overload"}, 2.5),
        ("gap_seconds_total", {"reason": "device"}, 0),
        ("pass_seconds_bucket", {"stage": "encode", "le": "0.05"}, 1),
        ("pass_seconds_count", {"stage": "decode"}, 0),
        ("delay_seconds_bucket", {"type": "final", "le": "0.5"}, 0),
        ("delay_seconds_bucket", {"type": "final", "le": "0.75"}, 1),
        ("audio_seconds_total", {"source": "own"}, 1.5),
        ("windows_waiting", {}, 0),
        ("sessions", {}, 0),
        ("load_ratio", {}, 0),
    ):
        assert registry.get_sample_value(f"streamer_{name}", labels) == value, (name, labels)


def test_what_waits_for_the_slowest_client_is_told_while_it_is_there() -> None:
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry)
    outbox, quick = Outbox(10, [End(), End()]), Outbox(10)
    metrics.watch(outbox)
    metrics.watch(quick)
    assert registry.get_sample_value("streamer_events_waiting_max") == 2
    del outbox
    assert registry.get_sample_value("streamer_events_waiting_max") == 0


def test_the_process_and_the_build_are_told() -> None:
    registry = CollectorRegistry()
    register_process(registry)
    for name in ("cpu_seconds_total", "resident_memory_bytes", "threads", "start_time_seconds"):
        assert (registry.get_sample_value(f"process_{name}") or 0) > 0, name
    if sys.platform != "win32":
        assert (registry.get_sample_value("process_open_fds") or 0) > 0
    (build,) = next(metric for metric in registry.collect() if metric.name == "streamer_build").samples
    assert build.labels["version"] == __version__
    assert set(build.labels) == {"version", "python", "openvino"}


def test_what_outputs_took_is_told() -> None:
    registry, outputs = CollectorRegistry(), Outputs(Settings(outputs=OutputsSettings(to=("obs",))))
    register_outputs(registry, outputs)
    outputs.all[0].n_sent, outputs.all[0].n_dropped, outputs.all[0].n_failures = 3, 2, 1
    told = [
        registry.get_sample_value(f"streamer_output_{name}_total", {"output": "obs"})
        for name in ("finals", "dropped", "failures")
    ]
    outputs.close()
    assert told == [3, 2, 1]


def names_of_all() -> set[str]:
    """The names that the documentation and Prometheus' rules use: a histogram's without the ends of its parts."""
    registry, encoder = CollectorRegistry(), FakeEncoder()
    ServerMetrics(registry)
    register_process(registry)
    register_history(registry, SimpleNamespace(n_failures=0, n_lost=0))  # type: ignore[arg-type]
    register_outputs(registry, Outputs(Settings(outputs=OutputsSettings())))
    register_engine(registry, Engine(encoder, FakeDecoder(encoder, [])))
    register_model(registry, lambda: True)
    ends = {"counter": "_total", "info": "_info"}
    return {metric.name + ends.get(metric.type, "") for metric in registry.collect()}


@pytest.mark.skipif(sys.platform == "win32", reason="the metrics of descriptors are missing there")
def test_the_documentation_has_every_metric_and_no_other() -> None:
    text = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`(?:streamer|process)_.*?) \|", text, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == names_of_all()


def test_the_alerts_ask_for_metrics_that_there_are() -> None:
    (group,) = yaml.safe_load((REPOSITORY / "contrib" / "prometheus.yaml").read_text(encoding="utf-8"))["groups"]
    asked = {name for rule in group["rules"] for name in re.findall(r"(?:streamer|process)_\w+", rule["expr"])}
    assert {name.removesuffix("_bucket") for name in asked} <= names_of_all()
    assert len(asked) >= 5
