"""What can be streamed to and measured: `streamer` itself here, others in tools/benchmarks/peers."""

import asyncio
import json
import os
import sys
import tempfile
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from websockets.asyncio.client import ClientConnection

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.errors import ProtocolError, StreamerError
from streamer.events import End, Error, Final, Partial, Revision, from_json
from tools.benchmarks.playing import Conversation, play
from tools.benchmarks.processes import Meter, Server, ServerFailure, free_port, is_listening, run
from tools.benchmarks.recordings import SAMPLE, Recording
from tools.benchmarks.timeline import Recorder, Timeline

START_TIMEOUT_S = 300.0  # an NPU may compile for minutes
TRANSCRIBE_TIMEOUT_S = 6 * 3600.0
METRICS_TIMEOUT_S = 10.0

WARM_UP_S = 6.0  # of the sample, before anything is measured


class System(ABC):
    """A system under test: its server is a process of its own."""

    def __init__(self, name: str, variables: Mapping[str, str]) -> None:
        """Take its name in tables, and the environment variables of its server."""
        self.name = name
        self._variables = variables
        self._server: Server | None = None
        self._port = 0

    @abstractmethod
    def command(self, port: int) -> list[str]:
        """Install it, and return what starts its server. Raises PeerUnavailable."""

    @abstractmethod
    def conversation(self, port: int) -> Conversation:
        """Return a new client's side of its protocol."""

    def is_ready(self, server: Server, port: int) -> bool:
        """Return whether its server takes clients."""
        return is_listening(port)

    def calls(self, port: int) -> tuple[int, int] | None:
        """Return how often its encoder and its decoder have run; None if it does not report that."""
        return None

    def start(self) -> None:
        """Start its server and play it some speech.

        Raises PeerUnavailable or ServerFailure; `stop` is to be called after that, too.
        """
        self._port = free_port()
        self._server = server = Server(self.name, self.command(self._port), self._variables)
        server.wait_ready(lambda: self.is_ready(server, self._port), START_TIMEOUT_S)
        self.stream("warm-up", warm_up())

    def stream(self, recording: str, samples: Float32Array) -> Timeline:
        """Play 16 kHz mono at real-time pace and wait for the end; several may be played at once.

        Raises ServerFailure if the system refuses it or goes away.
        """
        assert self._server is not None, "not started"
        conversation = self.conversation(self._port)
        before = self.calls(self._port)
        with Meter(self._server) as meter:
            asyncio.run(play(conversation, samples, meter))
        after = self.calls(self._port)
        timeline = conversation.timeline
        timeline.system, timeline.recording, timeline.audio_s = self.name, recording, len(samples) / SAMPLE_RATE
        if before is not None and after is not None:
            timeline.encoder_calls, timeline.decoder_calls = after[0] - before[0], after[1] - before[1]
        return timeline

    def stop(self) -> None:
        """End all its processes; do nothing if it does not run."""
        if self._server is not None:
            self._server.stop()
            self._server = None


class Streamer(System):
    """`streamer run`, its audio over /v1/stream."""

    def __init__(self, flags: Sequence[str] = ()) -> None:
        """Take further flags of `streamer run`."""
        super().__init__("streamer", without_settings())
        self._flags = flags

    def command(self, port: int) -> list[str]:
        """Return what starts the daemon."""
        return [sys.executable, "-m", "streamer", "run", "--input", "none", "--port", str(port), *self._flags]

    def conversation(self, port: int) -> "StreamerConversation":
        """Return a new client."""
        return StreamerConversation(f"ws://127.0.0.1:{port}/v1/stream")

    def is_ready(self, server: Server, port: int) -> bool:
        """Return whether the model is loaded: it listens before that."""
        return "listening on http" in server.log()

    def calls(self, port: int) -> tuple[int, int]:
        """Return the daemon's counters; they count for all its sessions together."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=METRICS_TIMEOUT_S) as answer:
                families = text_string_to_metric_families(answer.read().decode("utf-8"))
        except OSError as error:
            raise ServerFailure(f"{self.name} does not answer at /metrics: {error}") from None
        values = {sample.name: round(sample.value) for family in families for sample in family.samples}
        return values["streamer_encodes_total"], values["streamer_decoder_calls_total"]


class StreamerConversation(Conversation):
    """Our own protocol, version 1 (docs/protocol.md)."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._recorder = Recorder()
        self.timeline = self._recorder.timeline
        self._ended = False

    async def open(self, connection: ClientConnection) -> None:
        await connection.send(json.dumps({"type": "start", "format": "f32le", "sample_rate": SAMPLE_RATE}))

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send('{"type":"finish"}')

    def receive(self, message: str | bytes, wall_s: float) -> bool:
        try:
            event = from_json(message)
        except ProtocolError as error:
            raise ServerFailure(f"{self.address}: {error}") from None
        if isinstance(event, Error) and event.fatal:
            raise ServerFailure(f"{self.address}: {event.message}")
        self._recorder.add(event, wall_s)
        self._ended = self._ended or isinstance(event, End)
        return isinstance(event, Partial | Final | Revision)

    def is_over(self, quiet_s: float) -> bool:
        return self._ended


def play_all(
    systems: Sequence[System], recordings: Sequence[Recording], console: Console
) -> tuple[list[Timeline], dict[str, str]]:
    """Play every recording through every system, one after the other; return what they displayed, and failures."""
    timelines: list[Timeline] = []
    failures: dict[str, str] = {}
    for system in systems:
        at = system.name
        try:
            system.start()
            for recording in recordings:
                at = f"{system.name}, {recording.name}"
                console.print(f"{at}: {recording.audio_s:.0f} s at real-time pace", markup=False, highlight=False)
                try:
                    timelines.append(system.stream(recording.name, recording.samples()))
                except StreamerError as error:
                    failures[at] = str(error)
        except StreamerError as error:
            failures[at] = str(error)
        finally:
            system.stop()
    return timelines, failures


def transcribe_offline(recordings: Sequence[Recording], flags: Sequence[str]) -> dict[str, str]:
    """Return what `streamer transcribe` writes of the recordings with speech, by name. Raises ServerFailure."""
    spoken = [recording for recording in recordings if recording.text]
    if not spoken:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        transcribe([recording.path for recording in spoken], Path(folder), flags)
        return {each.name: Path(folder, f"{each.name}.txt").read_text(encoding="utf-8") for each in spoken}


def transcribe(paths: Sequence[Path], folder: Path, flags: Sequence[str]) -> float:
    """Let `streamer transcribe` write texts to a folder; return the processor time. Raises ServerFailure."""
    command = [sys.executable, "-m", "streamer", "transcribe", *map(str, paths), "--format", "txt"]
    command += ["--output-dir", str(folder), *flags]
    return run("streamer transcribe", command, without_settings(), TRANSCRIBE_TIMEOUT_S)


def warm_up() -> Float32Array:
    """Return the speech that every system receives before it is measured: 16 kHz mono, shape (n_samples,)."""
    return Recording(SAMPLE, "", "en").samples()[: round(WARM_UP_S * SAMPLE_RATE)]


def without_settings() -> dict[str, str]:
    """Return the environment without settings of the user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
    return {**kept, "XDG_CONFIG_HOME": os.devnull, "APPDATA": os.devnull, "PYTHONUTF8": "1"}
