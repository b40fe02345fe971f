"""Attack a daemon in every known way, and check that it serves as before.

    python tools/attack.py                  all attacks, on daemons of its own
    python tools/attack.py slow-heads ...   some of them
    python tools/attack.py --list           what each does, and what must hold

The attacks are in tools/attacks/conversations.yaml. After each an honest client has its sentence transcribed,
`/healthz` answers, and memory, threads, descriptors, processor time and the log are within their bounds. Prints a line
for each; the exit code is 1 if one did not hold. No attack leaves this machine.
"""

import argparse
import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script it sees its own folder only

from tools.attacks import table  # noqa: E402
from tools.attacks.target import MAX_STREAMS, Daemon, Look, watch, write_speech  # noqa: E402
from tools.attacks.wire import Broken, Wire, expect  # noqa: E402

SETTLE_S = 12.0  # for what an attack opened to be gone
SLOW_S = 5.0  # for /healthz, on a machine that does other things too
IDLE_CPU, OWN_CPU = 0.3, 0.9  # of a processor: without requests; while the daemon's own input is transcribed
MORE_THREADS, MORE_FDS = 6, 3  # a pool fills up; a file is opened once
TOTAL_MB = 64.0  # that a daemon may grow by in all attacks together
HEADINGS = "attack", "held", "peak MB", "kept MB", "fds", "thr", "log B", "health", "s"
LINE = "{:30} {:4} {:>7} {:>7} {:>4} {:>4} {:>8} {:>6} {:>5}  {}"

# As many streams as there are slots, so that their memory has been allocated.
_STREAM = {"n": MAX_STREAMS, "path": "/v1/stream", "start": ["start", "finish"]}
_FILL = [{"connections": [_STREAM], "closed_s": 10.0}]


class Subject:
    """The daemon of one kind that is attacked; started when it is first used."""

    def __init__(self, kind: table.Kind, folder: Path) -> None:
        self.kind, fields = kind, table.KINDS.get(kind, {})
        if kind == "own":
            fields = {"arguments": ("--input", str(folder / "speech.wav"))}
            write_speech(folder / "speech.wav", 15.0)
        self.daemon = Daemon(**{"port": 0, **fields})
        self.first: Look | None = None  # when it was warm
        self.honest_mb = 0.0  # at the largest, with as many honest clients as there are slots

    def start(self) -> None:
        """Have the daemon run and be warm. Raises Broken if it does not start."""
        if self.first and self.daemon.alive:
            return
        self.stop()
        self.daemon.start()
        with watch(self.daemon, probe=False) as watched:
            for _ in range(3):  # what is allocated once is allocated now
                self.daemon.serve_honest()
            if not self.daemon.tls:
                table.run_steps(self.daemon, _FILL)
        self.honest_mb = watched.peak_mb
        self.first = self.settle()

    def stop(self) -> None:
        """End the daemon."""
        if self.daemon.port:
            self.daemon.stop()
        self.daemon.port, self.first = 0, None

    def settle(self, before: Look | None = None, kept_mb: float = 0.0) -> Look:
        """Wait until the daemon is idle and as before, or the time is over; return how it is. Raises Broken."""
        end = time.monotonic() + SETTLE_S
        earlier = self.daemon.look()
        while True:
            begin = time.monotonic()
            time.sleep(0.4)
            now = self.daemon.look()
            used = (now.cpu_s - earlier.cpu_s) / (time.monotonic() - begin)
            idle = used < (OWN_CPU if self.kind == "own" else IDLE_CPU)
            n_left = self.daemon.n_sessions() if idle else 0
            same = before is None or (not differences(before, now) and now.rss_mb - before.rss_mb <= kept_mb)
            if (idle and not n_left and same) or begin > end:
                expect(idle, f"it still uses {used:.0%} of a processor")
                expect(not n_left, f"{n_left} sessions are still served")
                return now
            earlier = now


def differences(before: Look, after: Look) -> str:
    """Return which threads and descriptors have been added; empty if they are as before."""
    threads, fds = after.threads - before.threads, after.fds - before.fds
    return f"{threads} more threads, {fds} more descriptors" if threads > MORE_THREADS or fds > MORE_FDS else ""


def check_log(said: str, bounds: table.Attack) -> None:
    """Raise Broken if the log of an attack is longer than allowed, or lacks or holds what it should not."""
    why = re.findall(r"^[\w.]+(?:Error|Exception)\b.*|.* ERROR .*", said, re.MULTILINE)[-1:]
    expect("Traceback" not in said, f"{said.count('Traceback')} tracebacks, {len(said)} bytes of log: {why}")
    expect(said.count(" ERROR ") <= bounds.errors, f"{said.count(' ERROR ')} errors in the log: {why}")
    expect(len(said) <= bounds.log_bytes, f"{len(said)} bytes of log, such as {said[:100]!r}")
    expect(re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", said) is None, "control characters in the log")
    expect(bounds.logged in said, f"the log lacks {bounds.logged!r}")
    expect(not any(text in said for text in bounds.not_logged), f"the log holds one of {bounds.not_logged}")


def run(bounds: table.Attack, subject: Subject) -> tuple[bool, list[str], str]:
    """Run an attack and all checks after it; return whether everything held, the figures, and what was seen."""
    figures = [""] * 6
    try:
        if bounds.kind == "self":
            return True, figures, bounds.run(None)
        subject.start()
        daemon = subject.daemon
        before, seen, failed = daemon.look(), "", None
        with watch(daemon, probe=bounds.probe) as watched:
            try:
                seen = bounds.run(daemon)
            except Broken as broken:  # the daemon's figures are of interest all the same
                failed = broken
        Wire.close_all()
        after = subject.settle(before, bounds.kept_mb)
        peak_mb, kept_mb = watched.peak_mb - before.rss_mb, after.rss_mb - before.rss_mb
        fds, threads = f"{after.fds - before.fds:+d}", f"{after.threads - before.threads:+d}"
        n_log = str(after.log_bytes - before.log_bytes)
        figures = [f"{peak_mb:+.1f}", f"{kept_mb:+.1f}", fds, threads, n_log, f"{watched.slowest_s:.2f}"]
        if failed is not None:
            raise failed
        check_log(daemon.said(before.log_bytes), bounds)
        expect(not watched.failures, f"/healthz meanwhile: {watched.failures[:1]}, {len(watched.failures)} times")
        expect(watched.slowest_s < SLOW_S, f"/healthz took {watched.slowest_s:.1f} s meanwhile")
        # An idle daemon returns memory to the system, more or less of it: what honest clients need may come again.
        expect(watched.peak_mb - max(before.rss_mb, subject.honest_mb) <= bounds.peak_mb, "memory grows while it lasts")
        expect(not differences(before, after), differences(before, after))
        expect(kept_mb <= bounds.kept_mb, "memory stays")
        status, body = daemon.ask("/healthz")
        expect(status == 200, f"/healthz answers {status} {body[:100]}")
        daemon.serve_honest()
    except Broken as broken:
        return False, figures, " ".join(str(broken).split())
    except Exception as error:  # noqa: BLE001 - a fault of the attack is reported too, and the others are run
        return False, figures, f"the attack itself fails: {type(error).__name__}: {error}"
    return True, figures, seen


def run_kind(chosen: Sequence[table.Attack], kind: table.Kind) -> list[str]:
    """Run attacks on one daemon; print a line for each, and return the names of those that did not hold."""
    lost = []
    with tempfile.TemporaryDirectory(prefix="streamer-attacks-") as folder, contextlib.ExitStack() as stack:
        subject = Subject(kind, Path(folder))
        stack.callback(subject.stop)
        for one in chosen:
            begin = time.monotonic()
            held, figures, seen = run(one, subject)
            took = f"{time.monotonic() - begin:.1f}"
            print(LINE.format(one.name, "yes" if held else "NO", *figures, took, seen[:200]), flush=True)
            lost += [] if held else [one.name]
        if subject.first and subject.daemon.alive:
            grown = subject.daemon.look().rss_mb - subject.first.rss_mb
            held = grown <= TOTAL_MB
            print(LINE.format(f"all on {kind}", "yes" if held else "NO", "", f"{grown:+.1f}", *[""] * 6))
            lost += [] if held else [f"all on {kind}"]
    return lost


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as the command line says; return the exit code, 1 if something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="print what each does, and what must hold")
    parser.add_argument("--fresh", action="store_true", help="a new daemon for each attack: slower, no memory adds up")
    options = parser.parse_args(arguments)
    attacks = table.read()
    if options.list:
        print("\n".join(f"{one.name:32} {one.what}: {one.must}" for one in attacks.values()))
        return 0
    if unknown := [name for name in options.names if name not in attacks]:
        parser.error(f"unknown attack {unknown[0]}: --list prints them all")

    os.chdir(ROOT)  # for `-m streamer` to find this checkout
    chosen = sorted((attacks[name] for name in options.names or attacks), key=lambda one: one.kind)
    begin = time.monotonic()
    print(LINE.format(*HEADINGS, "seen"))
    lost = []
    for _, group in groupby(chosen, key=lambda one: one.name if options.fresh else one.kind):
        lost += run_kind(together := list(group), together[0].kind)
    print(f"{len(chosen) - len(lost)} of {len(chosen)} held, in {time.monotonic() - begin:.0f} s")
    print("".join(f"did not hold: {name}\n" for name in lost), end="")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
