"""python -m tools.cluster WHAT ...: faults or cost, each with its own --help."""

import importlib
import sys

WHAT = ("faults", "cost")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in WHAT:
        sys.exit(f"expected python -m tools.cluster {{{','.join(WHAT)}}} ...")
    sys.exit(importlib.import_module(f"tools.cluster.{sys.argv[1]}").main(sys.argv[2:]))
