"""Which of the formats of Whisper models a path holds, and all that is read from it before anything is compiled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from streamer.constants import HOP_LENGTH, N_FFT, SAMPLE_RATE
from streamer.errors import ModelError
from streamer.whisper import adapters
from streamer.whisper.adapters import WindowAdapter
from streamer.whisper.check import Check
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import read_json, readable
from streamer.whisper.generation import GenerationConfig, read_generation
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.hub import vocabularies
from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.special import PUBLISHED
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights import formats, huggingface, lora
from streamer.whisper.weights.checkpoint import Checkpoint

_EXPECTED = "a model that you may read"
_MIXED = "the files are from different models; fetch both again from one place"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk, and what was read of it; nothing is compiled."""

    # A directory or a file.
    path: Path

    # Name of the format, for people.
    format: str
    name: str

    # What it is published as, such as openai/whisper-base.en; empty if it does not say.
    origin: str
    checkpoint: Checkpoint
    graphs: ModelGraphs
    tokenizer: Tokenizer
    generation: GenerationConfig

    # What the files say of each other. The model is used only if all have passed.
    checks: tuple[Check, ...] = ()

    # The LoRA adapter that is in the checkpoint.
    lora: Path | None = None

    # The adapter for windows of less than 30 s.
    adapter: WindowAdapter | None = None

    # What the checkpoint's weights become; empty: they stay as they are.
    weights: str = ""

    def with_weights(self, weights: str) -> "ModelSource":
        """Return the model with all weights as f32, f16, int8 or int8-sym."""
        return replace(self, weights=weights)._with_graphs()

    def with_adapter(self, wanted: str) -> "ModelSource":
        """Return the model with the adapter of its short windows (see `adapters.find`), if there is one.

        Raises ModelError for one that is not for these weights.
        """
        adapter = adapters.find(self.checkpoint, wanted)
        return self if adapter is None else replace(self, adapter=adapter)._with_graphs()

    def _with_graphs(self) -> "ModelSource":
        short = None if self.adapter is None else self.adapter.checkpoint
        graphs = ModelGraphs.of(self.checkpoint, self.generation.alignment_heads, self.weights or "f32", short)
        return replace(self, graphs=graphs)


def read_model(
    path: Path,
    name: str,
    tokenizer_path: Path | None = None,
    lora_path: Path | None = None,
) -> ModelSource:
    """Read a model from its directory or file.

    name : what people call it
    tokenizer_path : a tokenizer that replaces the model's own
    lora_path : the directory of an adapter that goes into its weights

    Raises ModelError if it is of no known format, or something is missing or broken.
    """
    with readable(path, _EXPECTED):
        source = _read_checkpoint(path, name, tokenizer_path, lora_path)
        return replace(source, checks=(*_common_checks(source), *source.checks, *_preprocessor_checks(source)))


def is_model(path: Path) -> bool:
    """Return whether a path holds a model of any format, or a LoRA adapter, as far as a first look shows."""
    try:
        if lora.is_alone(path):
            return True
        found = formats.checkpoints(path)
        if found and found[0][0] is huggingface:  # known by a config.json, and other programs have one
            return read_json(path / "config.json").get("model_type") == "whisper"
        return bool(found)
    except (OSError, ModelError):
        return False


def load_checkpoint(path: Path, lora_path: Path | None = None) -> tuple[str, Checkpoint]:
    """Load a checkpoint, with an adapter in it; return its format, too. Raises ModelError if one is unfit."""
    with readable(path, _EXPECTED):
        format_, where = formats.find(path)
        checkpoint = format_.load(where)
        return format_.NAME, checkpoint if lora_path is None else lora.merged(checkpoint, lora_path)


def _read_checkpoint(path: Path, name: str, tokenizer_path: Path | None, lora_path: Path | None) -> ModelSource:
    format_, checkpoint = load_checkpoint(path, lora_path)
    config, dims = checkpoint.config, checkpoint.dims
    origin = config.get("_name_or_path")
    origin = origin if isinstance(origin, str) else ""
    folder = path if path.is_dir() else path.parent
    tokenizer = _load_tokenizer(tokenizer_path, path, dims, checkpoint.vocabulary)
    # Some models differ in nothing that could be seen but their names.
    names = f"{origin} {name} {path.name}"
    generation = read_generation(folder if config else path, dims, tokenizer, names)
    tokenizer = tokenizer.as_multilingual(generation.multilingual)
    return ModelSource(
        path,
        format_ if lora_path is None else f"{format_}, with the adapter {lora_path.name}",
        name,
        origin,
        checkpoint,
        ModelGraphs.of(checkpoint, generation.alignment_heads),
        tokenizer,
        generation,
        checks=tuple(_config_checks(folder / "config.json", config, tokenizer)) if config else (),
        lora=lora_path,
    )


def _load_tokenizer(chosen: Path | None, path: Path, dims: ModelDimensions, table: Sequence[bytes] = ()) -> Tokenizer:
    """Load the tokenizer that was chosen, else the model's own, else the published one of its size.

    table : what the tokens spell, if the weights' own file says that
    """
    if chosen is not None:
        return Tokenizer.load(chosen, n_vocab=dims.n_vocab)
    # Before October 2022 whisper.cpp's converter wrote U+FFFD for bytes that are not a whole character, so that what
    # such tokens spell is lost. The published tokenizer of this size has them.
    if table and not (dims.n_vocab in PUBLISHED and len({*table}) < len(table)):
        return Tokenizer(vocabulary.from_table(table, dims.n_vocab, str(path)), where=str(path))
    beside = vocabulary.find(path if path.is_dir() else path.parent)
    return Tokenizer.load(beside, n_vocab=dims.n_vocab) if beside.is_file() else vocabularies.published(dims, path)


def _common_checks(source: ModelSource) -> list[Check]:
    dims, tokenizer = source.graphs.dims, source.tokenizer
    kind = ", ".join(tokenizer.languages) if tokenizer.multilingual else "English only"
    if len(tokenizer.languages) > 3 and tokenizer.multilingual:
        kind = f"{len(tokenizer.languages)} languages"
    sizes = f"{dims.n_audio_layer} + {dims.n_text_layer} layers of {dims.n_text_state}, {dims.n_mels} mel bins"
    return [
        Check("format", source.format, "one that is read"),
        Check("dimensions", sizes, "a Whisper's"),
        Check(
            "vocabulary",
            f"{tokenizer.n_vocab} tokens, {kind}",
            f"at most {dims.n_vocab} tokens",
            tokenizer.n_vocab <= dims.n_vocab,
            f"{tokenizer.where} has {tokenizer.n_vocab} tokens, the model {dims.n_vocab}: {_MIXED}",
        ),
    ]


def _config_checks(path: Path, config: Mapping[str, object], tokenizer: Tokenizer) -> list[Check]:
    """Compare config.json's special tokens with the tokenizer's: a wrong one gives fluent nonsense."""
    special = tokenizer.special
    wanted = {"eos_token_id": special.end_of_text, "decoder_start_token_id": special.start_of_transcript}
    return [
        _check_value(path, "config.json", config, key, token, f"{tokenizer.where} has") for key, token in wanted.items()
    ]


def _preprocessor_checks(source: ModelSource) -> list[Check]:
    """Compare preprocessor_config.json, if it is there, with what we compute: nothing else is read from it."""
    path = source.path / "preprocessor_config.json"
    if not path.exists():
        return []
    data = read_json(path)
    n_mels = source.graphs.dims.n_mels
    wanted = {"feature_size": n_mels, "sampling_rate": SAMPLE_RATE, "hop_length": HOP_LENGTH, "n_fft": N_FFT}
    return [_check_value(path, "preprocessor", data, key, value, "the model needs") for key, value in wanted.items()]


def _check_value(path: Path, name: str, data: Mapping[str, object], key: str, expected: int, other: str) -> Check:
    """Compare a number in a file, or a list of those that serve, with what another part of the model has."""
    found = data.get(key)
    return Check(
        f"{name}: {key}",
        f"{found!r:.60}",
        str(expected),
        found is None or expected in (found if isinstance(found, list) else [found]),
        f"{path} has {key} {found!r:.60}, {other} {expected}: {_MIXED}",
    )
