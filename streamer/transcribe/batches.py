"""Windows of a recording that are decoded together, where the model and its device can do that."""

import functools
import logging
from collections.abc import Sequence

from streamer.arrays import Float32Array
from streamer.transcribe.texts import Text
from streamer.whisper.decode.window import DecodedWindow
from streamer.whisper.device.batch import BatchDecoder
from streamer.whisper.device.runtime import EncodedWindow, Runtime
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)

# A window, encoded, and what each text has it say at the first temperature.
Decoded = tuple[EncodedWindow, Sequence[DecodedWindow | None]]


class Batches:
    """Decodes windows together, with one model."""

    def __init__(self, model: WhisperModel, batch_size: int, n_beams: int) -> None:
        """Decode up to `batch_size` windows at once, along up to `n_beams` beams each."""
        self._model = model
        self._sizes = (batch_size, n_beams)
        # The decoder of several windows, and the runtime that it is of: a lost device brings a new one.
        self._batch: BatchDecoder | None = None
        self._runtime: Runtime | None = None

    def decode(self, mels: Sequence[Float32Array], texts: Sequence[Text]) -> list[Decoded] | None:
        """Encode windows, each of shape (n_mels, 3000), and decode them at the first temperature, each for itself.

        Returns None where the model and its device take one window at a time. Raises InferenceError.
        """
        return self._model.run(functools.partial(self._decode, mels, texts))

    def _decode(self, mels: Sequence[Float32Array], texts: Sequence[Text], runtime: Runtime) -> list[Decoded] | None:
        if self._runtime is not runtime:
            self._runtime = runtime
            stage = runtime.batch_stage()
            self._batch = BatchDecoder(stage, runtime.dims, *self._sizes) if stage else None
            if stage is None:
                logger.info("%s on %s takes one window at a time", self._model.name, runtime.devices["decoder"])
        batch = self._batch
        if batch is None:
            return None
        windows = [runtime.encode(mel, row) for mel, row in zip(mels, batch.rows, strict=False)]
        said: list[list[DecodedWindow | None]] = [[] for _ in mels]
        for text in texts:
            found = batch.decode([text.begin_to_decode] * len(mels))
            # By rows, which windows change.
            for i, window in enumerate(windows):
                decoded, windows[i] = found[window.index]
                said[i].append(decoded)
        return list(zip(windows, said, strict=True))
