"""Trains an adapter for short windows: with it a model gives with a few seconds of cut sound what it gives with 30 s.

    python -m tools.train_adapter MODEL --recordings DIR... --out DIR [--pieces N] [--steps N] [--rank N] [--seed N]

Whisper was trained on windows of 30 s whose words are complete. Live windows are shorter and end within a word, or
begin with words that are wrong. The teacher is the model itself in windows of 30 s, which gets some seconds more
(`tools/adapter_examples.py`). The student is the same model with low-rank changes to its encoder and to the
cross-attention keys and values of its decoder. Its sound ends at a cut, its text at the last word that was complete
there. No transcripts are needed. What it writes is an adapter in PEFT's layout (Hu et al. 2021, arXiv:2106.09685),
which `streamer/whisper/adapters.py` finds by the weights it is for.

Needs `pip install torch openai-whisper`, and 2 MB of memory for each piece. Two cores need about an hour for base.
"""

import argparse
import itertools
import json
import math
import random
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere
from safetensors.torch import save_file
from torch import Tensor, nn
from whisper.model import ModelDimensions, Whisper

from streamer.audio.mel import log_mel
from streamer.commands.files import find_recordings
from streamer.constants import FRAMES_PER_SECOND, SAMPLE_RATE, TOKENS_PER_SECOND
from streamer.whisper.adapters import KEY, AdapterDescription, encoder_digest
from streamer.whisper.decode.window import FILE_BEAMS
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.loading import LoadOptions
from streamer.whisper.locate import find_or_pull
from streamer.whisper.model import ADAPTED_SILENCE_S, load_model
from streamer.whisper.source import load_checkpoint
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name
from tools.adapter_examples import Cutter, Example, Piece, Teacher

SHORTEST_S, WINDOWS_S = 5, (5, 10, 15)  # the shortest window that is trained, and those that captions use
LONGER = 0.2  # how often a window is longer than it need be

# States of the encoder are compared up to this long before the cut.
COMPARED_BEFORE_S = 1.0
WEIGHTS = {"text": 1.0, "first": 0.3, "stop": 0.2, "states": 1.0}  # of the losses

# A text that ends at the cut with this probability is good enough: more would end texts too early elsewhere. What is
# further apart than these, a token's probabilities or states, does not count: the word was timed wrong, or the noise is
# too loud.
STOP_PROBABILITY = 0.7
MOST_TEXT, MOST_STATES = 3.0, 0.2

BATCH = 8  # examples a step
LEARNING_RATE = 4e-4
WARM_UP_STEPS = 20
N_VALIDATION = 40  # the last pieces, which are not trained on
EVERY_STEPS = 25  # between two validations

# Of the decoder what a short window has of its own, by openai-whisper's names.
CROSS_KV = re.compile(r"^decoder\..*cross_attn\.(key|value)$")

# Where a processor multiplies in bfloat16, the teacher does, too: it takes a third of the time.
ON_ONE_CORE = DeviceSettings("CPU", properties=("INFERENCE_NUM_THREADS=1", "INFERENCE_PRECISION_HINT=bf16"))


class LowRank(nn.Module):
    """A linear layer's change B A, beside its weights. B begins as zero, so that nothing changes at first."""

    def __init__(self, layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        a = torch.randn(rank, layer.in_features, generator=generator) / math.sqrt(layer.in_features)
        self.a = nn.Parameter(a)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
        layer.register_forward_hook(self._add)

    def _add(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        (x,) = inputs
        return output + F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))


class Student:
    """A model in torch with low-rank changes, and how far it is from the teacher."""

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, rank: int, seed: int) -> None:
        dims = checkpoint.dims
        self.model = Whisper(ModelDimensions(**{name: getattr(dims, name) for name in ModelDimensions.__annotations__}))
        weights = {openai_name(name): torch.from_numpy(checkpoint.tensors[name]) for name in checkpoint.tensors}
        weights.pop("proj_out.weight", None)
        self.model.load_state_dict(weights)
        self.model.float().requires_grad_(False)
        # Half as much to compute; normalisation and what is trained stay as they are.
        for module in self.model.modules():
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Embedding):
                module.bfloat16()
        self.n_mels = dims.n_mels
        generator = torch.Generator().manual_seed(seed)
        names = {openai_name(name).removesuffix(".weight"): name for name in checkpoint.tensors}
        # By Hugging Face's names of the layers.
        self.changes = {
            names[name].removesuffix(".weight"): LowRank(layer, rank, generator)
            for name, layer in self.model.named_modules()
            if isinstance(layer, nn.Linear) and (name.startswith("encoder.") or CROSS_KV.search(name))
        }
        self.parameters = [parameter for change in self.changes.values() for parameter in change.parameters()]
        self._end = tokenizer.special.end_of_text
        marks = (token for token in range(self._end) if is_ending(tokenizer.decode([token])))
        self._stops = torch.tensor([self._end, *marks])

    def encode(self, mel: Tensor) -> Tensor:
        """Return the states of a window of any length; mel: shape (1, n_mels, n_frames)."""
        encoder = self.model.encoder
        x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mel.bfloat16())))).permute(0, 2, 1)
        x = x + encoder.positional_embedding[: x.shape[1]].bfloat16()
        for block in encoder.blocks:
            x = block(x)
        states: Tensor = encoder.ln_post(x)
        return states

    def log_probs(self, tokens: Tensor, states: Tensor, rows: Sequence[int]) -> Tensor:
        """Return the log-probabilities after some of the tokens, shape (n_rows, n_vocab)."""
        decoder = self.model.decoder
        x = decoder.token_embedding(tokens[None]) + decoder.positional_embedding[: len(tokens)].bfloat16()
        for block in decoder.blocks:
            x = block(x, states, mask=decoder.mask)
        logits = decoder.ln(x)[0, rows] @ decoder.token_embedding.weight.T
        log_probs: Tensor = logits.float().log_softmax(-1)
        return log_probs

    def losses(self, example: Example, window_s: int) -> dict[str, Tensor]:
        """Return how far text, first token, end and encoder's states are from what they are to be."""
        piece, n_cut = example.piece, example.n_samples
        mel = log_mel(piece.samples[:n_cut].float().numpy(), self.n_mels)[:, : window_s * FRAMES_PER_SECOND]
        written = piece.tokens[example.first : example.end]
        tokens = [piece.prompt, piece.start, torch.tensor(example.given, dtype=torch.long), written]
        begins = sum(map(len, tokens[:3])) - 1
        rows = [len(piece.prompt), *range(begins, begins + len(written) + 2)]
        states = self.encode(torch.from_numpy(mel)[None])
        log_probs = self.log_probs(torch.cat([*tokens, torch.tensor([example.mark])]), states, rows)
        known = [0, *range(1 + example.first, 1 + example.end)]
        wanted = piece.log_probs[known].float()
        apart = (wanted.exp() * (wanted - log_probs[:-2].gather(1, piece.best[known]))).sum(-1).clamp(max=MOST_TEXT)
        stops = torch.stack([log_probs[-2, self._stops].logsumexp(0), log_probs[-1, self._end]])
        n_compared = max(1, round((n_cut / SAMPLE_RATE - COMPARED_BEFORE_S) * TOKENS_PER_SECOND))
        n_compared = min(n_compared, len(piece.states), states.shape[1])
        target = piece.states[:n_compared].float()
        return {
            "text": apart[1:].mean() if len(written) else apart.new_zeros(()),
            "first": apart[0],
            "stop": F.relu(math.log(STOP_PROBABILITY) - stops).mean() if example.stops else apart.new_zeros(()),
            "states": ((states[0, :n_compared].float() - target).square().mean() / target.var()).clamp(max=MOST_STATES),
        }

    def save(self, directory: Path, description: AdapterDescription, base: str, rank: int) -> None:
        """Write the adapter in PEFT's layout, in float16."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"base_model.model.model.{layer}.lora_{part}.weight": value.detach().half().contiguous()
            for layer, change in self.changes.items()
            for part, value in (("A", change.a), ("B", change.b))
        }
        save_file(tensors, directory / "adapter_model.safetensors")
        config = {
            "peft_type": "LORA",
            "base_model_name_or_path": base,
            "r": rank,
            "lora_alpha": rank,
            "target_modules": list(self.changes),
            "bias": "none",
            KEY: msgspec.to_builtins(description),
        }
        (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def is_ending(text: str) -> bool:
    """Return whether a text is punctuation that may end a text, or a clause of it."""
    return bool(text.strip()) and not text.strip(".,!?;:…。、，！？ ")


def window_of(n_samples: int, rng: random.Random) -> int:
    """Return how many seconds of window a sound gets: the shortest with silence behind it, or a longer one."""
    shortest = max(SHORTEST_S, math.ceil(n_samples / SAMPLE_RATE + ADAPTED_SILENCE_S))
    return rng.randint(shortest, WINDOWS_S[-1]) if rng.random() < LONGER else shortest


def train(
    student: Student, cutter: Cutter, pieces: Sequence[Piece], *, n_steps: int, seed: int
) -> list[dict[str, float]]:
    """Train; return the losses of the last pieces, which are not trained on, by step."""
    validation, pieces = pieces[-N_VALIDATION:], pieces[:-N_VALIDATION]
    optimizer = torch.optim.AdamW(student.parameters, LEARNING_RATE, weight_decay=0.01)

    def rate(step: int) -> float:
        falling = 0.01 + 0.99 * (1 + math.cos(math.pi * step / max(1, n_steps))) / 2
        return min(1.0, (step + 1) / WARM_UP_STEPS) * falling

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    shuffled = random.Random(seed)
    order = itertools.chain.from_iterable(shuffled.sample(pieces, len(pieces)) for _ in itertools.count())
    curve: list[dict[str, float]] = []
    begin = time.monotonic()
    for step in range(n_steps + 1):
        if step % EVERY_STEPS == 0 or step == n_steps:
            curve.append({"step": step, **_validate(student, cutter, validation), "seconds": time.monotonic() - begin})
            print(json.dumps(curve[-1]), flush=True)
        if step == n_steps:
            break
        rng = random.Random(f"{seed} {step}")
        for piece in itertools.islice(order, BATCH):
            example = cutter.draw(piece, rng)
            losses = student.losses(example, window_of(example.n_samples, rng))
            loss = torch.stack([WEIGHTS[name] * each for name, each in losses.items()]).sum()
            torch.autograd.backward(loss / BATCH)
        nn.utils.clip_grad_norm_(student.parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return curve


@torch.no_grad()
def _validate(student: Student, cutter: Cutter, pieces: Sequence[Piece]) -> dict[str, float]:
    """Return the mean of each loss; the cuts are always the same."""
    found = []
    for number, piece in enumerate(pieces):
        rng = random.Random(number)
        example = cutter.draw(piece, rng)
        found.append(student.losses(example, window_of(example.n_samples, rng)))
    return {name: float(torch.stack([losses[name] for losses in found]).mean()) for name in WEIGHTS}


def main() -> int:
    """Make pieces, train, and write the adapter."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_adapter", description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--recordings", nargs="+", required=True, metavar="DIR", help="of people, and of no speech")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--pieces", type=int, default=800, metavar="N")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help=f"of {BATCH} cuts each")
    parser.add_argument("--rank", type=int, default=16, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)  # more bring nothing for sequences this short; train two models at once instead
    recordings = find_recordings(options.recordings)
    path = find_or_pull(options.model, lambda progress: None)
    _, checkpoint = load_checkpoint(path)
    model = load_model(str(path), LoadOptions(ON_ONE_CORE, weights="f32", n_beams=FILE_BEAMS, live=False))
    teacher = Teacher(model, recordings, options.seed)
    pieces = [piece for piece in map(teacher.piece, range(options.pieces)) if piece is not None]
    cutter = Cutter(model.tokenizer, teacher.words)
    student = Student(checkpoint, model.tokenizer, options.rank, options.seed)
    del teacher, model
    curve = train(student, cutter, pieces, n_steps=options.steps, seed=options.seed)
    dims = checkpoint.dims
    description = AdapterDescription(WINDOWS_S, encoder_digest(checkpoint), dims.n_audio_layer, dims.n_audio_state)
    student.save(options.out, description, path.name, options.rank)
    record = {
        "recordings": [path.name for path in recordings],
        "pieces": len(pieces),
        **{key: getattr(options, key) for key in ("steps", "rank", "seed")},
        "curve": curve,
    }
    (options.out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
