"""Two sources mixed into one, such as microphone and system sound; the louder one is the speaker.

The sum of both is transcribed: one session, one text. If both speak at once, it is the louder one's.
"""

import collections
import threading
from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.sources.application import Application
from streamer.audio.sources.base import SourceCallbacks
from streamer.audio.sources.microphone import Microphone
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from streamer.events import Event, Final

# How long the audio of one waits for that of the other, which is late.
PATIENCE_SAMPLES = SAMPLE_RATE

# So often, what of one has waited all the while goes out alone. Clocks differ by some 0.2 s in an hour: the slow one
# gets silence, some samples at a time, and nothing of the other is lost.
LEVEL_SAMPLES = 10 * SAMPLE_RATE

# Blocks, of some 10 ms, whose loudness is known: a final comes some seconds after its audio, a minute at most.
N_BLOCKS = 100_000


class Mixed:
    """Two sources as one. While one is away, the other goes on; while both are, audio is lost."""

    realtime = True

    def __init__(self, sources: Mapping[str, Microphone | Application]) -> None:
        """Mix two sources, by the names of their speakers."""
        self._speakers = tuple(sources)
        self._sources = tuple(sources.values())
        assert len(self._sources) == 2

        # Held while the consumer is called, too, so that audio comes in order.
        self._lock = threading.Lock()

        # Of each: what waits for the other, and how many samples were lost behind it that the other did not bridge yet.
        self._waiting = [np.empty(0, dtype=np.float32) for _ in sources]
        self._n_lost = [0, 0]

        # The least that waited since the last levelling, and the position at which the next one is due.
        self._n_least = [0, 0]
        self._level_at = LEVEL_SAMPLES

        # Samples delivered, and of the last blocks of them: its position, and the sum of each source's magnitudes.
        self._position = 0
        self._loudness = collections.deque[tuple[int, Float32Array]](maxlen=N_BLOCKS)

    @property
    def name(self) -> str:
        """What a person would call it."""
        return " and ".join(source.name for source in self._sources)

    @property
    def failure(self) -> str:
        """What keeps audio of one of them from coming; empty while that of both comes."""
        return "; ".join(f"{source.name}: {source.failure}" for source in self._sources if source.failure)

    def check(self) -> None:
        """Raise StreamerError if one of them is missing."""
        for source in self._sources:
            source.check()

    def start(self, callbacks: SourceCallbacks) -> None:
        """Begin to deliver. Raises StreamerError if one of them cannot."""
        self._callbacks = callbacks
        try:
            for i, source in enumerate(self._sources):
                source.start(self._callbacks_of(i))
        except StreamerError:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop delivering; on_end is not called."""
        for source in self._sources:
            source.stop()

    def labelled(self, event: Event) -> Event:
        """Return a final with text with its speaker, and other events unchanged."""
        if not isinstance(event, Final) or not event.text:
            return event
        loudness = np.zeros(2)
        # Copied at once: the sources go on meanwhile.
        for position, sums in reversed(tuple(self._loudness)):
            if position < event.start * SAMPLE_RATE:
                break
            loudness += sums * (position < event.end * SAMPLE_RATE)
        return msgspec.structs.replace(event, speaker=self._speakers[int(np.argmax(loudness))])

    def _callbacks_of(self, i: int) -> SourceCallbacks:
        def on_audio(samples: Float32Array) -> None:
            with self._lock:
                self._waiting[i] = np.concatenate([self._waiting[i], samples])
                self._n_lost[i] = 0
                self._deliver("device")

        def on_gap(n_samples: int, reason: Literal["overrun", "device"]) -> None:
            with self._lock:
                self._n_lost[i] += n_samples
                self._deliver(reason)

        def on_error(error: StreamerError) -> None:
            with self._lock:
                self._callbacks.on_error(error)

        # One ends only if its thread does, which is a bug: `failure` says so, and the other goes on.
        return SourceCallbacks(on_audio=on_audio, on_gap=on_gap, on_error=on_error, on_end=lambda error: None)

    def _deliver(self, reason: Literal["overrun", "device"]) -> None:
        """Deliver what both have, what waited for the other long enough or need not wait, and what both lost."""
        lengths = [len(samples) for samples in self._waiting]
        alone = [length - (0 if self._n_lost[1 - i] else PATIENCE_SAMPLES) for i, length in enumerate(lengths)]
        n_samples = min(lengths)
        if self._position >= self._level_at:
            n_samples += max(self._n_least)
            self._n_least = lengths
            self._level_at = self._position + LEVEL_SAMPLES
        if (n_samples := max(n_samples, *alone)) > 0:
            parts = np.zeros((2, n_samples), dtype=np.float32)
            for i, samples in enumerate(self._waiting):
                n_own = min(n_samples, len(samples))
                parts[i, :n_own] = samples[:n_own]
                self._waiting[i] = samples[n_own:]
                self._n_lost[i] = max(0, self._n_lost[i] - (n_samples - n_own))
            self._loudness.append((self._position, np.abs(parts).sum(axis=1)))
            self._position += n_samples
            self._callbacks.on_audio(np.clip(parts.sum(axis=0), -1.0, 1.0))
        self._n_least = [min(n, len(samples)) for n, samples in zip(self._n_least, self._waiting, strict=True)]
        if n_lost := min(self._n_lost):
            self._n_lost = [n - n_lost for n in self._n_lost]
            self._position += n_lost
            self._callbacks.on_gap(n_lost, reason)
