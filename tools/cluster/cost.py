"""What a cluster costs beside a single daemon: delay of texts, and processor time, of the same sessions in turns."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streamer.constants import SAMPLE_RATE
from streamer.events import Final, Partial
from tools.benchmarks.processes import free_port
from tools.cluster.machines import READY_S, Balancer, Machines, healthy, run_until_told, until, variables
from tools.cluster.sessions import Received, say_all, speeches

PARTS = {"daemon": "d", "worker": "w", "gateway": "g", "nats": "n"}


async def compare(n: int, speech_s: float, rounds: int, folder: Path | None) -> None:
    """Print a line of JSON a round and system, and the medians of the rounds in the end."""
    samples = speeches(n, speech_s)
    audio_s = sum(len(one) for one in samples) / SAMPLE_RATE
    lines: dict[str, list[dict[str, float]]] = {"daemon": [], "cluster": []}
    with Machines(folder) as machines:
        await machines.start_cluster()
        port = free_port()
        command = (sys.executable, "-m", "streamer", "run", "--input", "none", "--no-captions", "--port", str(port))
        machines.run("d1", command, variables("d1"))
        await until(lambda: healthy(port), READY_S, "the daemon")
        async with Balancer(machines.gateway_ports) as balancer:
            for _ in range(rounds):
                for system, at in (("daemon", port), ("cluster", balancer.port)):
                    await machines.ready()
                    before = {name: process.cpu_s() for name, process in machines.all.items()}
                    received = [Received() for _ in samples]
                    await say_all(samples, f"127.0.0.1:{at}", received)
                    line = _delays(received)
                    for part, letter in PARTS.items():
                        used_s = [p.cpu_s() - before[name] for name, p in machines.all.items() if name[0] == letter]
                        line[f"cpu_{part}"] = round(sum(used_s) / audio_s, 4)
                    lines[system].append(line)
                    print(json.dumps({"system": system, **line}), flush=True)
        await machines.close()
    for system, found in lines.items():
        print(system, {key: round(float(np.median([line[key] for line in found])), 4) for key in found[0]})


def _delays(received: Sequence[Received]) -> dict[str, float]:
    """Return percentiles of the seconds from the end of what a text says to when it came."""
    found: dict[str, float] = {"failures": sum(bool(one.failure) for one in received)}
    for kind in (Partial, Final):
        delays_s = [at_s - event.end for one in received for at_s, event in one.events if isinstance(event, kind)]
        p50, p99 = np.percentile(delays_s or [0.0], (50, 99))
        found |= {f"{kind.__name__.lower()}_p50_s": round(p50, 3), f"{kind.__name__.lower()}_p99_s": round(p99, 3)}
    return found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster cost", description=__doc__)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--speech", type=float, default=20.0, metavar="S", help="seconds of speech a session, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep logs and NATS' files there")
    args = parser.parse_args(argv)
    return run_until_told(compare(args.sessions, args.speech, args.rounds, args.folder))
