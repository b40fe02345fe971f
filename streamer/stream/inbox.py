"""Commands to a session, each at its position in the audio."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.events import Event


@dataclass(frozen=True, slots=True)
class Command:
    """Something to do when the audio before a position has been processed."""

    # Of equal names only the last within a chunk of audio is kept. Commands with an empty name are all kept.
    name: str
    position: int
    apply: Callable[[], Iterable[Event] | None]
    number: int | None = None  # what `Session.mark` is then, if given


class Inbox:
    """Commands in the order in which they were given. Any thread may put one in; one thread takes them out."""

    def __init__(self) -> None:
        self._commands: OrderedDict[Hashable, Command] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._commands)

    def put(self, command: Command) -> None:
        """Add a command. It replaces its equal in the same chunk, so that a flood of commands takes no memory."""
        key = (command.name, command.position // CHUNK_SAMPLES) if command.name else object()
        with self._lock:
            self._commands[key] = command
            self._commands.move_to_end(key)

    def take(self, position: int) -> Command | None:
        """Remove and return the next command if it is due at `position`."""
        with self._lock:
            first = next(iter(self._commands.values()), None)
            if first is None or first.position > position:
                return None
            return self._commands.popitem(last=False)[1]

    def clear(self) -> None:
        """Drop all commands. They refer to the session, which could not be freed at once otherwise."""
        with self._lock:
            self._commands.clear()

    @property
    def next_position(self) -> int | None:
        with self._lock:
            return next((command.position for command in self._commands.values()), None)
