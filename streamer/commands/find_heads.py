"""Alignment heads found by measurement: for models that do not say which of their heads follow the audio."""

import dataclasses
import json
import logging

import soundfile

from streamer.audio.constants import N_SAMPLES, SAMPLE_RATE
from streamer.audio.mel import log_mel
from streamer.errors import UsageError
from streamer.whisper.decode.alignment_heads import measure_heads
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.heads import all_heads
from streamer.whisper.shipped import SAMPLE_OF, shipped
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


def find_heads(checkpoint: Checkpoint, tokenizer: Tokenizer, generation: GenerationConfig) -> GenerationConfig:
    """Return a model's settings with the heads that follow the speech of the shipped sample best.

    Where none does, as in a model that knows no English, its settings stay as they are, which is told.
    """
    folder = shipped().get(SAMPLE_OF)
    if folder is None:
        raise UsageError(f"{SAMPLE_OF}, on whose sample heads are measured, is not here: install streamer again")
    told = json.loads((folder / "sample.json").read_text(encoding="utf-8"))
    inside = [line for line in told if line["end"] * SAMPLE_RATE < N_SAMPLES]
    sentences = [
        (line["text"], round(line["start"] * SAMPLE_RATE), round(line["end"] * SAMPLE_RATE)) for line in inside
    ]
    # The middle of the pause behind the last whole sentence.
    n_samples = round((inside[-1]["end"] + told[len(inside)]["start"]) / 2 * SAMPLE_RATE)
    samples = soundfile.read(folder / "sample.flac", dtype="float32", frames=n_samples)[0]

    dims = checkpoint.dims
    graphs = ModelGraphs.of(checkpoint, all_heads(dims))
    compilation = Compilation(graphs, plan_stages(DeviceSettings("CPU"), ["CPU"]))
    compilation.compile()
    runtime = Runtime(compilation, n_buffers=1)
    runtime.decoder.use(runtime.encode(log_mel(samples, dims.n_mels), 0))
    found = measure_heads(runtime.decoder, tokenizer, dims, sentences, n_samples)
    if not found:
        logger.warning("no head of this model follows the English sample: its alignment heads stay as they were")
        return generation
    logger.info("alignment heads: %s", ", ".join(f"{layer}.{head}" for layer, head in found))
    return dataclasses.replace(generation, alignment_heads=found)
