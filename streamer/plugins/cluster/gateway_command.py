"""The one address in front of many machines: `streamer gateway`."""

import asyncio

from streamer import descriptors
from streamer.plugins.cluster.gateway import run_gateway
from streamer.settings.table import Settings


def serve(settings: Settings) -> int:
    """Serve clients until a signal stops it; return the exit code. Raises StreamerError."""
    descriptors.raise_limit()
    return asyncio.run(run_gateway(settings))
