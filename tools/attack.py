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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script it sees its own folder only

from tools.attacks import table  # noqa: E402
from tools.attacks.table import Attack, Kind, run_steps  # noqa: E402
from tools.attacks.target import MAX_STREAMS, TOKEN, Daemon, Look, Watch, write_speech  # noqa: E402
from tools.attacks.wire import Broken, Wire, expect  # noqa: E402

SETTLE_S = 12.0  # for what an attack opened to be gone
SLOW_S = 5.0  # for /healthz, on a machine that does other things too
IDLE_CPU = 0.3  # of a processor; nobody asks for anything
OWN_CPU = 0.9  # the same while the daemon's own input is transcribed
MORE_THREADS, MORE_FDS = 6, 3  # a pool fills up; a file is opened once
TOTAL_MB = 64.0  # that a daemon may grow by in all attacks together

# As many streams as there are slots, so that their memory has been allocated.
_STREAM = {"n": MAX_STREAMS, "path": "/v1/stream", "start": ["start", "finish"]}
_FILL = [{"connections": [_STREAM], "closed_s": 10.0}]

_CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class Daemons:
    """The daemons that are attacked: one of a kind, started when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[Kind, Daemon] = {}
        # How each was at the beginning, and its largest memory with as many honest clients as there are slots.
        self._first: dict[Kind, Look] = {}
        self.honest_mb: dict[Kind, float] = {}

    def of(self, kind: Kind) -> Daemon:
        """Return a daemon that runs and is warm. Raises Broken where none can be started."""
        daemon = self._running.get(kind)
        if daemon is not None and daemon.alive:
            return daemon
        if daemon is not None:
            daemon.stop()
        daemon = self._running[kind] = self._make(kind)
        daemon.start()
        with Watch(daemon, probe=False) as watch:
            for _ in range(3):  # what is made once is made now
                daemon.serve_honest()
            if not daemon.tls:
                run_steps(daemon, _FILL)
        self.honest_mb[kind] = watch.peak_mb
        settle(daemon, None, OWN_CPU if kind == "own" else IDLE_CPU)
        self._first[kind] = daemon.look()
        return daemon

    def grown_mb(self) -> dict[str, float]:
        """Return by how much each that runs has grown since it was warm."""
        return {
            k: d.look().rss_mb - self._first[k].rss_mb for k, d in self._running.items() if d.alive and k in self._first
        }

    def stop(self) -> None:
        """Have them gone."""
        for daemon in self._running.values():
            daemon.stop()

    def _make(self, kind: Kind) -> Daemon:
        match kind:
            case "own":
                speech = self._folder / "speech.wav"
                if not speech.exists():
                    write_speech(speech, 15.0)
                return Daemon(0, arguments=("--input", str(speech)))
            case "token":
                return Daemon(0, token=TOKEN)
            case "tls":
                return Daemon(0, tls=True, settings={"SERVER_TLS": "self-signed"})
            case "few":
                return Daemon(0, most_fds=96)
            case _:
                return Daemon(0)


def settle(daemon: Daemon, before: Look | None, most_cpu: float, kept_mb: float = 0.0) -> Look:
    """Wait until a daemon is idle and as it was before; return how it is when that is so, or the time is over.

    Its memory may have grown by `kept_mb`.
    """
    end = time.monotonic() + SETTLE_S
    earlier = daemon.look()
    while True:
        begin = time.monotonic()
        time.sleep(0.4)
        now = daemon.look()
        idle = (now.cpu_s - earlier.cpu_s) / (time.monotonic() - begin) < most_cpu
        left = idle and daemon.n_sessions()
        as_before = before is None or (not differences(before, now) and now.rss_mb - before.rss_mb <= kept_mb)
        if idle and not left and as_before:
            return now
        if begin > end:
            expect(idle, "it computes on and on")
            expect(not left, f"{left} sessions are served on and on")
            return now
        earlier = now


def differences(before: Look, after: Look) -> list[str]:
    """Return what is not as it was."""
    found = []
    if after.threads > before.threads + MORE_THREADS:
        found.append(f"{after.threads - before.threads} more threads")
    if after.fds > before.fds + MORE_FDS:
        found.append(f"{after.fds - before.fds} more descriptors")
    return found


def check_log(said: str, bounds: Attack) -> None:
    """Raise Broken where the log of an attack is longer than it may be, or not what a log should be."""
    expect("Traceback" not in said, f"{said.count('Traceback')} tracebacks, {len(said)} bytes of log: {_why(said)}")
    expect(said.count(" ERROR ") <= bounds.errors, f"{said.count(' ERROR ')} errors in the log: {_why(said)}")
    expect(len(said) <= bounds.log_bytes, f"{len(said)} bytes of log, such as {said[:100]!r}")
    expect(_CONTROLS.search(said) is None, "control characters in the log")


def _why(said: str) -> str:
    named = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", said, re.MULTILINE) or re.findall(".* ERROR .*", said)
    return str(named[-1])[:120] if named else ""


def run(bounds: Attack, daemons: Daemons) -> tuple[bool, str, str]:
    """Run an attack and all checks behind it; return whether everything held, the figures, and what was seen."""
    daemon: Daemon | None = None
    figures = ""
    told = ""
    try:
        if bounds.kind == "self":
            return True, figures, bounds.run(None)
        daemon = daemons.of(bounds.kind)
        before = daemon.look()
        failed: Broken | None = None
        with Watch(daemon, probe=bounds.probe) as watch:
            try:
                told = bounds.run(daemon)
            except Broken as broken:  # how the daemon came through is told all the same
                failed = broken
        Wire.close_all()
        after = settle(daemon, before, OWN_CPU if bounds.kind == "own" else IDLE_CPU, bounds.kept_mb)
        figures = (
            f"{watch.peak_mb - before.rss_mb:+7.1f} {after.rss_mb - before.rss_mb:+7.1f} {after.fds - before.fds:+4d}"
            f" {after.threads - before.threads:+4d} {after.log_bytes - before.log_bytes:8d} {watch.slowest_s:6.2f}"
        )
        if failed is not None:
            raise failed
        said = daemon.said(before.log_bytes)
        check_log(said, bounds)
        expect(not daemon.token or daemon.token not in said, "the log holds the token")
        expect(not watch.failures, f"/healthz meanwhile: {watch.failures[:1]}, {len(watch.failures)} times")
        expect(watch.slowest_s < SLOW_S, f"/healthz took {watch.slowest_s:.1f} s meanwhile")
        # An idle daemon gives memory back to the system, more or less of it: what honest clients need may come again.
        usual_mb = max(before.rss_mb, daemons.honest_mb.get(bounds.kind, 0.0))
        expect(watch.peak_mb - usual_mb <= bounds.peak_mb, "memory grows while it lasts")
        expect(not differences(before, after), ", ".join(differences(before, after)) + " stay")
        expect(after.rss_mb - before.rss_mb <= bounds.kept_mb, "memory stays")
        status, body = daemon.ask("/healthz")
        expect(status == 200, f"/healthz answers {status} {body[:100]}")
        daemon.serve_honest()
    except Broken as broken:
        return False, figures, " ".join(str(broken).split())
    except Exception as error:  # noqa: BLE001 - a fault of the attack is told too, and the others are run
        return False, figures, f"the attack itself fails: {type(error).__name__}: {error}"
    return True, figures, told


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as told by the command line; return the exit code, 1 where something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="say what each does, and what must hold")
    parser.add_argument(
        "--fresh", action="store_true", help="a new daemon for each attack: slower, and nothing adds up"
    )
    options = parser.parse_args(arguments)
    attacks = table.read()
    if options.list:
        for one in attacks.values():
            print(f"{one.name:32} {one.what}: {one.must}")
        return 0
    unknown = [name for name in options.names if name not in attacks]
    if unknown:
        parser.error(f"there is no attack {unknown[0]}: --list has them all")

    os.chdir(ROOT)  # where `-m streamer` finds this checkout
    chosen = [one for one in attacks.values() if not options.names or one.name in options.names]
    chosen.sort(key=lambda one: one.kind)  # each kind of daemon is done with before the next
    lost = []
    begin = time.monotonic()
    print(
        f"{'attack':30} {'held':4} {'peak MB':>7} {'kept MB':>7} {'fds':>4} {'thr':>4} {'log B':>8} {'health':>6}"
        f" {'s':>5}  seen"
    )
    with tempfile.TemporaryDirectory(prefix="streamer-attacks-") as folder, contextlib.ExitStack() as stack:
        daemons = Daemons(Path(folder))
        stack.callback(lambda: daemons.stop())
        for i, one in enumerate(chosen):
            if i and (options.fresh or one.kind != chosen[i - 1].kind):
                lost += _check_growth(daemons)
                daemons.stop()
                daemons = Daemons(Path(folder))
            started = time.monotonic()
            held, figures, seen = run(one, daemons)
            lost += [] if held else [one.name]
            print(
                f"{one.name:30} {'yes' if held else 'NO':4} {figures:41} {time.monotonic() - started:5.1f}"
                f"  {seen[:200]}",
                flush=True,
            )
        lost += _check_growth(daemons)
    print(f"{len(chosen) - len(lost)} of {len(chosen)} held, in {time.monotonic() - begin:.0f} s")
    for name in lost:
        print(f"did not hold: {name}")
    return 1 if lost else 0


def _check_growth(daemons: Daemons) -> list[str]:
    """Return the kinds of daemons that all attacks together made too large."""
    grown = daemons.grown_mb()
    for kind, mb in grown.items():
        print(f"{'all on ' + kind:30} {'yes' if mb <= TOTAL_MB else 'NO':4} {'':7} {mb:+7.1f}")
    return [f"all on {kind}" for kind, mb in grown.items() if mb > TOTAL_MB]


if __name__ == "__main__":
    sys.exit(main())
