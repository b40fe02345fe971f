"""A Whisper ready for use: graphs on a device, tokenizer and generation settings, from one model directory."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import platformdirs

from streamer.audio.constants import HOP_LENGTH, N_FFT, SAMPLE_RATE
from streamer.errors import ConfigError, ModelError
from streamer.whisper.contract import check_masking
from streamer.whisper.decoding import GenerationConfig
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.runtime import Runtime
from streamer.whisper.tokenizer import Tokenizer
from streamer.whisper.weights import huggingface

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WhisperModel:
    """What decoding needs, loaded once and shared by all sessions."""

    name: str
    runtime: Runtime
    tokenizer: Tokenizer
    generation: GenerationConfig

    @property
    def dims(self) -> ModelDimensions:
        """Sizes of the model."""
        return self.runtime.dims


def find_model(name: str) -> Path:
    """Find a model directory by its path, or by its name among the models that came with the program.

    Raises ModelError where there is none.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    shipped = [folder for folder in _shipped_folders() if folder.is_dir()]
    if path.name == name:
        for folder in shipped:
            if (folder / name).is_dir():
                return folder / name
    names = sorted({child.name for folder in shipped for child in folder.iterdir() if child.is_dir()})
    raise ModelError(
        f"there is no model {name!r}: expected a directory with config.json and model.safetensors, or one of"
        f" {', '.join(names) or 'none shipped'}"
    )


def load_model(name: str, *, device: str = "AUTO", npu_through_cpu: bool = False, cache_dir: str = "") -> WhisperModel:
    """Load a model directory, check that its parts belong together, and compile it.

    Raises ModelError where a part is missing or does not fit, ConfigError where the device is not there,
    InferenceError where it cannot compile or run the graphs.
    """
    directory = find_model(name)
    begin = time.monotonic()
    checkpoint = huggingface.load(directory)
    generation = _read_generation(directory, checkpoint.dims)
    _check_preprocessor(directory, checkpoint.dims)
    tokenizer = Tokenizer.load(directory, multilingual=generation.multilingual)
    if tokenizer.n_vocab > checkpoint.dims.n_vocab:
        raise ModelError(
            f"{directory / 'tokenizer.json'} has {tokenizer.n_vocab} tokens, the model {checkpoint.dims.n_vocab}:"
            " the files are from different models; fetch both again from one place"
        )
    runtime = Runtime(
        checkpoint,
        generation.alignment_heads,
        device=device,
        npu_through_cpu=npu_through_cpu,
        cache_dir=_cache_dir(cache_dir),
    )
    check_masking(runtime.decoder, tokenizer.special.start_of_transcript)
    logger.info(
        "model %s on %s (%s), ready in %.1f s",
        directory.name,
        runtime.device,
        "the best there is" if device == "AUTO" else "as asked for",
        time.monotonic() - begin,
    )
    return WhisperModel(directory.name, runtime, tokenizer, generation)


def _shipped_folders() -> Sequence[Path]:
    package = Path(str(resources.files("streamer")))
    return (package / "models", package.parent / "models")


def _cache_dir(setting: str) -> Path | None:
    path = Path(setting).expanduser() if setting else platformdirs.user_cache_path("streamer") / "compiled"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if setting:
            raise ConfigError(
                f"model.cache_dir {path} cannot be made ({error.strerror}): choose a directory that can be written to"
            ) from None
        logger.warning("%s cannot be made (%s); compiled graphs are not kept", path, error.strerror)
        return None
    return path


def _read_generation(directory: Path, dims: ModelDimensions) -> GenerationConfig:
    path = directory / "generation_config.json"
    data = huggingface.read_json(path)
    heads = data.get("alignment_heads") or [
        # As openai-whisper: without a list, all heads of the upper half of the layers.
        [layer, head]
        for layer in range(dims.n_text_layer // 2, dims.n_text_layer)
        for head in range(dims.n_text_head)
    ]
    for pair in heads:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and all(isinstance(n, int) for n in pair)
            and 0 <= pair[0] < dims.n_text_layer
            and 0 <= pair[1] < dims.n_text_head
        ):
            raise ModelError(
                f"{path} has the alignment head {pair}: expected [layer, head] below [{dims.n_text_layer},"
                f" {dims.n_text_head}]; fetch it again from the model's own place"
            )
    max_initial = data.get("max_initial_timestamp_index")
    return GenerationConfig(
        suppress_tokens=_tokens(data, "suppress_tokens", dims, path),
        begin_suppress_tokens=_tokens(data, "begin_suppress_tokens", dims, path),
        max_initial_timestamp_index=max_initial if isinstance(max_initial, int) else None,
        alignment_heads=tuple((int(layer), int(head)) for layer, head in heads),
        multilingual=bool(data.get("is_multilingual", "lang_to_id" in data)),
        prompted=bool(data.get("condition_on_prev_tokens", True)),
    )


def _tokens(data: dict[str, Any], key: str, dims: ModelDimensions, path: Path) -> tuple[int, ...]:
    tokens = data.get(key) or []
    if not isinstance(tokens, list) or not all(isinstance(t, int) and 0 <= t < dims.n_vocab for t in tokens):
        raise ModelError(
            f"{path} has {key} {tokens!r:.60}: expected token numbers below {dims.n_vocab}; fetch it again"
        )
    return tuple(tokens)


def _check_preprocessor(directory: Path, dims: ModelDimensions) -> None:
    path = directory / "preprocessor_config.json"
    data = huggingface.read_json(path)
    expected = {"feature_size": dims.n_mels, "sampling_rate": SAMPLE_RATE, "hop_length": HOP_LENGTH, "n_fft": N_FFT}
    for key, value in expected.items():
        if data.get(key) != value:
            raise ModelError(
                f"{path} has {key} {data.get(key)!r}, the model needs {value}: the files are from different models;"
                " fetch both again from one place"
            )
