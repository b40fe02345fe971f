"""Plays a recording to a server over a WebSocket at the pace at which it was spoken."""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from tools.benchmarks.processes import Meter, ServerFailure
from tools.benchmarks.timeline import Timeline

CHUNK_SAMPLES = SAMPLE_RATE // 50  # 20 ms, what a browser or a sound card delivers at a time

OPEN_TIMEOUT_S = 60.0  # for the handshake, and for what a system sends before it takes audio
END_TIMEOUT_S = 60.0  # from the end of the audio to the last answer
LOOK_S = 0.1  # between two looks whether the answers have ended


class Conversation(ABC):
    """One client's side of a system's protocol; keeps what the client displays."""

    def __init__(self, address: str) -> None:
        """Take the address of the system, ws://..."""
        self.address = address
        self.timeline = Timeline()

    @abstractmethod
    async def open(self, connection: ClientConnection) -> None:
        """Send and receive what comes before the audio."""

    def encode(self, samples: Float32Array) -> bytes:
        """Return 16 kHz mono as a message."""
        return samples.astype("<f4").tobytes()

    @abstractmethod
    async def finish(self, connection: ClientConnection) -> None:
        """Send that no more audio comes."""

    @abstractmethod
    def receive(self, message: str | bytes, wall_s: float) -> bool:
        """Take an answer that came `wall_s` seconds after the first audio; return whether it shows anything new.

        Raises ServerFailure if the system refuses to go on.
        """

    @abstractmethod
    def is_over(self, quiet_s: float) -> bool:
        """Return whether no more is expected, `quiet_s` after the display last changed or the audio ended."""


async def play(conversation: Conversation, samples: Float32Array, meter: Meter) -> None:
    """Play 16 kHz mono samples and wait for the end of the answers; the conversation's timeline also gets the cost.

    Raises ServerFailure if the server does not answer, or goes away before the audio has ended.
    """
    address = conversation.address
    try:
        async with connect(
            address, proxy=None, max_size=None, open_timeout=OPEN_TIMEOUT_S, close_timeout=5.0
        ) as connection:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await conversation.open(connection)
            await _exchange(conversation, connection, samples, meter)
    except TimeoutError:
        raise ServerFailure(f"{address} did not answer within {OPEN_TIMEOUT_S:.0f} s") from None
    except (OSError, ConnectionClosed, InvalidHandshake, InvalidMessage) as error:
        raise ServerFailure(f"{address}: {type(error).__name__}: {error}") from None
    conversation.timeline.peak_rss_mb = meter.peak_rss_mb


async def _exchange(
    conversation: Conversation, connection: ClientConnection, samples: Float32Array, meter: Meter
) -> None:
    begin_s = time.monotonic()
    changed_s = 0.0  # when the text last changed, or the audio ended

    def now_s() -> float:
        return time.monotonic() - begin_s

    def take_stock() -> None:
        nonlocal changed_s
        changed_s = now_s()
        conversation.timeline.cpu_s, conversation.timeline.energy_j = meter.cpu_s(), meter.energy.joules()

    async def receive() -> None:
        async for message in connection:
            if conversation.receive(message, now_s()):
                take_stock()

    receiver = asyncio.create_task(receive())
    try:
        for first in range(0, len(samples), CHUNK_SAMPLES):
            chunk = samples[first : first + CHUNK_SAMPLES]
            # A chunk can be sent when its last sample has been spoken.
            await asyncio.sleep(max(0.0, (first + len(chunk)) / SAMPLE_RATE - now_s()))
            if receiver.done():
                receiver.result()
                raise ServerFailure(f"{conversation.address} closed after {first / SAMPLE_RATE:.1f} s of audio")
            await connection.send(conversation.encode(chunk))
        take_stock()
        ended_s = changed_s
        await conversation.finish(connection)
        while not receiver.done() and now_s() - ended_s < END_TIMEOUT_S:
            if conversation.is_over(now_s() - changed_s):
                break
            await asyncio.wait([receiver], timeout=LOOK_S)
    finally:
        receiver.cancel()
        # Else what the receiver ended with; a server may close without a message once it has the end of the audio.
        with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
            await receiver
