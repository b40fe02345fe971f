"""Sessions that speak while something happens to the machines that serve them.

First they speak twice undisturbed; then, run after run, with one fault in the middle of speech. Each run appends a line
of JSON to a file, of which --report prints a table.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from tools.cluster.judge import Judgement, judge, speech_of
from tools.cluster.machines import GATEWAYS, SERVERS, WORKERS, Balancer, Machines, until
from tools.cluster.sessions import Received, Samples, say_all, speeches

CUT_S = 6.0
STOPPED_S = 4.0
SLOW_S = 6.0
SLICE_S = 0.1  # of a slow worker's time
TAKEN = 0.8  # of each slice
REFERENCE, UNDISTURBED = "reference", "none"

# What happens to which machine; leaving the block puts it right again.
Fault = Callable[[Machines, str], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def kill(machines: Machines, name: str) -> AsyncIterator[None]:
    for server in machines.nats.servers:
        if name in (server.name, "all of NATS"):
            server.kill()
    if name == "all of NATS":
        machines.nats.start()
    if name in machines.all:
        machines.all[name].kill()
    yield
    if name in machines.all:
        machines.all[name].start()
    elif name in SERVERS:
        machines.nats.named(name).start()


@asynccontextmanager
async def stop(machines: Machines, name: str) -> AsyncIterator[None]:
    machines.all[name].signal(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    machines.all[name].signal(signal.SIGCONT)
    yield


@asynccontextmanager
async def cut(machines: Machines, name: str) -> AsyncIterator[None]:
    machines.cut(name, dead=True)
    await asyncio.sleep(CUT_S)
    machines.cut(name, dead=False)
    yield


@asynccontextmanager
async def slow(machines: Machines, name: str) -> AsyncIterator[None]:
    for _ in range(round(SLOW_S / SLICE_S)):
        machines.all[name].signal(signal.SIGSTOP)
        await asyncio.sleep(TAKEN * SLICE_S)
        machines.all[name].signal(signal.SIGCONT)
        await asyncio.sleep((1 - TAKEN) * SLICE_S)
    yield


@asynccontextmanager
async def drain(machines: Machines, name: str) -> AsyncIterator[None]:
    machines.all[name].signal(signal.SIGTERM)
    yield
    await machines.all[name].stop()
    machines.all[name].start()


FAULTS: dict[str, Fault] = {
    "worker-kill": kill,
    "worker-stop": stop,
    "worker-cut": cut,
    "worker-slow": slow,
    "drain": drain,
    "gateway-kill": kill,
    "nats-kill": kill,
    "nats-leader-kill": kill,
    "nats-restart": kill,
}


class Trial:
    """Sessions on a cluster, run after run; those of undisturbed runs are what the others are compared with."""

    def __init__(self, machines: Machines, address: str, samples: Sequence[Samples], chance: random.Random) -> None:
        self._machines, self._address, self._samples, self._chance = machines, address, samples, chance
        self._references: list[list[Received]] = [[] for _ in samples]

    async def run(self, fault: str) -> dict[str, object]:
        """Have all sessions speak once, with a fault or without, and judge them. Raises MachineError."""
        await self._machines.ready()
        received = [Received() for _ in self._samples]
        speaking = asyncio.create_task(say_all(self._samples, self._address, received))
        victim, owners = "", [("", 0)] * len(received)
        try:
            if fault in FAULTS:
                chosen, at_s = self._moment()
                await until(lambda: received[chosen].begin_s > 0, 30.0, "a client that speaks")
                await asyncio.sleep(received[chosen].begin_s + at_s - time.monotonic())
                owners = [await self._machines.owner(one.session) for one in received]
                victim = await self._victim(fault, owners[chosen][0])
                async with FAULTS[fault](self._machines, victim):
                    await speaking
            await speaking
        finally:
            speaking.cancel()
        judged = []
        for one, references, samples, (owner, _) in zip(received, self._references, self._samples, owners, strict=True):
            stored = await self._machines.stored(one.session)
            found = judge(one, references or [one], len(samples) / SAMPLE_RATE, stored)
            found.epoch = (await self._machines.owner(one.session))[1]
            found.hit = found.reconnected > 0 if victim in GATEWAYS else victim not in WORKERS or owner == victim
            judged.append(found)
            if fault not in FAULTS:
                references.append(one)
        return {"fault": fault, "victim": victim, "sessions": [asdict(one) for one in judged]}

    def _moment(self) -> tuple[int, float]:
        """Return a session, and seconds of its audio in speech, not at its very end."""
        chosen = self._chance.randrange(len(self._samples))
        spoken = [(a, b) for a, b in speech_of(self._references[chosen][0]) if b - a > 1.0]
        start_s, end_s = self._chance.choice(spoken)
        return chosen, self._chance.uniform(start_s + 0.5, end_s - 0.3)

    async def _victim(self, fault: str, owner: str) -> str:
        """Return to whom it happens: of workers the one that has the chosen session."""
        leader = await self._machines.leader()
        match fault:
            case "gateway-kill":
                return self._chance.choice(GATEWAYS)
            case "nats-restart":
                return "all of NATS"
            case "nats-leader-kill":
                return leader
            case "nats-kill":
                return self._chance.choice([one for one in SERVERS if one != leader])
        return owner or WORKERS[0]


async def survive(args: argparse.Namespace, folder: Path) -> None:
    """Run faults, and append what comes of each to the file."""
    samples, chance = speeches(args.sessions, args.speech), random.Random(args.seed)
    async with Machines(folder) as machines, Balancer(machines.gateway_ports) as balancer:
        trial = Trial(machines, f"127.0.0.1:{balancer.port}", samples, chance)
        for fault in (REFERENCE, UNDISTURBED, *(args.fault * args.runs)):
            line = {**await trial.run(fault), "seed": args.seed}
            with args.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            for one in _sessions([line]):
                print(fault, line["victim"], "" if one.well else "NOT WELL", asdict(one), flush=True)


def _sessions(lines: Sequence[dict[str, object]]) -> list[Judgement]:
    return [Judgement(**one) for line in lines for one in line["sessions"]]  # type: ignore[attr-defined]


def report(out: Path) -> None:
    """Print a table of all runs of a file, a row a fault."""
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    counts = ("words", "lost", "doubled", "unlike_log", "differing")
    heads = ("Fault", "sessions (hit)", *counts, "promises broken", "in gaps", "moves", "stall p50", "p99", "worst")
    print(f"| {' | '.join(heads)} |\n{'| --- ' * len(heads)}|")
    for fault in dict.fromkeys(line["fault"] for line in lines if line["fault"] != REFERENCE):
        sessions = _sessions([line for line in lines if line["fault"] == fault])
        hit = [one for one in sessions if one.hit]
        cells = [
            fault,
            f"{len(sessions)} ({len(hit)})",
            *(sum(getattr(one, what) for one in sessions) for what in counts),
            sum(bool(one.broken) for one in sessions),
            f"{sum(sum(one.gaps.values()) for one in sessions):.1f} s",
            sum(max(0, one.epoch - 1) for one in sessions),
            *(f"{stall_s:.2f} s" for stall_s in np.percentile([one.stall_s for one in hit] or [0.0], (50, 99, 100))),
        ]
        print("| " + " | ".join(map(str, cells)) + " |")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster faults", description=__doc__)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="several take turns; all")
    parser.add_argument("--runs", type=int, default=1, help="of each fault")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--speech", type=float, default=12.0, metavar="S", help="seconds of speech a session, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--report", action="store_true", help="only print the table of --out")
    args = parser.parse_args(argv)
    args.fault = args.fault or list(FAULTS)
    try:
        if not args.report:
            with tempfile.TemporaryDirectory(prefix="streamer-cluster-") as folder:
                asyncio.run(survive(args, Path(folder)))
    except (StreamerError, KeyboardInterrupt) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    report(args.out)
    return 0
