"""Windows of a recording that are decoded together, if the model and its device can do that.

Source: windows that are cut at silences, and decoded in batches, are Bain et al. (2023), arXiv:2303.00747. On a CPU a
run of the decoder takes most of its time to read the weights, whatever number of windows they are read for.
"""

import functools
from collections.abc import Sequence

from streamer.arrays import Float32Array
from streamer.offline.texts import TaskText
from streamer.whisper.decode.window import DecodedWindow
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel

# A window, encoded, and what each text has it say at the first temperature.
Decoded = tuple[EncodedWindow, Sequence[DecodedWindow | None]]


def decode_batch(model: WhisperModel, mels: Sequence[Float32Array], texts: Sequence[TaskText]) -> list[Decoded] | None:
    """Encode windows, each of shape (n_mels, 3000), and decode them at the first temperature, each for itself.

    Returns None if the model and its device take one window at a time. Raises InferenceError.
    """
    return model.run(functools.partial(_decode, mels, texts))


def _decode(mels: Sequence[Float32Array], texts: Sequence[TaskText], runtime: Runtime) -> list[Decoded] | None:
    if not runtime.decoder.takes_batches:  # a lost device may bring one that does not
        return None
    runtime.reserve(len(mels))
    windows = [runtime.encode(mel, row) for row, mel in enumerate(mels)]
    decoded = [text.begin_to_decode(runtime.decoder_of(*windows)) for text in texts]
    runtime.decoder_of(*windows)  # back into their order: what the first window skips is encoded into the first row
    return list(zip(windows, zip(*decoded, strict=True), strict=True))
