"""`streamer models convert`: builds the graphs of a checkpoint, compresses them, saves them, and says what was lost."""

import contextlib
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import openvino as ov
import soundfile
from rich.console import Console
from rich.table import Table

from streamer.arrays import Float32Array
from streamer.audio.constants import HOP_LENGTH, N_FFT, SAMPLE_RATE
from streamer.audio.mel import log_mel
from streamer.commands.drift import Drift, measure_drift, measure_reference, reference_bytes
from streamer.commands.find_heads import find_heads
from streamer.commands.progress import show_progress
from streamer.errors import UsageError
from streamer.whisper.check import require
from streamer.whisper.device.allocator import give_back_large_blocks
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.graphs import saved
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.graphs.compress import check_nncf, compress, needs_nncf, parse_precisions
from streamer.whisper.graphs.ports import STAGES
from streamer.whisper.locate import find_or_pull, name_of
from streamer.whisper.shipped import SAMPLE_OF, shipped
from streamer.whisper.source import holds_graphs, load_checkpoint, read_model
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

Builders = dict[str, Callable[[], ov.Model]]


@dataclass(frozen=True, slots=True)
class ConvertSource:
    """A model in any format, as far as it is saved."""

    # Its tensors are read twice: for the graphs, and again for the report.
    checkpoint: Checkpoint

    # An encoder alone does not need it.
    generation: GenerationConfig | None

    # An encoder alone does not need it.
    tokenizer: Tokenizer | None
    name: str

    # What it is published as; empty where that is not known.
    origin: str


def convert_model(
    name: str,
    output: Path,
    *,
    weights: str,
    tokenizer: str = "",
    encoder_only: bool = False,
    report: bool = True,
    force: bool = False,
    measure_heads: bool = False,
    console: Console,
) -> int:
    """Find a checkpoint of any format, or fetch it, and convert it.

    weights : a precision, or one a stage (see `compress.parse_precisions`)
    tokenizer : file of a tokenizer that replaces the model's own; empty: none
    measure_heads : whether to find the alignment heads by measurement, whatever the model says

    Raises as `convert` does, and UsageError where the model holds graphs and no weights.
    """
    precisions = parse_precisions(weights)
    saved.check_target(output, force=force)
    with show_progress(name) as progress:
        path = find_or_pull(name, progress.fetched)
    if holds_graphs(path):
        raise UsageError(
            f"{path} holds graphs: expected a checkpoint, whose weights can be compressed; convert the one that they"
            " were made from"
        )
    called = name_of(path, name)
    if encoder_only:
        checkpoint = load_checkpoint(path)[1]
        source = ConvertSource(checkpoint, None, None, called, "")
    else:
        model = read_model(path, called, Path(tokenizer).expanduser() if tokenizer else None)
        require(model.checks)
        assert model.checkpoint is not None
        generation = model.generation
        if measure_heads:
            generation = find_heads(model.checkpoint, model.tokenizer, generation)
        source = ConvertSource(model.checkpoint, generation, model.tokenizer, called, model.origin)
    return convert(
        source,
        output,
        precisions=precisions,
        encoder_only=encoder_only,
        report=report,
        force=force,
        console=console,
    )


def convert(
    source: ConvertSource,
    output: Path,
    *,
    precisions: Mapping[str, str],
    encoder_only: bool,
    report: bool,
    force: bool,
    console: Console,
) -> int:
    """Save a model's graphs in a directory, print where and, by `report`, how far they drift from the checkpoint's own.

    There is no report where all stages stay as they are (f32).

    precisions : of each stage (see `compress.parse_precisions`)

    Raises UsageError where the directory is taken or NNCF is needed and missing, ModelError where the checkpoint turns
    out to be broken, StreamerError where the directory cannot be written. Then nothing is left of it.
    """
    give_back_large_blocks()  # each stage's weights go as soon as they are written
    saved.check_target(output, force=force)
    stages = ("encoder",) if encoder_only else STAGES
    precisions = {stage: precisions[stage] for stage in stages}
    if any(needs_nncf(precision) for precision in precisions.values()):
        check_nncf()
    dims = source.checkpoint.dims
    heads = source.generation.alignment_heads if source.generation else ()
    graphs = ModelGraphs.of(source.checkpoint, heads)
    builders: Builders = {stage: graphs.build[stage] for stage in stages}
    changed = any(precision != "f32" for precision in precisions.values())
    sample = _sample(source, encoder_only=encoder_only) if report and changed else None
    drifts: list[Drift] = []
    with _telling(source.name) as tell:
        if sample:
            tell("measuring the checkpoint as it is")
            reference = measure_reference(builders, dims, sample.mel, sample.tokens)
        model = saved.save(
            output,
            saved.Description(source.name, source.origin, dims, heads, precisions),
            {stage: partial(_compressed, build, precisions[stage]) for stage, build in builders.items()},
            _companions(source, encoder_only=encoder_only),
            force=force,
            on_stage=lambda stage: tell(f"building the {stage} ({precisions[stage]})"),
        )
        if sample:
            tell("measuring the drift")
            written = {stage: partial(model.read, stage) for stage in model.stages}
            drifts = measure_drift(reference, builders, written, dims, sample.mel, sample.tokens)
    if drifts:
        console.print(_table(drifts, model), markup=False)
    size = _megabytes(sum(mark.n_bytes for mark in model.files.values()))
    # As a shell takes it.
    quoted = subprocess.list2cmdline([str(output)]) if os.name == "nt" else shlex.quote(str(output))
    use = "" if encoder_only else f"\nUse it with: streamer run --model {quoted}"
    console.print(f"saved {source.name}, {size}: {output}{use}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _compressed(build: Callable[[], ov.Model], precision: str) -> ov.Model:
    return compress(build(), precision)


def _companions(source: ConvertSource, *, encoder_only: bool) -> dict[str, bytes]:
    """Return the files that a model directory holds beside its graphs."""
    preprocessor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": source.checkpoint.dims.n_mels,
        "sampling_rate": SAMPLE_RATE,
        "hop_length": HOP_LENGTH,
        "n_fft": N_FFT,
    }
    companions = {"preprocessor_config.json": _json(preprocessor)}
    generation = source.generation
    if not encoder_only and source.tokenizer is not None and generation is not None:
        companions["tokenizer.json"] = source.tokenizer.to_json()
        companions["generation_config.json"] = _json(
            {
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
            }
        )
    return companions


def _json(data: Mapping[str, object]) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()


@contextlib.contextmanager
def _telling(name: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done: on a terminal in one line that goes again, else in log lines."""
    if not sys.stderr.isatty():
        yield lambda doing: logger.info("%s: %s", name, doing)
        return
    with Console(stderr=True).status(name) as status:
        yield lambda doing: status.update(f"{name}: {doing}")


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the drift is measured on."""

    mel: Float32Array

    # Transcript of it, from the start of a transcript on; none for an encoder alone.
    tokens: list[int]


def _sample(source: ConvertSource, *, encoder_only: bool) -> _Sample | None:
    folder = shipped().get(SAMPLE_OF)
    if folder is None:
        logger.warning("%s, whose sample of speech the drift is measured on, is not here: no report", SAMPLE_OF)
        return None
    samples: Float32Array = soundfile.read(folder / "sample.flac", dtype="float32")[0]
    tokens: list[int] = []
    if not encoder_only:
        tokenizer = source.tokenizer
        assert tokenizer is not None, "a decoder without a tokenizer"
        known = tokenizer.languages if tokenizer.multilingual else ("en",)
        text = (folder / "sample.txt").read_text(encoding="utf-8")
        tokens = [
            *tokenizer.start_sequence("en" if "en" in known else next(iter(known)), "transcribe"),
            tokenizer.special.no_timestamps,
            *tokenizer.encode(" " + " ".join(text.split())),
        ]
    return _Sample(log_mel(samples, source.checkpoint.dims.n_mels), tokens)


def _table(drifts: list[Drift], model: saved.SavedModel) -> Table:
    measured = "logits" if drifts[0].agreement is not None else "hidden states"
    table = Table(title="Against the checkpoint's own weights", title_justify="left")
    titles = ("Stage", "Weights", "Size", "As f32", f"Max, {measured}", f"Mean, {measured}", "Same tokens", "Speed")
    for title in titles:
        table.add_column(title, overflow="fold", justify="left" if title in ("Stage", "Weights") else "right")
    description = model.description
    for drift in drifts:
        stages = model.stages if drift.stage == "all" else (drift.stage,)
        table.add_row(
            drift.stage,
            " ".join(dict.fromkeys(description.precisions[stage] for stage in stages)),
            _megabytes(sum(model.files[f"{stage}.bin"].n_bytes for stage in stages)),
            _megabytes(sum(reference_bytes(description.dims, stage) for stage in stages)),
            f"{drift.max_difference:.2g}",
            f"{drift.mean_difference:.2g}",
            "" if drift.agreement is None else f"{drift.agreement:.1%}",
            f"{drift.speed:.2f}x",
        )
    return table


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB"
