"""The address `/`, for clients that cannot connect to another: their first message identifies the protocol."""

from collections.abc import Sequence

import msgspec

from streamer.errors import StreamerError
from streamer.events import Event
from streamer.protocols.adapter import Action, Adapter
from streamer.protocols.vosk import Vosk
from streamer.protocols.whisperlive import WhisperLive


class Root(Adapter):
    """A client of WhisperLive, whose first message is JSON with `uid`, or else of Vosk."""

    def __init__(self) -> None:
        # None before the first message.
        self._chosen: Adapter | None = None

    def receive(self, message: str | bytes) -> Sequence[Action]:
        if self._chosen is None:
            self._chosen = WhisperLive() if isinstance(message, str) and _has_uid(message) else Vosk()
        return self._chosen.receive(message)

    def on_event(self, event: Event) -> Sequence[Action]:
        return self._chosen.on_event(event) if self._chosen is not None else []

    def stop(self, session: str, n_heard: int) -> Sequence[Action]:
        return (self._chosen or Vosk()).stop(session, n_heard)

    def refused(self, error: StreamerError) -> Sequence[Action]:
        return (self._chosen or Vosk()).refused(error)


def _has_uid(message: str) -> bool:
    try:
        return "uid" in msgspec.json.decode(message, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return False
