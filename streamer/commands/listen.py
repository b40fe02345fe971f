"""`streamer listen`: prints what a running daemon publishes."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from streamer.client.captions import listen as listen_to
from streamer.client.connection import DEFAULT_PORT, DaemonAddress, parse_address
from streamer.commands.terminal import make_console, notice
from streamer.errors import ConfigError, UsageError
from streamer.events import Error, Event, Gap
from streamer.outside import host_port, one_line, own_host
from streamer.settings.load import TOKEN_VARIABLE
from streamer.settings.table import Settings

if TYPE_CHECKING:
    from streamer.outputs.subtitles import Writer

logger = logging.getLogger(__name__)

# Finals that wait for their revisions if they are written as subtitles.
N_WAITING = 2


def listen(settings: Settings, daemon: DaemonAddress, *, format: str | None, corrections: bool) -> int:
    """Print a daemon's captions until it ends. Returns the exit code.

    format : one of the command's formats; None: captions in a terminal, else text
    corrections : whether corrections of captions are printed, as lines of their own

    Raises PeerError if there is no daemon or it refuses, UsageError if the options do not fit.
    """
    if corrections and format not in (None, "captions"):
        raise UsageError(
            f"--corrections cannot be combined with --format {format}: expected the format captions; leave out one of"
            " the two"
        )
    format = format or ("captions" if corrections or sys.stdout.isatty() else "text")
    if format == "captions":
        from streamer.outputs.terminal import Terminal

        sink: Terminal | Writer = Terminal(make_console(), corrections=corrections)
    else:
        from streamer.outputs.subtitles import open_writer, subtitle_options

        n_waiting = 0 if format == "text" else N_WAITING  # the reader of a pipe wants text at once
        sink = open_writer(format, sys.stdout, subtitle_options(settings), n_waiting=n_waiting)
    shown = format == "jsonl" or (format == "captions" and sys.stdout.isatty())
    try:
        asyncio.run(follow(daemon, sink.handle, tell_trouble=not shown))
    finally:
        with contextlib.suppress(OSError):  # the reader of the pipe may have gone
            sink.close()
    return 0


async def follow(address: DaemonAddress, handle: Callable[[Event], object], *, tell_trouble: bool) -> None:
    """Pass a daemon's events to `handle`; with `tell_trouble` log gaps and errors, if it does not show them."""
    async with contextlib.aclosing(aiter(listen_to(address, on_notice=notice))) as events:
        async for event in events:
            if tell_trouble:
                log_trouble(event)
            handle(event)


def log_trouble(event: Event) -> None:
    """Log a gap or an error."""
    if isinstance(event, Gap):
        logger.warning("%.1f s to %.1f s are missing: %s", event.start, event.end, one_line(event.reason))
    elif isinstance(event, Error):
        logger.warning("%s: %s", one_line(event.code), one_line(event.message))


def daemon_of(arguments: Mapping[str, Any], settings: Settings) -> DaemonAddress:
    """Return the daemon that the arguments `DAEMON` and `CLIENT` name. Raises UsageError."""
    from streamer.commands.token import read_token

    token = read_token(file) if (file := arguments["token_file"]) else ""
    return daemon_address(arguments["url"], token, arguments["fingerprint"], settings)


def daemon_address(url: str | None, token: str, fingerprint: str, settings: Settings) -> DaemonAddress:
    """Return the address of a daemon: `url`, or the one at which the settings would start one. Raises UsageError.

    If neither `token` nor `url` has a token, it is that of the environment; for the daemon of the settings, else
    theirs. The certificate of the daemon of the settings is known by its file.
    """
    server = settings.server
    known = os.environ.get(TOKEN_VARIABLE, "")
    if url:
        address = parse_address(url, token, fingerprint)
        if address.token and not token:
            notice(
                "the address holds a token, which every user of this machine sees in the list of processes: use"
                f" --token-file FILE or the environment variable {TOKEN_VARIABLE}"
            )
        if address.token:
            return address
        # The token of the settings is for our own daemon, not for any other.
        is_own = bool(server.unix_socket) and url == f"unix://{server.unix_socket}"
        return parse_address(url, known or (server.token if is_own else ""), fingerprint)
    place = host_port(own_host(server.host or "127.0.0.1"), server.port or DEFAULT_PORT)
    if server.tls == "self-signed" or (server.tls != "off" and server.tls_certificate):
        # Late, as few need it.
        from streamer.server.certificates import fingerprint_of
        from streamer.server.tls import certificate_path

        place = f"wss://{place}"
        with contextlib.suppress(ConfigError):  # another user's
            fingerprint = fingerprint or fingerprint_of(certificate_path(server))
    return parse_address(place, token or known or server.token, fingerprint)
