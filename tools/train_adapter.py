"""Trains an adapter for short windows: with it an encoder gives with a few seconds of context what it gives with 30 s.

    python -m tools.train_adapter MODEL --recordings DIR... --out DIR [--examples N] [--epochs N] [--rank N] [--seed N]

Whisper was trained on windows of 30 s, and given fewer encoder positions it leaves words out, or does not stop. The
teacher is the model itself, with silence up to 30 s; the student is the same model with low-rank changes to its
encoder and a window that ends shortly after the sound. No transcripts are needed. What it writes is an adapter in
PEFT's layout (Hu et al. 2021, arXiv:2106.09685), which `streamer/whisper/adapters.py` finds by the weights it is for.

It goes on where it was stopped: DIR/work keeps the teacher's answers and the last state. Needs `pip install torch
openai-whisper`. Two cores need about an hour for base.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere
from safetensors.torch import save_file
from scipy import signal
from torch import Tensor, nn
from whisper.model import ModelDimensions, Whisper

from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel
from streamer.audio.sources.file import read_audio
from streamer.audio.vad import SpeechDetector
from streamer.commands.files import find_recordings
from streamer.constants import FRAMES_PER_SECOND, SAMPLE_RATE, TOKENS_PER_SECOND
from streamer.whisper.adapters import KEY, AdapterDescription, encoder_digest
from streamer.whisper.decode.window import WindowOptions, decode_window, detect_language, max_tokens_for
from streamer.whisper.locate import find_or_pull
from streamer.whisper.model import LoadOptions, WhisperModel, load_model
from streamer.whisper.source import load_checkpoint
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name
from tools.acoustics import add_noise, reverberate

# Seconds of sound, and of silence behind it: what live captions give the encoder.
SOUND_S = (1.5, 15.0)
SILENCE_S = (0.0, 1.5)
PROMPT_S = 6.0  # before the sound, whose text is the prompt
SHORTEST_S, WINDOWS_S = 3, (5, 10, 15)  # the shortest window that is trained, and those that captions use

# Chances of what is done to a recording: noise from another one or white, a room, a telephone's band, and silence or
# noise alone.
NOISE, ROOM, TELEPHONE, NO_SPEECH = 0.35, 0.2, 0.1, 0.1
SPEECH = 0.3  # probability of the speech detector, below which there is none

BATCH = 8  # examples a step
LEARNING_RATE = 1e-3
WARM_UP_STEPS = 20
N_VALIDATION = 32  # the last examples, which are not trained on
EVERY_STEPS = 25  # between two validations, and two saved states

# A teacher's text that is worse than this is not learned from: mean log-probability, tokens a second.
WORST_LOGPROB, MOST_TOKENS_A_SECOND = -1.0, 12


@dataclass(frozen=True, slots=True)
class Example:
    """A piece of sound and the teacher's answer."""

    samples: Tensor  # mono, 16 kHz, float16
    prompt: Tensor  # text that was said before; shape (n,)
    tokens: Tensor  # start of the transcript, text, end of text; shape (n,)
    n_start: int
    states: Tensor  # the encoder's with 30 s, shape (1500, n_audio_state), float16
    silent: bool  # whether there is no speech: the text is empty whatever the teacher writes

    @property
    def fields(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def read(cls, path: Path) -> "Example":
        return cls(**torch.load(path, weights_only=True))


class LowRank(nn.Module):
    """A linear layer's change B A, beside its weights. B begins as zero, so that nothing changes at first."""

    def __init__(self, layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        a = torch.randn(rank, layer.in_features, generator=generator) / math.sqrt(layer.in_features)
        self.a = nn.Parameter(a)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.enabled = True
        layer.register_forward_hook(self._add)

    def _add(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + F.linear(F.linear(inputs[0], self.a), self.b) if self.enabled else output


class Student:
    """A model in torch whose encoder has low-rank changes, and what it is compared by."""

    def __init__(self, checkpoint: Checkpoint, rank: int, seed: int) -> None:
        dims = checkpoint.dims
        self.model = Whisper(ModelDimensions(**{name: getattr(dims, name) for name in ModelDimensions.__annotations__}))
        weights = {openai_name(name): torch.from_numpy(checkpoint.tensors[name]) for name in checkpoint.tensors}
        weights.pop("proj_out.weight", None)
        self.model.load_state_dict(weights)
        self.model.float().requires_grad_(False)
        self.n_mels = dims.n_mels
        generator = torch.Generator().manual_seed(seed)
        names = {openai_name(name).removesuffix(".weight"): name for name in checkpoint.tensors}
        # By Hugging Face's names of the layers.
        self.changes = {
            names[f"encoder.{name}"].removesuffix(".weight"): LowRank(layer, rank, generator)
            for name, layer in self.model.encoder.named_modules()
            if isinstance(layer, nn.Linear)
        }

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for change in self.changes.values() for parameter in change.parameters()]

    def encode(self, mel: Tensor) -> Tensor:
        """Return the states of a window of any length; mel: shape (1, n_mels, n_frames)."""
        encoder = self.model.encoder
        x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mel)))).permute(0, 2, 1)
        x = x + encoder.positional_embedding[: x.shape[1]]
        for block in encoder.blocks:
            x = block(x)
        states: Tensor = encoder.ln_post(x)
        return states

    def losses(self, example: Example, silence_s: float, *, prompted: bool) -> tuple[Tensor, Tensor]:
        """Return how far the probabilities of the text and the encoder's states are from the teacher's."""
        seconds = math.ceil(len(example.samples) / SAMPLE_RATE + silence_s)
        seconds = min(max(seconds, SHORTEST_S), WINDOWS_S[-1])
        mel = torch.from_numpy(log_mel(example.samples.float().numpy(), self.n_mels)[:, : seconds * FRAMES_PER_SECOND])
        prompt = example.prompt if prompted else example.prompt[:0]
        given = torch.cat([prompt, example.tokens[:-1]])[None]
        # What gives the language and whether there is speech, and the text.
        rows = [len(prompt), *range(len(prompt) + example.n_start - 1, given.shape[1])]
        target = example.states[: seconds * TOKENS_PER_SECOND].float()
        with torch.autocast("cpu", torch.bfloat16):
            states = self.encode(mel[None])
            logits = self.model.decoder(given, states)[0, rows].float().log_softmax(-1)
            with torch.no_grad():
                wanted = self.model.decoder(given, example.states[None].float())[0, rows].float().log_softmax(-1)
        text = F.kl_div(logits, wanted, log_target=True, reduction="batchmean")
        if example.silent:  # no text at all, whatever the teacher says
            text = text + F.nll_loss(logits[-1:], example.tokens[-1:])
        return text, (states[0].float() - target).square().mean() / target.var()

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
            "target_modules": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"],
            "bias": "none",
            KEY: msgspec.to_builtins(description),
        }
        (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


class Teacher:
    """Makes examples of recordings, the same for the same number and seed."""

    def __init__(self, model: WhisperModel, recordings: Sequence[Path], seed: int) -> None:
        self._model = model
        self._seed = seed
        self._sounds = [np.concatenate(list(read_audio(path))) for path in recordings]

    def write(self, directory: Path, n: int) -> list[Path]:
        """Write n examples, but for those that are there, and return the files of those that are good."""
        directory.mkdir(parents=True, exist_ok=True)
        paths = [directory / f"{number:05d}.pt" for number in range(n)]
        for number, path in enumerate(paths):
            if not path.exists():
                example = self.example(number)
                torch.save(None if example is None else example.fields, path.with_suffix(".new"))
                path.with_suffix(".new").replace(path)
                if number % 50 == 0:
                    print(f"example {number} of {n}", flush=True)
        return [path for path in paths if torch.load(path, weights_only=True, mmap=True) is not None]

    def example(self, number: int) -> Example | None:
        """Return an example; None if the teacher's own text is no good."""
        rng = np.random.default_rng((self._seed, number))
        seconds = math.exp(rng.uniform(math.log(SOUND_S[0]), math.log(SOUND_S[1])))
        before, samples = self._piece(rng, round(seconds * SAMPLE_RATE))
        samples = self._disturbed(samples, rng)
        silent = max(SpeechDetector().process(samples), default=0.0) < SPEECH
        said_before = self._transcribe(before)[0] if len(before) > SAMPLE_RATE // 2 else None
        said, start = self._transcribe(samples)
        if said is None and not silent:
            return None
        special = self._model.tokenizer.special
        states = torch.from_numpy(self._model.runtime.last_hidden_state).half()
        tokens = torch.tensor([*start, *([] if silent else said or []), special.end_of_text])
        prompt = torch.tensor([special.start_of_previous, *said_before] if said_before else [], dtype=torch.long)
        return Example(torch.from_numpy(samples).half(), prompt, tokens, len(start), states, silent)

    def _transcribe(self, samples: Float32Array) -> tuple[list[int] | None, list[int]]:
        """Return the teacher's text, None if it is no good, and the start of its transcript."""
        runtime, tokenizer = self._model.runtime, self._model.tokenizer
        decoder = runtime.decoder_of(runtime.encode(log_mel(samples, runtime.dims.n_mels), 0))
        language = detect_language(decoder, tokenizer)[0] if tokenizer.multilingual else "en"
        start = [*tokenizer.start_sequence(language, "transcribe"), tokenizer.special.no_timestamps]
        options = WindowOptions(language=language, stop_at_loop=True, max_tokens=max_tokens_for(len(samples)))
        window = decode_window(decoder, tokenizer, self._model.generation, options)
        n_most = MOST_TOKENS_A_SECOND * len(samples) / SAMPLE_RATE
        if window.looped or window.avg_logprob < WORST_LOGPROB or len(window.tokens) > n_most:
            return None, start
        return window.tokens, start

    def _piece(self, rng: np.random.Generator, n_samples: int) -> tuple[Float32Array, Float32Array]:
        """Return a piece of sound, and what comes before it."""
        if rng.random() < NO_SPEECH / 2:
            noise = (rng.standard_normal(n_samples) * 10 ** rng.uniform(-5, -1)).astype(np.float32)
            return noise[:0], noise
        weights = np.sqrt([len(sound) for sound in self._sounds])  # a long recording has no more speakers
        sound = self._sounds[rng.choice(len(weights), p=weights / weights.sum())]
        begin = int(rng.integers(0, max(1, len(sound) - n_samples)))
        before = sound[max(0, begin - round(PROMPT_S * SAMPLE_RATE)) : begin]
        return before, sound[begin : begin + n_samples].copy()

    def _disturbed(self, samples: Float32Array, rng: np.random.Generator) -> Float32Array:
        if rng.random() < ROOM:
            samples = reverberate(samples, rng.uniform(0.2, 0.9), rng)
        if rng.random() < NOISE:
            noise = np.resize(self._piece(rng, len(samples))[1], len(samples))
            samples = add_noise(samples, noise, rng.uniform(5, 30))
        if rng.random() < TELEPHONE:
            band = signal.butter(4, (300, 3400), "bandpass", fs=SAMPLE_RATE, output="sos")
            samples = signal.sosfilt(band, samples).astype(np.float32)
        samples *= np.float32(10 ** (rng.uniform(-20, 6) / 20))
        return np.clip(samples, -1, 1)


def train(student: Student, files: Sequence[Path], epochs: float, seed: int, work: Path) -> list[dict[str, float]]:
    """Train from the last saved state on; return the losses of the examples that are not trained on, by step."""
    validation, files = files[-N_VALIDATION:], files[:-N_VALIDATION]
    n_steps = round(epochs * len(files) / BATCH)
    optimizer = torch.optim.AdamW(student.parameters, LEARNING_RATE, weight_decay=0.01)

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / WARM_UP_STEPS) * (
            0.01 + 0.99 * (1 + math.cos(math.pi * step / max(1, n_steps))) / 2
        )

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    saved, curve = work / "state.pt", list[dict[str, float]]()
    first = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        for name, change in student.changes.items():
            change.load_state_dict(state["changes"][name])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first, curve = state["step"], state["curve"]
    order = _shuffled(files, seed)
    batches = [[next(order) for _ in range(BATCH)] for _ in range(n_steps)]
    begin = time.monotonic()
    for step in range(first, n_steps + 1):
        if step % EVERY_STEPS == 0 or step == n_steps:
            text, states = _validate(student, validation)
            curve.append({"step": step, "text": text, "states": states, "seconds": time.monotonic() - begin})
            print(json.dumps(curve[-1]), flush=True)
            changes = {name: change.state_dict() for name, change in student.changes.items()}
            kept = {"changes": changes, "step": step, "curve": curve}
            torch.save(kept | {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, saved)
        if step == n_steps:
            break
        rng = random.Random(f"{seed} {step}")
        for path in batches[step]:
            silence_s, prompted = rng.uniform(*SILENCE_S), rng.random() < 0.5
            text_loss, states_loss = student.losses(Example.read(path), silence_s, prompted=prompted)
            torch.autograd.backward((text_loss + states_loss) / BATCH)
        nn.utils.clip_grad_norm_(student.parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return curve


def _shuffled(files: Sequence[Path], seed: int) -> Iterator[Path]:
    rng = random.Random(seed)
    while True:
        yield from rng.sample(files, len(files))


@torch.no_grad()
def _validate(student: Student, files: Sequence[Path]) -> tuple[float, float]:
    losses = [student.losses(Example.read(path), i % 3 / 2, prompted=i % 2 == 0) for i, path in enumerate(files)]
    return tuple(float(torch.stack(parts).mean()) for parts in zip(*losses, strict=True))  # type: ignore[return-value]


def main() -> int:
    """Make examples, train, and write the adapter."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_adapter", description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--recordings", nargs="+", required=True, metavar="DIR", help="of people, and of no speech")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--examples", type=int, default=800, metavar="N")
    parser.add_argument("--epochs", type=float, default=2.0, metavar="N")
    parser.add_argument("--rank", type=int, default=16, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)  # more bring nothing for sequences this short; train two models at once instead
    recordings = find_recordings(options.recordings)
    path = find_or_pull(options.model, lambda progress: None)
    _, checkpoint = load_checkpoint(path)
    work = options.out / "work"

    teacher = Teacher(load_model(str(path), LoadOptions(weights="f32")), recordings, options.seed)
    files = teacher.write(work / "examples", options.examples)
    del teacher
    student = Student(checkpoint, options.rank, options.seed)
    curve = train(student, files, options.epochs, options.seed, work)
    dims = checkpoint.dims
    description = AdapterDescription(WINDOWS_S, encoder_digest(checkpoint), dims.n_audio_layer, dims.n_audio_state)
    student.save(options.out, description, path.name, options.rank)
    record = {
        "recordings": [path.name for path in recordings],
        "examples": len(files),
        **{key: getattr(options, key) for key in ("epochs", "rank", "seed")},
        "curve": curve,
    }
    (options.out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
