"""An engine that only listens: a real client's stream in front of a runner that writes down what it hears."""

import asyncio
import random
import threading
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.audio.pcm import PcmDecoder
from streamer.audio.ring import RingBuffer
from streamer.daemon.streams import ClientStream, StreamOwner
from streamer.engine.eventlog import EventLog
from streamer.protocols.native import StreamStart
from tests.wire.support import final, opened_log

SAMPLES_A_FINAL = 500


class FakeRunner:
    """Takes audio from the buffer in a thread of its own, and publishes a final for each `SAMPLES_A_FINAL` of it."""

    def __init__(self, capacity_samples: int = 100_000, *, seed: int = 0) -> None:
        self.ring = RingBuffer(capacity_samples)
        self._news = threading.Event()
        self.log: EventLog = opened_log("fake")
        # Commands, each with how many samples had been written before.
        self.commands: list[tuple[str, int]] = []
        self.settings: list[Any] = []
        self.first_write = asyncio.Event()
        self._pieces: list[NDArray[np.float32]] = []
        self._rng = random.Random(seed)
        # Length of the audio, once it is known.
        self._end: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def heard(self) -> NDArray[np.int64]:
        """Return what was heard, shape (n,), as 16-bit integers."""
        return np.round(np.concatenate(self._pieces) * 32768).astype(np.int64)

    def write(self, samples: NDArray[np.float32]) -> None:
        assert len(samples) <= self.ring.free, "audio was written that there is no room for"
        self.ring.write(samples)
        self._news.set()
        self.first_write.set()

    def end(self) -> None:
        self._note("end")
        self._end = self.ring.head
        self._news.set()

    def flush(self) -> None:
        self._note("flush")

    def pause(self) -> None:
        self._note("pause")

    def resume(self) -> None:
        self._note("resume")

    def clear(self) -> None:
        self._note("clear")

    def change(self, settings: object) -> None:
        self._note("set")
        self.settings.append(settings)

    def _note(self, command: str) -> None:
        self.commands.append((command, self.ring.head))

    def _run(self) -> None:
        position = n_finals = 0
        while position != self._end and not self.log.closed:
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
                self.log.append(final(n_finals, f"{n_finals}"))
        self.log.close()


class OneStream:
    """Opens one stream, once, and keeps it."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream

    async def open(self, start: StreamStart, *, tenant: str = "") -> ClientStream:
        return self._stream

    async def resume(self, session: str, *, after: int = 0, tenant: str = "") -> ClientStream:
        assert session == self._stream.feed.session
        return self._stream

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        """It is kept for ever."""


def open_stream(runner: FakeRunner, options: StreamStart = StreamStart()) -> ClientStream:  # noqa: B008 - frozen
    """Return a stream in front of a runner, which is not started yet; it is kept for ever."""

    pcm = PcmDecoder(options.format, options.sample_rate, options.channels)
    owner = StreamOwner(
        choose=lambda options: partial(runner.change, options),
        report=runner.log.append,
        keep=lambda: None,
        leave=lambda: None,
    )
    return ClientStream(runner, runner.log, pcm, options, owner)
