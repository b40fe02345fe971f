"""`streamer type`: types what is said to a daemon into the focused window."""

from typing import Annotated

from streamer.commands.listen import Daemon, Fingerprint, TokenFile, daemon_address
from streamer.commands.signature import Arg, Flags, endless
from streamer.settings.table import Settings


@endless
def type_text(
    *,
    finals: Annotated[bool, Arg("whole sentences, not words as soon as they are stable")] = False,
    key: Annotated[
        str, Arg("only while this key is held: F1 to F24, Pause, ScrollLock, Menu (X11, Windows)", "KEY")
    ] = "",
    toggle: Annotated[bool, Arg("begin or end the typing of a `streamer type` that runs, else start one")] = False,
    daemon: Daemon = None,
    token_file: TokenFile = "",
    fingerprint: Fingerprint = "",
    settings: Annotated[Settings, Flags()],
) -> int:
    """Type what is said to a running daemon into the focused window.

    Types words when they no longer change. To begin and end typing by a key, bind `streamer type --toggle` to it in the
    desktop's settings. Text that cannot be typed goes to the clipboard and the terminal. Ends with Ctrl-C.

    Example: streamer type --finals
    """
    from streamer.plugins.dictation.command import dictate

    dictate(daemon_address(daemon, token_file, fingerprint, settings), finals=finals, key=key, toggle=toggle)
    return 0
