"""An engine that takes notes: a session that writes down what it receives, for a real client's stream."""

import asyncio
import random
import threading

import numpy as np
from numpy.typing import NDArray

from streamer.audio.pcm import PcmDecoder
from streamer.audio.ring import RingBuffer
from streamer.daemon.backend import Backend, Session
from streamer.daemon.clients import ClientStreams
from streamer.daemon.streams import ClientStream
from streamer.protocols.native import Command, StreamStart
from streamer.settings.table import ServerSettings
from tests.wire.support import final, opened_log

SAMPLES_A_FINAL = 500


class ListeningSession(Session):
    """Takes audio from the buffer in a thread of its own, and publishes a final for each `SAMPLES_A_FINAL` of it."""

    def __init__(
        self,
        capacity_samples: int = 100_000,
        options: StreamStart = StreamStart(),  # noqa: B008 - frozen
        *,
        name: str = "fake",
        seed: int = 0,
    ) -> None:
        super().__init__(opened_log(name), options)
        self.ring = RingBuffer(capacity_samples)
        self.ring.on_room = lambda: self.on_room()
        self._news = threading.Event()
        # Commands, each with how many samples had been written before.
        self.commands: list[tuple[str, int]] = []
        self.settings: list[StreamStart] = []
        # Raised by the next `check`.
        self.refusal: Exception | None = None
        self.first_write = asyncio.Event()
        self._pieces: list[NDArray[np.float32]] = []
        self._rng = random.Random(seed)
        # Length of the audio, once it is known.
        self._end: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def received(self) -> NDArray[np.int64]:
        """Return what was received, shape (n,), as 16-bit integers."""
        return np.round(np.concatenate(self._pieces) * 32768).astype(np.int64)

    @property
    def free(self) -> int:
        return self.ring.free

    def write(self, samples: NDArray[np.float32]) -> None:
        assert len(samples) <= self.ring.free, "audio was written that there is no room for"
        self.ring.write(samples)
        self._news.set()
        self.first_write.set()

    def end(self) -> None:
        self._note("end")
        self._end = self.ring.head
        self._news.set()

    def command(self, command: Command) -> None:
        self._note(command)

    def check(self, options: StreamStart) -> None:
        if self.refusal is not None:
            raise self.refusal

    def change(self, options: StreamStart) -> None:
        self._note("set")
        self.settings.append(options)

    def abandon(self) -> None:
        """It listens until its log is closed."""

    def _note(self, command: str) -> None:
        self.commands.append((command, self.ring.head))

    def _run(self) -> None:
        position = n_finals = 0
        while position != self._end and not self.feed.closed:
            self._news.wait(0.5)
            self._news.clear()
            end = min(self.ring.head, position + self._rng.randrange(1, 2000))
            if end < self.ring.head:
                self._news.set()
            self._pieces.append(self.ring.read(position, end))
            position = end
            self.ring.release(position)
            while (n_finals + 1) * SAMPLES_A_FINAL <= position:
                n_finals += 1
                self.feed.append(final(n_finals, f"{n_finals}"))
        self.feed.close()


class OneSession(Backend):
    """Opens one session, and keeps it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def open(self, name: str, start: StreamStart, *, tenant: str) -> Session:
        return self._session

    async def knows(self, name: str, *, tenant: str) -> bool:
        return name == self._session.feed.session

    async def resume(self, name: str, *, after: int) -> Session:
        return self._session


def streams_to(session: Session) -> ClientStreams:
    """Return streams of which the first is to a session."""
    return ClientStreams(ServerSettings(), OneSession(session))


def stream_to(session: Session) -> ClientStream:
    """Return a stream to a session."""
    options = session.options
    return ClientStream(session, PcmDecoder(options.format, options.sample_rate, options.channels), "")
