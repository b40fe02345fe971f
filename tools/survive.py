"""Kills a daemon with SIGKILL at random moments, and holds what a client gets that follows across the restarts.

    python -m tools.survive --kills 200
    python -m tools.survive --kills 200 --without-model     the server and its history alone, which never fall silent

The daemon captions a recording at a pace and keeps a history. One client (the observer) is connected all the time and
notes each final that the daemon tells. The other (the follower) connects with `after` and `session` of the last event
that it has, leaves now and then, and comes back some time later, often after the daemon was killed and started again.
In the end it must have each final that was told, once, in order, with no `end` before the last. The exit code is 1
where it does not.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from prometheus_client import CollectorRegistry
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from streamer.events import End, Event, Final, Gap, Partial, Ready, Speech, from_json
from streamer.live.clients import ClientStreams
from streamer.server.front import Server
from streamer.server.history import History, open_history
from streamer.server.interfaces import Services
from streamer.settings.table import ServerSettings, Settings
from streamer.stream.eventlog import EventLog

SAMPLE = Path(__file__).resolve().parent.parent / "models" / "nano.en" / "sample.flac"

START_S = 120.0  # for a daemon to say its first final
CATCH_UP_S = 60.0  # for the follower, in the end
RETRY_S = 0.05  # from one attempt to connect to the next

# A final or gap: its session and number, and what it says.
Told = tuple[str, int, str]


@dataclass
class Client:
    """A client, and all finals and gaps that it got, in order."""

    told: list[Told] = field(default_factory=list)

    # Session and number of the newest event; none before the first.
    session: str = ""
    seq: int = 0

    # What was not as it should be.
    faults: list[str] = field(default_factory=list)

    # Notified with each event.
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take(self, event: Event) -> None:
        if event.session == self.session and event.seq <= self.seq:
            self.faults.append(f"number {event.seq} of {event.session} came behind {self.seq}")
        if event.session != self.session and not isinstance(event, Ready):
            self.faults.append(f"session {event.session} began with {event.type}")
        if isinstance(event, End):
            self.faults.append(f"session {event.session} said that it ended")
        self.session, self.seq = event.session, event.seq
        if isinstance(event, Final | Gap):
            self.told.append((event.session, event.seq, getattr(event, "text", event.type)))
        async with self.changed:
            self.changed.notify_all()


async def observe(port: int, client: Client) -> None:
    """Note all that a daemon says from its start to its end."""
    while True:
        with contextlib.suppress(OSError, InvalidHandshake, ConnectionClosed):
            # Nothing is asked of the history: what comes is what the daemon has just told.
            async with connect(f"ws://127.0.0.1:{port}/v1/captions?after=0", proxy=None) as connection:
                client.session, client.seq = "", 0
                async for message in connection:
                    await client.take(from_json(message))
        await asyncio.sleep(RETRY_S)


async def follow(port: int, client: Client, chance: random.Random, leaving: asyncio.Event) -> None:
    """Follow a daemon with `after`, and leave for a while now and then, as long as `leaving` is set."""
    while True:
        with contextlib.suppress(OSError, InvalidHandshake, ConnectionClosed, TimeoutError):
            query = f"?after={client.seq}&session={client.session}" if client.session else "?after=0"
            stay_s = chance.uniform(0.1, 8.0) if client.session and leaving.is_set() else None
            async with (
                asyncio.timeout(stay_s),
                connect(f"ws://127.0.0.1:{port}/v1/captions{query}", proxy=None) as connection,
            ):
                async for message in connection:
                    await client.take(from_json(message))
        away = client.session and leaving.is_set()
        await asyncio.sleep(chance.choice((RETRY_S, chance.uniform(0.0, 10.0))) if away else RETRY_S)


async def start(port: int, history: Path, recording: Path, speed: float | None) -> asyncio.subprocess.Process:
    """Start a daemon, or without a speed what talks without a model."""
    run = ("streamer", "run", "--no-captions", "--port", str(port), "--history", str(history))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m"),
        *((*run, "--input", str(recording), "--speed", str(speed)) if speed else ()),
        *(() if speed else ("tools.survive", "--serve", str(port), str(history))),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "XDG_CONFIG_HOME": os.devnull, "APPDATA": os.devnull},
    )


async def serve(port: int, path: Path) -> None:
    """Serve captions of nobody, with a history, until the process is killed."""
    settings = ServerSettings(port=port, history=str(path), history_events=100)
    with open_history(settings) as history:
        assert history is not None
        log = EventLog(secrets.token_urlsafe(8), settings.history_events, history.keeper(source="nobody"))
        streams = ClientStreams(Settings(server=settings))
        services = Services(streams=streams, health=dict, feed=log, history=history)
        server = Server(settings, services, CollectorRegistry())
        await server.start()
        log.append(Ready(model="none", device={}, sample_rate=16_000, language="en"))
        await asyncio.sleep(1.0)  # who follows is there before the log is full
        threading.Thread(target=talk, args=(log,), daemon=True).start()
        await asyncio.Event().wait()


def talk(log: EventLog) -> None:
    """Publish text after text."""
    for i in itertools.count(1):
        text = f"text {i}"
        log.append(Speech(state="start", time=float(i)))
        log.append(Partial(segment=i, start=float(i), end=i + 0.5, text=text, stable=0, words=()))
        log.append(
            Final(
                segment=i,
                start=float(i),
                end=i + 1.0,
                text=text,
                words=(),
                language="en",
                no_speech_prob=0.0,
                avg_logprob=0.0,
            )
        )
        log.append(Gap(start=i + 0.5, end=i + 1.0, reason="overload"))
        time.sleep(random.uniform(0.0, 0.03))


async def survive(n_kills: int, minutes: float, speed: float | None, seed: int, folder: Path) -> bool:
    """Kill and follow; print what was found, and return whether all is well."""
    chance = random.Random(seed)
    recording, history = folder / "recording.wav", folder / "history.db"
    samples, sample_rate = soundfile.read(SAMPLE, dtype="int16")
    soundfile.write(recording, np.tile(samples, 40), sample_rate)
    port = free_port()
    observer, follower = Client(), Client()
    leaving = asyncio.Event()
    leaving.set()
    begin_s = time.monotonic()
    n_behind = n_killed = 0
    watching = [
        asyncio.create_task(observe(port, observer)),
        asyncio.create_task(follow(port, follower, random.Random(seed + 1), leaving)),
    ]
    try:
        while True:
            process = await start(port, history, recording, speed)
            await heard(observer, len(observer.told) + 1)
            if n_killed < n_kills and time.monotonic() < begin_s + 60.0 * minutes:
                await asyncio.sleep(chance.uniform(0.5, 4.0) if speed else chance.uniform(0.0, 1.0))
                process.kill()
                await process.wait()
                n_behind += len(follower.told) < len(observer.told)
                n_killed += 1
                if n_killed % 10 == 0:
                    print(
                        f"{n_killed} kills, {len(observer.told)} told, {time.monotonic() - begin_s:.0f} s", flush=True
                    )
                continue
            leaving.clear()
            async with asyncio.timeout(CATCH_UP_S), follower.changed:
                await follower.changed.wait_for(lambda: follower.told and follower.told[-1] == observer.told[-1])
            process.kill()
            await process.wait()
            break
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    return report(observer, follower, History(history), n_kills=n_killed, n_behind=n_behind)


async def heard(client: Client, n_told: int) -> None:
    """Wait until a client has so many finals and gaps."""
    async with asyncio.timeout(START_S), client.changed:
        await client.changed.wait_for(lambda: len(client.told) >= n_told)


def report(observer: Client, follower: Client, file: History, *, n_kills: int, n_behind: int) -> bool:
    told, followed = set(observer.told), set(follower.told)
    sessions = list(reversed(file.sessions(n_kills + 1)))
    kept = [
        (event.session, event.seq, getattr(event, "text", event.type))
        for session in sessions
        for event in file.transcript(session)
        if isinstance(event, Final | Gap)
    ]
    last = follower.told[-1]
    expected = kept[: kept.index(last) + 1] if last in kept else kept
    missing, doubled = told - followed, len(follower.told) - len(followed)
    print(f"kills                      {n_kills}, the follower was behind at {n_behind} of them")
    print(f"sessions                   {len(sessions)}")
    print(f"finals and gaps told       {len(told)}")
    print(f"the follower has           {len(followed)}")
    print(f"missing                    {len(missing)}")
    print(f"doubled                    {doubled}")
    print(f"told, and not in the file  {len(told - set(kept))}")
    print(f"in the order of the file   {'yes' if follower.told == expected else 'NO'}")
    faults = follower.faults + observer.faults
    faults += [f"missing: {one}" for one in sorted(missing)]
    for fault in faults[:20]:
        print(f"fault: {fault}")
    return not (missing or doubled or faults or told - set(kept)) and follower.told == expected


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=600.0, help="no kill after so long")
    parser.add_argument("--speed", type=float, default=4.0, help="of the recording")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--without-model", action="store_true", help="the server and its history alone")
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve is not None:
        asyncio.run(serve(int(args.serve[0]), Path(args.serve[1])))
    speed = None if args.without_model else args.speed
    with tempfile.TemporaryDirectory() as folder:
        return 0 if asyncio.run(survive(args.kills, args.minutes, speed, args.seed, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
