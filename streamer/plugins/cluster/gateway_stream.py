"""A client's stream at its gateway: its audio and commands on their way to the worker that owns the session."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.daemon.streams import ClientStream
from streamer.engine.eventlog import EventLog
from streamer.events import Error
from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.messages import WORKERS, SessionCheckpoint, SessionCommand
from streamer.plugins.cluster.replay import ReplayBuffer
from streamer.protocols.native import Command, StreamStart


class GatewayStream(ClientStream):
    """A client's stream into a session at a worker: keeps its audio and commands, and sends them. Only `run` waits."""

    outlives = True

    def __init__(
        self,
        bus: Bus,
        log: EventLog,
        checkpoint: SessionCheckpoint,
        leave: Callable[[], None],
        is_here: Callable[[], Awaitable[bool]],
    ) -> None:
        """
        log : the session's events
        leave : called when the client has left
        is_here : see `ClientStream.is_here`
        """
        super().__init__(log, checkpoint.start)
        self._leave, self._is_here = leave, is_here
        self._bus = bus
        # The worker that it is sent to, empty while no worker owns the session, and that owner's epoch.
        self.worker, self._epoch = "", 0
        # Number of the newest `set`.
        self.newest_set = 0
        # Samples that are still to come only to warm the resampler.
        self._n_warming = 0
        # Set when there may be something to send.
        self._wake = asyncio.Event()
        self.begin(checkpoint)

    def begin(self, checkpoint: SessionCheckpoint) -> None:
        """Begin with nothing, behind a checkpoint."""
        start = checkpoint.start
        exact = (start.format, start.sample_rate, start.channels) == ("s16le", SAMPLE_RATE, 1)
        position = checkpoint.state.needed_from
        self.ring = ReplayBuffer(self.log.session, wide=not exact, position=position, command=checkpoint.command)
        self.ring.on_room = self.on_room
        self.options = start
        # Audio before this was processed before: the client's commands there have taken effect.
        self._processed_before = checkpoint.state.received

    def _write(self, samples: Float32Array) -> None:
        """Take audio, 16 kHz mono, shape (n,)."""
        n_warming = min(self._n_warming, len(samples))
        self._n_warming -= n_warming
        self.ring.write(samples[n_warming:])
        self._wake.set()

    @property
    def _free(self) -> int:
        return self.ring.free

    def _command(self, command: Command) -> None:
        self._send(command)

    def _end(self) -> None:
        # A worker waits for all audio that was processed before: what the client does not send again is silence.
        self.ring.write(np.zeros(max(0, self._processed_before - self.ring.head), np.float32))
        self._send("end")

    def _check(self, options: StreamStart) -> None:
        """Nothing is raised: the worker reports what its model cannot follow."""

    def _change(self, options: StreamStart) -> None:
        self._send("set", options=options)
        self.newest_set = self.ring.command

    def report(self, error: Error) -> None:
        self._send("report", code=error.code, message=error.message, fatal=error.fatal)

    def _abandon(self) -> None:
        self._leave()

    async def is_here(self) -> bool:
        return await self._is_here()

    def warm_up(self, n_samples: int) -> None:
        """Drop the first samples to come: they only warm the resampler."""
        self._n_warming = n_samples

    def send_to(self, worker: str, epoch: int) -> None:
        """Send to a worker from now on; empty: wait."""
        self.worker, self._epoch = worker, epoch

    def rewind(self, position: int, command: int) -> None:
        """Send again what is behind a position and a command."""
        self.ring.rewind(position, command)
        self._wake.set()

    async def run(self) -> None:
        """Send what there is, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.worker and self._bus.connected and (item := self.ring.take(self._epoch)) is not None:
                await self._bus.publish(f"{WORKERS}.{self.worker}", item)

    def _send(self, what: str, **more: object) -> None:
        if what != "report" and self.ring.head < self._processed_before:
            return  # it took effect before the session came here
        command = SessionCommand(session=self.log.session, epoch=0, position=0, command=0, what=what, **more)  # type: ignore[arg-type]
        self.ring.put(command)
        self._wake.set()
