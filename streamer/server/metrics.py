"""What the server counts about itself, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from streamer.events import EVENT_TYPES


class ServerMetrics:
    """Connections and events, in the registry that `GET /metrics` shows."""

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
