"""A Whisper ready for use: graphs on a device, tokenizer and generation settings, from one model directory."""

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeGuard

import platformdirs

from streamer.audio.constants import HOP_LENGTH, N_FFT, SAMPLE_RATE
from streamer.errors import ConfigError, InferenceError, ModelError
from streamer.whisper.contract import check_masking
from streamer.whisper.decoding import GenerationConfig
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.runtime import DEVICE_ORDER, Runtime, available_devices, choose_devices
from streamer.whisper.tokenizer import Tokenizer
from streamer.whisper.weights import Checkpoint, huggingface

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WhisperModel:
    """What decoding needs, loaded once and shared by all sessions."""

    name: str
    # What it is published as, such as openai/whisper-base.en, wherever it lies; empty where it does not say.
    origin: str
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
    shipped = [folder for folder in _shipped_folders() if folder.is_dir()]
    try:
        path = Path(name).expanduser()
        candidates = [path, *(folder / name for folder in shipped if path.name == name)]
        found = next((candidate for candidate in candidates if candidate.is_dir()), None)
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, the home of nobody
        found = None
    if found:
        return found
    names = sorted({child.name for folder in shipped for child in folder.iterdir() if child.is_dir()})
    raise ModelError(
        f"there is no model {name!r:.200}: expected a directory with config.json and model.safetensors, or one of"
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
    _check_tokenizer(directory, tokenizer, checkpoint.dims)
    origin = _read_origin(directory)
    available = available_devices()
    runtime = _start(
        checkpoint,
        generation,
        tokenizer,
        ["NPU"] if npu_through_cpu else choose_devices(device, available),
        npu_through_cpu=npu_through_cpu,
        cache_dir=_cache_dir(cache_dir),
    )
    name = directory.resolve().name
    logger.info(
        "model %s on %s (%s), ready in %.1f s",
        name,
        runtime.device,
        _why(runtime.device, available) if device == "AUTO" and not npu_through_cpu else "as asked for",
        time.monotonic() - begin,
    )
    return WhisperModel(name, origin, runtime, tokenizer, generation)


def _why(chosen: str, available: Sequence[str]) -> str:
    """Say why AUTO took a device: what is wrong with those that it prefers."""
    kinds = {name.split(".")[0] for name in available}
    preferred = DEVICE_ORDER[: DEVICE_ORDER.index(chosen.split(".")[0])]
    reasons = [f"{kind} does not work" if kind in kinds else f"no {kind} here" for kind in preferred]
    return f"AUTO: {', '.join(reasons) or 'the first choice'}"


def _start(
    checkpoint: Checkpoint,
    generation: GenerationConfig,
    tokenizer: Tokenizer,
    devices: Sequence[str],
    *,
    npu_through_cpu: bool,
    cache_dir: Path | None,
) -> Runtime:
    """Compile the model for the first of the devices that computes it right."""
    for i, device in enumerate(devices):
        if device != "CPU":
            logger.info("compiling the model for %s: the first time this takes up to some minutes", device)
        try:
            runtime = Runtime(
                checkpoint,
                generation.alignment_heads,
                device=device,
                npu_through_cpu=npu_through_cpu,
                cache_dir=cache_dir,
            )
            check_masking(runtime.decoder, tokenizer.special.start_of_transcript)
        except InferenceError as error:
            if i == len(devices) - 1:
                raise
            logger.warning("%s; trying %s", error, devices[i + 1])
        else:
            return runtime
    raise AssertionError("there is always a device to try")


def _shipped_folders() -> Sequence[Path]:
    package = Path(str(resources.files("streamer")))
    return (package / "models", package.parent / "models")


def _cache_dir(setting: str) -> Path | None:
    """Return where compiled graphs are kept: as set, else where the environment says, else the user's cache."""
    wanted = setting or os.environ.get("STREAMER_CACHE_DIR", "")
    path = Path(wanted) if wanted else platformdirs.user_cache_path("streamer") / "compiled"
    try:
        path = path.expanduser()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        if wanted:
            raise ConfigError(
                f"the cache directory {str(path)!r:.200} cannot be made ({reason}): choose one that can be written to"
            ) from None
        logger.warning("%s cannot be made (%s); compiled graphs are not kept", path, reason)
        return None
    return path


def _read_origin(directory: Path) -> str:
    origin = huggingface.read_json(directory / "config.json").get("_name_or_path")
    return origin if isinstance(origin, str) else ""


def _read_generation(directory: Path, dims: ModelDimensions) -> GenerationConfig:
    path = directory / "generation_config.json"
    data = huggingface.read_json(path)
    heads = data.get("alignment_heads") or [
        # As openai-whisper: without a list, all heads of the upper half of the layers.
        [layer, head]
        for layer in range(dims.n_text_layer // 2, dims.n_text_layer)
        for head in range(dims.n_text_head)
    ]
    if not isinstance(heads, list):
        raise ModelError(f"{path} has alignment_heads {heads!r:.60}: expected a list of [layer, head]; fetch it again")
    for pair in heads:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and _is_index(pair[0], dims.n_text_layer)
            and _is_index(pair[1], dims.n_text_head)
        ):
            raise ModelError(
                f"{path} has the alignment head {pair!r:.60}: expected [layer, head] below [{dims.n_text_layer},"
                f" {dims.n_text_head}]; fetch it again from the model's own place"
            )
    max_initial = data.get("max_initial_timestamp_index")
    if max_initial is not None and not _is_index(max_initial, dims.n_audio_ctx + 1):
        raise ModelError(
            f"{path} has max_initial_timestamp_index {max_initial!r:.60}: expected a whole number from 0 to"
            f" {dims.n_audio_ctx}; fetch it again"
        )
    return GenerationConfig(
        suppress_tokens=_tokens(data, "suppress_tokens", dims, path),
        begin_suppress_tokens=_tokens(data, "begin_suppress_tokens", dims, path),
        max_initial_timestamp_index=max_initial,
        alignment_heads=tuple(dict.fromkeys((layer, head) for layer, head in heads)),
        multilingual=_switch(data, "is_multilingual", "lang_to_id" in data, path),
        prompted=_switch(data, "condition_on_prev_tokens", True, path),
    )


def _is_index(value: object, length: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < length


def _switch(data: dict[str, Any], key: str, default: bool, path: Path) -> bool:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelError(f"{path} has {key} {value!r:.60}: expected true or false; fetch it again")
    return value


def _tokens(data: dict[str, Any], key: str, dims: ModelDimensions, path: Path) -> tuple[int, ...]:
    tokens = data.get(key)
    if tokens is None:
        return ()
    if not isinstance(tokens, list) or not all(_is_index(token, dims.n_vocab) for token in tokens):
        raise ModelError(
            f"{path} has {key} {tokens!r:.60}: expected token numbers below {dims.n_vocab}; fetch it again"
        )
    return tuple(tokens)


def _check_tokenizer(directory: Path, tokenizer: Tokenizer, dims: ModelDimensions) -> None:
    """Raise ModelError unless the tokenizer is that of the model: a wrong one gives fluent nonsense."""
    path = directory / "tokenizer.json"
    if tokenizer.n_vocab > dims.n_vocab:
        raise ModelError(
            f"{path} has {tokenizer.n_vocab} tokens, the model {dims.n_vocab}: the files are from different models;"
            " fetch both again from one place"
        )
    special = tokenizer.special
    for file, key, token in (
        ("config.json", "eos_token_id", special.end_of_text),
        ("config.json", "decoder_start_token_id", special.start_of_transcript),
        ("generation_config.json", "no_timestamps_token_id", special.no_timestamps),
    ):
        found = huggingface.read_json(directory / file).get(key)
        if found is not None and found != token:
            raise ModelError(
                f"{directory / file} has {key} {found!r:.60}, {path} has {token}: the files are from different models;"
                " fetch both again from one place"
            )


def _check_preprocessor(directory: Path, dims: ModelDimensions) -> None:
    path = directory / "preprocessor_config.json"
    data = huggingface.read_json(path)
    expected = {"feature_size": dims.n_mels, "sampling_rate": SAMPLE_RATE, "hop_length": HOP_LENGTH, "n_fft": N_FFT}
    for key, value in expected.items():
        if data.get(key) != value:
            raise ModelError(
                f"{path} has {key} {data.get(key)!r:.60}, the model needs {value}: the files are from different models;"
                " fetch both again from one place"
            )
