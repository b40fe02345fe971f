"""`python -m streamer`, and what the installed command `streamer` calls."""

import contextlib
import logging
import os
import sys
import threading

# OpenVINO imports its converter of other models if it is installed: a tenth of the start, and no command needs it.
sys.modules["openvino.tools.ovc"] = None  # type: ignore[assignment]


def main() -> int:
    """Run the command that the arguments name and return its exit code.

    If a thread is left in something that cannot be interrupted (a model that is being compiled, a pipe that is being
    read), the process ends here: ending the interpreter under such a thread would abort it.
    """
    try:
        # Late, so that Ctrl-C ends what is still being imported in one line, too.
        from streamer import cli

        exit_code = cli.main()
    except KeyboardInterrupt:
        with contextlib.suppress(AttributeError, OSError):  # closed
            sys.stderr.write("streamer: error: interrupted\n")
        return 1
    if any(type(thread) is threading.Thread for thread in threading.enumerate()):
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
