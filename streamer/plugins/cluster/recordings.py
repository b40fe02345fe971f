"""Recordings that are uploaded to a gateway, transcribed by workers."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from streamer.arrays import Float32Array
from streamer.audio.sources.file import read_upload
from streamer.daemon.backend import RecordingQueue
from streamer.errors import BusyError, ClusterError, StoppingError
from streamer.plugins.cluster.job import RecordingJob, Submitted, shown
from streamer.plugins.cluster.jobs import Jobs
from streamer.protocols.recordings import ModelInfo, RecordingOptions
from streamer.protocols.text import OPENAI_MODELS, note_model

logger = logging.getLogger(__name__)


class ClusterRecordings(RecordingQueue):
    """Has workers transcribe recordings: the models are those of the workers that are alive."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        self._jobs.fail(_stopping())

    def models(self) -> Sequence[ModelInfo]:
        names = dict.fromkeys(shown(alive.model) for alive in self._jobs.living())
        return [ModelInfo(name=name, created=0, loaded=True) for name in names]

    def find(self, model: str) -> ModelInfo:
        return ModelInfo(name=shown(self._identity(model)), created=0, loaded=True)

    async def open(self, path: Path, options: RecordingOptions, model: str = "") -> Submitted:
        if self._stopping:
            raise _stopping()
        identity = self._identity(model)

        def read() -> Iterator[Float32Array]:
            return read_upload(path, lambda error: logger.warning("%s", error))

        return self._jobs.submit("the recording", read, identity, RecordingJob(options=options))

    def _identity(self, model: str) -> str:
        """Return a model as workers name it. Raises UnknownModelError, and BusyError if no worker is alive."""
        if model in OPENAI_MODELS:
            note_model(model)
            model = ""
        try:
            return self._jobs.find(model)
        except ClusterError as error:
            raise BusyError(str(error)) from None


def _stopping() -> StoppingError:
    return StoppingError("the gateway is stopping: try again in a moment")
