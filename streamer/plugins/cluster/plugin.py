"""What a cluster adds: two commands, and files transcribed on workers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from streamer.commands.signature import ADDRESS, CORRECTION, MODEL, Flags, endless, needs
from streamer.extras import requires
from streamer.settings.table import Settings

if TYPE_CHECKING:
    from streamer.plugins.cluster.batch import OnWorkers


@endless
@needs("nats", extra="cluster")
def gateway(
    *, settings: Annotated[Settings, Flags(("cluster.nats", "cluster.name", *ADDRESS, "server.max_streams"))]
) -> int:
    """The one address in front of many machines.

    Serves clients as `streamer run` does, and has workers, joined to it by NATS, transcribe what they send. A session
    goes on when its worker is lost. Without --nats it runs NATS itself, for a first try. Ends with Ctrl-C: clients come
    back to another gateway.

    Example: streamer gateway --nats nats://10.0.0.1:4222 --host 0.0.0.0
    """
    from streamer.plugins.cluster.gateway import serve

    return serve(settings)


@endless
@needs("nats", extra="cluster")
def worker(
    *,
    settings: Annotated[
        Settings,
        Flags(("cluster.nats", "cluster.name", "server.max_streams", *CORRECTION, *MODEL), decoding="live"),
    ],
) -> int:
    """A machine of many, which transcribes for gateways.

    Transcribes what clients of gateways send, joined to these by NATS, for as many as it keeps in real time. Ends with
    Ctrl-C, when other workers have taken its sessions.

    Example: streamer worker --nats nats://10.0.0.1:4222 --model base.en
    """
    # Late, as the command line itself needs none of them.
    import asyncio

    from streamer import descriptors
    from streamer.plugins.cluster.worker import run_worker
    from streamer.setup.auto import choose_model
    from streamer.setup.loading import load

    descriptors.raise_limit()
    settings = choose_model(settings, live=True)
    n_beams = settings.decoding.beam_size
    return asyncio.run(run_worker(settings, lambda: load(settings.model, n_beams=n_beams, at_once=True)))


def elsewhere(settings: Settings, flags: Mapping[str, object]) -> "OnWorkers | None":
    """Return what transcribes files on workers if `--nats` is given; None if not. Raises MissingExtraError."""
    if not flags.get("cluster.nats"):
        return None
    requires("nats", extra="cluster", purpose="--nats")
    from streamer.plugins.cluster.batch import OnWorkers

    return OnWorkers(settings, str(flags.get("model.name", "")))
