"""What the plugins for voice agents share: audio that waits for the daemon, and the user's turns in its events."""

import asyncio
import bisect
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import numpy as np

from streamer.audio.pcm import PcmDecoder
from streamer.client.audio import Item
from streamer.client.connection import DaemonAddress, log_notice
from streamer.client.options import Options
from streamer.client.stream import shifted, stream
from streamer.constants import SAMPLE_RATE
from streamer.errors import IdleError
from streamer.events import Event, Final, Gap, Partial, Speech

# Tolerance for comparing the end of the text with the end of speech, in seconds: times are rounded.
TIME_SKEW_S = 0.01

MAX_WAITING = 6000  # pieces of audio that no daemon takes: two minutes in pieces of 20 ms
SILENCE_S = 0.6  # that ends a turn, unless the caller wants another


class LiveStream:
    """A stream to a daemon that never holds the caller back.

    Until a daemon takes them, the newest pieces of audio are kept.
    """

    def __init__(
        self, address: DaemonAddress, options: dict[str, Any], *, wait_s: float, on_lost: Callable[[str], Any]
    ) -> None:
        """Prepare; `events` connects.

        options : of the session
        wait_s : how long to wait for a daemon that is away
        on_lost : called with a line when the daemon goes away
        """
        self._address = address
        self._options = {"min_silence_s": SILENCE_S, **options}
        self._wait_s = wait_s
        self._on_lost = on_lost
        self._items: asyncio.Queue[Item | None] = asyncio.Queue(MAX_WAITING)
        self._decoder = PcmDecoder("s16le", SAMPLE_RATE, 1)
        # All changes of options, in case one is dropped.
        self._changes: dict[str, Any] = {}
        # Samples that sessions have taken, and that were dropped.
        self._n_taken = self._n_dropped = 0
        # How many samples had been taken at each drop, and dropped by then; the newest drops.
        self._drops = [(0, 0)]
        # Whether `on_lost` was called since the last event, and whether anything was dropped since the last was taken.
        self._lost = self._dropping = False

    def audio(self, pcm: bytes, sample_rate: int, channels: int) -> None:
        """Send 16-bit audio of any format. Raises ProtocolError for an impossible one."""
        if (sample_rate, channels) != (self._decoder.sample_rate, self._decoder.channels):
            decoder = PcmDecoder("s16le", sample_rate, channels)
            self._send(self._decoder.finish())
            self._decoder = decoder
        self._send(self._decoder.decode(pcm))

    def flush(self) -> None:
        """Make what was said so far final."""
        self._send("flush")

    def change(self, options: dict[str, Any]) -> None:
        """Change options from here on."""
        self._options |= options
        self._changes |= options
        self._send(cast(Options, options))

    def finish(self) -> None:
        """End the audio."""
        self._send(None)

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Yield events until the audio has ended, those that belong together at once; see `UserTurns`.

        Times are those of all the audio. Raises what `stream` raises, except IdleError: another session replaces one in
        which nothing was said for long.
        """
        turns = UserTurns()
        while True:
            begin = self._n_taken
            events = stream(self, self._address, on_notice=self._notice, wait_s=self._wait_s, **self._options)
            try:
                async with contextlib.aclosing(aiter(events)) as reading:
                    async for event in reading:
                        self._lost = False
                        if published := turns.handle(shifted(event, partial(self._time_s, begin))):
                            yield published
                return
            except IdleError:
                continue

    async def __aiter__(self) -> AsyncIterator[Item]:
        while (item := await self._items.get()) is not None:
            if self._n_dropped > self._drops[-1][1]:
                self._drops.append((self._n_taken, self._n_dropped))
                del self._drops[:-MAX_WAITING]
            if self._dropping and self._changes:
                yield cast(Options, self._changes)
            self._dropping = False
            self._n_taken += len(item) if isinstance(item, np.ndarray) else 0
            yield item

    def _time_s(self, begin: int, time_s: float) -> float:
        """Return a time in all the audio; `time_s` counts from the first `begin` samples that were taken."""
        position = begin + round(time_s * SAMPLE_RATE)
        i = bisect.bisect_right(self._drops, position, key=lambda drop: drop[0])
        return (position + self._drops[max(i, 1) - 1][1]) / SAMPLE_RATE

    def _send(self, item: Item | None) -> None:
        if self._items.full():
            oldest = self._items.get_nowait()
            self._n_dropped += len(oldest) if isinstance(oldest, np.ndarray) else 0
            if not self._dropping:
                log_notice(f"{self._address} takes no audio: the oldest of {MAX_WAITING} pieces that wait are dropped")
            self._dropping = True
        self._items.put_nowait(item)

    def _notice(self, notice: str) -> None:
        log_notice(notice)
        if not self._lost:  # the others are about what comes of it
            self._on_lost(notice)
        self._lost = True


class UserTurns:
    """Holds the end of speech back until all text before it is final: then the user's turn is over."""

    def __init__(self) -> None:
        self._open = False
        # End of speech that is held back; end of the newest final, in seconds of the audio.
        self._end: Speech | None = None
        self._final_s = 0.0

    def handle(self, event: Event) -> list[Event]:
        """Return what to publish, without texts that have no words."""
        begins = isinstance(event, Speech) and event.state == "start"
        published = [event]
        if isinstance(event, Speech):
            published = [event] if begins and not self._open else []
            self._open, self._end = True, None if begins else event
        elif isinstance(event, Final | Gap):
            self._final_s = event.end
        if isinstance(event, Partial | Final) and not event.text.strip():
            published = []
        if self._end is not None and self._final_s + TIME_SKEW_S >= self._end.time:
            published.append(self._end)
            self._open, self._end = False, None
        return published
