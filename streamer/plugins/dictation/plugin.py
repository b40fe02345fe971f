"""What dictation adds: a command."""

from streamer.commands.table import CLIENT, DAEMON, Subcommand, argument

TYPE = Subcommand(
    "type",
    "type what is said to a running daemon into the focused window",
    "streamer.plugins.dictation.command:type_text",
    (
        argument("--finals", "whole sentences, not words as soon as they are stable", action="store_true"),
        argument(
            "--key",
            "only while this key is held: F1 to F24, Pause, ScrollLock, Menu (X11, Windows)",
            default="",
            metavar="KEY",
        ),
        argument(
            "--toggle",
            "begin or end the typing of a `streamer type` that runs, else start one",
            action="store_true",
        ),
        argument("--daemon", dest="url", **DAEMON),
        *CLIENT,
    ),
    example="--finals",
    more="Types words when they no longer change. To begin and end typing by a key, bind `streamer type --toggle`"
    " to it in the desktop's settings. Text that cannot be typed goes to the clipboard and the terminal. Ends with"
    " Ctrl-C.",
    endless=True,
    ends_on_sigterm=True,
)
