"""The hook for where clients' sessions and recordings run: `daemon.local` and `daemon.recordings` are this process,
the plug-in `cluster` has others, where workers run them.

What does not depend on that is not here: `daemon.clients` limits the streams and keeps those whose connection broke,
`daemon.streams` turns a client's bytes into audio. All of it is used on the server's loop.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Self

from streamer.constants import SAMPLE_RATE
from streamer.daemon.streams import ClientStream
from streamer.errors import StreamerError
from streamer.protocols.native import StreamStart
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions


class Backend(ABC):
    """Runs clients' sessions. `tenant` is the name of a client's token, empty without one."""

    @abstractmethod
    async def open(self, name: str, start: StreamStart, *, tenant: str) -> ClientStream:
        """Begin a session with a name that cannot be guessed.

        Raises BusyError if there is no room now, UsageError if the options cannot be followed.
        """

    async def knows(self, name: str, *, tenant: str) -> bool:
        """Whether a session of this tenant runs elsewhere, which `resume` may continue here. Raises BusyError."""
        return False

    async def resume(self, name: str, *, after: int) -> ClientStream:
        """Continue a session that `knows`, for a client that has its events up to a number.

        Raises BusyError if that is not possible now, UnknownSessionError if it has ended meanwhile.
        """
        raise NotImplementedError


class Transcription(ABC):
    """A recording on its way to text, made and iterated on the server's loop. As a context it is closed at the end."""

    def __init__(self, model: str) -> None:
        """`model` is its name as clients know it."""
        self.model = model

        # Length of the audio, and its language, as far as they are known; empty: none yet, or no speech.
        self.n_samples = 0
        self.language = ""

        self._loop = asyncio.get_running_loop()
        # Segments, and at the end None or an error.
        self._items: asyncio.Queue[RecordedSegment | StreamerError | None] = asyncio.Queue()

    @property
    def duration_s(self) -> float:
        """Length of the audio, as far as it was read."""
        return self.n_samples / SAMPLE_RATE

    def put(self, item: RecordedSegment | StreamerError | None) -> None:
        """Pass on a segment, or at the end None or an error. Called by any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        """Yield segments as they become final; once.

        Raises AudioFileError without audio, ConfigError if the model does not support the options, BusyError without
        memory for the model, InferenceError, or StoppingError.
        """
        while (item := await self._items.get()) is not None:
            if isinstance(item, StreamerError):
                raise item
            yield item

    @abstractmethod
    def close(self) -> None:
        """Cancel it unless it is over; harmless the second time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RecordingQueue(ABC):
    """Transcribes whole recordings, with lower priority than live sessions."""

    @abstractmethod
    def models(self) -> Sequence[ModelInfo]:
        """Return the models that a request may name, the usual one first. Reads directories, as `find` does."""

    @abstractmethod
    def find(self, model: str) -> ModelInfo:
        """Return a model by name; empty, or a name of OpenAI's, is the usual one. Raises UnknownModelError."""

    @abstractmethod
    async def open(self, path: Path, options: RecordingOptions, model: str = "") -> Transcription:
        """Queue a file of audio, which must exist until the transcription is over or closed.

        Raises BusyError if nothing can transcribe it now, StoppingError, UnknownModelError.
        """

    @abstractmethod
    def stop(self) -> None:
        """End all transcriptions with StoppingError; later ones raise it, too."""
