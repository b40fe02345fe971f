"""Files and models of weights in the standard vocabulary, which openai-whisper runs as well as we do."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
import whisper
import whisper.model
import whisper.tokenizer

from streamer.whisper.dims import Heads
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name
from tests.unit.whisper.standard_nano import RANKS
from tests.unit.whisper.support import Untyped, tensor, write_openai

# The heads that nano.en's generation_config.json names.
NANO_HEADS = ((2, 0), (2, 1))


def write_standard(directory: Path, checkpoint: Checkpoint, heads: Heads | None = None) -> Path:
    """Write a checkpoint of the standard vocabulary as openai-whisper does, in float32, and its tokenizer beside it.

    With alignment heads a `generation_config.json` as of the published models names them; else the file says nothing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_openai(directory / "model.pt", checkpoint, "float32")
    shutil.copy(RANKS, directory)
    if heads is not None:
        tokenizer = whisper.tokenizer.get_tokenizer(True)
        controls = ("transcribe", "translate", "sot", "sot_prev", "sot_lm", "no_speech")
        suppressed = {*tokenizer.non_speech_tokens, *(getattr(tokenizer, name) for name in controls)}
        config = {
            "alignment_heads": heads,
            "begin_suppress_tokens": [*tokenizer.encode(" "), tokenizer.eot],
            "suppress_tokens": sorted(suppressed),
            "max_initial_timestamp_index": 50,
            "is_multilingual": True,
            "no_timestamps_token_id": tokenizer.no_timestamps,
        }
        (directory / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def openai_whisper(checkpoint: Checkpoint, heads: Heads | None = None) -> Untyped:
    """Return openai-whisper's model of a checkpoint of the standard vocabulary, in float32."""
    untyped: Untyped = whisper.model
    model = untyped.Whisper(untyped.ModelDimensions(**asdict(checkpoint.dims)))
    state = {openai_name(name): tensor(value) for name, value in checkpoint.tensors.items()}
    model.load_state_dict(state, strict=True, assign=True)
    if heads is not None:
        chosen = torch.zeros(checkpoint.dims.n_text_layer, checkpoint.dims.n_text_head, dtype=torch.bool)
        for layer, head in heads:
            chosen[layer, head] = True
        model.register_buffer("alignment_heads", chosen.to_sparse(), persistent=False)
    return model.eval()
