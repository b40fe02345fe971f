"""`streamer models convert`: builds the graphs of a checkpoint, compresses and saves them."""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from streamer.commands.terminal import say
from streamer.constants import HOP_LENGTH, N_FFT, SAMPLE_RATE
from streamer.errors import UsageError
from streamer.settings.table import Settings
from streamer.setup.progress import show_progress
from streamer.whisper.check import require
from streamer.whisper.device.allocator import give_back_large_blocks
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs import saved
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.graphs.compress import parse_precisions
from streamer.whisper.locate import find_or_pull, name_of
from streamer.whisper.source import ModelSource, holds_graphs, read_model


def convert_model(
    name: str,
    output: Path,
    *,
    weights: str,
    settings: Settings | None = None,
    force: bool = False,
    console: Console,
) -> int:
    """Find a checkpoint of any format, or fetch it, and convert it.

    weights : a precision, or one a stage (see `compress.parse_precisions`)
    settings : name a tokenizer that replaces the model's own, and an adapter that goes into the weights

    Returns the exit code. Raises as `convert` does, and UsageError if the model holds graphs and no weights.
    """
    chosen = (settings or Settings()).model
    precisions = parse_precisions(weights)
    saved.check_target(output, force=force)
    with show_progress(name) as progress:
        path = find_or_pull(name, progress.fetched)
        adapter = find_or_pull(chosen.lora, progress.fetched) if chosen.lora else None
    if holds_graphs(path):
        raise UsageError(
            f"{path} holds graphs: expected a checkpoint, whose weights can be compressed; convert the one that they"
            " were made from"
        )
    tokenizer = Path(chosen.tokenizer).expanduser() if chosen.tokenizer else None
    model = read_model(path, name_of(path, name), tokenizer, lora_path=adapter)
    require(model.checks)
    return convert(model, output, precisions=precisions, force=force, console=console)


def convert(source: ModelSource, output: Path, *, precisions: Mapping[str, str], force: bool, console: Console) -> int:
    """Save the graphs of a model that has a checkpoint in a directory, and print its path.

    precisions : of each stage (see `compress.parse_precisions`)

    Raises UsageError if the directory is taken, ModelError if the checkpoint turns out to be broken, StreamerError if
    the directory cannot be written. Then nothing is left of it.
    """
    give_back_large_blocks()  # each stage's weights go as soon as they are written
    assert source.checkpoint is not None
    dims, heads = source.checkpoint.dims, tuple(source.generation.alignment_heads)
    # f16 is made while the graph is written, tensor by tensor, and marked as made for size alone.
    built = {stage: "f32" if precision == "f16" else precision for stage, precision in precisions.items()}
    with show_progress(source.name) as progress:
        model = saved.save(
            output,
            saved.Description(source.name, source.origin, dims, heads, precisions),
            ModelGraphs.of(source.checkpoint, heads, built).build,
            _companions(source, dims),
            force=force,
            on_stage=lambda stage: progress.begin(f"building the {stage} ({precisions[stage]})"),
        )
    n_bytes = sum(mark.n_bytes for mark in model.description.files.values())
    # As a shell takes it.
    quoted = subprocess.list2cmdline([str(output)]) if os.name == "nt" else shlex.quote(str(output))
    say(console, f"saved {source.name}, {n_bytes / 1e6:.1f} MB: {output}\nUse it with: streamer run --model {quoted}")
    return 0


def _companions(source: ModelSource, dims: ModelDimensions) -> dict[str, bytes]:
    """Return the files that a model directory holds beside its graphs."""
    generation = source.generation
    contents = {
        "preprocessor_config.json": {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": dims.n_mels,
            "sampling_rate": SAMPLE_RATE,
            "hop_length": HOP_LENGTH,
            "n_fft": N_FFT,
        },
        "generation_config.json": {
            "suppress_tokens": generation.suppress_tokens,
            "begin_suppress_tokens": generation.begin_suppress_tokens,
            # By this the file is known to be of another model.
            "no_timestamps_token_id": source.tokenizer.special.no_timestamps,
            "max_initial_timestamp_index": generation.max_initial_timestamp_index,
            "alignment_heads": generation.alignment_heads,
            "is_multilingual": generation.multilingual,
            "condition_on_prev_tokens": generation.prompted,
            "pad_with_silence": generation.silent_padding,
            "stream_windows_s": generation.windows_s,
            "stream_beams": generation.stream_beams,
        },
    }
    written = {name: (json.dumps(data, indent=2) + "\n").encode() for name, data in contents.items()}
    return {**written, "tokenizer.json": source.tokenizer.to_json()}
