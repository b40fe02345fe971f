"""python -m tools.cluster faults ..., with a --help of its own."""

import sys

from tools.cluster.faults import main

if __name__ == "__main__":
    if sys.argv[1:2] != ["faults"]:
        sys.exit("expected: python -m tools.cluster faults ...")
    sys.exit(main(sys.argv[2:]))
