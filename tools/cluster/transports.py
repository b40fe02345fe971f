"""How audio comes from gateway to worker: by core NATS, kept in JetStream besides, or by a WebSocket of ours.

A stand-in for the engine answers each block of audio with a partial, and each tenth with a final, which is stored in
the session's log first, whatever carries the audio. Gateway, worker and NATS are processes; the worker's line is cut
once, and what is missing then is sent again by the gateway, or read from the stream.
"""

import argparse
import asyncio
import collections
import contextlib
import functools
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nats.errors import Error as NatsError
from nats.js.api import StorageType, StreamConfig
from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from streamer.cluster.bus import Bus, Reply
from streamer.cluster.messages import (
    EVENTS,
    GATEWAYS,
    VERSION,
    WORKERS,
    Audio,
    Checkpoint,
    Message,
    Told,
    decoded,
    encoded,
)
from streamer.events import Final, Partial, from_json, seconds
from streamer.protocols.native import StreamStart
from streamer.settings.table import ClusterSettings
from streamer.stream.state import SessionState
from tools.benchmarks.processes import free_port
from tools.cluster.machines import Machines, accepts, run_until_told, until

MODES = ("core", "jetstream", "websocket")
BLOCK = 1600  # samples: 100 ms
KEPT_BLOCKS = 300  # 30 s
CUT_S = 6.0
AGAIN_S = 0.5  # from one request for what is missing to the next

Send = Callable[[Message], Awaitable[None]]

# websockets aborts a transport twice where several send over a line that breaks: AttributeError.
BROKEN = (OSError, TimeoutError, ConnectionClosed, InvalidHandshake, AttributeError)


class Gateway:
    """Takes clients' blocks and passes them on; keeps them for what gets lost."""

    def __init__(self) -> None:
        self._clients: dict[str, ServerConnection] = {}
        self._kept: dict[str, collections.deque[Audio]] = {}
        self._send: Send
        self._jetstream: Any = None
        self._unsaid: set[Any] = set()

    async def run(self, mode: str, urls: str, port: int, worker: str) -> None:
        bus = await bus_on(urls, "g1")
        if mode == "websocket":
            following = asyncio.create_task(self._follow(worker))
        else:

            async def take(data: bytes, _: Reply) -> None:
                await self._told(data)

            await bus.subscribe(f"{GATEWAYS}.g1", take)
            self._send = functools.partial(bus.publish, f"{WORKERS}.w1")
        if mode == "jetstream":
            self._jetstream = bus.jetstream
        async with serve(self._serve, "127.0.0.1", port, compression=None) as server:
            await server.serve_forever()
        following.cancel()

    async def _follow(self, address: str) -> None:
        while True:
            with contextlib.suppress(*BROKEN):
                async with connect(
                    address, compression=None, proxy=None, open_timeout=1.0, ping_interval=1.0, ping_timeout=1.0
                ) as line:
                    self._send = over(line)
                    async for data in line:
                        await self._told(data)  # type: ignore[arg-type]
            await asyncio.sleep(0.1)

    async def _serve(self, client: ServerConnection) -> None:
        name, position = secrets.token_urlsafe(12), 0
        self._clients[name] = client
        kept = self._kept[name] = collections.deque(maxlen=KEPT_BLOCKS)
        async for data in client:
            block = Audio(session=name, epoch=1, position=position, command=0, data=bytes(data), wide=False)  # type: ignore[arg-type]
            position += BLOCK
            kept.append(block)
            await self._pass_on(block)

    async def _pass_on(self, block: Audio) -> None:
        if self._jetstream is not None:
            stored = await self._jetstream.publish_async(f"audio.{block.session}", encoded(block))
            self._unsaid.add(stored)
            stored.add_done_callback(self._unsaid.discard)
            return
        with contextlib.suppress(*BROKEN):
            await self._send(block)

    async def _told(self, data: bytes) -> None:
        told = decoded(data, Told)
        if told.missing:
            for block in list(self._kept[told.session]):
                if block.position >= told.head:
                    await self._pass_on(block)
        for event in told.events:
            with contextlib.suppress(ConnectionClosed):
                await self._clients[told.session].send(event)


class Worker:
    """Answers audio as an engine would that takes no time."""

    def __init__(self) -> None:
        self._sessions: dict[str, asyncio.Queue[Audio]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._tell: Send
        self._jetstream: Any = None
        self._stored = False

    async def run(self, mode: str, urls: str, host: str, port: int) -> None:
        bus = await bus_on(urls, "w1")
        self._jetstream = bus.jetstream
        self._stored = mode == "jetstream"
        if mode == "websocket":

            async def take_all(line: ServerConnection) -> None:
                self._tell = over(line)
                async for data in line:
                    self._take(bytes(data))  # type: ignore[arg-type]

            async with serve(take_all, host, port, compression=None, ping_interval=1.0, ping_timeout=1.0) as server:
                await server.serve_forever()
        self._tell = functools.partial(bus.publish, f"{GATEWAYS}.g1")

        async def take(data: bytes, _: Reply) -> None:
            self._take(data)

        await bus.subscribe("audio.>" if self._stored else f"{WORKERS}.w1", take)
        await asyncio.Event().wait()

    def _take(self, data: bytes) -> None:
        block = decoded(data, Audio)
        if block.session not in self._sessions:
            self._sessions[block.session] = asyncio.Queue()
            self._tasks.append(asyncio.create_task(self._transcribe(block.session)))
        self._sessions[block.session].put_nowait(block)

    async def _transcribe(self, name: str) -> None:
        """Take blocks in order; what they bring is numbered, stored where it settles, and told."""
        head = sequence = number = n_missed = n_read = 0
        asked_s = 0.0
        while True:
            block = await self._sessions[name].get()
            while block.position > head and self._stored:  # read what did not come
                try:
                    found = await self._jetstream.get_msg("AUDIO", seq=n_read + 1, subject=f"audio.{name}", next=True)
                except (NatsError, TimeoutError):
                    await asyncio.sleep(0.1)
                    continue
                n_read, missed = found.seq, decoded(found.data, Audio)
                if missed.position == head:
                    n_missed += 1
                    head, sequence, number = await self._answer(missed, sequence, number, n_missed)
            if block.position > head:
                if time.monotonic() > asked_s + AGAIN_S:
                    asked_s = time.monotonic()
                    n_missed += (block.position - head) // BLOCK
                    await self._say(name, number, head, (), missing=True)
            elif block.position == head:
                head, sequence, number = await self._answer(block, sequence, number, n_missed)

    async def _answer(self, block: Audio, sequence: int, number: int, n_missed: int) -> tuple[int, int, int]:
        head = block.position + len(block.data) // 2
        end = seconds(head)
        partial = Partial(segment=1, start=0.0, end=end, text=f"{n_missed}", stable=0, words=())
        await self._say(block.session, number, head, (partial.to_json(),))
        if head % (10 * BLOCK) == 0:
            final = Final(
                segment=1, start=end - 1, end=end, text="", words=(), language="en", no_speech_prob=0.0, avg_logprob=0.0
            )
            while True:
                with contextlib.suppress(NatsError, TimeoutError):
                    expected = {"Nats-Expected-Last-Subject-Sequence": str(sequence)}
                    subject = f"{EVENTS}.{block.session}"
                    sequence = (await self._jetstream.publish(subject, final.to_json().encode(), headers=expected)).seq
                    break
                with contextlib.suppress(NatsError, TimeoutError):  # it may be stored, and the answer lost
                    sequence = (await self._jetstream.get_last_msg("SESSIONS", subject)).seq or sequence
            number += 1
            await self._say(block.session, number, head, (final.to_json(),))
        return head, sequence, number

    async def _say(self, name: str, number: int, head: int, events: tuple[str, ...], *, missing: bool = False) -> None:
        checkpoint = Checkpoint(
            version=VERSION, model="none", start=StreamStart(), seq=number, command=0, state=SessionState()
        )
        told = Told(
            session=name,
            worker="none",
            epoch=1,
            number=number,
            stored=False,
            events=events,
            checkpoint=checkpoint,
            head=head,
            command=0,
            missing=missing,
        )
        with contextlib.suppress(*BROKEN):
            await self._tell(told)


async def bus_on(urls: str, name: str) -> Bus:
    return await Bus.connect(ClusterSettings(nats=tuple(urls.split(","))), name)


def over(line: Connection) -> Send:
    async def send(message: Message) -> None:
        await line.send(encoded(message))

    return send


async def client(port: int, begin_s: float, n_blocks: int, delays_s: list[float]) -> tuple[int, int, float]:
    """Send blocks in real time. Return blocks that were never answered, late for a cut, and the longest silence."""
    sent_s: dict[int, float] = {}
    answered: set[int] = set()
    n_missed, silent_s, last_s = 0, 0.0, time.monotonic()
    async with connect(f"ws://127.0.0.1:{port}/", compression=None, proxy=None) as line:

        async def hear() -> None:
            nonlocal n_missed, silent_s, last_s
            async for message in line:
                event, now_s = from_json(message), time.monotonic()
                if isinstance(event, Partial):
                    i = round(event.end * 10)
                    answered.add(i)
                    delays_s.append(now_s - sent_s[i])
                    n_missed = int(event.text)
                    silent_s, last_s = max(silent_s, now_s - last_s), now_s

        hearing = asyncio.create_task(hear())
        for i in range(1, n_blocks + 1):
            await asyncio.sleep(begin_s + i * 0.1 - time.monotonic())
            sent_s[i] = time.monotonic()
            await line.send(np.full(BLOCK, i, "<i2").tobytes())
        with contextlib.suppress(TimeoutError):
            await until(lambda: len(answered) == n_blocks, 10.0, "answers")
        hearing.cancel()
    return n_blocks - len(answered), n_missed, silent_s


async def measure(machines: Machines, mode: str, n: int, seconds: float, *, cut: bool) -> dict[str, object]:
    """Run sessions through one transport. The worker's line is cut in the middle, or not."""
    for stream, subjects in (("SESSIONS", f"{EVENTS}.>"), ("AUDIO", "audio.>")):
        with contextlib.suppress(NatsError):
            await machines.jetstream.delete_stream(stream)
        if stream == "SESSIONS" or mode == "jetstream":
            storage = StorageType.FILE if stream == "SESSIONS" else StorageType.MEMORY
            config = StreamConfig(name=stream, subjects=[subjects], num_replicas=3, storage=storage, max_age=120.0)
            await machines.jetstream.add_stream(config)
    port, worker_port = free_port(), free_port()
    host = machines.address("w1")

    def start(name: str, **role: object) -> None:
        role |= {"mode": mode, "urls": machines.urls}
        machines.run(name, (sys.executable, "-m", "tools.cluster", "transports", "--role", json.dumps(role)))

    start("w1", role="worker", host=host, port=worker_port)
    start("g1", role="gateway", port=port, worker=f"ws://{host}:{worker_port}")
    await until(lambda: accepts("127.0.0.1", port), 30.0, "the gateway")
    await asyncio.sleep(2.0)
    before = {name: process.cpu_s() for name, process in machines.all.items()}
    delays_s: list[float] = []
    begin_s = time.monotonic()
    running = [
        asyncio.create_task(client(port, begin_s + 0.1 * i / n, round(10 * seconds), delays_s)) for i in range(n)
    ]
    if cut:
        await asyncio.sleep((seconds - CUT_S) / 3)
        machines.cut("w1")
        await asyncio.sleep(CUT_S)
        machines.mend("w1")
    results = await asyncio.gather(*running)
    used_s = {name: process.cpu_s() - before[name] for name, process in machines.all.items()}
    for name in ("w1", "g1"):
        machines.all.pop(name).kill()
    p50, p99 = np.percentile(delays_s, (50, 99)) * 1000
    per_s = {part: sum(s for name, s in used_s.items() if name[0] == part[0]) for part in ("nats", "gateway", "worker")}
    return {
        "mode": mode,
        "cut": cut,
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "cpu_s_per_1000_blocks": {part: round(s / (n * seconds * 10) * 1000, 3) for part, s in per_s.items()},
        "cpu_total": round(sum(per_s.values()) / (n * seconds * 10) * 1000, 3),
        "blocks": n * round(10 * seconds),
        "lost": sum(lost for lost, _, _ in results),
        "repaired": sum(missed for _, missed, _ in results),
        "silence_s": round(max(silent_s for _, _, silent_s in results), 2),
    }


async def compare(n: int, seconds: float, rounds: int, folder: Path | None) -> None:
    """Print a line of JSON for each transport, one after the other, round after round."""
    with Machines(folder) as machines:
        machines.start_nats()
        await machines.connect()
        await asyncio.sleep(3.0)
        for _ in range(rounds):
            for cut in (False, True):
                for mode in MODES:
                    print(json.dumps(await measure(machines, mode, n, seconds, cut=cut)), flush=True)
        await machines.close()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster transports", description=__doc__)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep logs and NATS' files there")
    parser.add_argument("--role", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.role is not None:
        run: Any = {"gateway": Gateway().run, "worker": Worker().run}[args.role.pop("role")]
        asyncio.run(run(**args.role))
        return 0
    return run_until_told(compare(args.sessions, args.seconds, args.rounds, args.folder))
