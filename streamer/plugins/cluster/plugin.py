"""What a cluster adds: two commands, and files transcribed on workers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamer.commands.table import ADDRESS, CORRECTION, MODEL, Subcommand
from streamer.extras import requires
from streamer.settings.table import Settings

if TYPE_CHECKING:
    from streamer.plugins.cluster.batch import OnWorkers

GATEWAY = Subcommand(
    "gateway",
    "the one address in front of many machines",
    "streamer.plugins.cluster.gateway:serve",
    ("cluster.nats", "cluster.name", *ADDRESS, "server.max_streams"),
    example="--nats nats://10.0.0.1:4222 --host 0.0.0.0",
    more="Serves clients as `streamer run` does, and has workers, joined to it by NATS, transcribe what they send."
    " A session goes on when its worker is lost. Without --nats it runs NATS itself, for a first try. Ends with"
    " Ctrl-C: clients come back to another gateway.",
    endless=True,
    needs="nats",
    extra="cluster",
)

WORKER = Subcommand(
    "worker",
    "a machine of many, which transcribes for gateways",
    "streamer.plugins.cluster.worker_command:work",
    ("cluster.nats", "cluster.name", "server.max_streams", *CORRECTION, *MODEL),
    decoding="live",
    example="--nats nats://10.0.0.1:4222 --model base.en",
    more="Transcribes what clients of gateways send, joined to these by NATS, for as many as it keeps in real time."
    " Ends with Ctrl-C, when other workers have taken its sessions.",
    endless=True,
    needs="nats",
    extra="cluster",
)


def elsewhere(settings: Settings, flags: Mapping[str, object]) -> "OnWorkers | None":
    """Return what transcribes files on workers if `--nats` is given; None if not. Raises MissingExtraError."""
    if not flags.get("cluster.nats"):
        return None
    requires("nats", extra="cluster", purpose="--nats")
    from streamer.plugins.cluster.batch import OnWorkers

    return OnWorkers(settings, str(flags.get("model.name", "")))
