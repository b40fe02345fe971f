"""Settings of decoding under openai-whisper's names, with the defaults of its `transcribe()`."""

import dataclasses
from typing import Any

from streamer.settings.table import DecodingSettings
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import ResolvedDecoding, resolve_decoding


def as_whisper(model: WhisperModel, **options: Any) -> ResolvedDecoding:  # noqa: ANN401 - any option
    """Return what the reference's options come to with a model: a ladder of temperatures, a list of clips."""
    known = dict(options)
    ladder = known.pop("temperature", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    clips = known.pop("clip_timestamps", (0.0,))
    conditioned = known.pop("condition_on_previous_text", True)
    ours = {"beam_size": 1, "best_of": 1, "keep_failed": "last", "keep_notes": True, "vad_filter": False}
    settings = DecodingSettings(condition_on_previous_text="always" if conditioned else "never", **{**ours, **known})
    resolved = resolve_decoding(settings, model)
    return dataclasses.replace(
        resolved,
        fallback=dataclasses.replace(resolved.fallback, temperatures=tuple(ladder)),
        clips=tuple(clips),
        # The reference pads the spectrogram, whatever the model was trained with.
        pad_with_silence=False,
    )
