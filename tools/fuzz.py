"""Sessions that go through anything, held against all that docs/protocol.md promises.

    python tools/fuzz.py                         10,000 sessions in simulated time
    python tools/fuzz.py --threads               real threads: less deterministic, and slower
    python tools/fuzz.py --seed N                once more what seed N has in store

Random audio, decoders, failures, holes, pauses and commands. The last line is what was tried and what came of it; for
each promise that was broken there is a line before it, with the seed.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script it sees its own folder only

from tests.unit.engine.fuzzing import Totals, run_in_simulated_time, run_threads  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as told by the command line; return the exit code, 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000, help="how many, at least (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first few sessions; then one more each")
    parser.add_argument("--seed", type=int, help="run this seed alone, with everything that is logged")
    parser.add_argument("--threads", action="store_true", help="with real threads instead of simulated time")
    options = parser.parse_args(arguments)
    # What is put in fails loudly by design.
    logging.basicConfig(level=logging.DEBUG if options.seed is not None else logging.CRITICAL + 1, stream=sys.stderr)
    run = run_threads if options.threads else run_in_simulated_time
    totals = Totals()
    seed = options.first_seed
    if options.seed is not None:
        options.sessions = 0
        run(options.seed, totals)
    while totals.sessions < options.sessions and len(totals.broken) < 100:
        try:
            run(seed, totals)
        except Exception as error:  # noqa: BLE001 - whatever breaks is reported with its seed
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
            totals.broken.append((seed, what))
            print(f"python tools/fuzz.py{' --threads' * options.threads} --seed {seed}: {what}", flush=True)
        seed += 1
    print(totals)
    return 1 if totals.broken else 0


if __name__ == "__main__":
    sys.exit(main())
