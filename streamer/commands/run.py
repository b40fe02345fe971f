"""`streamer run`: the daemon."""

import re
import signal

from streamer.commands.invocation import Invocation
from streamer.commands.terminal import notice


def run(invocation: Invocation, *, captions: bool, corrections: bool) -> int:
    """Run the daemon until it is stopped. Returns the exit code. Raises StreamerError if it cannot start.

    captions : whether the input's captions are drawn in the terminal
    corrections : whether corrections are printed there, as lines of their own
    """
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the daemon handles it
    settings = invocation.settings()
    targets = invocation.overrides.get("outputs.to")
    if isinstance(targets, list) and any(re.match("(zoom|youtube):[^@]", target) for target in targets):
        notice(
            "every user of this machine sees the address in --to: use --to zoom:@FILE, or STREAMER_OUTPUTS_ZOOM_URL and"
            " --to zoom (youtube likewise)"
        )
    # Late: it takes a second, and a slip in a setting should be reported at once.
    from streamer import app

    return app.run(settings, captions=captions, corrections=corrections, read_settings=invocation.load)
