"""A machine that transcribes for gateways: `streamer worker`."""

import asyncio

from streamer import descriptors
from streamer.commands.loading import load
from streamer.live.second_pass import beams_beside
from streamer.settings.table import Settings


def work(settings: Settings) -> int:
    """Transcribe sessions that gateways bring until it is told to stop; return the exit code. Raises StreamerError."""
    # Here, as it loads NATS' client, which nothing else needs.
    from streamer.cluster.worker import run_worker

    descriptors.raise_limit()
    n_beams, most_beams = settings.decoding.beam_size, beams_beside(settings)
    return asyncio.run(run_worker(settings, lambda: load(settings.model, n_beams=n_beams, most_beams=most_beams)))
