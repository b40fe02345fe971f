"""`streamer listen`: prints what a running daemon publishes; and what all clients of one need."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from streamer.commands.invocation import read_token
from streamer.commands.signature import Arg, Flags, endless
from streamer.commands.terminal import make_console, notice, run_until_interrupted
from streamer.errors import ConfigError, UsageError
from streamer.events import Error, Event, Gap
from streamer.outside import host_port, one_line, own_host
from streamer.settings.load import TOKEN_VARIABLE
from streamer.settings.table import Settings

if TYPE_CHECKING:
    from streamer.client.connection import DaemonAddress
    from streamer.outputs.subtitles import Writer

logger = logging.getLogger(__name__)

# Finals that wait for their revisions if they are written as subtitles.
N_WAITING = 2

# Arguments that say which daemon it is, as `daemon_address` takes them.
Daemon = Annotated[
    str | None,
    Arg(
        "the daemon: HOST:PORT, ws://..., wss://... or unix://PATH (default: the port of the settings, on this"
        " machine)",
        "URL",
    ),
]
TokenFile = Annotated[
    str,
    Arg("holds what the daemon asks its clients for; - is standard input (default: STREAMER_TOKEN's value)", "FILE"),
]
Fingerprint = Annotated[str, Arg("certificate of the daemon, as it prints it at its start", "SHA256")]

Corrections = Annotated[bool, Arg("print corrections of captions as lines, instead of changing those on the screen")]


@endless
def listen(
    url: Daemon = None,
    *,
    token_file: TokenFile = "",
    fingerprint: Fingerprint = "",
    format: Annotated[
        Literal["text", "jsonl", "srt", "vtt", "captions"] | None,
        Arg("what to write (default: captions in a terminal, else text)"),
    ] = None,
    corrections: Corrections = False,
    settings: Annotated[Settings, Flags(("output.subtitle_style",))],
) -> int:
    """Print what a running daemon publishes.

    Follows its captions, across interruptions, until it ends.

    Example: streamer listen --format text
    """
    daemon = daemon_address(url, token_file, fingerprint, settings)
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
        run_until_interrupted(follow(daemon, sink.handle, tell_trouble=not shown))
    finally:
        with contextlib.suppress(OSError):  # the reader of the pipe may have gone
            sink.close()
    return 0


async def follow(address: "DaemonAddress", handle: Callable[[Event], object], *, tell_trouble: bool) -> None:
    """Pass a daemon's events to `handle`; with `tell_trouble` log gaps and errors, if it does not show them."""
    from streamer.client.captions import listen as listen_to

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


def daemon_address(url: str | None, token_file: str, fingerprint: str, settings: Settings) -> "DaemonAddress":
    """Return the address of a daemon: `url`, or the one at which the settings would start one. Raises UsageError.

    If neither a file nor `url` has a token, it is that of the environment; for the daemon of the settings, else
    theirs. The certificate of the daemon of the settings is known by its file.
    """
    from streamer.client.connection import DEFAULT_PORT, parse_address

    server = settings.server
    token = read_token(token_file) if token_file else ""
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
