"""What was asked of a session, each thing at its place in the audio. Any thread may ask; one takes out."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.events import Event


@dataclass(frozen=True, slots=True)
class Command:
    """Something to be done when the audio has been heard up to a position."""

    # Of the same that is asked for several times only the last counts; empty for what counts each time.
    name: str
    position: int
    apply: Callable[[], Iterable[Event]]


class Inbox:
    """Commands in the order in which they were given. Its lock is held for a few steps."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._commands)

    def put(self, command: Command) -> None:
        """Add a command, in place of one of its name within a chunk of audio: no end of them fills the memory."""
        with self._lock:
            for i in reversed(range(len(self._commands))):
                waiting = self._commands[i]
                if waiting.position // CHUNK_SAMPLES != command.position // CHUNK_SAMPLES:
                    break
                if command.name and waiting.name == command.name:
                    del self._commands[i]
                    break
            self._commands.append(command)

    def take(self, position: int) -> Command | None:
        """Take out the next command, where the audio has been heard up to its place; else None."""
        with self._lock:
            due = self._commands and self._commands[0].position <= position
            return self._commands.popleft() if due else None

    def clear(self) -> None:
        """Forget all commands. They know the session, which is so freed without a garbage collection."""
        with self._lock:
            self._commands.clear()

    @property
    def next_position(self) -> int | None:
        """Place of the next command; None where there is none."""
        with self._lock:
            return self._commands[0].position if self._commands else None
