"""What can be streamed to and measured: `streamer` itself here, others in tools/benchmarks/peers."""

import asyncio
import json
import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import numpy as np
import soundfile
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import ClientConnection

from streamer.constants import SAMPLE_RATE
from streamer.errors import ProtocolError
from streamer.events import End, Error, Final, Partial, Revision, from_json
from tools.benchmarks.playing import Samples, play
from tools.benchmarks.processes import Meter, Server, ServerFailure, our_python
from tools.benchmarks.recorder import Recorder
from tools.benchmarks.timeline import Timeline

START_TIMEOUT_S = 300.0  # an NPU may compile for minutes
ANSWER_TIMEOUT_S = 10.0  # for /metrics

WARM_UP = Path(__file__).parents[2] / "models" / "nano.en" / "sample.flac"
WARM_UP_S = 6.0  # of it, before anything is measured


class StreamingSystem(Protocol):
    """A system under test."""

    name: str

    def start(self) -> None:
        """Make it ready and warm. Raises PeerUnavailable where it cannot be installed or started."""

    def stream(self, recording: str, samples: NDArray[np.float32]) -> Timeline:
        """Play 16 kHz mono at real-time pace and wait for the end; several may be played at once.

        Raises ServerFailure where the system does not answer or goes away.
        """

    def stop(self) -> None:
        """End all its processes."""


class Streamer:
    """`streamer run` as a process of its own, its audio over /v1/stream."""

    def __init__(self, flags: Sequence[str] = (), name: str = "streamer") -> None:
        """`flags` are further ones of `streamer run`."""
        self.name = name
        self._flags = tuple(flags)
        self._server: Server | None = None
        self._host = ""

    def start(self) -> None:
        """Start the daemon. Raises ServerFailure where it does not."""
        command = [our_python(), "-m", "streamer", "run", "--input", "none", "--port", "0", *self._flags]
        self._server = Server(self.name, command, without_settings())
        try:
            url = self._server.wait_said(r"http://[^\s/]+/", START_TIMEOUT_S)
            self._host = urlsplit(url).netloc
            self.stream("warm-up", warm_up())
        except ServerFailure:
            self.stop()
            raise

    def stream(self, recording: str, samples: NDArray[np.float32]) -> Timeline:
        """Play a recording. Raises ServerFailure where the daemon refuses it or goes away."""
        assert self._server is not None, "not started"
        conversation = StreamerConversation(self._host)
        before = self._counters()
        with Meter(self._server) as meter:
            cost = asyncio.run(play(conversation, samples, meter))
        after = self._counters()
        return conversation.recorder.timeline(
            self.name,
            recording,
            len(samples) / SAMPLE_RATE,
            cpu_s=cost.cpu_s,
            peak_rss_mb=cost.peak_rss_mb,
            energy_j=cost.energy_j,
            encoder_calls=round(after["streamer_encodes_total"] - before["streamer_encodes_total"]),
            decoder_calls=round(after["streamer_decoder_calls_total"] - before["streamer_decoder_calls_total"]),
        )

    def stop(self) -> None:
        """End the daemon; nothing happens where it does not run."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _counters(self) -> dict[str, float]:
        """Return the daemon's counters by name; they count for all its sessions together."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self._host}/metrics", timeout=ANSWER_TIMEOUT_S) as answer:
                text = answer.read().decode("utf-8")
        except OSError as error:
            raise ServerFailure(f"{self.name} does not answer at /metrics: {error}") from None
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.labels
        }


class StreamerConversation:
    """Our own protocol, version 1 (docs/protocol.md)."""

    def __init__(self, host: str) -> None:
        self.address = f"ws://{host}/v1/stream"
        self.recorder = Recorder()
        self._ended = False

    async def open(self, connection: ClientConnection) -> None:
        await connection.send(json.dumps({"type": "start", "format": "f32le", "sample_rate": SAMPLE_RATE}))

    def encode(self, samples: Samples) -> bytes:
        return samples.astype("<f4").tobytes()

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send('{"type":"finish"}')

    def hear(self, message: str | bytes, wall_s: float) -> bool:
        try:
            event = from_json(message)
        except ProtocolError as error:
            raise ServerFailure(f"{self.address}: {error}") from None
        if isinstance(event, Error) and event.fatal:
            raise ServerFailure(f"{self.address}: {event.message}")
        self.recorder.add(event, wall_s)
        self._ended = self._ended or isinstance(event, End)
        return isinstance(event, Partial | Final | Revision)

    def is_over(self, quiet_s: float) -> bool:
        return self._ended


def warm_up() -> Samples:
    """Return the speech that every system hears before it is measured: 16 kHz mono, shape (n_samples,)."""
    samples, _ = soundfile.read(WARM_UP, frames=round(WARM_UP_S * SAMPLE_RATE), dtype="float32")
    return np.asarray(samples, dtype=np.float32)


def without_settings() -> dict[str, str]:
    """Return the environment without anybody's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
    return {**kept, "XDG_CONFIG_HOME": os.devnull, "APPDATA": os.devnull, "PYTHONUTF8": "1"}
