"""`streamer overlay`: a daemon's captions over all windows."""

from typing import Annotated, Literal

import platformdirs

from streamer.commands.listen import Daemon, Fingerprint, TokenFile, daemon_address
from streamer.commands.signature import Arg, Flags, endless, needs
from streamer.errors import UsageError
from streamer.plugins.overlay.place import MAX_SIZE, MIN_SIZE
from streamer.plugins.overlay.settings import OverlaySettings
from streamer.settings.table import Settings

FLAGS = ("overlay.position", "overlay.size", "overlay.width", "overlay.opacity", "overlay.fade_s")


@endless
@needs("PySide6", extra="overlay")
def overlay(
    action: Annotated[
        Literal["toggle", "move", "quit"] | None,
        Arg("pause an overlay that runs, or let it go on; let the mouse move and resize it, or no longer; end it"),
    ] = None,
    *,
    daemon: Daemon = None,
    token_file: TokenFile = "",
    fingerprint: Fingerprint = "",
    settings: Annotated[Settings, Flags(FLAGS)],
) -> int:
    """Show the captions of a running daemon over all windows.

    Shows the last two lines; clicks go through. The tray icon pauses, moves, resizes and ends it, and so do keys that
    the desktop binds to `streamer overlay toggle`, `move` and `quit`. Place and size are remembered. Waits for a daemon
    that is away. Ends with Ctrl-C, too.

    Example: streamer overlay --position top --size 60
    """
    # Late, as the command line itself needs none of them.
    from streamer.lock import LockedError
    from streamer.plugins.instance import ask, only_one, port_file

    chosen = settings.of(OverlaySettings)
    if 0 < chosen.size < MIN_SIZE:
        raise UsageError(
            f"overlay.size is {chosen.size}: expected {MIN_SIZE} to {MAX_SIZE} pixels, or 0 as it was left"
        )
    address = daemon_address(daemon, token_file, fingerprint, settings)
    try:
        with only_one("overlay") as port:
            if action == "quit":
                raise UsageError("no overlay is running: `streamer overlay` starts one")
            from streamer.plugins.overlay.program import show

            file = platformdirs.user_state_path("streamer", appauthor=False) / "overlay.json"
            show(address, chosen, file, port, moving=action == "move")
    except LockedError:
        if action is None:
            raise UsageError(
                "an overlay is already running: pause, move or end it with `streamer overlay toggle`, `move` or `quit`"
            ) from None
        ask(port_file("overlay"), action, "streamer overlay")
    return 0
