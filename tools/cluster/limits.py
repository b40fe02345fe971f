"""What three NATS servers on this machine take of what a cluster sends: `python -m tools.cluster.limits`.

Records go by compare-and-set, each behind the last one of its session, into one stream with three replicas on files.
The client runs in Python on the same machine. So the servers' own CPU time a message is told as well: a stream works on
at most about one core of its leader, which is what limits it where clients are elsewhere.
"""

import asyncio
import resource
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import nats
import psutil
from nats.js.api import StorageType, StreamConfig


N_SESSIONS, SECONDS, AT_ONCE = 10_000, 8.0, 128


async def stored(url: str, n_bytes: int, servers: list[psutil.Process]) -> None:
    """Store records of one size, of so many sessions in turn, and print the rates."""
    client = await nats.connect(url)
    js = client.jetstream(timeout=20.0)
    await js.add_stream(StreamConfig(name="S", subjects=["e.>"], storage=StorageType.FILE, num_replicas=3))
    leader = (await js.stream_info("S")).cluster.leader
    last, delays, payload, turn = [0] * N_SESSIONS, [], bytes(n_bytes), iter(range(10**9))
    began, used = time.perf_counter(), cpu(servers)

    async def store() -> None:
        while (now := time.perf_counter()) < began + SECONDS:
            session = next(turn) % N_SESSIONS
            expected = {"Nats-Expected-Last-Subject-Sequence": str(last[session])}
            last[session] = (await js.publish(f"e.{session}", payload, headers=expected)).seq
            delays.append(time.perf_counter() - now)

    await asyncio.gather(*(store() for _ in range(AT_ONCE)))
    report(f"stored, {n_bytes} bytes", len(delays), time.perf_counter() - began, used, servers, int(leader[1:]) - 1)
    print(f"  waited p50 {sorted(delays)[len(delays) // 2] * 1e3:.1f} ms; subjects {min(N_SESSIONS, len(delays))}")
    print(f"  {(await js.stream_info('S')).state.bytes / len(delays):.0f} bytes a record on each server's disk")
    await js.delete_stream("S")
    await client.close()


async def core(url: str, n_bytes: int, servers: list[psutil.Process]) -> None:
    """Send core messages of one size from one connection to another at the same server, and print the rates."""
    source, sink = await nats.connect(url), await nats.connect(url)
    n_heard, done, payload = 0, asyncio.Event(), bytes(n_bytes)

    async def heard(_message: object) -> None:
        nonlocal n_heard
        n_heard += 1
        done.set()

    await sink.subscribe("a.*", cb=heard)
    await sink.flush()
    began, used, n_sent = time.perf_counter(), cpu(servers), 0
    while time.perf_counter() < began + SECONDS:
        for _ in range(100):
            await source.publish("a.1", payload)
        n_sent += 100
        while n_sent - n_heard > 1000:
            done.clear()
            await done.wait()
    report(f"core, {n_bytes} bytes", n_heard, time.perf_counter() - began, used, servers, 0)
    await source.close()
    await sink.close()


def cpu(servers: list[psutil.Process]) -> list[float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return [sum(s.cpu_times()[:2]) for s in servers] + [own.ru_utime + own.ru_stime]


def report(what: str, n: int, took_s: float, used: list[float], servers: list[psutil.Process], leader: int) -> None:
    each = [(now - then) / n * 1e6 for now, then in zip(cpu(servers), used, strict=True)]
    print(f"{what}: {n / took_s:.0f}/s; CPU us a message: servers {[f'{us:.0f}' for us in each[:-1]]}", end=" ")
    print(f"(the first in question is {leader}), client {each[-1]:.0f}", flush=True)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
        ports = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports[3:])
        servers = []
        for i in range(3):
            conf = Path(folder, f"{i}.conf")
            conf.write_text(
                f'server_name: n{i + 1}\nlisten: "127.0.0.1:{ports[i]}"\njetstream {{store_dir: "{folder}/{i}"}}\n'
                f'cluster {{name: c, listen: "127.0.0.1:{ports[3 + i]}", routes: [{routes}]}}\n', encoding="utf-8")
            servers.append(psutil.Popen(["/work/main/.venv/bin/nats-server", "-c", str(conf), "-l", str(conf.with_suffix(".log"))]))
        try:
            await asyncio.sleep(4)
            url = f"nats://127.0.0.1:{ports[0]}"
            for n in (2048, 8192):
                await stored(url, n, servers)
            for n in (3200 + 60, 6400 + 60):
                await core(url, n, servers)
        finally:
            for s in servers:
                s.kill()
                s.wait()
asyncio.run(main())
