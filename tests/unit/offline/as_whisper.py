"""Settings of decoding under openai-whisper's names, with the defaults of its `transcribe()`."""

import dataclasses
from typing import Any

from streamer.settings.table import DecodingSettings
from streamer.whisper.decode.options import DecodeOptions
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import decode_options


def as_whisper(model: WhisperModel, **options: Any) -> DecodeOptions:  # noqa: ANN401 - any option
    """Return what the reference's options come to with a model: a ladder of temperatures, a list of clips."""
    known = dict(options)
    ladder = known.pop("temperature", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    known["clip_timestamps"] = ",".join(map(repr, known.pop("clip_timestamps", (0.0,))))
    conditioned = known.pop("condition_on_previous_text", True)
    ours = {"beam_size": 1, "best_of": 1, "keep_failed": "last", "keep_notes": True, "vad_filter": False}
    settings = DecodingSettings(condition_on_previous_text="always" if conditioned else "never", **{**ours, **known})
    found = decode_options(settings, model)
    # The reference pads the spectrogram, whatever the model was trained with.
    generation = dataclasses.replace(found.generation, silent_padding=False)
    return dataclasses.replace(found, temperatures=tuple(ladder), generation=generation)
