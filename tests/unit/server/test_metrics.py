"""The figures as Prometheus reads them."""

import re
import sys
from types import SimpleNamespace
from typing import Any, cast

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


def test_each_counter_shows_what_it_counts() -> None:
    registry, encoder = CollectorRegistry(), FakeEncoder()
    engine = Engine(encoder, FakeDecoder(encoder, []))
    outputs = Outputs(Settings(outputs=OutputsSettings(to=("obs",))))
    register_engine(registry, engine)
    register_outputs(registry, outputs)
    register_history(registry, cast("Any", SimpleNamespace(n_failures=8, n_lost=9)))
    register_model(registry, lambda: True)
    stats = engine.stats
    counters: dict[str, float] = {"encodes": 5, "decodes": 4, "decoder_calls": 12, "decoder_tokens": 30}
    counters |= {"given_tokens": 70, "settled_tokens": 40, "windows_replaced": 6, "failures": 7}
    for name, value in counters.items():
        setattr(stats, name, value)
    stats.encode_s, stats.decode_s, stats.gap_s["overload"] = 0.5, 0.25, 2.5
    stats.audio_s["own"] += 1.5
    stats.on_encode(0.03)
    stats.on_delay("final", 0.7)
    outputs.all[0].n_sent, outputs.all[0].n_dropped, outputs.all[0].n_failures = 3, 2, 1
    outputs.close()
    for name, labels, value in (
        *((f"{name}_total", {}, value) for name, value in counters.items()),
        ("encode_seconds_total", {}, 0.5),
        ("decode_seconds_total", {}, 0.25),
        ("gap_seconds_total", {"reason": "overload"}, 2.5),
        ("gap_seconds_total", {"reason": "device"}, 0),
        ("pass_seconds_bucket", {"stage": "encode", "le": "0.05"}, 1),
        ("pass_seconds_count", {"stage": "decode"}, 0),
        ("delay_seconds_bucket", {"type": "final", "le": "0.5"}, 0),
        ("delay_seconds_bucket", {"type": "final", "le": "0.75"}, 1),
        ("audio_seconds_total", {"source": "own"}, 1.5),
        *((name, {}, 0) for name in ("windows_waiting", "sessions", "load_ratio")),
        ("history_failures_total", {}, 8),
        ("history_lost_total", {}, 9),
        *((f"output_{n}_total", {"output": "obs"}, v) for n, v in (("finals", 3), ("dropped", 2), ("failures", 1))),
        ("model_loaded", {}, 1),
    ):
        assert registry.get_sample_value(f"streamer_{name}", labels) == value, (name, labels)


def test_what_waits_for_the_slowest_client_is_shown_while_it_is_there() -> None:
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry)
    outbox, quick = Outbox(10, [End(), End()]), Outbox(10)
    metrics.watch(outbox)
    metrics.watch(quick)
    assert registry.get_sample_value("streamer_events_waiting_max") == 2
    del outbox
    assert registry.get_sample_value("streamer_events_waiting_max") == 0


def test_the_process_and_the_build_are_shown() -> None:
    registry = CollectorRegistry()
    register_process(registry)
    names = ["cpu_seconds_total", "resident_memory_bytes", "threads", "start_time_seconds", "virtual_memory_bytes"]
    for name in [*names, *(["open_fds", "max_fds"] if sys.platform != "win32" else [])]:
        assert (registry.get_sample_value(f"process_{name}") or 0) > 0, name
    (build,) = next(metric for metric in registry.collect() if metric.name == "streamer_build").samples
    assert build.labels["version"] == __version__
    assert set(build.labels) == {"version", "python", "openvino"}


@pytest.mark.skipif(sys.platform == "win32", reason="the metrics of descriptors are missing there")
def test_the_documentation_has_every_metric_and_the_alerts_ask_for_no_other() -> None:
    registry, encoder = CollectorRegistry(), FakeEncoder()
    ServerMetrics(registry)
    register_process(registry)
    register_history(registry, cast("Any", SimpleNamespace(n_failures=0, n_lost=0)))
    register_outputs(registry, Outputs(Settings(outputs=OutputsSettings())))
    register_engine(registry, Engine(encoder, FakeDecoder(encoder, [])))
    register_model(registry, lambda: True)
    ends = {"counter": "_total", "info": "_info"}  # a histogram's name is without the ends of its parts
    names = {metric.name + ends.get(metric.type, "") for metric in registry.collect()}
    text = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`(?:streamer|process)_.*?) \|", text, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == names
    (group,) = yaml.safe_load((REPOSITORY / "contrib" / "prometheus.yaml").read_text(encoding="utf-8"))["groups"]
    asked = {name for rule in group["rules"] for name in re.findall(r"(?:streamer|process)_\w+", rule["expr"])}
    assert {name.removesuffix("_bucket") for name in asked} <= names
    assert len(asked) >= 5
