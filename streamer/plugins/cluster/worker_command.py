"""A machine that transcribes for gateways: `streamer worker`."""

import asyncio

from streamer import descriptors
from streamer.plugins.cluster.worker import run_worker
from streamer.settings.table import Settings
from streamer.setup.auto import choose_model
from streamer.setup.loading import load


def work(settings: Settings) -> int:
    """Transcribe the sessions of gateways until a signal stops it; return the exit code. Raises StreamerError."""
    descriptors.raise_limit()
    settings = choose_model(settings, live=True)
    n_beams = settings.decoding.beam_size
    return asyncio.run(run_worker(settings, lambda: load(settings.model, n_beams=n_beams, at_once=True)))
