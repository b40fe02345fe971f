"""The address `/`, where clients that cannot be told another one connect: the first message says whose they are."""

from collections.abc import Sequence

import msgspec

from streamer.errors import StreamerError
from streamer.events import Event
from streamer.protocols.adapter import Action, Adapter, Hangup
from streamer.protocols.vosk import Vosk
from streamer.protocols.whisperlive import WhisperLive


class Root(Adapter):
    """One client's connection (see `Adapter`)."""

    def __init__(self, *, vosk: bool) -> None:
        """Serve WhisperLive's clients, and Vosk's where `vosk` says so."""
        self._vosk = vosk
        # What the client is served by; None before its first message.
        self._chosen: Adapter | None = None

    @property
    def wake_s(self) -> float | None:
        return self._chosen.wake_s if self._chosen is not None else None

    def receive(self, message: str | bytes, now_s: float) -> Sequence[Action]:
        if self._chosen is None:
            if isinstance(message, str) and _has_uid(message):
                self._chosen = WhisperLive()
            elif self._vosk:
                self._chosen = Vosk()
            else:
                return [
                    Hangup(1008, "expected WhisperLive's first message, JSON with uid; Vosk's clients connect to /vosk")
                ]
        return self._chosen.receive(message, now_s)

    def on_event(self, event: Event, now_s: float) -> Sequence[Action]:
        return self._chosen.on_event(event, now_s) if self._chosen is not None else []

    def refused(self, error: StreamerError, now_s: float) -> Sequence[Action]:
        return self._chosen.refused(error, now_s) if self._chosen is not None else [Hangup(1008, str(error))]

    def wake(self, now_s: float) -> Sequence[Action]:
        return self._chosen.wake(now_s) if self._chosen is not None else []


def _has_uid(message: str) -> bool:
    try:
        return "uid" in msgspec.json.decode(message, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return False
