"""Commands to a session, each at its position in the audio."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.events import Event

# What a command does when the audio before its position has been processed; returns events to publish.
Apply = Callable[[], Iterable[Event] | None]

# Commands that wait one by one: a client has this many only if it floods the session.
MAX_WAITING = 100


class Inbox:
    """Commands in the order in which they were given. Any thread may put one in; one thread takes them out."""

    def __init__(self) -> None:
        # Positions and what to do there.
        self._commands: OrderedDict[Hashable, tuple[int, Apply]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._commands)

    def put(self, name: str, position: int, apply: Apply) -> None:
        """Add a command.

        If MAX_WAITING are waiting, it replaces one of its name that came after these in the same chunk, so that a flood
        of them takes no memory.

        name : empty for a command that replaces none
        """
        with self._lock:
            full = bool(name) and len(self._commands) >= MAX_WAITING
            key = (name, position // CHUNK_SAMPLES) if full else object()
            self._commands[key] = position, apply
            self._commands.move_to_end(key)

    def take(self, position: int) -> Apply | None:
        """Remove and return the next command if it is due at `position`."""
        with self._lock:
            if not self._commands or next(iter(self._commands.values()))[0] > position:
                return None
            return self._commands.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drop all commands. They refer to the session, which could not be freed at once otherwise."""
        with self._lock:
            self._commands.clear()

    @property
    def next_position(self) -> int | None:
        with self._lock:
            return next((position for position, _ in self._commands.values()), None)
