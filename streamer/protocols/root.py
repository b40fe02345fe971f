"""The address `/`, for clients that cannot connect to another: the first message says whose they are."""

from collections.abc import Sequence

import msgspec

from streamer.errors import StreamerError
from streamer.events import Event
from streamer.protocols.adapter import Action, Adapter
from streamer.protocols.vosk import Vosk
from streamer.protocols.whisperlive import WhisperLive


class Root(Adapter):
    """A client of WhisperLive, whose first message is JSON with `uid`, or of Vosk."""

    def __init__(self) -> None:
        # What serves the client; before its first message, what refuses it.
        self._chosen: Adapter = Vosk()
        self._begun = False

    def receive(self, message: str | bytes) -> Sequence[Action]:
        if not self._begun and isinstance(message, str) and _has_uid(message):
            self._chosen = WhisperLive()
        self._begun = True
        return self._chosen.receive(message)

    def on_event(self, event: Event) -> Sequence[Action]:
        return self._chosen.on_event(event)

    def refused(self, error: StreamerError) -> Sequence[Action]:
        return self._chosen.refused(error)


def _has_uid(message: str) -> bool:
    try:
        return "uid" in msgspec.json.decode(message, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return False
