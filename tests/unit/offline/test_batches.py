"""Windows that are decoded together, and the rows that they are in."""

from typing import cast

import numpy as np

from streamer.offline.batches import decode_batch
from streamer.offline.texts import TaskText
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.model import WhisperModel


class ShortText:
    """A text that ends in the first window first."""

    def begin_to_decode(self, decoder: Decoder) -> list[None]:
        decoder.drop(0)
        return [None] * 3


def test_the_first_window_of_a_batch_ends_in_the_first_row(model: WhisperModel) -> None:
    """What it skips is encoded there, before the others are decoded any further."""
    mels = [np.full((model.dims.n_mels, 3000), level, np.float32) for level in (0.0, 0.5, 1.0)]
    decoded = decode_batch(model, mels, [cast(TaskText, ShortText())])
    assert decoded is not None
    assert [window.row for window, _ in decoded] == [0, 1, 2]
