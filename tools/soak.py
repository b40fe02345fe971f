"""Runs for long, and looks whether anything grows: memory, threads, descriptors, delay.

    python tools/soak.py --minutes 60 --out soak.csv     a daemon in real time, with clients that come and go
    python tools/soak.py --read soak.csv                 what came of it so far
    python tools/soak.py --day                           a day of speech and silence on a virtual clock

In real time a recording is played as the daemon's own input, followed by one subscriber who takes the delay of each
final. Beside it come and go: streams with a sentence, subscribers with a replay, one who reads slowly, one who loses
the connection and resumes, requests for pages. Behind the first tenth a line is fitted through means of twentieths;
the exit code is 1 where a slope is above 0 by its 95 % interval, and above what noise explains, in the second half too.
"""

import argparse
import asyncio
import contextlib
import csv
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import psutil
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script it sees its own folder only

from websockets.asyncio.client import ClientConnection, connect  # noqa: E402
from websockets.exceptions import ConnectionClosed  # noqa: E402

from streamer.constants import SAMPLE_RATE  # noqa: E402
from streamer.engine.eventlog import EventLog  # noqa: E402
from streamer.events import Event  # noqa: E402
from streamer.server.outbox import Outbox  # noqa: E402
from tests.fakes import SpokenWord, spoken  # noqa: E402
from tests.unit.engine.simulation import Machine, Talker  # noqa: E402
from tools.attacks.target import Daemon, spoken_bytes, write_speech  # noqa: E402

LOOK_S = 10.0
WARM_UP = 0.1
N_MEANS = 20

# How much a figure may rise in an hour before it counts as growth, in its own unit.
ALLOWED = {"rss_mb": 8.0, "uss_mb": 8.0, "threads": 0.5, "fds": 0.5, "delay_p50_s": 0.05, "delay_p99_s": 0.3}
DAY_ALLOWED_KB = 20.0  # an hour, on the virtual clock
COLUMNS = ("minutes", "rss_mb", "uss_mb", "threads", "fds", "cpu", "delays")


@dataclass(frozen=True)
class Slope:
    """A line through a figure."""

    name: str
    first: float
    last: float

    # Change in an hour, and half of its 95 % interval.
    per_hour: float
    half: float

    # Change in an hour in the second half alone. A leak goes on there; a pool that filled up once does not.
    later: float

    @property
    def grows(self) -> bool:
        """Whether it rises, goes on to rise, and by more than noise explains."""
        return self.per_hour - self.half > 0 and min(self.per_hour, self.later) > ALLOWED[self.name]


def slope(name: str, hours: Sequence[float], values: Sequence[float]) -> Slope | None:
    """Fit a line through the means of twentieths behind the warm-up; None where there is too little.

    Neighbouring looks are alike, so that an interval from each of them would be far too small.
    """
    x, y = np.asarray(hours, dtype=float), np.asarray(values, dtype=float)
    kept = (x >= WARM_UP * x[-1]) & np.isfinite(y) if len(x) else np.zeros(0, bool)
    if kept.sum() < N_MEANS:
        return None
    xs = [part.mean() for part in np.array_split(x[kept], N_MEANS)]
    ys = [part.mean() for part in np.array_split(y[kept], N_MEANS)]
    fit = stats.linregress(xs, ys)
    half = float(stats.t.ppf(0.975, N_MEANS - 2) * fit.stderr)
    later = stats.linregress(xs[N_MEANS // 2 :], ys[N_MEANS // 2 :])
    return Slope(name, float(ys[0]), float(ys[-1]), float(fit.slope), half, float(later.slope))


def read(path: Path) -> int:
    """Print the slopes of what was written so far; return 1 where something grows."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    hours = [float(row["minutes"]) / 60 for row in rows]
    found = [slope(name, hours, [float(row[name]) for row in rows]) for name in ("rss_mb", "uss_mb", "threads", "fds")]
    delays = [(at, float(text)) for at, row in zip(hours, rows, strict=True) for text in row["delays"].split()]
    # A percentile needs several delays: of each minute.
    minutes = sorted({int(at * 60) for at, _ in delays})
    by_minute = [[delay for at, delay in delays if int(at * 60) == minute] for minute in minutes]
    for name, share in (("delay_p50_s", 50), ("delay_p99_s", 99)):
        found.append(slope(name, [m / 60 for m in minutes], [float(np.percentile(part, share)) for part in by_minute]))
    everything = [delay for _, delay in delays]
    print(f"{hours[-1] * 60 if hours else 0:.1f} minutes, {len(rows)} looks, {len(everything)} finals", end="")
    if everything:
        print(f", delay p50 {np.percentile(everything, 50):.2f} s, p99 {np.percentile(everything, 99):.2f} s", end="")
    print(f"\n{'figure':12} {'first':>9} {'last':>9} {'per hour':>10} {'95 %':>9} {'2nd half':>9}  grows")
    for fit in filter(None, found):
        print(
            f"{fit.name:12} {fit.first:9.3f} {fit.last:9.3f} {fit.per_hour:+10.3f} {fit.half:9.3f} {fit.later:+9.3f}"
            f"  {'YES' if fit.grows else 'no'}"
        )
    return int(any(fit.grows for fit in found if fit is not None))


# In real time.


class Soak:
    """A daemon and its clients."""

    def __init__(self, daemon: Daemon, out: Path, end_s: float) -> None:
        self._daemon = daemon
        self._out = out
        self._end_s = end_s
        self._begin_s = time.monotonic()
        self._chance = random.Random(14)
        # Delays of finals since the last look, and what the clients count.
        self._delays: list[float] = []
        self._counts: dict[str, int] = {}

    async def run(self) -> None:
        """Run until the end; write a line for each look."""
        works = (self._look, self._follow, self._streams, self._replays, self._read_slowly, self._resume, self._ask)
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(self._again(work))
        print(json.dumps(self._counts), flush=True)

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something again and again until the end; what a client meets is counted and stops nothing."""
        while time.monotonic() < self._end_s:
            try:
                async with asyncio.timeout(self._end_s - time.monotonic()):
                    await work()
                self._count(work.__name__)
            except TimeoutError:
                return
            except (OSError, ConnectionClosed, ExceptionGroup, EOFError) as error:
                self._count(f"{work.__name__} {type(error).__name__}")
                await asyncio.sleep(1.0)

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1

    async def _look(self) -> None:
        process = psutil.Process(self._daemon.pid)
        process.cpu_percent()
        with self._out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            while True:
                await asyncio.sleep(LOOK_S)
                memory = process.memory_full_info()
                delays, self._delays = self._delays, []
                row = [
                    f"{(time.monotonic() - self._begin_s) / 60:.3f}",
                    f"{memory.rss / 2**20:.2f}",
                    f"{memory.uss / 2**20:.2f}",
                    process.num_threads(),
                    process.num_fds() if sys.platform != "win32" else 0,
                    f"{process.cpu_percent():.0f}",
                    " ".join(f"{delay:.3f}" for delay in delays),
                ]
                writer.writerow(row)
                file.flush()

    def _connect(self, path: str) -> connect:
        return connect(f"ws://127.0.0.1:{self._daemon.port}{path}", proxy=None, max_size=None)

    async def _follow(self) -> None:
        """Take the delay of each final: behind the moment of its audio, by the quickest event there was."""
        ahead_s = float("inf")
        async with self._connect("/v1/captions") as socket:
            async for message in socket:
                event = json.loads(message)
                now_s = time.monotonic()
                told_s = event.get("end", event.get("time"))
                if told_s is None:
                    continue
                ahead_s = min(ahead_s, now_s - told_s)
                if event["type"] == "final":
                    self._delays.append(now_s - told_s - ahead_s)

    async def _streams(self) -> None:
        """Have a sentence transcribed; some leave in the middle, in order or not."""
        await asyncio.sleep(self._chance.uniform(5, 25))
        way = self._chance.choice(("finish", "finish", "close", "vanish"))
        async with self._connect("/v1/stream") as socket:
            await self._speak(socket, spoken_bytes())
            if way == "finish":
                await socket.send('{"type":"finish"}')
                async for _ in socket:
                    pass
            elif way == "vanish":
                socket.transport.abort()

    async def _speak(self, socket: ClientConnection, data: bytes) -> None:
        for first in range(0, len(data), 3200):
            await socket.send(data[first : first + 3200])
            await asyncio.sleep(0.1)

    async def _replays(self) -> None:
        await asyncio.sleep(self._chance.uniform(5, 25))
        async with self._connect("/v1/captions?after=0") as socket:
            end = time.monotonic() + self._chance.uniform(0, 5)
            with contextlib.suppress(TimeoutError):
                while (left := end - time.monotonic()) > 0:
                    async with asyncio.timeout(left):
                        await socket.recv()
            if self._chance.random() < 0.5:
                socket.transport.abort()

    async def _read_slowly(self) -> None:
        async with self._connect("/v1/captions?after=0") as socket:
            async for _ in socket:
                await asyncio.sleep(1.0)

    async def _resume(self) -> None:
        """Send audio over connections that break, and finish."""
        await asyncio.sleep(self._chance.uniform(5, 25))
        session, seq = "", 0
        data = spoken_bytes(12.6, 15.12)
        for _ in range(4):
            async with self._connect("/v1/stream") as socket:
                if session:
                    await socket.send(_resume(session, seq))
                event = json.loads(await socket.recv()) if session else None
                heard = event["heard_samples"] * 2 if event and event["type"] == "resumed" else 0
                if event and event["type"] == "error":
                    return
                await self._speak(socket, data[heard % len(data) :])
                with contextlib.suppress(TimeoutError):
                    while True:
                        async with asyncio.timeout(0.2):
                            event = json.loads(await socket.recv())
                            session, seq = event["session"], event["seq"]
                socket.transport.abort()
        async with self._connect("/v1/stream") as socket:
            await socket.send(_resume(session, seq))
            await socket.send('{"type":"finish"}')
            async for _ in socket:
                pass

    async def _ask(self) -> None:
        await asyncio.sleep(2.0)
        for path in ("/", "/healthz", "/metrics", "/captions.js", "/nothing"):
            await asyncio.to_thread(self._daemon.ask, path)


def _resume(session: str, after: int) -> str:
    return json.dumps({"type": "resume", "session": session, "after": after})


def soak(minutes: float, out: Path) -> int:
    """Run a daemon and its clients in real time; return the exit code."""
    os.chdir(ROOT)  # where `-m streamer` finds this checkout
    with tempfile.TemporaryDirectory(prefix="streamer-soak-") as folder:
        speech = Path(folder) / "speech.wav"
        write_speech(speech, minutes + 2.0)
        kept = {"SERVER_HISTORY": str(Path(folder) / "history.db")}
        daemon = Daemon(0, limits={}, settings=kept, arguments=("--input", str(speech)))
        daemon.start()
        try:
            asyncio.run(Soak(daemon, out, time.monotonic() + minutes * 60).run())
            said = daemon.said()
            print(f"{len(said)} bytes of log, {said.count('Traceback')} tracebacks, {said.count(' ERROR ')} errors")
            code = read(out)
            return 1 if "Traceback" in said else code
        finally:
            daemon.stop()


# A day, on a virtual clock.


class Logged(Talker):
    """A session whose events go into an event log and to a subscriber, as in the daemon, and are not kept beside."""

    def __init__(self, words: list[SpokenWord]) -> None:
        """Open its log."""
        super().__init__(0, words)
        self.log = EventLog("day", 10_000)
        self.outbox = Outbox(256)
        self.log.subscribe(self.outbox.put)

    def take(self, event: Event) -> None:
        """Publish an event, and send it."""
        self.log.append(event)
        while self.outbox.take() is not None:
            pass


def day(hours: int) -> int:
    """Let a session hear speech for hours of a virtual clock, with silence between; return the exit code."""
    machine = Machine(encode_s=0.3, decode_s=0.3)
    talker = machine.add(Logged(spoken(random.Random(0), hours * 3600.0, pause=0.2)))
    # Every fourth quarter of an hour is silent.
    talker.words[:] = [word for word in talker.words if word.start // (900 * SAMPLE_RATE) % 4 != 3]
    seen: list[tuple[float, float, int]] = []
    begin = time.monotonic()
    for hour in range(1, hours + 1):
        machine.run_until(hour * 3600.0)
        machine.decoder.decoded.clear()
        machine.encoder.encoded.clear()
        talker.passes.clear()
        gc.collect()
        seen.append((hour, held_kb(machine), len(gc.get_objects())))
        took_s = time.monotonic() - begin
        told = f"{seen[-1][1]:9.1f} kB in {seen[-1][2]} objects"
        print(f"hour {hour:3}: {told}, {talker.log.last_seq} events, {took_s:.0f} s", flush=True)
    # The log fills up to what it keeps, and so it counts from its fullness on.
    xs, ys, _ = np.array(seen[len(seen) // 2 :]).T
    fit = stats.linregress(xs, ys)
    half = float(stats.t.ppf(0.975, max(1, len(xs) - 2)) * fit.stderr)
    print(f"{fit.slope:+.2f} kB an hour, 95 % +- {half:.2f}, in the second half")
    return int(fit.slope - half > 0 and fit.slope > DAY_ALLOWED_KB)


def held_kb(root: object) -> float:
    """Return how much an object holds, with all that it leads to; what is said beforehand is no part of it."""
    left, known, n_bytes = [root], {id(root)}, 0
    while left:
        one = left.pop()
        n_bytes += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in known and not isinstance(other, type | ModuleType | FunctionType | SpokenWord):
                known.add(id(other))
                left.append(other)
    return n_bytes / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as told by the command line; return the exit code, 1 where something grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="in real time (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("soak.csv"), help="file for what is seen (default: %(default)s)"
    )
    parser.add_argument("--read", type=Path, metavar="FILE", help="say what came of a run so far, and do nothing else")
    parser.add_argument("--day", action="store_true", help="a day on a virtual clock instead")
    parser.add_argument("--hours", type=int, default=24, help="of that day (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.read is not None:
        return read(options.read)
    return day(options.hours) if options.day else soak(options.minutes, options.out)


if __name__ == "__main__":
    sys.exit(main())
