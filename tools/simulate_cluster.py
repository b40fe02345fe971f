"""A cluster of 10,000 machines and a million sessions, simulated: `python -m tools.simulate_cluster`.

Which worker is asked, who is lost, which worker gives a session away, and what load, room and demand there are, are the
real decisions (`streamer.plugins.cluster.placement`, `streamer.plugins.cluster.metrics`, `engine.load`).
Simulated are the clock, the machines, NATS and the clients. What that assumes stands in `Assumed` and is printed first;
docs/cluster.md has the results.

Machines are in cells, of which each has a NATS of its own; cells share nothing. So faults are simulated in one cell.
All cells are filled, one after the other, to see how well a million sessions are placed.
"""

import argparse
import heapq
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from streamer.engine.load import ACTIVITY_S, MAX_LOAD, MIN_PASSES, LoadMeter, Pass
from streamer.plugins.cluster.messages import BEAT_S, LOST_S, VERSION, WorkerAlive
from streamer.plugins.cluster.metrics import demand
from streamer.plugins.cluster.placement import Workers, wants_to_give

Row = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """What the simulation takes for granted. What was *measured* was so on two cores for everything."""

    machines: int = 10_000
    sessions: int = 1_000_000

    # Workers of a cell, and streams that a gateway carries.
    cell_workers: int = 50
    gateway_streams: int = 1_250

    # Sessions that speak all the time which a worker can do: of each size there are as many machines.
    capacities: tuple[int, ...] = (60, 100, 140)

    # Share of its time that a session speaks: between these, all alike.
    speech: tuple[float, float] = (0.4, 0.8)

    # From one pass of a session to the next when a machine is full: its sessions' passes fill that time.
    pace_s: float = 2.0

    # A request to a worker, there and back; and for how long a gateway waits without an answer.
    round_trip_s: float = 0.002
    timeout_s: float = 1.0

    # Workers that are asked for a session, before the client of a new one is turned away, or one that
    # goes on has to be taken.
    most_asked: int = 4

    # A second, in a cell's log with three replicas: records read from its leader, records of 8 KB stored. Measured.
    reads: float = 6_000
    stores: float = 9_700

    # Settled events a second of speech. Measured with nano.en.
    records: float = 0.41

    # Between two checks for lost workers; and that a gateway takes for a client that comes (TLS and all).
    check_s: float = 0.25
    accept_s: float = 0.002

    # Clients that lost their gateway, or were refused, come back after this; doubled each time, up to the second.
    retry_s: tuple[float, float] = (0.5, 10.0)

    @property
    def cells(self) -> int:
        return max(1, self.machines // self.cell_workers)

    @property
    def cell_sessions(self) -> int:
        return self.sessions // self.cells

    @property
    def cell_gateways(self) -> int:
        return max(2, math.ceil(self.cell_sessions / self.gateway_streams))


@dataclass(eq=False, slots=True)
class Session:
    """A client's stream."""

    # Share of its time that it speaks.
    speech: float

    # When its worker took it, whose guess is that it speaks all the time until it knows better.
    taken_s: float = 0.0
    gateway: "Gateway | None" = None
    worker: "Worker | None" = None
    n_moves: int = 0
    n_turned_away: int = 0

    def activity(self, now_s: float) -> float:
        """Return what `load.Activity` makes of it."""
        return self.speech + (1.0 - self.speech) * math.exp((self.taken_s - now_s) / ACTIVITY_S)


@dataclass(slots=True)
class Queue:
    """What does one thing after the other."""

    free_s: float = 0.0

    def done_s(self, now_s: float, takes_s: float) -> float:
        """Return when what comes now is done."""
        self.free_s = max(self.free_s, now_s) + takes_s
        return self.free_s


@dataclass(eq=False)
class Worker:
    """A worker: it admits sessions as an engine does, and says how it is."""

    name: str
    capacity: int
    pace_s: float
    sessions: dict[Session, None] = field(default_factory=dict)
    draining: bool = False
    giving: bool = False

    # When it was killed.
    lost_s: float = math.inf
    passes: Queue = field(default_factory=Queue)

    def __post_init__(self) -> None:
        # A little less, so that rounding does not cost it one session.
        self.pass_s = self.pace_s * (MAX_LOAD - 1e-6) / self.capacity
        self._meter = LoadMeter(self.pace_s)
        for _ in range(MIN_PASSES):
            self._meter.take_pass(
                Pass(busy_s=self.pass_s, encode_s=0.0, decode_s=0.0, n_calls=0, n_tokens=0, window_s=1.0, new_s=0.0)
            )
        self._activities: list[float] = []
        self.load = self._meter.load([])

    def alive(self, now_s: float) -> WorkerAlive:
        """Look at the sessions anew, and return the sign of life."""
        self._activities = [session.activity(now_s) for session in self.sessions]
        self.load = self._meter.load(self._activities)
        return WorkerAlive(
            worker=self.name,
            version=VERSION,
            model="",
            load=self.load.ratio,
            capacity=self.load.capacity or 0,
            sessions=len(self.sessions),
            room=self.load.room,
            draining=self.draining,
        )

    def admit(self, session: Session, now_s: float, *, must: bool) -> bool:
        """Take a session where there is room, or has to be."""
        if self.draining or not (must or self.load.room):
            return False
        session.taken_s, session.worker = now_s, self
        self.sessions[session] = None
        self._activities.append(1.0)
        self.load = self._meter.load(self._activities)
        return True


@dataclass(eq=False)
class Gateway:
    """A gateway: it knows workers by their signs of life."""

    workers: Workers
    sessions: dict[Session, None] = field(default_factory=dict)
    accepting: Queue = field(default_factory=Queue)


@dataclass(slots=True)
class Outcome:
    """What came of sessions that had to be opened."""

    # From the fault, or the client's wish, to the first text; and when that was.
    waited_s: list[float] = field(default_factory=list)
    open_s: list[float] = field(default_factory=list)

    # Requests to workers, those that were refused, and those that had to be granted.
    n_asked: int = 0
    n_refused: int = 0
    n_must: int = 0

    # Times that a client was turned away.
    n_turned_away: int = 0

    def row(self, what: str, began_s: float = 0.0) -> Row:
        """Return the figures as a row of a table."""
        n = len(self.waited_s)
        p50, p99, longest = np.percentile(self.waited_s, [50, 99, 100]) if n else [math.nan] * 3
        return {
            "what": what,
            "sessions": n,
            "requests each": round(self.n_asked / max(1, n), 2),
            "refused": self.n_refused,
            "without room": self.n_must,
            "turned away": self.n_turned_away,
            "p50, s": round(float(p50), 2),
            "p99, s": round(float(p99), 2),
            "longest, s": round(float(longest), 2),
            "done after, s": round(max(self.open_s, default=math.nan) - began_s, 1),
        }


class Cell:
    """Workers, gateways, a log, and the clock that they live by."""

    def __init__(self, assumed: Assumed, seed: int, n_workers: int | None = None) -> None:
        self.assumed, self.chance = assumed, random.Random(seed)
        self.now_s = 0.0
        self.outcome = Outcome()
        self.workers: dict[str, Worker] = {}

        # The newest sign of life of each worker, as all receive it.
        self.signs: dict[str, WorkerAlive] = {}
        self.gateways = [Gateway(Workers(self.chance)) for _ in range(assumed.cell_gateways)]
        self._log = Queue()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        for _ in range(assumed.cell_workers if n_workers is None else n_workers):
            self.join()
        for gateway in self.gateways:
            self.after(self.chance.uniform(0, assumed.check_s), partial(self._check, gateway))
        self.run(2 * BEAT_S)

    # Time.

    def after(self, delay_s: float, do: Callable[[], object]) -> None:
        """Have something done after a while."""
        heapq.heappush(self._due, (self.now_s + delay_s, next(self._numbers), do))

    def run(self, duration_s: float) -> None:
        """Let time pass."""
        until_s = self.now_s + duration_s
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, do = heapq.heappop(self._due)
            do()
        self.now_s = until_s

    # Machines.

    def join(self) -> None:
        """Let a worker come."""
        number = next(self._numbers)
        sizes = self.assumed.capacities
        worker = Worker(f"w{number}", sizes[len(self.workers) % len(sizes)], self.assumed.pace_s)
        self.workers[worker.name] = worker
        self.after(self.chance.uniform(0, BEAT_S), partial(self._beat, worker))

    def kill(self, workers: Iterable[Worker]) -> None:
        """Let workers go without a word."""
        for worker in workers:
            worker.lost_s = self.now_s
            del self.workers[worker.name]
            self.signs.pop(worker.name, None)

    def drain(self, worker: Worker) -> None:
        """Let all sessions of a worker go elsewhere at once."""
        worker.draining = True
        self._tell(worker)
        for session in list(worker.sessions):
            self.move(session)

    def lose(self, gateway: Gateway) -> list[Session]:
        """Let a gateway go without a word. Returns the sessions whose clients lost it."""
        self.gateways.remove(gateway)
        for session in gateway.sessions:
            session.gateway = None
        return list(gateway.sessions)

    def _beat(self, worker: Worker) -> None:
        if worker.lost_s < math.inf:
            return
        alive = self._tell(worker)
        if not worker.giving and not worker.draining and wants_to_give(alive, list(self.signs.values())):
            worker.giving = True
            self.move(self.chance.choice(list(worker.sessions)), on_done=partial(setattr, worker, "giving", False))
        self.after(BEAT_S, partial(self._beat, worker))

    def _tell(self, worker: Worker) -> WorkerAlive:
        alive = self.signs[worker.name] = worker.alive(self.now_s)
        for gateway in self.gateways:
            gateway.workers.take(alive, self.now_s)
        return alive

    def _check(self, gateway: Gateway) -> None:
        """Move a gateway's sessions from workers that it takes to be lost."""
        if gateway not in self.gateways:
            return
        at = {session.worker for session in gateway.sessions if session.worker}
        lost = {worker.name for worker in at if gateway.workers.is_lost(worker.name, self.now_s)}
        if lost and gateway.workers.alive(self.now_s):
            for session in list(gateway.sessions):
                if session.worker and session.worker.name in lost:
                    since_s, session.worker = session.worker.lost_s, None
                    self.open(gateway, session, since_s, avoid=lost, goes_on=True)
        self.after(self.assumed.check_s, partial(self._check, gateway))

    # Sessions.

    def new_session(self) -> Session:
        return Session(self.chance.uniform(*self.assumed.speech))

    def arrive(self, session: Session, *, n_reads: int = 0, jitter: bool = True) -> None:
        """A client comes to some gateway, and again where it is turned away.

        n_reads : records that are read from the log of a session that goes on; 0: the session is new
        """
        since_s = self.now_s

        def come() -> None:
            gateway = self.chance.choice(self.gateways)
            ready_s = gateway.accepting.done_s(self.now_s, self.assumed.accept_s)
            if n_reads:
                ready_s = max(ready_s, self._log.done_s(self.now_s, n_reads / self.assumed.reads))
            self.after(ready_s - self.now_s, partial(ask, gateway))

        def ask(gateway: Gateway) -> None:
            if session.worker:  # it lives on: its worker is asked to release it
                session.worker.sessions.pop(session)
                session.worker = None
            self.open(gateway, session, since_s, goes_on=n_reads > 0, on_refused=wait)

        def wait() -> None:
            self.outcome.n_turned_away += 1
            self.after(retry_s(self.assumed, session, self.chance, jitter=jitter), come)

        come()

    def move(self, session: Session, *, on_done: Callable[[], object] = lambda: None) -> None:
        """Have a session released where it lives, and opened elsewhere."""
        worker, gateway, since_s = session.worker, session.gateway, self.now_s
        if worker is None or gateway is None:
            on_done()
            return

        def released() -> None:
            if session.worker is not worker:
                on_done()
                return
            worker.sessions.pop(session, None)
            session.worker = None
            session.n_moves += 1
            self.open(gateway, session, since_s, avoid={worker.name}, goes_on=True, on_done=on_done)

        self.after(self.assumed.round_trip_s, released)

    def open(
        self,
        gateway: Gateway,
        session: Session,
        since_s: float,
        *,
        avoid: Collection[str] = (),
        goes_on: bool = False,
        on_done: Callable[[], object] = lambda: None,
        on_refused: Callable[[], object] | None = None,
    ) -> None:
        """Ask the workers that placement names, one after the other; one that goes on has to be taken by the first."""
        session.gateway = gateway
        gateway.sessions[session] = None
        order = gateway.workers.choose(self.now_s, model=None, avoid=avoid)[: self.assumed.most_asked]
        tries = [(name, False) for name in order] + [(name, True) for name in order[:1] if goes_on]
        again = partial(
            self.open, gateway, session, since_s, avoid=avoid, goes_on=goes_on, on_done=on_done, on_refused=on_refused
        )

        def ask() -> None:
            if not tries and on_refused and not goes_on:
                gateway.sessions.pop(session)
                on_refused()
            elif not tries:
                self.after(self.assumed.retry_s[0], again)
            else:
                name, must = tries.pop(0)
                self.outcome.n_asked += 1
                self.outcome.n_must += must
                gone = name not in self.workers
                self.after(
                    self.assumed.timeout_s if gone else self.assumed.round_trip_s, partial(answered, name, must=must)
                )

        def answered(name: str, *, must: bool) -> None:
            worker = self.workers.get(name)
            if worker is None or not worker.admit(session, self.now_s, must=must):
                self.outcome.n_refused += 1
                ask()
                return
            stored_s = self._log.done_s(self.now_s, 1 / self.assumed.reads + 1 / self.assumed.stores)
            text_s = worker.passes.done_s(stored_s, worker.pass_s)
            self.outcome.waited_s.append(text_s - since_s)
            self.outcome.open_s.append(text_s)
            self.after(text_s - self.now_s, on_done)

        ask()


def retry_s(assumed: Assumed, session: Session, chance: random.Random, *, jitter: bool) -> float:
    """Return how long a client waits before it comes again; with jitter from half of that on."""
    first_s, longest_s = assumed.retry_s
    wait_s = min(first_s * 2.0**session.n_turned_away, longest_s)
    session.n_turned_away += 1
    return wait_s * (chance.uniform(0.5, 1.0) if jitter else 1.0)


def filled(assumed: Assumed, seed: int, n_sessions: int | None = None, within_s: float = 30.0) -> Cell:
    """Return a cell to which clients came evenly within a time, as they are a minute later."""
    cell = Cell(assumed, seed)
    for _ in range(assumed.cell_sessions if n_sessions is None else n_sessions):
        cell.after(cell.chance.uniform(0, within_s), partial(cell.arrive, cell.new_session()))
    cell.run(within_s + 2 * BEAT_S)
    return cell


def settled(assumed: Assumed, seed: int) -> Cell:
    """Return a filled cell whose workers have known their sessions for long."""
    cell = filled(assumed, seed)
    for worker in cell.workers.values():
        for session in worker.sessions:
            session.taken_s = -math.inf
    cell.run(2 * BEAT_S)
    cell.outcome = Outcome()
    return cell


# Scenarios. Each returns the rows of its table.


def placed(assumed: Assumed, seed: int) -> list[Row]:
    """A million clients come within half a minute, to empty cells."""
    loads: list[float] = []
    total = Outcome()
    for number in range(assumed.cells):
        cell = filled(assumed, seed + number)
        loads += [worker.load.ratio / MAX_LOAD for worker in cell.workers.values()]
        total.waited_s += cell.outcome.waited_s
        total.open_s += cell.outcome.open_s
        for name in ("n_asked", "n_refused", "n_turned_away"):
            setattr(total, name, getattr(total, name) + getattr(cell.outcome, name))
    spread = np.percentile(loads, [1, 50, 99, 100])
    names = ("load p1", "p50", "p99", "most")
    row = total.row(f"{len(loads)} machines")
    return [row | {name: round(float(load), 2) for name, load in zip(names, spread, strict=True)}]


def workers_lost(assumed: Assumed, seed: int) -> list[Row]:
    """Workers are gone without a word."""
    rows = []
    for n_lost in (1, assumed.cell_workers // 5, assumed.cell_workers // 2):
        cell = settled(assumed, seed)
        began_s = cell.now_s
        cell.kill(list(cell.workers.values())[:n_lost])
        cell.run(LOST_S + 10.0)
        over = sum(worker.load.ratio > 1.0 for worker in cell.workers.values())
        row = cell.outcome.row(f"{n_lost} of {assumed.cell_workers} workers", began_s)
        rows.append(row | {"most load": most_load(cell), "beyond real time": over})
    return rows


def most_load(cell: Cell) -> float:
    """Return the load of the busiest worker, as a share of what it gives away."""
    return round(max(worker.load.ratio for worker in cell.workers.values()) / MAX_LOAD, 2)


def gateway_lost(assumed: Assumed, seed: int) -> list[Row]:
    """A gateway is gone without a word: its clients come to others, which read the sessions' logs."""
    whole = round(600 * assumed.records * sum(assumed.speech) / 2)
    rows = []
    for what, n_reads, jitter in (
        ("what is missing is read", 3, True),
        ("the same, all clients in the same moment", 3, False),
        ("whole logs of 10 minutes are read", whole, True),
    ):
        cell = settled(assumed, seed)
        began_s = cell.now_s
        for session in cell.lose(cell.gateways[0]):
            wait_s = retry_s(assumed, session, cell.chance, jitter=jitter)
            cell.after(wait_s, partial(cell.arrive, session, n_reads=n_reads, jitter=jitter))
        cell.run(120.0)
        rows.append(cell.outcome.row(what, began_s))
    return rows


def region_lost(assumed: Assumed, seed: int) -> list[Row]:
    """One region of three is gone: each cell of the others gets half as many again, as new sessions."""
    rows = []
    for share, jitter, most_asked in ((1.0, True, 4), (1.0, False, 4), (1.2, True, 4), (1.2, True, 1000)):
        there = replace(assumed, sessions=round(assumed.sessions * share), most_asked=most_asked)
        cell = settled(there, seed)
        needed, capacity = demand(list(cell.signs.values()))
        began_s, n = cell.now_s, there.cell_sessions // 2
        for _ in range(n):
            session = cell.new_session()
            wait_s = retry_s(assumed, session, cell.chance, jitter=jitter)
            cell.after(wait_s, partial(cell.arrive, session, jitter=jitter))
        cell.run(180.0)
        asked = f"{most_asked} asked" if most_asked < len(cell.workers) else "all asked"
        what = f"ratio was {needed / capacity:.2f}, {asked}{'' if jitter else ', without jitter'}"
        row = cell.outcome.row(what, began_s)
        rows.append(row | {"never": n - len(cell.outcome.waited_s), "most load": most_load(cell)})
    return rows


def drained(assumed: Assumed, seed: int) -> list[Row]:
    """Workers are drained: one; then all, one after the other, each replaced by a new one before or behind it."""
    cell = settled(assumed, seed)
    began_s = cell.now_s
    cell.drain(next(iter(cell.workers.values())))
    cell.run(10.0)
    rows = [cell.outcome.row("one worker", began_s)]
    for what, first in (("all, each replaced behind it", False), ("all, each replaced before it", True)):
        cell = settled(assumed, seed)
        began_s = cell.now_s
        for worker in list(cell.workers.values()):
            if first:
                cell.join()
                cell.run(5.0)
            cell.drain(worker)
            cell.run(5.0)
            cell.kill([worker])
            if not first:
                cell.join()
        moves = [session.n_moves for gateway in cell.gateways for session in gateway.sessions]
        rows.append(
            cell.outcome.row(what, began_s) | {"moves each": round(sum(moves) / len(moves), 2), "most": max(moves)}
        )
    return rows


SCENARIOS: dict[str, Callable[[Assumed, int], list[Row]]] = {
    "placed": placed,
    "workers": workers_lost,
    "gateway": gateway_lost,
    "region": region_lost,
    "drained": drained,
}


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    lines = [heads, ["---"] * len(heads), *([str(row.get(head, "")) for head in heads] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Simulate a cluster with the decisions of the real one.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"all unless given: {', '.join(SCENARIOS)}")
    parser.add_argument("--machines", type=int, default=Assumed().machines, help="workers of all cells")
    parser.add_argument("--sessions", type=int, default=Assumed().sessions)
    parser.add_argument("--cell", type=int, default=Assumed().cell_workers, help="workers of a cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write assumptions and figures there")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no scenario {unknown[0]!r}: expected {', '.join(SCENARIOS)}")
    assumed = Assumed(machines=args.machines, sessions=args.sessions, cell_workers=args.cell)
    print("Assumed:", ", ".join(f"{name} {value}" for name, value in asdict(assumed).items()))
    print(f"{assumed.cells} cells, of {assumed.cell_sessions} sessions and {assumed.cell_gateways} gateways each")
    figures: dict[str, list[Row]] = {}
    for name in args.scenarios or SCENARIOS:
        began_s = time.perf_counter()
        figures[name] = SCENARIOS[name](assumed, args.seed)
        print(f"\n{name}: {SCENARIOS[name].__doc__}\n\n{table(figures[name])}", flush=True)
        print(f"({time.perf_counter() - began_s:.0f} s)", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps({"assumed": asdict(assumed), **figures}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
