"""Recordings that are uploaded to a gateway, transcribed by workers, as `server.interfaces.Recordings` wants it."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.sources.file import read_audio
from streamer.cluster.jobs import Jobs, Submitted, shown
from streamer.errors import AudioFileError, BusyError, ClusterError, StoppingError, TruncatedAudioError
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions
from streamer.protocols.text import OPENAI_MODELS, note_model


class ClusterRecordings:
    """See `server.interfaces.Recordings`: the models are those of the workers that are alive."""

    def __init__(self, jobs: Jobs, most: int) -> None:
        """Have at most so many transcribed at once, or wait."""
        self._jobs = jobs
        self._most = most
        self._open: set[ClusterTranscription] = set()
        self._stopping = False

    def stop(self) -> None:
        """End all of them with StoppingError."""
        self._stopping = True
        for transcription in tuple(self._open):
            transcription.stop()

    def models(self) -> Sequence[ModelInfo]:
        names = dict.fromkeys(shown(alive.model) for alive in self._jobs.living())
        return [ModelInfo(name=name, created=0, loaded=True) for name in names]

    def find(self, model: str) -> ModelInfo:
        if model in OPENAI_MODELS:
            note_model(model)
            model = ""
        try:
            found = self._jobs.find(model)
        except ClusterError as error:
            raise BusyError(str(error)) from None
        return ModelInfo(name=shown(found), created=0, loaded=True)

    def open(self, path: Path, options: RecordingOptions, model: str = "") -> "ClusterTranscription":
        if self._stopping:
            raise _stopping()
        if len(self._open) >= self._most:
            raise BusyError(f"{self._most} recordings wait (server.max_recordings): try again later")
        found = self.find(model)

        def read() -> Iterator[Float32Array]:
            try:
                # What a truncated file holds counts.
                with contextlib.suppress(TruncatedAudioError):
                    yield from read_audio(path)
            except AudioFileError as error:
                raise AudioFileError(str(error).replace(str(path), "the recording")) from None

        submitted = self._jobs.submit("the recording", read, model=found.name, options=options)
        transcription = ClusterTranscription(found.name, submitted, self._open.discard)
        self._open.add(transcription)
        return transcription


class ClusterTranscription:
    """See `server.interfaces.Transcription`."""

    def __init__(self, model: str, submitted: Submitted, on_close: Callable[["ClusterTranscription"], None]) -> None:
        self.model = model
        self._submitted = submitted
        self._on_close = on_close

    @property
    def duration_s(self) -> float:
        return self._submitted.n_samples / SAMPLE_RATE

    @property
    def language(self) -> str:
        return self._submitted.language

    @property
    def work_s(self) -> float:
        return self._submitted.work_s

    def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        return aiter(self._submitted)

    def stop(self) -> None:
        """End it with StoppingError."""
        self._submitted.fail(_stopping())

    def close(self) -> None:
        self._submitted.close()
        self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _stopping() -> StoppingError:
    return StoppingError("the gateway stops: try again in a moment")
