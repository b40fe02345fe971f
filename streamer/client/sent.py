"""What a client sent in its stream, and may have to send again."""

from typing import Any

# Audio, or a message of the protocol.
Message = bytes | dict[str, Any]

KEPT_S = 120.0  # of sent audio that is kept to be sent again
MAX_KEPT_ITEMS = 20_000  # kept pieces of audio and commands
FINISH: dict[str, Any] = {"type": "finish"}


class Sent:
    """A bounded buffer of audio and commands that may be sent again. Positions count frames."""

    def __init__(self, start: dict[str, Any], frame_bytes: int) -> None:
        """Begin a stream with a `start` message; a frame, a sample of each channel, has `frame_bytes`."""
        self._frame_bytes = frame_bytes
        self._kept_samples = KEPT_S * start["sample_rate"]
        # Each with its position, and with what opens a session there; the first `_n_sent` were sent over the current
        # connection.
        self._items: list[tuple[int, Message, list[dict[str, Any]]]] = []
        self._n_sent = 0
        # The messages that open a session at the end.
        self._opening = [start]
        # End of the last audio.
        self.position = 0
        # End of the audio that is no longer kept.
        self.first = 0

    def add(self, item: Message) -> None:
        self._items.append((self.position, item, self._opening))
        if isinstance(item, bytes):
            self.position += len(item) // self._frame_bytes
        elif item["type"] == "set":
            start, *pause = self._opening
            self._opening = [{**start, **item, "type": "start"}, *pause]
        elif item["type"] in ("pause", "resume"):
            self._opening = self._opening[:1] + [item] * (item["type"] == "pause")
        while self._n_sent and (
            len(self._items) > MAX_KEPT_ITEMS or self.position - self._items[0][0] > self._kept_samples
        ):
            position, item, _ = self._items.pop(0)
            self._n_sent -= 1
            self.first = position + (len(item) // self._frame_bytes if isinstance(item, bytes) else 0)

    def take(self) -> Message | None:
        """Return the next item to send; None if all is sent."""
        if self._n_sent == len(self._items):
            return None
        self._n_sent += 1
        return self._items[self._n_sent - 1][1]

    def rewind(self, position: int) -> None:
        """Send again the audio from a position, and the commands at that position or later."""
        self._n_sent = sum(start < position for start, _, _ in self._items)
        if self._n_sent:
            start, item, opening = self._items[self._n_sent - 1]
            cut = (position - start) * self._frame_bytes
            if isinstance(item, bytes) and cut < len(item):
                halves = [(start, item[:cut], opening), (position, item[cut:], opening)]
                self._items[self._n_sent - 1 : self._n_sent] = halves

    def opening(self) -> list[dict[str, Any]]:
        """Return the messages that open a session that continues at the next item."""
        return self._items[self._n_sent][2] if self._n_sent < len(self._items) else self._opening

    def is_finished(self, position: int) -> bool:
        """Return whether the audio is complete and ends at a position."""
        return bool(self._items) and self._items[-1][1] is FINISH and position >= self.position
