"""The delay that a protocol adds: from when the daemon knows some words to when a client has them.

The daemon runs with a note of the moment at which each event enters its session's log, before anybody is told of it. A
client of each protocol in turn hears the same recording at real-time pace. For each word the delay is from the first
event that has it to the first message that has it, by the same clock of the machine; so what the model takes, which
differs from play to play, is in neither. What a word is there as is kept apart:

    shown    it may still change: partials, interim results
    stable   it does not change any more, and the sentence goes on: the stable part of partials, OpenAI's deltas
    final    its segment is final

Words are counted, not compared; where a client has fewer words in the end than the log, that is told.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import soxr
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import ClientConnection

from streamer.audio.constants import SAMPLE_RATE
from streamer.cli import main
from streamer.engine.eventlog import EventLog
from streamer.events import Error, Event, Final, Partial, from_json
from tools.benchmarks.corpus import Recording
from tools.benchmarks.figures import quantile
from tools.benchmarks.playing import Samples, pcm16, play
from tools.benchmarks.processes import Meter, Server, ServerFailure, free_port, our_python
from tools.benchmarks.systems import START_TIMEOUT_S, warm_up, without_settings
from tools.benchmarks.text import plain

ROOT = Path(__file__).resolve().parents[2]

KINDS = ("shown", "stable", "final")

# Without an answer, where a protocol does not say that there is no more.
QUIET_S = 3.0


class Reached:
    """When there were first so many words, as each kind, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self._final = ""

    def show(self, text: str, at_s: float, kind: str = "shown") -> None:
        """Note what is there behind all that is final."""
        self._reach(kind, f"{self._final} {text}", at_s)

    def add_final(self, text: str, at_s: float) -> None:
        """Note more text that is final."""
        self._final += f" {text}"
        for kind in KINDS:
            self._reach(kind, self._final, at_s)

    def take(self, event: Event, at_s: float) -> None:
        """Note what an event of a session has."""
        if isinstance(event, Final):
            self.add_final(event.text, at_s)
        elif isinstance(event, Partial):
            self.show(event.text, at_s)
            self.show(event.text[: event.stable], at_s, "stable")

    def _reach(self, kind: str, text: str, at_s: float) -> None:
        times = self.times[kind]
        times += [at_s] * (len(plain(text).split()) - len(times))


class Client:
    """A client of a protocol; this one is of our own."""

    name = "native"
    path = "/v1/stream"

    # What its words are there as.
    kinds: ClassVar[Sequence[str]] = KINDS

    def __init__(self, host: str) -> None:
        self.address = f"ws://{host}{self.path}"
        self.reached = Reached()
        self._over = False

    async def open(self, connection: ClientConnection) -> None:
        await connection.send('{"type":"start"}')

    def encode(self, samples: Samples) -> str | bytes:
        return pcm16(samples)

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send('{"type":"finish"}')

    def hear(self, message: str | bytes, wall_s: float) -> bool:
        at_s = time.monotonic()
        before = [len(times) for times in self.reached.times.values()]
        self.read(json.loads(message), at_s)
        return before != [len(times) for times in self.reached.times.values()]

    def is_over(self, quiet_s: float) -> bool:
        return self._over

    def read(self, message: dict[str, Any], at_s: float) -> None:
        """Note what a message shows."""
        event = from_json(json.dumps(message))
        if isinstance(event, Error) and event.fatal:
            raise ServerFailure(f"{self.address}: {event.message}")
        self.reached.take(event, at_s)

    async def told(self, connection: ClientConnection, key: str, value: str) -> None:
        """Wait for a message."""
        while (message := json.loads(await connection.recv())).get(key) != value:
            if "error" in message or message.get("status"):
                raise ServerFailure(f"{self.address}: {message}")


class OpenAi(Client):
    """Realtime transcription with the server's VAD: deltas are appended, and cannot be taken back."""

    name = "OpenAI Realtime"
    path = "/v1/realtime?intent=transcription"
    kinds = ("stable", "final")

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self._resampler = soxr.ResampleStream(SAMPLE_RATE, 24_000, 1, dtype="float32")
        # Of the items that are not completed.
        self._deltas: dict[str, str] = {}

    async def open(self, connection: ClientConnection) -> None:
        await self.told(connection, "type", "session.created")
        heard = {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "transcription": {"model": "whisper-1"},
            "turn_detection": {"type": "server_vad"},
        }
        session = {"type": "transcription", "audio": {"input": heard}}
        await connection.send(json.dumps({"type": "session.update", "session": session}))
        await self.told(connection, "type", "session.updated")

    def encode(self, samples: Samples) -> str:
        audio = base64.b64encode(pcm16(np.asarray(self._resampler.resample_chunk(samples)))).decode()
        return json.dumps({"type": "input_audio_buffer.append", "audio": audio})

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send('{"type":"input_audio_buffer.commit"}')

    def read(self, message: dict[str, Any], at_s: float) -> None:
        match message["type"].removeprefix("conversation.item.input_audio_transcription."):
            case "delta":
                self._deltas[message["item_id"]] = self._deltas.get(message["item_id"], "") + message["delta"]
                self.reached.show(" ".join(self._deltas.values()), at_s, "stable")
            case "completed":
                self._deltas.pop(message["item_id"], None)
                self.reached.add_final(message["transcript"], at_s)
            case "failed":
                raise ServerFailure(f"{self.address}: {message['error']}")

    def is_over(self, quiet_s: float) -> bool:
        return quiet_s > QUIET_S


class Deepgram(Client):
    """Live, with interim results."""

    name = "Deepgram"
    path = f"/v1/listen?encoding=linear16&sample_rate={SAMPLE_RATE}&channels=1&interim_results=true"
    kinds = ("shown", "final")

    async def open(self, connection: ClientConnection) -> None:
        """Nothing comes before the audio."""

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send('{"type":"CloseStream"}')

    def read(self, message: dict[str, Any], at_s: float) -> None:
        if message["type"] == "Results":
            text = message["channel"]["alternatives"][0]["transcript"]
            (self.reached.add_final if message["is_final"] else self.reached.show)(text, at_s)


class WhisperLive(Client):
    """As its own client, which ends when all is completed and quiet."""

    name = "WhisperLive"
    path = "/"
    kinds = ("shown", "final")

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self._completed: set[str] = set()

    async def open(self, connection: ClientConnection) -> None:
        options = {"uid": self.name, "language": None, "task": "transcribe", "model": "small", "use_vad": True}
        await connection.send(json.dumps({**options, "send_last_n_segments": 10}))
        await self.told(connection, "message", "SERVER_READY")

    def encode(self, samples: Samples) -> bytes:
        return samples.astype("<f4").tobytes()

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send(b"END_OF_AUDIO")

    def read(self, message: dict[str, Any], at_s: float) -> None:
        for segment in message.get("segments", ()):
            if not segment["completed"]:
                self.reached.show(segment["text"], at_s)
            elif segment["start"] not in self._completed:
                self._completed.add(segment["start"])
                self.reached.add_final(segment["text"], at_s)

    def is_over(self, quiet_s: float) -> bool:
        return quiet_s > QUIET_S


class Vosk(Client):
    """A reply to each chunk: what is new waits for the next one, 20 ms here, 200 ms with its own test clients."""

    name = "Vosk"
    path = "/vosk"
    kinds = ("shown", "final")

    async def open(self, connection: ClientConnection) -> None:
        await connection.send(json.dumps({"config": {"sample_rate": SAMPLE_RATE}}))

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send('{"eof" : 1}')

    def read(self, message: dict[str, Any], at_s: float) -> None:
        if "partial" in message:
            self.reached.show(message["partial"], at_s)
        else:
            self.reached.add_final(message["text"], at_s)


class Wyoming(Client):
    """Over TCP; each message here is one of its events."""

    name = "Wyoming"
    kinds = ("final",)
    _FORMAT: ClassVar[Mapping[str, int]] = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.address = f"tcp://{host}"

    async def open(self, connection: ClientConnection) -> None:
        for kind, data in (("transcribe", {}), ("audio-start", self._FORMAT)):
            await connection.send(json.dumps({"type": kind, "data": data}) + "\n")

    def encode(self, samples: Samples) -> bytes:
        audio = pcm16(samples)
        head = {"type": "audio-chunk", "data": self._FORMAT, "payload_length": len(audio)}
        return json.dumps(head).encode() + b"\n" + audio

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send('{"type":"audio-stop"}\n')

    def read(self, message: dict[str, Any], at_s: float) -> None:
        match message["type"]:
            case "transcript-chunk":
                self.reached.add_final(message["data"]["text"], at_s)
            case "transcript-stop" | "error":
                self._over = True


PROTOCOLS = {client.name: client for client in (Client, OpenAi, Deepgram, WhisperLive, Vosk, Wyoming)}


class TcpConnection:
    """A connection that sends and receives Wyoming's events, as one of a WebSocket does messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: str | bytes) -> None:
        """Send an event."""
        self._writer.write(message.encode() if isinstance(message, str) else message)
        await self._writer.drain()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield events until the other side closes."""
        while line := await self._reader.readline():
            event = json.loads(line)
            data = await self._reader.readexactly(event.get("data_length") or 0)
            await self._reader.readexactly(event.get("payload_length") or 0)
            yield json.dumps({**event, "data": {**event.get("data", {}), **json.loads(data or b"{}")}})


@contextlib.asynccontextmanager
async def tcp_connection(address: str) -> AsyncIterator[Any]:
    """Connect to `tcp://HOST:PORT`."""
    reader, writer = await asyncio.open_connection(*address.removeprefix("tcp://").split(":"))
    try:
        yield TcpConnection(reader, writer)
    finally:
        writer.close()


def measure_protocols(
    recordings: Sequence[Recording], flags: Sequence[str], names: Sequence[str], n_rounds: int, console: Console
) -> list[dict[str, object]]:
    """Play recordings to a daemon over protocols in turn, and print what each adds to the native one's delay.

    Of a protocol that fails the reason is told, and the others go on. Raises ServerFailure where the daemon does not
    start.
    """
    delays: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in KINDS} for name in names}
    missing = dict.fromkeys(names, 0)
    failures: dict[str, str] = {}
    with _daemon(flags) as (server, hosts, noted):
        _play(Client(hosts["native"]), warm_up(), server)
        noted()
        for _, recording, name in itertools.product(range(n_rounds), recordings, names):
            client = PROTOCOLS[name](hosts.get(name, hosts["native"]))
            try:
                _play(client, recording.samples, server)
            except ServerFailure as error:
                failures[name] = str(error)
                noted()
                continue
            known, came = noted().times, client.reached.times
            missing[name] += len(known["final"]) - len(came["final"])
            for kind in client.kinds:
                # The one may have had more words for a moment than the other.
                delays[name][kind] += [b - a for a, b in zip(known[kind], came[kind], strict=False)]
    rows = _rows(delays, missing, failures)
    _show(rows, console)
    return rows


def _play(client: Client, samples: Samples, server: Server) -> None:
    opened = tcp_connection(client.address) if isinstance(client, Wyoming) else None
    with Meter(server) as meter:
        asyncio.run(play(client, samples, meter, opened))


def _rows(
    delays: Mapping[str, Mapping[str, list[float]]], missing: Mapping[str, int], failures: Mapping[str, str]
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, kinds in delays.items():
        if name in failures:
            rows.append({"protocol": name, "error": failures[name]})
            continue
        for kind in PROTOCOLS[name].kinds:
            row: dict[str, object] = {"protocol": name, "kind": kind, "words": len(kinds[kind])}
            for percent in (50, 99):
                delay_s = quantile(kinds[kind], percent)
                native_s = quantile(delays.get(Client.name, {}).get(kind, []), percent)
                row[f"p{percent}_s"] = delay_s
                row[f"added_p{percent}_s"] = None if delay_s is None or native_s is None else delay_s - native_s
            rows.append({**row, "words_missing": missing[name]})
    return rows


def _show(rows: Sequence[Mapping[str, object]], console: Console) -> None:
    table = Table(title="From the daemon's event to the client's message, ms", title_justify="left")
    for title in ("Protocol", "Words", "Measured", "p50", "p99", "added p50", "added p99", "missing"):
        table.add_column(title, justify="left" if title in ("Protocol", "Words") else "right")
    for row in rows:
        if "error" in row:
            table.add_row(str(row["protocol"]), f"failed: {row['error']}")
            continue
        times = [row[name] for name in ("p50_s", "p99_s", "added_p50_s", "added_p99_s")]
        cells = [f"{1000 * time_s:.2f}" if isinstance(time_s, float) else "–" for time_s in times]
        table.add_row(str(row["protocol"]), str(row["kind"]), str(row["words"]), *cells, str(row["words_missing"]))
    console.print(table, markup=False)


@contextlib.contextmanager
def _daemon(flags: Sequence[str]) -> Iterator[tuple[Server, dict[str, str], Callable[[], Reached]]]:
    """Start a daemon that notes its events; yield it, its addresses, and what reads the events since the last time."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "events"
        path.touch()
        wyoming = free_port()
        environment = {
            **without_settings(),
            "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path)),
            "STREAMER_SERVER_WYOMING_PORT": str(wyoming),
        }
        arguments = ["run", "--input", "none", "--port", "0", *flags]
        command = [our_python(), "-m", "tools.benchmarks.protocols", str(path), *arguments]
        server = Server("streamer", command, environment)
        stack.callback(server.stop)
        host = urlsplit(server.wait_said(r"http://[^\s/]+/", START_TIMEOUT_S)).netloc
        with path.open(encoding="utf-8") as file:

            def noted() -> Reached:
                reached = Reached()
                for line in file:
                    at_s, _, event = line.partition(" ")
                    reached.take(from_json(event), float(at_s))
                return reached

            yield server, {"native": host, Wyoming.name: f"127.0.0.1:{wyoming}"}, noted


def run_noting(path: str, arguments: Sequence[str]) -> int:
    """Run `streamer` and note each event with the time at which it is about to be published."""
    append = EventLog.append

    with Path(path).open("a", encoding="utf-8", buffering=1) as file:

        def noting(log: EventLog, event: Event) -> Event:
            at_s = time.monotonic()
            event = append(log, event)
            file.write(f"{at_s} {event.to_json()}\n")
            return event

        EventLog.append = noting  # type: ignore[method-assign, assignment]
        return main(arguments)


if __name__ == "__main__":
    sys.exit(run_noting(sys.argv[1], sys.argv[2:]))
