"""`streamer run`: the daemon."""

import re
import signal
from typing import Annotated

from streamer.commands.invocation import Invocation
from streamer.commands.listen import Corrections
from streamer.commands.signature import ADDRESS, CORRECTION, MODEL, Arg, Flags, endless
from streamer.commands.terminal import notice

# Settings of the daemon.
RUN = (
    *("input.source", "input.fallback", "input.microphone", "input.speed", "input.exit_at_end"),
    *("input.min_battery", "model.unload_s"),
    *(*ADDRESS, "server.history", "server.history_audio", "outputs.to"),
    *(*CORRECTION, "speakers.enabled", "speech.turns"),
)


@endless
def run(
    *,
    captions: Annotated[bool, Arg("do not draw captions in the terminal")] = True,
    corrections: Corrections = False,
    invocation: Annotated[Invocation, Flags((*RUN, *MODEL), decoding="live")],
) -> int:
    """The daemon: captions live audio for every client that connects.

    Publishes captions on one port: a page for browsers, WebSockets for programs. Ends with Ctrl-C.

    Example: streamer run --model base.en
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
