"""`streamer listen`: prints what a running daemon publishes."""

import asyncio
import contextlib
import logging
import sys

from streamer.client.captions import DEFAULT_PORT, DaemonAddress, captions, parse_address
from streamer.commands.terminal import end_on_sigterm, make_console, notice
from streamer.events import Error, Gap
from streamer.settings.table import Settings
from streamer.sinks.base import Sink

logger = logging.getLogger(__name__)


def listen(settings: Settings, url: str | None, *, token: str, format: str | None) -> int:
    """Print a daemon's captions until it ends. Returns the exit code.

    url : the daemon; None: that of the settings
    token : what the daemon asks for
    format : one of the command's formats; None: captions in a terminal, else text

    Raises PeerError where there is no daemon or it refuses us.
    """
    address = daemon_address(url, token, settings)
    format = format or ("captions" if sys.stdout.isatty() else "text")
    if format == "captions":
        from streamer.sinks.terminal import TerminalSink

        sink: Sink = TerminalSink(make_console())
    else:
        from streamer.sinks.subtitles import open_writer

        sink = open_writer(format, sys.stdout)
    shown = format == "jsonl" or (format == "captions" and sys.stdout.isatty())
    end_on_sigterm()
    try:
        asyncio.run(follow(address, sink, tell_trouble=not shown))
    finally:
        with contextlib.suppress(OSError):  # whoever read the pipe may have gone
            sink.close()
    return 0


async def follow(address: DaemonAddress, sink: Sink, *, tell_trouble: bool) -> None:
    """Give a daemon's events to a sink; gaps and errors, which the sink does not show, are logged where asked for."""
    async with contextlib.aclosing(captions(address, on_notice=notice)) as events:
        async for event in events:
            if tell_trouble and isinstance(event, Gap):
                logger.warning("%.1f s to %.1f s not heard: %s", event.start, event.end, event.reason)
            elif tell_trouble and isinstance(event, Error):
                logger.warning("%s: %s", event.code, " ".join(event.message.split()))
            sink.handle(event)


def daemon_address(url: str | None, token: str, settings: Settings) -> DaemonAddress:
    """Return where the daemon is: at `url`, or where the settings would start one. Raises UsageError."""
    if url:
        return parse_address(url, token)  # the token of the settings is for our own daemon, not for any other
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.server.host, settings.server.host)  # noqa: S104
    place = f"[{host}]" if ":" in host else host
    return parse_address(f"{place}:{settings.server.port or DEFAULT_PORT}", token or settings.server.token)
