"""Damaged input for every parser that reads from a wire or a file: nothing but the errors that it names.

    python tools/fuzz_parsers.py                   a minute, all parsers in turn
    python tools/fuzz_parsers.py --minutes 60
    python tools/fuzz_parsers.py --only PCM events
    python tools/fuzz_parsers.py --list

Valid samples are damaged: bytes, lengths, numbers, pieces, depth. A parser fails where it raises another error than
those that it names, where an error is not one printable line, where an example takes more than a few seconds of the
processor, and where memory grows. Each failure is printed with the smallest input that was found, as a Python literal.
"""

import argparse
import ast
import contextlib
import logging
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script it sees its own folder only

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

from streamer.errors import StreamerError  # noqa: E402
from tools.parsers import dialogues, files, front, wire  # noqa: E402, F401 - each fills the table
from tools.parsers.mutations import damaged  # noqa: E402
from tools.parsers.table import MAKERS, Parser  # noqa: E402

TURN_S = 2.0  # of the processor, for a parser in one turn, as far as its sample tells
EXAMPLES = (20, 500)  # of a parser in one turn, at least and at most
MOST_S = 5.0  # of the processor, for an example
MOST_MB = 300  # that an example may make the process grow by
MOST_FAILURES = 5  # of a parser, then it is left out
MOST_MESSAGE = 2000  # characters of an error


class Slow(Exception):  # noqa: N818 - what an example was
    """An example took too long."""


class Large(Exception):  # noqa: N818 - what an example was
    """An example took too much memory."""


def try_out(parser: Parser, data: bytes) -> None:
    """Parse an example; raise what is not in order."""
    begin_s, begin_mb = time.process_time(), peak_mb()
    try:
        with at_most(3 * MOST_S):
            parser.parse(data)
    except parser.errors as error:
        if isinstance(error, StreamerError):
            message = str(error)
            assert message.isprintable(), f"the error is not one printable line: {message!r:.300}"
            assert len(message) < MOST_MESSAGE, f"the error has {len(message)} characters"
    took_s, grown_mb = time.process_time() - begin_s, peak_mb() - begin_mb
    if took_s > MOST_S:
        raise Slow(f"{took_s:.1f} s of the processor")
    if grown_mb > MOST_MB:
        raise Large(f"{grown_mb:.0f} MB more")


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise Slow in the middle of what computes for longer, where the system has such a clock (not on Windows)."""
    if not hasattr(signal, "SIGVTALRM"):
        yield
        return

    def stop(*_: object) -> None:
        raise Slow(f"more than {seconds:.0f} s of the processor: it hangs")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def peak_mb() -> float:
    """Return the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


class Fuzzer:
    """Tries parsers in turn, and keeps account."""

    def __init__(self, parsers: Sequence[Parser]) -> None:
        self.parsers = parsers
        self.examples: Counter[str] = Counter()
        # Where each failure is and what it says, by parser; each place once.
        self.failures: dict[str, list[str]] = {parser.name: [] for parser in parsers}

    def turn(self, parser: Parser, number: int) -> None:
        """Try one parser with fresh examples; print a failure that is new."""
        last = b""

        @seed(number)
        @settings(
            max_examples=self._n_examples(parser),
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(damaged(parser.samples))
        def run(data: bytes) -> None:
            nonlocal last
            last = data
            self.examples[parser.name] += 1
            try_out(parser, data)

        try:
            run()
        except Exception as error:  # noqa: BLE001 - any is a finding
            where = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in where if "/streamer/" in frame.filename] or list(where)
            place = f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
            if not any(place in known for known in self.failures[parser.name]):
                told = f"{place}: {error!s:.300}"
                self.failures[parser.name].append(told)
                print(f"\n{parser.name}: {told}\n  input ({len(last)} bytes): {_shown(parser, last)}", flush=True)

    def _n_examples(self, parser: Parser) -> int:
        begin_s = time.process_time()
        with contextlib.suppress(*parser.errors):
            parser.parse(parser.samples[0])
        cost_s = time.process_time() - begin_s + 0.001  # an example is made, too
        return round(min(max(TURN_S / cost_s, EXAMPLES[0]), EXAMPLES[1]))


def _shown(parser: Parser, data: bytes) -> str:
    """Return a small input whole, and of a large one where it differs from the sample that is most like it."""
    if len(data) <= 2000:
        return repr(data)
    path = Path(tempfile.gettempdir()) / f"fuzz-{abs(hash(data)) & 0xFFFFFFFF:08x}"
    path.write_bytes(data)
    return f"in {path}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as told by the command line; return the exit code, 1 where a parser failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="parsers whose names hold one of these")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--input", help="try this input once, a Python literal of bytes, or a file")
    parser.add_argument("--list", action="store_true", help="name the parsers")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="streamer-fuzz-") as name:
        made: list[Parser] = []
        for i, make in enumerate(MAKERS):
            folder = Path(name) / str(i)
            folder.mkdir()
            made += make(folder)
        chosen = [one for one in made if not options.only or any(part in one.name for part in options.only)]
        if options.list:
            print("\n".join(one.name for one in chosen))
            return 0
        if options.input is not None:
            is_file = Path(options.input).is_file()
            data = Path(options.input).read_bytes() if is_file else ast.literal_eval(options.input)
            for one in chosen:
                try_out(one, data)
            return 0
        for one in chosen:  # samples that are refused would make all else idle
            for sample in one.samples:
                try:
                    one.parse(sample)
                except one.errors as error:
                    if len(one.samples) == 1:
                        print(f"{one.name}: its sample is refused: {error}")
        return _fuzz(chosen, options.minutes, options.seed)


def _fuzz(parsers: Sequence[Parser], minutes: float, first_seed: int) -> int:
    fuzzer = Fuzzer(parsers)
    begin = time.monotonic()
    number = first_seed
    while time.monotonic() - begin < minutes * 60:
        for parser in parsers:
            if len(fuzzer.failures[parser.name]) < MOST_FAILURES:
                fuzzer.turn(parser, number)
            if time.monotonic() - begin >= minutes * 60:
                break
        number += 1
    print(f"\n{'parser':48} {'examples':>9} failures")
    for parser in parsers:
        print(f"{parser.name:48} {fuzzer.examples[parser.name]:9} {len(fuzzer.failures[parser.name])}")
    n_failures = sum(map(len, fuzzer.failures.values()))
    print(
        f"{sum(fuzzer.examples.values())} examples of {len(parsers)} parsers in {time.monotonic() - begin:.0f} s,"
        f" seeds {first_seed} to {number - 1}: {n_failures} failures; peak memory {peak_mb():.0f} MB"
    )
    return 1 if n_failures else 0


if __name__ == "__main__":
    sys.exit(main())
