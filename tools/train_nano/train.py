"""Trains the model: python -m tools.train_nano.train --corpus DIR --out DIR --hours H

Four losses: the words, as Whisper learns them; the words of prompts, which teach how words are spelt and what follows
what; the sound of each frame, from a head on the encoder that is thrown away afterwards; and where some heads of the
cross-attention look, which the synthesisers' word times tell. The third makes the encoder hear within minutes, the
fourth gives the decoder its place in the audio at once, and good word times later.

The time is the budget: the learning rate and the lessons follow the share of it that is spent, and a run that was
stopped goes on from its last checkpoint with what was left.
"""

import argparse
import itertools
import json
import math
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import jiwer
import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, distributed, multiprocessing, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from whisper.normalizers import EnglishTextNormalizer

from streamer.audio.constants import SAMPLE_RATE
from tools.train_nano.corpus import Corpus, shard_voice
from tools.train_nano.network import Shape, Whisper
from tools.train_nano.spectrogram import LogMel, blot_out
from tools.train_nano.voices import VOICES
from tools.train_nano.windows import IGNORED, PHONES, Lesson, Script, Window, Windows

GUIDED_HEADS = ((0,), (0, 1), (0, 1))  # of each layer of the decoder: taught where to look; the others are free
CHECKPOINT_S = 300.0
REPORT_S = 30.0
WATCH_S = 600.0


@dataclass(frozen=True)
class Step:
    """One kind of batch."""

    lesson: Lesson
    windows: int


def steps(fraction: float, audio_s: float) -> list[tuple[float, Step]]:
    """What is taught when `fraction` of the time is spent, as shares and steps of `audio_s` seconds of audio each."""
    ramp = min(1.0, fraction / 0.15)

    def step(seconds: float, padding: float, prompts: float = 0.0) -> Step:
        lesson = Lesson(
            seconds=seconds,
            degraded=0.45 + 0.2 * ramp,
            strength=0.5 + 0.5 * ramp,
            prompts=prompts,
            timestamps=0.5 if seconds < 30 else 0.7,  # as files have them
            cuts=0.45,
            padding=padding,
            shifted=0.5 if seconds < 30 else 0.0,
            no_speech=0.06,
            warped=0.3,
            masked=0.15 * ramp,
        )
        return Step(lesson, max(1, round(audio_s / seconds)))

    # Full windows cost more a second and hold few beginnings: most come when the words are known. A prompt makes every
    # row of its batch longer, so that whole batches have one. What a stream sees is silent, mostly.
    short, long, full, silent = step(7.0, 0.1), step(14.0, 0.3), step(30.0, 0.1), step(30.0, 1.0)
    prompted = [step(14.0, 0.3, 0.9), step(30.0, 0.1, 0.9), step(30.0, 1.0, 0.9)]
    if fraction < 0.35:
        shares = [0.25, 0.15, 0.12, 0.05, 0.2, 0.13, 0.1]
    elif fraction < 0.7:
        shares = [0.15, 0.17, 0.18, 0.05, 0.18, 0.15, 0.12]
    else:
        shares = [0.08, 0.08, 0.13, 0.03, 0.24, 0.24, 0.2]
    return list(zip(shares, [short, long, full, silent, *prompted], strict=True))


@dataclass(frozen=True)
class Batch:
    """Windows side by side. B windows, N tokens, T frames."""

    audio: Tensor  # (B, 320 T)
    mel_ends: list[int]
    blotted: list[bool]
    warps: Tensor  # (B,)
    positions: Tensor  # (B, T)
    tokens: Tensor  # (B, N)
    labels: Tensor  # (B, N)
    read: Tensor  # (B, N): what follows each token of a prompt within it; IGNORED elsewhere
    times: Tensor  # (B, N)
    phones: Tensor  # (B, T)

    @classmethod
    def of(cls, windows: list[Window]) -> "Batch":
        length = -(-max(len(window.tokens) for window in windows) // 32) * 32
        frames = len(windows[0].phones)

        def padded(rows: list[list[int]], value: int) -> Tensor:
            return torch.tensor([row + [value] * (length - len(row)) for row in rows])

        return cls(
            torch.from_numpy(np.stack([window.audio for window in windows])),
            [window.mel_end for window in windows],
            [window.blotted for window in windows],
            torch.tensor([window.warp for window in windows]),
            torch.tensor([window.position for window in windows])[:, None] + torch.arange(frames),
            padded([window.tokens for window in windows], 0),
            padded([window.labels for window in windows], IGNORED),
            padded([window.tokens[1 : window.prompt] for window in windows], IGNORED),
            torch.tensor([window.times + [-1.0] * (length - len(window.times)) for window in windows]),
            torch.from_numpy(np.stack([window.phones for window in windows])),
        )

    def to(self, device: torch.device) -> "Batch":
        return replace(
            self,
            audio=self.audio.to(device),
            warps=self.warps.to(device),
            positions=self.positions.to(device),
            tokens=self.tokens.to(device),
            labels=self.labels.to(device),
            read=self.read.to(device),
            times=self.times.to(device),
            phones=self.phones.to(device),
        )

    def mel(self, log_mel: LogMel) -> Tensor:
        """Spectrograms: (B, 80, 2 T)."""
        mel: Tensor = log_mel(self.audio, self.warps)
        for number, (end, blotted) in enumerate(zip(self.mel_ends, self.blotted, strict=True)):
            mel[number, :, end:] = 0.0
            if blotted:
                blot_out(mel[number])
        return mel


class Batches(IterableDataset[Batch]):
    """Batches without end: at one step each process of a run has windows of its own, and the same kind of step."""

    def __init__(self, options: argparse.Namespace, number: int, begin: int, fraction: "Synchronized[float]") -> None:
        """`number` tells the processes of a run apart; `begin` is the first step, `fraction` the share of the time."""
        self._options = options
        self._number = number
        self._begin = begin
        self._fraction = fraction

    def __iter__(self) -> Iterator[Batch]:
        options = self._options
        worker = get_worker_info()  # on a GPU there are several
        number = self._number if worker is None else worker.id
        corpus = Corpus(options.corpus)
        script = Script(Tokenizer.from_file(str(options.tokenizer)))
        shares = {shard_voice(name): share for name, share in VOICES.items()}
        windows = Windows(
            corpus, shares, script, random.Random(f"{options.seed} {self._begin} {number}").getrandbits(32)
        )
        for count in itertools.count(self._begin):
            if (count - self._begin) % 200 == 0:
                corpus.refresh()
            if not corpus.voices:
                raise SystemExit(f"{options.corpus} has no speech; make some with tools.train_nano.synthesise")
            kinds = steps(self._fraction.value, options.audio)
            kind = random.Random(f"{options.seed} {count}")
            (step,) = kind.choices([step for _, step in kinds], [share for share, _ in kinds])
            yield Batch.of([windows.make(step.lesson) for _ in range(step.windows)])


class Losses:
    """The running mean of each loss, for the screen."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def add(self, losses: dict[str, Tensor]) -> None:
        for name, loss in losses.items():
            value = float(loss.detach())
            self._means[name] = 0.98 * self._means.get(name, value) + 0.02 * value

    def __str__(self) -> str:
        return " ".join(f"{name} {mean:.3f}" for name, mean in self._means.items())


def losses_of(net: Whisper, head: nn.Linear, batch: Batch, mel: Tensor, sigma_s: float) -> dict[str, Tensor]:
    """The losses of a batch, "read" where it has prompts.

    `sigma_s` is how far from a word's time the guided heads may look unpunished.
    """
    features = net.encoder(mel, batch.positions)
    logits, attention = net.decoder(batch.tokens, features)

    def of_tokens(labels: Tensor) -> Tensor:
        chosen = labels != IGNORED
        loss = functional.cross_entropy(logits[chosen].float(), labels[chosen], reduction="sum")
        return loss / chosen.sum().clamp(min=1)

    sounds = functional.cross_entropy(
        head(features).float().flatten(0, 1), batch.phones.flatten(), ignore_index=IGNORED
    )
    frames = (torch.arange(features.shape[1], device=features.device) + 0.5) * 0.02
    near = torch.exp(-((frames - batch.times[..., None]) ** 2) / (2 * sigma_s**2))
    timed = batch.times >= 0
    missed = [
        -torch.log((weights[:, number] * near).sum(-1) + 1e-3)[timed].sum() / timed.sum().clamp(min=1)
        for weights, heads in zip(attention, GUIDED_HEADS, strict=False)
        for number in heads
        if number < weights.shape[1]
    ]
    losses = {"words": of_tokens(batch.labels), "sounds": sounds, "places": torch.stack(missed).mean()}
    return losses | {"read": of_tokens(batch.read)} if bool((batch.read != IGNORED).any()) else losses


def initialise(net: Whisper, weights: Path) -> None:
    """Begin with another model's weights, as many of its layers as it has; further layers begin by doing nothing."""
    given = {name.removeprefix("model."): tensor.float() for name, tensor in load_file(weights).items()}
    missing = net.load_state_dict(given, strict=False).missing_keys
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name in missing and name.endswith(("out_proj.weight", "out_proj.bias", "fc2.weight", "fc2.bias")):
                parameter.zero_()


def watch(net: Whisper, script: Script, tokenizer: Tokenizer, corpus: Corpus, log_mel: LogMel) -> dict[str, float]:
    """WER on sentences kept for watching, voice by voice, each in a window of its own length, greedily."""
    normalise = EnglishTextNormalizer()
    device = log_mel.window.device
    net.eval()
    rates = {}
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        for voice, utterances in corpus.voices.items():
            chosen = [utterance for utterance in utterances if utterance.seconds < 11.5][:24]
            audio = np.zeros((len(chosen), 12 * SAMPLE_RATE), dtype=np.float32)
            for row, utterance in zip(audio, chosen, strict=True):
                row[4000 : 4000 + len(utterance.samples)] = utterance.samples / 32768
            features = net.encoder(
                log_mel(torch.from_numpy(audio).to(device)), torch.arange(600, device=device).expand(len(chosen), -1)
            )
            head = [script.start, script.language, script.task, script.no_timestamps]
            tokens = torch.tensor([head] * len(chosen), device=device)
            done = torch.zeros(len(chosen), dtype=torch.bool, device=device)
            while not bool(done.all()) and tokens.shape[1] < 120:
                logits = net.decoder(tokens, features)[0][:, -1].float()
                logits[:, script.end + 1 :] = -math.inf
                best = logits.argmax(-1).masked_fill(done, script.end)
                tokens = torch.cat([tokens, best[:, None]], 1)
                done |= best == script.end
            texts = [tokenizer.decode([t for t in row[4:] if t < script.end]) for row in tokens.tolist()]
            rate = jiwer.wer([normalise(u.text) for u in chosen], [normalise(text) or "-" for text in texts])
            rates[voice] = round(100 * rate, 1)
    net.train()
    return rates


def average(parameters: list[nn.Parameter], spent: float) -> float:
    """Make the gradients of all processes their mean, and return the mean of `spent`."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), gradients[0].new_tensor([spent])])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    *means, mean_spent = torch.split(flat, [*(gradient.numel() for gradient in gradients), 1])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))
    return float(mean_spent)


def rate_at(share: float, count: int, highest: float) -> float:
    """The learning rate: up over 200 steps, level for a fifth of the time, then straight down to nothing."""
    return highest * min(1.0, (count + 1) / 200, max(0.005, (1.0 - share) / 0.8))


def train(number: int, options: argparse.Namespace) -> None:
    """One of the processes of a run. Process 0 speaks, watches and keeps the checkpoint."""
    torch.manual_seed(options.seed)
    torch.set_flush_denormal(True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.processes))
    distributed.init_process_group(
        "gloo", init_method=(options.out / "meeting").absolute().as_uri(), rank=number, world_size=options.processes
    )
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    script = Script(tokenizer)
    shape = Shape(
        d_model=options.d_model,
        heads=options.d_model // 64,
        encoder_layers=options.encoder_layers,
        decoder_layers=options.decoder_layers,
        vocabulary=tokenizer.get_vocab_size(),
    )
    net = Whisper(shape, encoder_dropout=0.0, decoder_dropout=0.0)
    if options.init:
        initialise(net, options.init)
    net.to(device)
    head = nn.Linear(shape.d_model, len(PHONES), device=device)
    matrices = [p for name, p in net.named_parameters() if p.ndim == 2 and ".layers." in name]
    known = {id(p) for p in matrices}
    trained = [p for p in [*net.parameters(), *head.parameters()] if p.requires_grad]
    rest = [p for p in trained if id(p) not in known]
    optimisers = [
        ZeroRedundancyOptimizer(matrices, torch.optim.Muon, lr=1.0, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        ZeroRedundancyOptimizer(rest, torch.optim.AdamW, lr=1.0, betas=(0.9, 0.98), weight_decay=0.01),
    ]

    def say(line: str) -> None:
        if number == 0:
            print(line, flush=True)

    spent, count, audio = 0.0, 0, 0.0
    checkpoint = options.out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        net.load_state_dict(state["net"])
        head.load_state_dict(state["head"])
        for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        spent, count, audio = state["spent"], state["count"], state["audio"]
        say(f"going on from step {count}, {spent / 3600:.2f} h")

    def save() -> None:
        for optimiser in optimisers:
            optimiser.consolidate_state_dict()
        if number:
            return
        state = {
            "net": net.state_dict(),
            "head": head.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in optimisers],
            "spent": spent,
            "count": count,
            "audio": audio,
            "shape": asdict(shape),
        }
        torch.save(state, checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").replace(checkpoint)

    fraction = multiprocessing.get_context("spawn").Value("d", spent / 3600 / options.hours)
    batches = DataLoader(
        Batches(options, number, count, fraction),
        batch_size=None,
        num_workers=0 if device.type == "cpu" else max(1, (os.cpu_count() or 2) - 1),
        multiprocessing_context="spawn" if device.type != "cpu" else None,
    )
    log_mel = LogMel().to(device)
    watched = Corpus(options.watch) if options.watch else None
    means = Losses()
    last = time.monotonic()
    saved = reported = looked = spent
    say(f"{sum(p.numel() for p in net.parameters()) / 1e6:.2f} M parameters, on {device}")
    for batch in batches:
        if fraction.value >= 1.0:
            break
        batch = batch.to(device)
        share = fraction.value
        rate = rate_at(share, count, options.rate)
        for optimiser, scale in zip(optimisers, (1.0, 0.5), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
        mel = batch.mel(log_mel)
        sigma_s = 0.3 if share < 0.3 else 0.12
        with torch.autocast(device.type, torch.bfloat16):
            losses = losses_of(net, head, batch, mel, sigma_s)
        weight = 1.0 if share < 0.15 else 0.5 if share < 0.5 else 0.25
        places = 0.3 if share < 0.15 else 0.15
        total = losses["words"] + weight * losses["sounds"] + places * losses["places"]
        if "read" in losses:
            total = total + 0.2 * losses["read"]
        total.backward()  # type: ignore[no-untyped-call]
        now = time.monotonic()
        spent, last = average(trained, spent + now - last), now
        nn.utils.clip_grad_norm_(trained, 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        means.add(losses)
        count += 1
        audio += options.processes * batch.audio.numel() / SAMPLE_RATE
        fraction.value = spent / 3600 / options.hours
        if spent - reported > REPORT_S:
            reported = spent
            speed = f"{audio / 3600:.1f} h of audio ({audio / spent:.0f}x)"
            say(f"{spent:.0f} s step {count}: {means}, {speed}, rate {rate:.1e}")
        if spent - saved > CHECKPOINT_S:
            saved = spent
            save()
        if watched and (spent - looked > WATCH_S or fraction.value >= 1.0):
            looked = spent
            if number == 0:
                watched.refresh()
                rates = watch(net, script, tokenizer, watched, log_mel)
                say(f"{spent:.0f} s step {count} WER {rates}")
                entry = {"seconds": round(spent), "step": count, "hours": round(audio / 3600, 1), "wer": rates}
                with (options.out / "curve.jsonl").open("a", encoding="utf-8") as curve:
                    curve.write(json.dumps(entry) + "\n")
    save()
    say(f"done: step {count}, {audio / 3600:.1f} h of audio")
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train nano.en.")
    parser.add_argument("--corpus", type=Path, required=True, help="the folder with the speech")
    parser.add_argument("--out", type=Path, required=True, help="the folder for checkpoints; one that is there goes on")
    parser.add_argument("--hours", type=float, required=True, help="how long to train, stops not counted")
    parser.add_argument("--tokenizer", type=Path, default=Path("models/nano.en/tokenizer.json"))
    parser.add_argument("--init", type=Path, help="weights to begin with (model.safetensors); default: from nothing")
    parser.add_argument("--watch", type=Path, help="a folder with held-out speech, to watch the WER on")
    parser.add_argument("--d-model", type=int, default=192)
    parser.add_argument("--encoder-layers", type=int, default=4)
    parser.add_argument("--decoder-layers", type=int, default=3)
    parser.add_argument(
        "--audio", type=float, default=90.0, help="seconds of audio in a batch of one process (default: 90)"
    )
    parser.add_argument("--rate", type=float, default=2e-3, help="the highest learning rate (default: 0.002)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--processes",
        type=int,
        default=1 if torch.cuda.is_available() else os.cpu_count() or 1,
        help="that share the work (default: one per core, on a GPU one)",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    meeting = options.out / "meeting"
    meeting.unlink(missing_ok=True)
    run = multiprocessing.spawn(train, (options,), options.processes, join=False)  # type: ignore[attr-defined,no-untyped-call]

    def stop(*_: object) -> None:
        for process in run.processes:
            process.terminate()
        raise SystemExit("stopped; the same command goes on from the last checkpoint")

    signal.signal(signal.SIGTERM, stop)
    while not run.join():
        pass
    meeting.unlink(missing_ok=True)  # the last process removes it, but not always


if __name__ == "__main__":
    main()
