"""The ring buffer between a source of audio and those who read it."""

import threading
from collections.abc import Callable

import numpy as np

from streamer.arrays import Float32Array


class Overrun(Exception):  # noqa: N818 - a condition that the reader handles, not a failure
    """Audio that was asked for has been overwritten."""

    def __init__(self, oldest: int) -> None:
        super().__init__(oldest)
        # Absolute position of the oldest sample that is still there.
        self.oldest = oldest

    def __str__(self) -> str:
        return f"audio before sample {self.oldest} has been overwritten"


class RingBuffer:
    """The last `capacity_samples` of a stream of 16 kHz mono float32 samples, by absolute position from 0.

    One thread writes, any number read. The writer never waits for a reader: what is full is overwritten, and a reader
    that comes too late, or that the writer laps while it copies, gets Overrun.
    """

    def __init__(self, capacity_samples: int, *, start: int = 0) -> None:
        """Hold `capacity_samples` of what comes from position `start` on."""
        assert capacity_samples > 0, f"capacity {capacity_samples} is not positive"
        self.capacity_samples = capacity_samples

        # Called by the reading thread each time there is room for more; it must return quickly.
        self.on_room: Callable[[], None] | None = None

        # The audio: position p lies at p % capacity_samples.
        self._samples = np.zeros(capacity_samples, dtype=np.float32)

        # Samples written since the start: the position after the newest. Set after the samples are in place.
        self.head = start

        # Position of the oldest sample that can be read. Set before the samples behind it are overwritten.
        self.oldest = start

        # Everything before this position may be overwritten without loss; see release().
        self._released = start

        # Wakes those who wait for room. Held for a notification or the test of a condition, never longer.
        self._changed = threading.Condition(threading.Lock())

        # How often wake() was called.
        self._wakes = 0

    @property
    def free(self) -> int:
        """Samples that can be written before unreleased audio is overwritten."""
        return self.capacity_samples - (self.head - max(self._released, self.oldest))

    def write(self, samples: Float32Array) -> None:
        """Append samples, shape (n,). Only the thread that writes may call it."""
        n_samples = len(samples)
        if n_samples == 0:
            return
        end = self.head + n_samples
        # First said, then overwritten: a reader that copies meanwhile sees it when it looks again.
        self.oldest = max(self.oldest, end - self.capacity_samples)
        kept = samples[-self.capacity_samples :]
        start = (end - len(kept)) % self.capacity_samples
        n_first = min(len(kept), self.capacity_samples - start)
        self._samples[start : start + n_first] = kept[:n_first]
        self._samples[: len(kept) - n_first] = kept[n_first:]
        self.head = end

    def read(self, start: int, end: int) -> Float32Array:
        """Return a copy of samples, shape (end - start,). Raises Overrun if some are overwritten, even meanwhile."""
        assert 0 <= start <= end <= self.head, f"samples {start} to {end} asked for, {self.head} written"
        if start < self.oldest:
            raise Overrun(self.oldest)
        copy = np.empty(end - start, dtype=np.float32)
        offset = start % self.capacity_samples
        n_first = min(len(copy), self.capacity_samples - offset)
        copy[:n_first] = self._samples[offset : offset + n_first]
        copy[n_first:] = self._samples[: len(copy) - n_first]
        if start < self.oldest:
            raise Overrun(self.oldest)
        return copy

    def release(self, position: int) -> None:
        """Say that everything before `position` may be overwritten. It only moves forward, and not beyond the head."""
        position = min(position, self.head)
        if position > self._released:
            self._released = position
            with self._changed:
                self._changed.notify_all()
            if self.on_room is not None:
                self.on_room()

    def wait_for_room(self, n_samples: int, timeout_s: float) -> bool:
        """Wait until `n_samples` can be written without loss, wake() or the time is over; say whether they can."""
        assert n_samples <= self.capacity_samples, f"{n_samples} samples never fit into {self.capacity_samples}"
        with self._changed:
            wakes = self._wakes
            self._changed.wait_for(lambda: self.free >= n_samples or self._wakes != wakes, timeout_s)
            return self.free >= n_samples

    def wake(self) -> None:
        """Let those who wait at this moment return, so that they see that something else has changed."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()
