"""Plays a recording to a server over a WebSocket at the pace at which it was spoken, and keeps what it answers."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from streamer.constants import SAMPLE_RATE
from tools.benchmarks.processes import Meter, ServerFailure
from tools.benchmarks.timeline import Revision

CHUNK_SAMPLES = SAMPLE_RATE // 50  # 20 ms, what a browser or a sound card delivers at a time

OPEN_TIMEOUT_S = 60.0  # for the handshake, and for what a system says before it takes audio
END_TIMEOUT_S = 60.0  # from the end of the audio to the last answer
LOOK_S = 0.1  # between two looks whether the answers have ended

Samples = NDArray[np.float32]


class Conversation(Protocol):
    """How one system talks with one client."""

    # Where it listens, ws://...
    address: str

    async def open(self, connection: ClientConnection) -> None:
        """Say and hear what comes before the audio."""

    def encode(self, samples: Samples) -> str | bytes:
        """Return 16 kHz mono as a message."""

    async def finish(self, connection: ClientConnection) -> None:
        """Say that no more audio comes."""

    def hear(self, message: str | bytes, wall_s: float) -> bool:
        """Take an answer that came `wall_s` seconds after the first audio; tell whether it shows anything new.

        Raises ServerFailure where the system refuses to go on.
        """

    def is_over(self, quiet_s: float) -> bool:
        """Tell whether nothing more is expected, `quiet_s` after what is shown last changed or the audio ended."""


@dataclass(slots=True)
class Cost:
    """What playing a recording took."""

    # Processor time up to the end of the audio, or to where the text last changed after it.
    cpu_s: float = 0.0
    peak_rss_mb: float = 0.0

    # Joules of the whole machine up to there; None if it reports none.
    energy_j: float | None = None

    # Seconds from the first audio to there.
    wall_s: float = 0.0


async def play(conversation: Conversation, samples: Samples, meter: Meter) -> Cost:
    """Play 16 kHz mono samples and wait for the end of the answers; the conversation keeps them.

    Raises ServerFailure where the server does not answer, or goes away before the audio has ended.
    """
    cost = Cost()
    try:
        async with connect(
            conversation.address, proxy=None, max_size=None, open_timeout=OPEN_TIMEOUT_S, close_timeout=5.0
        ) as connection:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await conversation.open(connection)
            await _Playing(conversation, connection, meter, cost).run(samples)
    except TimeoutError:
        raise ServerFailure(f"{conversation.address} did not answer within {OPEN_TIMEOUT_S:.0f} s") from None
    except (OSError, ConnectionClosed, InvalidHandshake, InvalidMessage) as error:
        raise ServerFailure(f"{conversation.address}: {type(error).__name__}: {error}") from None
    cost.peak_rss_mb = meter.peak_rss_mb
    return cost


class _Playing:
    """One connection while audio goes out and answers come in."""

    def __init__(self, conversation: Conversation, connection: ClientConnection, meter: Meter, cost: Cost) -> None:
        self._conversation = conversation
        self._connection = connection
        self._meter = meter
        self._cost = cost
        self._begin_s = time.monotonic()
        self._sent_s = 0.0

    async def run(self, samples: Samples) -> None:
        receiver = asyncio.create_task(self._receive())
        try:
            await self._send(samples, receiver)
            self._take_stock()
            ended_s = self._now_s()
            await self._conversation.finish(self._connection)
            while not receiver.done() and self._now_s() - ended_s < END_TIMEOUT_S:
                if self._conversation.is_over(self._now_s() - self._cost.wall_s):
                    break
                await asyncio.wait([receiver], timeout=LOOK_S)
        finally:
            receiver.cancel()
            # Else what the receiver ended with; a server may close without a word once it has the end of the audio.
            with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
                await receiver

    async def _send(self, samples: Samples, receiver: "asyncio.Task[None]") -> None:
        self._begin_s = time.monotonic()
        for first in range(0, len(samples), CHUNK_SAMPLES):
            chunk = samples[first : first + CHUNK_SAMPLES]
            # A chunk can be sent when its last sample has been spoken.
            due_s = (first + len(chunk)) / SAMPLE_RATE
            await asyncio.sleep(max(0.0, due_s - self._now_s()))
            if receiver.done():
                receiver.result()
                raise ServerFailure(f"{self._conversation.address} closed after {self._sent_s:.1f} s of audio")
            await self._connection.send(self._conversation.encode(chunk))
            self._sent_s = due_s

    async def _receive(self) -> None:
        async for message in self._connection:
            if self._conversation.hear(message, self._now_s()):
                self._take_stock()

    def _take_stock(self) -> None:
        self._cost.wall_s = self._now_s()
        self._cost.cpu_s = self._meter.cpu_s()
        self._cost.energy_j = self._meter.energy.joules()

    def _now_s(self) -> float:
        return time.monotonic() - self._begin_s


def pcm16(samples: Samples) -> bytes:
    """Return samples as 16-bit little-endian integers."""
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


class Screen:
    """What a peer displays, from moment to moment."""

    def __init__(self) -> None:
        self.revisions: list[Revision] = []
        self._shown: tuple[tuple[str, ...], int] = ((), 0)

    def show(self, stable: str, unstable: str, wall_s: float) -> bool:
        """Show a text, and behind it what may still change; tell whether that is new."""
        words = tuple(stable.split())
        shown = (words + tuple(unstable.split()), len(words))
        if shown == self._shown:
            return False
        self._shown = shown
        self.revisions.append(Revision(wall_s, words=shown[0], n_stable=shown[1]))
        return True
