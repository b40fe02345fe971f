"""A consumer that writes down what a source delivers."""

import threading
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamer.audio.sources.base import SourceCallbacks
from streamer.errors import StreamerError
from tests.waiting import WAIT_S


class Recorder:
    """What a source delivered, in order, with silence in place of what was lost."""

    def __init__(self) -> None:
        self.blocks: list[NDArray[np.float32]] = []

        # Gaps; those that adjoin are one. And the lengths as they were announced.
        self.gaps: list[tuple[int, str]] = []
        self.pieces: list[int] = []
        self.errors: list[StreamerError] = []
        self.ends: list[StreamerError | None] = []

        # "audio", "gap", "error" and "end", in the order of delivery; audio in a row counts once, and so do gaps.
        self.order: list[str] = []

        # Set at the end.
        self.ended = threading.Event()

        # Set at the first audio.
        self.heard = threading.Event()

        self.callbacks = SourceCallbacks(
            on_audio=self._on_audio, on_gap=self._on_gap, on_error=self._on_error, on_end=self._on_end
        )

    @property
    def audio(self) -> NDArray[np.float32]:
        """All samples."""
        return np.concatenate([np.empty(0, dtype=np.float32), *self.blocks])

    def wait_for_end(self) -> StreamerError | None:
        """Wait until the source has ended by itself; return the error it ended with."""
        assert self.ended.wait(WAIT_S)
        return self.ends[0]

    def _on_audio(self, samples: NDArray[np.float32]) -> None:
        assert samples.dtype == np.float32
        assert samples.ndim == 1
        self.blocks.append(samples)
        if self.order[-1:] != ["audio"]:
            self.order.append("audio")
        self.heard.set()

    def _on_gap(self, n_samples: int, reason: Literal["overrun", "device"]) -> None:
        assert n_samples > 0
        self.pieces.append(n_samples)
        self.blocks.append(np.zeros(n_samples, dtype=np.float32))
        if self.order[-1:] == ["gap"] and self.gaps[-1][1] == reason:
            self.gaps[-1] = (self.gaps[-1][0] + n_samples, reason)
        else:
            self.gaps.append((n_samples, reason))
            self.order.append("gap")

    def _on_error(self, error: StreamerError) -> None:
        self.errors.append(error)
        self.order.append("error")

    def _on_end(self, error: StreamerError | None) -> None:
        self.ends.append(error)
        self.order.append("end")
        self.ended.set()
