"""Sessions that speak while something happens to the machines that serve them.

First they speak twice undisturbed; then, run after run, with one fault in the middle of speech. Each run
appends a line of JSON to a file, of which --report prints a table. Ctrl-C ends it, and prints what there is.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from streamer.constants import SAMPLE_RATE
from streamer.events import Speech
from tools.cluster.judge import Judgement, judge
from tools.cluster.machines import GATEWAYS, SERVERS, WORKERS, Balancer, Machines, run_until_told, until
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
    machines.all[name].kill()
    yield
    machines.all[name].start()


@asynccontextmanager
async def stop(machines: Machines, name: str) -> AsyncIterator[None]:
    machines.all[name].signal(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    machines.all[name].signal(signal.SIGCONT)
    yield


@asynccontextmanager
async def cut(machines: Machines, name: str) -> AsyncIterator[None]:
    machines.cut(name)
    await asyncio.sleep(CUT_S)
    machines.mend(name)
    yield


@asynccontextmanager
async def slow(machines: Machines, name: str) -> AsyncIterator[None]:
    until_s = time.monotonic() + SLOW_S
    while time.monotonic() < until_s:
        machines.all[name].signal(signal.SIGSTOP)
        await asyncio.sleep(TAKEN * SLICE_S)
        machines.all[name].signal(signal.SIGCONT)
        await asyncio.sleep((1 - TAKEN) * SLICE_S)
    yield


@asynccontextmanager
async def restart(machines: Machines, _: str) -> AsyncIterator[None]:
    for name in SERVERS:
        machines.all[name].kill()
    for name in SERVERS:
        machines.all[name].start()
    yield


@asynccontextmanager
async def drain(machines: Machines, name: str) -> AsyncIterator[None]:
    machines.all[name].signal(signal.SIGTERM)
    yield
    await machines.all[name].stop()
    machines.all[name].start()


@asynccontextmanager
async def come(machines: Machines, name: str) -> AsyncIterator[None]:
    machines.all[name].start()
    yield


FAULTS: dict[str, Fault] = {
    "worker-kill": kill,
    "worker-stop": stop,
    "worker-cut": cut,
    "worker-slow": slow,
    "drain": drain,
    "newcomer": come,
    "gateway-kill": kill,
    "nats-kill": kill,
    "nats-leader-kill": kill,
    "nats-restart": restart,
}


class Trial:
    """Sessions on a cluster, run after run; the first is the reference, and undisturbed ones are added to it."""

    def __init__(self, machines: Machines, address: str, samples: Sequence[Samples], chance: random.Random) -> None:
        self.machines = machines
        self.samples = samples
        self._address = address
        self._chance = chance
        # What each session's client saw in each undisturbed run.
        self.references: list[list[Received]] = [[] for _ in samples]

    async def run(self, fault: str) -> dict[str, object]:
        """Have all sessions speak once, with a fault or without, and judge them. Raises MachineError."""
        await self.machines.ready()
        if fault == "newcomer":
            await self.machines.all[WORKERS[-1]].stop()
        received = [Received() for _ in self.samples]
        speaking = asyncio.create_task(say_all(self.samples, self._address, received))
        at_s, victim, owners = 0.0, "", []
        try:
            if fault in (REFERENCE, UNDISTURBED):
                await speaking
            else:
                chosen, at_s = self._moment()
                await until(lambda: received[chosen].begin_s, 30.0, "a client that speaks")
                await asyncio.sleep(received[chosen].begin_s + at_s - time.monotonic())
                owners = [await self.machines.owner(one.session) for one in received]
                victim = await self._victim(fault, owners[chosen][0])
                async with FAULTS[fault](self.machines, victim):
                    await speaking
        finally:
            speaking.cancel()
        judged = [
            judge(one, references or [one], len(samples) / SAMPLE_RATE, await self.machines.stored(one.session))
            for one, references, samples in zip(received, self.references, self.samples, strict=True)
        ]
        if fault in (REFERENCE, UNDISTURBED):
            for references, one in zip(self.references, received, strict=True):
                references.append(one)
        for i, (judgement, one) in enumerate(zip(judged, received, strict=True)):
            judgement.epoch = (await self.machines.owner(one.session))[1]
            judgement.hit = victim not in WORKERS or fault == "newcomer" or owners[i][0] == victim
            if fault == "gateway-kill":
                judgement.hit = judgement.reconnected > 0
        return {"fault": fault, "at_s": round(at_s, 2), "victim": victim, "sessions": [asdict(one) for one in judged]}

    def _moment(self) -> tuple[int, float]:
        """Return a session, and seconds of its audio in speech, not at its very end."""
        chosen = self._chance.randrange(len(self.samples))
        changes = [event.time for _, event in self.references[chosen][0].events if isinstance(event, Speech)]
        spoken = [(a, b) for a, b in zip(changes[::2], changes[1::2], strict=False) if b - a > 1.0]
        start_s, end_s = self._chance.choice(spoken)
        return chosen, self._chance.uniform(start_s + 0.5, end_s - 0.3)

    async def _victim(self, fault: str, owner: str) -> str:
        """Return whom it happens to: of workers the one that has the chosen session."""
        if fault == "newcomer":
            return WORKERS[-1]
        if fault == "gateway-kill":
            return self._chance.choice(GATEWAYS)
        if fault.startswith("nats-"):
            info = await self.machines.info()
            leader = (info.cluster.leader if info and info.cluster else None) or SERVERS[0]
            return leader if "leader" in fault else self._chance.choice([one for one in SERVERS if one != leader])
        return owner or WORKERS[0]


async def survive(args: argparse.Namespace) -> None:
    """Run faults, and append what comes of each to the file."""
    samples = speeches(args.sessions, args.speech)
    chance = random.Random(args.seed)
    with Machines(args.folder) as machines:
        await machines.start_cluster()
        async with Balancer(machines.gateway_ports) as balancer:
            trial = Trial(machines, f"127.0.0.1:{balancer.port}", samples, chance)
            names = [REFERENCE, UNDISTURBED, *(args.fault * args.runs)]
            for i, name in enumerate(names):
                begin_s = time.monotonic()
                line = {**await trial.run(name), "run": i, "seed": args.seed}
                line |= {"took_s": round(time.monotonic() - begin_s, 1), "load": round(os.getloadavg()[0], 1)}
                with args.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(line) + "\n")
                print(_summary(line), flush=True)
        await machines.close()


def _summary(line: dict[str, object]) -> str:
    sessions = _sessions([line])
    hit = [one for one in sessions if one.hit]
    worst_s = max((one.stall_s for one in hit), default=0.0)
    differing, words = sum(one.differing for one in sessions), sum(one.words for one in sessions)
    text = (
        f"{line['run']:>4} {line['fault']:<17} {line['victim']:<3} at {line['at_s']:>5} s: {len(hit)} of"
        f" {len(sessions)} hit, stall {worst_s:.2f} s, {differing} of {words} words differ"
    )
    strange = [f"     {json.dumps(asdict(one))}" for one in sessions if not one.well or one.gaps]
    return "\n".join([text, *strange])


def _sessions(lines: Sequence[dict[str, object]]) -> list[Judgement]:
    return [Judgement(**one) for line in lines for one in line["sessions"]]  # type: ignore[attr-defined]


def report(out: Path) -> None:
    """Print a table of all runs of a file, a row a fault."""
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    counts = ("words", "lost", "doubled", "untold", "unlike_log")
    heads = ("Fault", "runs", "sessions (hit)", *counts, "differ", "promises broken", "in gaps", "moves")
    print(f"| {' | '.join([*heads, 'stall p50', 'p99', 'worst'])} |\n{'| --- ' * (len(heads) + 3)}|")
    for fault in dict.fromkeys(line["fault"] for line in lines if line["fault"] != REFERENCE):
        of = [line for line in lines if line["fault"] == fault]
        sessions = _sessions(of)
        hit = [one for one in sessions if one.hit]
        stalls = np.percentile([one.stall_s for one in hit] or [0.0], (50, 99, 100))
        cells = [
            fault,
            len(of),
            f"{len(sessions)} ({len(hit)})",
            *(
                sum(getattr(one, what) for one in sessions)
                for what in ("words", "lost", "doubled", "untold", "unlike_log")
            ),
            f"{100 * sum(one.differing for one in sessions) / max(1, sum(one.words for one in sessions)):.1f} %",
            sum(bool(one.broken) for one in sessions),
            f"{sum(sum(one.gaps.values()) for one in sessions):.1f} s",
            sum(max(0, one.epoch - 1) for one in sessions),
            *(f"{stall_s:.2f} s" for stall_s in stalls),
        ]
        print("| " + " | ".join(map(str, cells)) + " |")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster faults", description=__doc__)
    parser.add_argument("--fault", action="append", choices=[*FAULTS, UNDISTURBED], help="several take turns; all")
    parser.add_argument("--runs", type=int, default=1, help="of each fault")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--speech", type=float, default=12.0, metavar="S", help="seconds of speech a session, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--folder", type=Path, help="keep logs and NATS' files there")
    parser.add_argument("--report", action="store_true", help="only print the table of --out")
    args = parser.parse_args(argv)
    args.fault = args.fault or list(FAULTS)
    code = 0 if args.report else run_until_told(survive(args))
    if args.out.exists():
        report(args.out)
    return code
