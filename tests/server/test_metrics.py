"""The engine's figures as Prometheus reads them."""

from prometheus_client import CollectorRegistry

from streamer.server.metrics import register_engine
from streamer.stream.engine import Engine
from tests.fakes import FakeDecoder, FakeEncoder


def test_what_the_engine_did_is_told() -> None:
    encoder = FakeEncoder()
    engine = Engine(encoder, FakeDecoder(encoder, []))
    stats = engine.stats
    stats.encodes, stats.decodes = 5, 4
    stats.decoder_calls, stats.decoder_tokens, stats.given_tokens, stats.settled_tokens = 12, 30, 70, 40
    registry = CollectorRegistry()
    register_engine(registry, engine)
    told = {
        name: registry.get_sample_value(f"streamer_{name}_total")
        for name in (
            *("encodes", "decodes", "decoder_calls"),
            *("decoder_tokens", "given_tokens", "settled_tokens"),
        )
    }
    assert told == {
        "encodes": 5,
        "decodes": 4,
        "decoder_calls": 12,
        "decoder_tokens": 30,
        "given_tokens": 70,
        "settled_tokens": 40,
    }
    assert registry.get_sample_value("streamer_sessions") == 0


def test_what_was_lost_and_the_load_are_told() -> None:
    encoder = FakeEncoder()
    engine = Engine(encoder, FakeDecoder(encoder, []))
    engine.stats.gap_s["overload"] = 2.5
    registry = CollectorRegistry()
    register_engine(registry, engine)
    lost = {
        reason: registry.get_sample_value("streamer_gap_seconds_total", {"reason": reason})
        for reason in ("overrun", "overload", "device")
    }
    assert lost == {"overrun": 0.0, "overload": 2.5, "device": 0.0}
    assert registry.get_sample_value("streamer_load_ratio") == 0.0
