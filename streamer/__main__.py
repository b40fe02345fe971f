"""`python -m streamer`, and what the installed command `streamer` calls."""

import sys

from streamer.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
