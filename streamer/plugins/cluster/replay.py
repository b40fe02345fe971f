"""Audio and commands that a gateway keeps until no other worker can need them. No I/O.

Positions are absolute samples of the session's audio at 16 kHz. Commands are numbered 1, 2, 3, ...
"""

import math
from collections import deque
from collections.abc import Callable

import msgspec

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.plugins.cluster.messages import MAX_BLOCK_SAMPLES, AudioBlock, SessionCommand, pack_samples
from streamer.protocols.native import StreamStart

# Audio that may wait to be processed; then the client is held back. Processed audio that may be needed again is kept as
# well: a window of 30 s at most.
WAITING_SAMPLES = 30 * SAMPLE_RATE

# Audio of another sample rate is sent again from this much before the position needed, to warm the new resampler.
WARM_SAMPLES = SAMPLE_RATE // 4

# Commands that may wait to take effect.
MAX_COMMANDS = 1000


class ReplayBuffer:
    """A session's audio and commands behind its newest checkpoint, and what of them was sent to its worker.

    It is to a gateway's streams what the ring buffer is to a daemon's: nothing that was put in is ever lost.
    """

    def __init__(self, session: str, *, wide: bool, position: int = 0, command: int = 0) -> None:
        """Begin with nothing: audio comes from a position on, and commands behind a number.

        wide : whether samples are kept as 32-bit floats; else they came from 16-bit integers, and are kept as these
        """
        self._session = session
        self._wide = wide
        self._sample_bytes = 4 if wide else 2
        # Audio from position `first` on, as it is sent.
        self._audio = bytearray()
        self.first = position
        # As they are sent, except the epoch; the last number that was given.
        self._commands: deque[SessionCommand] = deque()
        self.command = command
        # Position and command up to which the worker was sent; it may need audio only from a position that is to come.
        self._sent_position, self._sent_command = position, command
        # Position up to which audio was processed.
        self._processed = position
        # Called when audio was processed, or commands took effect: there may be room again.
        self.on_room: Callable[[], None] | None = None

    @property
    def head(self) -> int:
        """Position behind the last audio."""
        return self.first + len(self._audio) // self._sample_bytes

    @property
    def free(self) -> int:
        """Samples for which there is room; below 0 if commands have to wait as well."""
        return -1 if len(self._commands) >= MAX_COMMANDS else max(0, WAITING_SAMPLES - (self.head - self._processed))

    @property
    def sent(self) -> tuple[int, int]:
        """Up to which position and command the worker was sent."""
        return min(self._sent_position, self.head), self._sent_command

    def write(self, samples: Float32Array) -> None:
        """Take audio, shape (n,)."""
        self._audio += pack_samples(samples, wide=self._wide)

    def put(self, do: SessionCommand) -> None:
        """Take a command, at the end of the audio so far: it gets its number and place here."""
        self.command += 1
        self._commands.append(msgspec.structs.replace(do, position=self.head, command=self.command))

    def release(self, needed_from: int, processed: int, command: int) -> None:
        """Drop audio before a position and commands up to a number; audio was processed up to `processed`."""
        n_samples = min(needed_from, self.head) - self.first
        if n_samples > 0:
            del self._audio[: n_samples * self._sample_bytes]
            self.first += n_samples
            self._sent_position = max(self._sent_position, self.first)
        while self._commands and self._commands[0].command <= command:
            self._sent_command = max(self._sent_command, self._commands.popleft().command)
        self._processed = max(self._processed, processed)
        if self.on_room is not None:
            self.on_room()

    def rewind(self, position: int, command: int) -> None:
        """Send again from a position on, and commands above a number: the worker has what is before these."""
        oldest = self._commands[0].command if self._commands else self.command + 1
        self._sent_position = max(position, self.first)
        self._sent_command = min(max(command, oldest - 1), self.command)

    def take(self, epoch: int) -> AudioBlock | SessionCommand | None:
        """Return what is to be sent next to the owner with an epoch; None: all is sent."""
        position, head = self._sent_position, self.head
        if self._sent_command < self.command:
            do = self._commands[self._sent_command - self.command]
            if do.position <= position:
                self._sent_command = do.command
                return msgspec.structs.replace(do, epoch=epoch)
            head = do.position
        if position >= head:
            return None
        end = min(head, position + MAX_BLOCK_SAMPLES)
        self._sent_position = end
        begin, stop = ((at - self.first) * self._sample_bytes for at in (position, end))
        with memoryview(self._audio) as audio:
            data = bytes(audio[begin:stop])
        return AudioBlock(
            session=self._session,
            epoch=epoch,
            position=position,
            command=self._sent_command,
            data=data,
            wide=self._wide,
        )


def first_frame(position: int, start: StreamStart) -> tuple[int, int]:
    """Return the frame at the client's rate from which to send audio again, and the position that it becomes.

    A resampler that begins there yields, from `position` on, the samples of one that began with the session: frames on
    the grid that both rates share become whole positions, and it begins early enough to be warm.
    """
    if start.sample_rate == SAMPLE_RATE:
        return position, position
    common = math.gcd(start.sample_rate, SAMPLE_RATE)
    n_steps = max(0, (position - WARM_SAMPLES) // (SAMPLE_RATE // common))
    return n_steps * (start.sample_rate // common), n_steps * (SAMPLE_RATE // common)
