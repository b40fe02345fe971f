"""Runs a daemon for long, and looks whether anything grows: memory, threads, descriptors, delay.

    python tools/soak.py --minutes 60 --out soak.csv     a daemon in real time, with clients that come and go
    python tools/soak.py --read soak.csv                 what came of it so far

A recording is played as the daemon's own input, followed by one subscriber who takes the delay of each final. Beside it
come and go: streams with a sentence, subscribers with a replay, one who reads slowly, one who loses the connection and
resumes, requests for pages. Behind the first tenth a line is fitted through means of twentieths; the exit code is 1 if
a slope is above 0 by its 95 % interval, and above what noise explains, in the second half too.
"""

import argparse
import asyncio
import csv
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import soundfile
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script it sees its own folder only

from websockets.asyncio.client import connect  # noqa: E402
from websockets.exceptions import ConnectionClosed  # noqa: E402

from streamer.constants import SAMPLE_RATE  # noqa: E402
from streamer.events import Error, Resumed  # noqa: E402
from tests.daemon import Daemon, connected, recording, running, send_audio, transcribe  # noqa: E402

LOOK_S = 10.0
WARM_UP = 0.1
N_MEANS = 20

# How much a figure may rise in an hour before it counts as growth, in its own unit.
ALLOWED = {"rss_mb": 8.0, "uss_mb": 8.0, "threads": 0.5, "fds": 0.5, "delay_p50_s": 0.05, "delay_p99_s": 0.3}
COLUMNS = ("minutes", "rss_mb", "uss_mb", "threads", "fds", "cpu", "delays")


class Slope(NamedTuple):
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
    """Fit a line through the means of twentieths behind the warm-up; None if there are too few values.

    Neighbouring values are alike, so that an interval from each of them would be far too small.
    """
    x, y = np.asarray(hours, dtype=float), np.asarray(values, dtype=float)
    kept = (x >= WARM_UP * x[-1]) & np.isfinite(y) if len(x) else np.zeros(0, bool)
    if kept.sum() < N_MEANS:
        return None
    xs, ys = ([part.mean() for part in np.array_split(each[kept], N_MEANS)] for each in (x, y))
    fit, later = stats.linregress(xs, ys), stats.linregress(xs[N_MEANS // 2 :], ys[N_MEANS // 2 :])
    half = float(stats.t.ppf(0.975, N_MEANS - 2) * fit.stderr)
    return Slope(name, float(ys[0]), float(ys[-1]), float(fit.slope), half, float(later.slope))


def read(path: Path) -> int:
    """Print the slopes of what was written so far; return 1 if something grows."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    hours = [float(row["minutes"]) / 60 for row in rows]
    found = [slope(name, hours, [float(row[name]) for row in rows]) for name in COLUMNS[1:5]]
    # A percentile needs several delays: of each minute.
    by_minute: dict[float, list[float]] = {}
    for row in rows:
        if row["delays"]:
            by_minute.setdefault(float(row["minutes"]) // 1, []).extend(map(float, row["delays"].split()))
    for percent in (50, 99):
        values = [float(np.percentile(delays, percent)) for delays in by_minute.values()]
        found.append(slope(f"delay_p{percent}_s", [minute / 60 for minute in by_minute], values))
    print(f"{hours[-1] * 60 if hours else 0:.1f} minutes, {sum(map(len, by_minute.values()))} finals")
    print(f"{'figure':12} {'first':>9} {'last':>9} {'per hour':>10} {'95 %':>9} {'2nd half':>9}  grows")
    for fit in filter(None, found):
        figures = f"{fit.first:9.3f} {fit.last:9.3f} {fit.per_hour:+10.3f} {fit.half:9.3f} {fit.later:+9.3f}"
        print(f"{fit.name:12} {figures}  {'YES' if fit.grows else 'no'}")
    return int(any(fit.grows for fit in found if fit is not None))


class Soak:
    """A daemon and its clients."""

    def __init__(self, daemon: Daemon, out: Path, end_s: float) -> None:
        self._daemon, self._out, self._end_s = daemon, out, end_s
        self._chance = random.Random(14)
        self._sentence = recording(begin_s=12.6, end_s=15.12)  # the shortest of the sample
        self._delays: list[float] = []  # of finals since the last look
        self._counts = Counter[str]()

    async def run(self) -> None:
        """Run until the end; write a line for each look."""
        works = (self._look, self._follow, self._stream, self._replay, self._read_slowly, self._resume, self._ask)
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(self._again(work))
        print(json.dumps(self._counts), flush=True)

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something again and again until the end; failures of a client are counted and stop nothing."""
        while (left_s := self._end_s - time.monotonic()) > 0:
            name = work.__name__
            try:
                async with asyncio.timeout(left_s):
                    await work()
            except TimeoutError:
                return
            except (OSError, ConnectionClosed, ExceptionGroup, EOFError, AssertionError) as error:
                name += f" {type(error).__name__}"
                await asyncio.sleep(1.0)
            self._counts[name] += 1

    async def _look(self) -> None:
        process = psutil.Process(self._daemon.process.pid)
        process.cpu_percent()
        begin_s = time.monotonic()
        with self._out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            while True:
                await asyncio.sleep(LOOK_S)
                memory = process.memory_full_info()
                delays, self._delays = self._delays, []
                n_fds = process.num_fds() if sys.platform != "win32" else 0
                figures = [(time.monotonic() - begin_s) / 60, memory.rss / 2**20, memory.uss / 2**20]
                figures += [process.num_threads(), n_fds, process.cpu_percent()]
                writer.writerow([*(f"{value:.3f}" for value in figures), " ".join(f"{each:.3f}" for each in delays)])
                file.flush()

    async def _follow(self) -> None:
        """Take the delay of each final: behind the moment of its audio, by the quickest event there was."""
        ahead_s = float("inf")
        async with connect(self._daemon.address("/v1/captions"), proxy=None, max_size=None) as socket:
            async for message in socket:
                event = json.loads(message)
                now_s, audio_s = time.monotonic(), event.get("end", event.get("time"))
                if audio_s is not None:
                    ahead_s = min(ahead_s, now_s - audio_s)
                    self._delays += [now_s - audio_s - ahead_s] if event["type"] == "final" else []

    async def _stream(self) -> None:
        """Have a sentence transcribed; some leave in the middle, with a goodbye or without."""
        await self._pause()
        if (way := self._chance.choice(("finish", "finish", "close", "vanish"))) == "finish":
            await transcribe(self._daemon, self._sentence, speed=1.0)
            return
        async with connected(self._daemon.address("/v1/stream")) as (socket, _):
            await send_audio(socket, self._sentence, speed=1.0)
            if way == "vanish":
                socket.transport.abort()

    async def _replay(self) -> None:
        await self._pause()
        async with connected(self._daemon.address("/v1/captions?after=0")) as (socket, _):
            await asyncio.sleep(self._chance.uniform(0, 5))
            if self._chance.random() < 0.5:
                socket.transport.abort()

    async def _read_slowly(self) -> None:
        async with connect(self._daemon.address("/v1/captions?after=0"), proxy=None, max_size=None) as socket:
            async for _ in socket:
                await asyncio.sleep(1.0)

    async def _resume(self) -> None:
        """Send audio over connections that break, and finish."""
        await self._pause()
        session, seq, samples = "", 0, np.tile(self._sentence, 5)
        for attempt in range(5):
            async with connected(self._daemon.address("/v1/stream")) as (socket, received):
                if session:
                    await socket.send(json.dumps({"type": "resume", "session": session, "after": seq}))
                    await received.wait_for(Resumed, Error)
                    if not received.of(Resumed):
                        return
                sent = received.of(Resumed)[0].heard_samples if session else 0
                if attempt == 4:
                    await socket.send('{"type":"finish"}')
                    await received.wait_closed()
                    return
                await send_audio(socket, samples[sent : sent + len(self._sentence)], speed=1.0)
                session, seq = received.events[-1].session, received.events[-1].seq
                socket.transport.abort()

    async def _ask(self) -> None:
        await asyncio.sleep(2.0)
        for path in ("/", "/healthz", "/metrics", "/captions.js", "/nothing"):
            await asyncio.to_thread(self._daemon.get, path)

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.uniform(5, 25))


def soak(minutes: float, out: Path) -> int:
    """Run a daemon and its clients in real time; return the exit code."""
    os.chdir(ROOT)  # where `-m streamer` finds this checkout
    with tempfile.TemporaryDirectory(prefix="streamer-soak-") as folder:
        speech, sample = Path(folder) / "speech.wav", recording()
        with soundfile.SoundFile(speech, "w", SAMPLE_RATE, 1, "PCM_16") as file:
            while file.frames < (minutes + 2) * 60 * SAMPLE_RATE:
                file.write(np.concatenate([sample, 0 * sample]))
        history = {"STREAMER_SERVER_HISTORY": str(Path(folder) / "history.db")}
        with running("--model", "nano.en", "--input", speech, environ=history) as daemon:
            asyncio.run(Soak(daemon, out, time.monotonic() + minutes * 60).run())
            log = daemon.stderr
        print(f"{len(log)} bytes of log, {log.count('Traceback')} tracebacks, {log.count(' ERROR ')} errors")
        return read(out) or int("Traceback" in log)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code, 1 if something grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="in real time (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("soak.csv"), help="file for figures (default: %(default)s)")
    parser.add_argument("--read", type=Path, metavar="FILE", help="only print what came of a run so far")
    options = parser.parse_args(arguments)
    # The file is named from where the user is.
    return read(options.read) if options.read is not None else soak(options.minutes, options.out.absolute())


if __name__ == "__main__":
    sys.exit(main())
