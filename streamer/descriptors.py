"""File descriptors: as many as the system allows, and one line in the log if none is left."""

import asyncio
import errno
import logging
import sys
from typing import Any

logger = logging.getLogger(__name__)

# As many as are asked for, most first: macOS refuses more than 10,240, whatever its limit says.
WANTED = (65_536, 10_240)

# Between two lines in the log that none is left.
LOGGED_EVERY_S = 60.0

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_limit() -> None:
    """Raise this process's limit of descriptors to what the system allows, at most 65,536."""
    if sys.platform == "win32":  # which has no such limit for sockets
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in WANTED:
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            logger.debug("the limit of descriptors stays %d, %d was refused: %s", soft, wanted, error)
        else:
            return


class LoopErrors:
    """Handles errors in a loop's callbacks as the loop does, but logs at most once a minute that it cannot accept.

    The loop would log that for each connection in a listening socket's queue, every second, with a traceback.
    """

    def __init__(self) -> None:
        # When it may be logged again, in seconds of the loop's clock.
        self._next_s = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error (see `loop.set_exception_handler`)."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _EXHAUSTED and "accept" in context["message"]):
            loop.default_exception_handler(context)
        elif loop.time() >= self._next_s:
            self._next_s = loop.time() + LOGGED_EVERY_S
            logger.error(
                "new connections wait, as there is no room for them (%s): expected more descriptors than connections;"
                " raise `ulimit -n` (LimitNOFILE= of a service), or lower server.max_connections",
                error.strerror,
            )
