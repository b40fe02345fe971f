"""What is compiled of a model if the settings leave it open: weights, lengths of windows, beams."""

from collections.abc import Mapping, Sequence

from streamer.whisper.decode.window import FILE_BEAMS
from streamer.whisper.device.devices import StagePlan, kind_of
from streamer.whisper.generation import DEFAULT_WINDOWS_S
from streamer.whisper.source import ModelSource

# Width and numbers of layers of the published sizes that `auto` computes in int8: tiny and base, of which int8 was
# measured on people (docs/models.md).
INT8_SIZES = {(384, 4, 4), (512, 6, 6)}


def choose_weights(source: ModelSource, weights: str, plans: Mapping[str, StagePlan]) -> tuple[ModelSource, str]:
    """Return a model with the weights that the settings want, and say what they are and why."""
    if weights not in ("", "auto"):
        return source.with_weights(weights), f"{weights} (as asked for)"
    dims = source.graphs.dims
    is_known = (dims.n_text_state, dims.n_audio_layer, dims.n_text_layer) in INT8_SIZES
    kinds = {kind_of(device) for plan in plans.values() for device in plan.candidates}
    if weights == "auto" and is_known:
        # With zero points an NPU computes no faster than in float16 (docs/npu.md).
        chosen = "int8-sym" if "NPU" in kinds else "int8"
        return source.with_weights(chosen), f"{chosen} (auto)"
    return source, "as they are"


def choose_windows(source: ModelSource, plans: Mapping[str, StagePlan], wanted: Sequence[int] | None) -> Sequence[int]:
    """Return the lengths of audio to make graphs for."""
    if wanted is not None or source.generation.windows_s:
        return source.generation.windows_s if wanted is None else wanted
    windows_s = source.adapter.windows_s if source.adapter else DEFAULT_WINDOWS_S
    # If each length has graphs of its own, with a copy of the weights, one has to do.
    return windows_s if all(plan.candidates[0] == "CPU" for plan in plans.values()) else windows_s[-1:]


def choose_beams(source: ModelSource, wanted: int | None, *, live: bool) -> int:
    """Return the beams of captions, or of files."""
    return wanted or (source.generation.stream_beams if live else FILE_BEAMS)
