"""What three NATS servers on this machine take of what a cluster sends: `python -m tools.cluster.limits`.

Records go by compare-and-set, each behind the last one of its session, into a stream with three replicas on files. The
client is Python, on the same cores: so the servers' own CPU time a message is told, too.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import psutil
from nats.js.api import Header, StorageType, StreamConfig

from tests.cluster.support import NatsCluster

N_SESSIONS, SECONDS, AT_ONCE = 10_000, 8.0, 128


async def measure(what: str, do: Callable[[int], Awaitable[object]], at_once: int) -> None:
    """Do something with numbers that count up, so many at once, for a while; print how often it was done."""
    servers = [process for process in psutil.Process().children() if process.is_running()]
    used = [sum(process.cpu_times()[:2]) for process in servers]
    began, n, waited = time.perf_counter(), 0, []

    async def one_after_the_other() -> None:
        nonlocal n
        while (now := time.perf_counter()) < began + SECONDS:
            n += 1
            await do(n - 1)
            waited.append(time.perf_counter() - now)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    took = time.perf_counter() - began
    cost = [(sum(process.cpu_times()[:2]) - then) / n * 1e6 for process, then in zip(servers, used, strict=True)]
    median_ms = sorted(waited)[n // 2] * 1e3
    print(
        f"{what}: {n / took:,.0f}/s, each {median_ms:.1f} ms; servers' CPU {' + '.join(f'{us:.0f}' for us in cost)} us"
    )


async def measure_all(url: str) -> None:
    """Measure what is stored, read and sent."""
    client, other = await nats.connect(url), await nats.connect(url)
    api = client.jetstream(timeout=20.0)
    for n_bytes in (2048, 8192):
        await api.add_stream(StreamConfig(name="S", subjects=["e.*"], storage=StorageType.FILE, num_replicas=3))
        last, record = [0] * N_SESSIONS, bytes(n_bytes)

        async def store(n: int, last: list[int] = last, record: bytes = record) -> None:
            session = n % N_SESSIONS
            headers = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(last[session])}
            last[session] = (await api.publish(f"e.{session}", record, headers=headers)).seq

        await measure(f"records of {n_bytes} bytes stored, {N_SESSIONS} subjects", store, AT_ONCE)
        await measure("newest records read", lambda n: api.get_last_msg("S", f"e.{n % N_SESSIONS}"), AT_ONCE)
        await api.delete_stream("S")
    came = asyncio.Semaphore(0)

    async def take(_message: object) -> None:
        came.release()

    await other.subscribe("a", cb=take)
    await other.flush()
    for n_bytes in (3260, 6460):

        async def send(_n: int, audio: bytes = bytes(n_bytes)) -> None:
            await client.publish("a", audio)
            await came.acquire()

        await measure(f"core messages of {n_bytes} bytes, at one server", send, 8 * AT_ONCE)
    await client.close()
    await other.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        cluster = NatsCluster(Path(folder))
        try:
            cluster.start()
            time.sleep(5.0)  # until the servers have found each other
            asyncio.run(measure_all(cluster.urls[0]))
        finally:
            cluster.kill()
