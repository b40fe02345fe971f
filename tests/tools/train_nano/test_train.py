"""Training: what a batch is, what each loss asks for, and that a run goes on where it was stopped."""

import argparse
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from streamer.audio.constants import SAMPLE_RATE
from tests.tools.train_nano.support import Said, write_shard
from tools.train_nano.corpus import Corpus
from tools.train_nano.network import Shape, Whisper
from tools.train_nano.spectrogram import LogMel
from tools.train_nano.train import (
    GUIDED_HEADS,
    Batch,
    Batches,
    Losses,
    initialise,
    losses_of,
    rate_at,
    steps,
    watch,
)
from tools.train_nano.windows import IGNORED, PHONES, Lesson, Script, Windows

ROOT = Path(__file__).parents[3]
TOKENIZER = ROOT / "models" / "nano.en" / "tokenizer.json"
SHAPE = Shape(d_model=64, heads=1, encoder_layers=1, decoder_layers=1, vocabulary=2022)
WORDS = ["Alas,", "the", "boy", "is", "here", "and", "sees", "a", "bird", "there."]
SIGMA_S = 0.1
VOICE = "flite-slt"


def said(number: int, count: int = 6) -> Said:
    """Some of WORDS, each a tone of its own and of a third of a second."""
    rng = np.random.default_rng(number)
    chosen = [int(word) for word in rng.permutation(len(WORDS))[:count]]
    length = 0.3
    times = np.arange(round(length * 16_000)) / 16_000
    tones = [8000 * np.sin(2 * np.pi * 200 * (word + 1) * times) for word in chosen]
    return Said(
        " ".join(WORDS[word] for word in chosen),
        [(length * i, length * (i + 1)) for i in range(count)],
        [(PHONES[word + 1], length * (i + 1)) for i, word in enumerate(chosen)],
        np.concatenate(tones).astype(np.int16),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_shard(folder, f"{VOICE}-0000", [said(number) for number in range(8)])
    return folder


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Corpus:
    corpus = Corpus(folder)
    corpus.refresh()
    return corpus


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


@pytest.fixture(scope="module")
def windows(corpus: Corpus, tokenizer: Tokenizer) -> Windows:
    return Windows(corpus, {VOICE: 1.0}, Script(tokenizer), 0)


def make(windows: Windows, lesson: Lesson, count: int) -> Batch:
    return Batch.of([windows.make(lesson) for _ in range(count)])


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.08, 0.09, 0.11, 0.3, 0.54, 0.55, 0.7, 1.0, 1.1])
@pytest.mark.parametrize("audio_s", [10.0, 120.0])
def test_at_every_time_there_is_something_to_teach(fraction: float, audio_s: float) -> None:
    taught = steps(fraction, audio_s)
    assert sum(share for share, _ in taught) == pytest.approx(1.0)
    for _, step in taught:
        lesson = step.lesson
        assert 0 < lesson.seconds <= 30
        assert step.windows * lesson.seconds == pytest.approx(max(audio_s, lesson.seconds), rel=0.35)
        shares = {name: value for name, value in vars(lesson).items() if name != "seconds"}
        assert all(0 <= value <= 1 for value in shares.values()), shares
        assert lesson.seconds < 30 or lesson.shifted == 0


def test_the_lessons_become_harder_and_end_at_thirty_seconds() -> None:
    order = [steps(fraction / 100, 120.0) for fraction in range(101)]
    for name in ("degraded", "strength", "masked"):
        values = [getattr(taught[0][1].lesson, name) for taught in order]
        assert values == sorted(values)
        assert values[0] < values[-1]
    longest = [max(step.lesson.seconds for _, step in taught) for taught in order]
    assert longest == sorted(longest)
    assert longest[-1] == 30


def test_a_batch_has_its_windows_side_by_side(windows: Windows) -> None:
    lesson = Lesson(seconds=6.0, prompts=0.5, cuts=0.5, padding=0.5, shifted=0.5, no_speech=0.3)
    made = [windows.make(lesson) for _ in range(10)]
    batch = Batch.of(made)
    length = batch.tokens.shape[1]
    assert length % 32 == 0
    assert length - 32 < max(len(window.tokens) for window in made) <= length
    assert batch.audio.shape == (10, 96_000)
    assert batch.phones.shape == batch.positions.shape == (10, 300)
    assert batch.tokens.shape == batch.labels.shape == batch.read.shape == batch.times.shape
    assert 0 < sum(window.prompt > 1 for window in made) < 10
    assert batch.mel_ends == [window.mel_end for window in made]
    assert batch.blotted == [window.blotted for window in made]
    for row, window in enumerate(made):
        count = len(window.tokens)
        assert batch.tokens[row, :count].tolist() == window.tokens
        assert batch.labels[row].tolist() == window.labels + [IGNORED] * (length - count)
        read = window.tokens[1 : window.prompt]
        assert batch.read[row].tolist() == read + [IGNORED] * (length - len(read))
        assert window.prompt == 0 or all(batch.labels[row, : window.prompt] == IGNORED)
        assert batch.times[row].tolist() == pytest.approx(window.times + [-1.0] * (length - count))
        assert batch.positions[row].tolist() == list(range(window.position, window.position + 300))
        assert np.array_equal(batch.audio[row].numpy(), window.audio)
        assert np.array_equal(batch.phones[row].numpy(), window.phones)
    moved = batch.to(torch.device("cpu"))
    assert all(
        value is vars(moved)[name] or torch.equal(value, vars(moved)[name]) for name, value in vars(batch).items()
    )


def test_a_spectrogram_ends_where_its_window_says_and_is_blotted_out_where_it_says(windows: Windows) -> None:
    lesson = Lesson(seconds=6.0, padding=1.0, masked=0.5, no_speech=0.0)
    batch = make(windows, lesson, 20)
    assert 0 < sum(batch.blotted) < 20
    log_mel = LogMel()
    plain = log_mel(batch.audio)
    torch.manual_seed(0)
    mel = batch.mel(log_mel)
    assert mel.shape == (20, 80, 600)
    assert sum(end < 600 for end in batch.mel_ends) > 2
    for row, (end, blotted) in enumerate(zip(batch.mel_ends, batch.blotted, strict=True)):
        expected = plain[row].clone()
        expected[:, end:] = 0.0
        heard = bool(expected.std() > 0)  # a spot on what is the same everywhere cannot be seen
        assert torch.equal(mel[row], expected) != (blotted and heard)


class Stub:
    """Gives the logits and the attention that it was made with."""

    def __init__(self, logits: Tensor, attention: list[Tensor]) -> None:
        frames = attention[0].shape[-1]
        self.encoder = lambda mel, positions: torch.zeros((len(positions), frames, SHAPE.d_model))
        self.decoder = lambda tokens, features: (logits, attention)


def attending(times: Tensor, frames: int, heads: int, off: float = 0.0) -> Tensor:
    """Attention of one layer whose heads all look at the frame of each token's time, or `off` seconds later."""
    frame = ((times.clamp(min=0) + off) / 0.02).long().clamp(max=frames - 1)
    return nn.functional.one_hot(frame, frames).float()[:, None].expand(-1, heads, -1, -1).clone()


def losses_with(batch: Batch, attention: list[Tensor], logits: Tensor | None = None) -> dict[str, float]:
    if logits is None:
        logits = torch.zeros((*batch.tokens.shape, SHAPE.vocabulary))
    net = cast("Whisper", Stub(logits, attention))
    head = nn.Linear(SHAPE.d_model, len(PHONES))
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    losses = losses_of(net, head, batch, torch.zeros(1), SIGMA_S)
    return {name: float(loss.detach()) for name, loss in losses.items()}


@pytest.fixture
def batch(windows: Windows) -> Batch:
    return make(windows, Lesson(seconds=5.0, no_speech=0.0, prompts=0.8), 4)


def test_without_knowledge_every_word_and_sound_is_as_likely_as_another(batch: Batch) -> None:
    losses = losses_with(batch, [attending(batch.times, 250, 1)])
    assert losses["words"] == pytest.approx(math.log(SHAPE.vocabulary), rel=1e-4)
    assert losses["read"] == pytest.approx(math.log(SHAPE.vocabulary), rel=1e-4)
    assert losses["sounds"] == pytest.approx(math.log(len(PHONES)), rel=1e-4)


def test_the_words_are_asked_for_and_nothing_else(batch: Batch) -> None:
    attention = [attending(batch.times, 250, 1)]
    right = torch.zeros((*batch.tokens.shape, SHAPE.vocabulary))
    right.scatter_(2, batch.labels.clamp(min=0)[..., None], 12.0)
    losses = losses_with(batch, attention, right)
    assert losses["words"] < 0.5
    right[batch.labels == IGNORED] = torch.randn(SHAPE.vocabulary)
    assert losses_with(batch, attention, right)["words"] == pytest.approx(losses["words"], rel=1e-5)


def test_the_words_of_a_prompt_are_asked_for_apart(batch: Batch) -> None:
    attention = [attending(batch.times, 250, 1)]
    right = torch.zeros((*batch.tokens.shape, SHAPE.vocabulary))
    right.scatter_(2, batch.read.clamp(min=0)[..., None], 12.0)
    losses = losses_with(batch, attention, right)
    assert losses["read"] < 0.5 < losses["words"]
    right[batch.labels != IGNORED] = torch.randn(SHAPE.vocabulary)
    assert losses_with(batch, attention, right)["read"] == pytest.approx(losses["read"], rel=1e-5)


def test_guided_heads_are_to_look_where_a_word_is_said(batch: Batch) -> None:
    near = losses_with(batch, [attending(batch.times, 250, 3)])["places"]
    less = losses_with(batch, [attending(batch.times, 250, 3, off=0.15)])["places"]
    away = losses_with(batch, [attending(batch.times, 250, 3, off=1.0)])["places"]
    assert near == pytest.approx(0, abs=0.02)
    assert near < less < away
    assert away > 4


def test_the_other_heads_are_free(batch: Batch) -> None:
    attention = [attending(batch.times, 250, 3) for _ in range(4)]
    before = losses_with(batch, attention)["places"]
    for layer, weights in enumerate(attention):
        for number in range(3):
            if layer >= len(GUIDED_HEADS) or number not in GUIDED_HEADS[layer]:
                weights[:, number] = 1 / 250
    assert losses_with(batch, attention)["places"] == pytest.approx(before, abs=1e-6)
    attention[1][:, 1] = 1 / 250
    assert losses_with(batch, attention)["places"] > before + 0.1


def test_a_batch_in_which_nothing_is_said_has_losses_too(windows: Windows) -> None:
    """It happens where the windows of a batch are few."""
    batch = make(windows, Lesson(seconds=5.0, no_speech=1.0), 1)
    losses = losses_with(batch, [attending(batch.times, 250, 1)])
    assert all(math.isfinite(loss) for loss in losses.values()), losses


def test_all_losses_go_down(windows: Windows) -> None:
    torch.manual_seed(0)
    net, head, log_mel = Whisper(SHAPE), nn.Linear(SHAPE.d_model, len(PHONES)), LogMel()
    lesson = Lesson(seconds=5.0, no_speech=0.0, prompts=0.9)
    batches = [make(windows, lesson, 4) for _ in range(3)]
    mels = [batch.mel(log_mel) for batch in batches]
    parameters = [p for p in [*net.parameters(), *head.parameters()] if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=3e-3)
    seen = []
    for step in range(30):
        losses = losses_of(net, head, batches[step % 3], mels[step % 3], SIGMA_S)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        seen.append({name: float(loss.detach()) for name, loss in losses.items()})
    assert set(seen[0]) == {"words", "read", "sounds", "places"}
    for name in seen[0]:
        first, last = (np.mean([losses[name] for losses in some]) for some in (seen[:3], seen[-3:]))
        assert last < 0.85 * first, name


def test_the_running_mean_begins_with_the_first_loss() -> None:
    losses = Losses()
    assert str(losses) == ""
    losses.add({"words": torch.tensor(4.0), "sounds": torch.tensor(1.0)})
    assert str(losses) == "words 4.000 sounds 1.000"
    losses.add({"words": torch.tensor(3.0), "sounds": torch.tensor(1.0)})
    assert str(losses) == "words 3.980 sounds 1.000"
    for _ in range(500):
        losses.add({"words": torch.tensor(2.0, requires_grad=True)})
    assert str(losses) == "words 2.000 sounds 1.000"


def computed(net: Whisper) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mel = torch.randn((2, net.shape.mel_bins, 200), generator=generator)
    tokens = torch.randint(net.shape.vocabulary, (2, 12), generator=generator)
    with torch.no_grad():
        features = net.eval().encoder(mel, torch.arange(100).expand(2, -1))
        return features, net.decoder(tokens, features)[0]


def deeper(encoder: int, decoder: int) -> Shape:
    return Shape(d_model=64, heads=1, encoder_layers=encoder, decoder_layers=decoder, vocabulary=100)


def written(net: Whisper, folder: Path, prefix: str) -> Path:
    path = folder / "model.safetensors"
    save_file({f"{prefix}{name}": tensor.contiguous() for name, tensor in net.state_dict().items()}, path)
    return path


@pytest.mark.parametrize("prefix", ["model.", ""])
@pytest.mark.parametrize(("encoder", "decoder"), [(2, 2), (2, 3), (2, 4), (3, 2), (4, 3)])
def test_layers_that_are_added_change_nothing(tmp_path: Path, encoder: int, decoder: int, prefix: str) -> None:
    torch.manual_seed(0)
    given = Whisper(deeper(2, 2))
    net = Whisper(deeper(encoder, decoder))
    initialise(net, written(given, tmp_path, prefix))
    for ours, theirs in zip(computed(net), computed(given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_layers_that_are_added_learn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Whisper(deeper(3, 3))
    initialise(net, written(Whisper(deeper(2, 2)), tmp_path, "model."))
    features = net.encoder(torch.randn(1, 80, 200), torch.arange(100)[None])
    net.decoder(torch.arange(12)[None], features)[0].square().mean().backward()
    for layer in (net.encoder.layers[2], net.decoder.layers[2]):
        changing = {name for name, p in layer.named_parameters() if p.grad is not None and bool(p.grad.any())}
        assert {"self_attn.out_proj.weight", "fc2.weight"} <= changing


def test_what_is_given_is_kept_also_of_halves(tmp_path: Path) -> None:
    given = Whisper(deeper(2, 2)).half()
    net = Whisper(deeper(2, 3))
    initialise(net, written(given, tmp_path, "model."))
    state = net.state_dict()
    for name, tensor in given.state_dict().items():
        assert state[name].dtype == torch.float32
        assert torch.equal(state[name], tensor.float())


def test_the_model_that_is_shipped_can_be_gone_on_with() -> None:
    net = Whisper(Shape(decoder_layers=4))
    initialise(net, ROOT / "models" / "nano.en" / "model.safetensors")
    shipped = Whisper(Shape(decoder_layers=3))
    initialise(shipped, ROOT / "models" / "nano.en" / "model.safetensors")
    for ours, theirs in zip(computed(net), computed(shipped), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def batches(folder: Path, number: int, begin: int, fraction: float = 0.5) -> Iterator[Batch]:
    options = argparse.Namespace(corpus=folder, tokenizer=TOKENIZER, audio=30.0, seed=5)
    spent = cast("Synchronized[float]", SimpleNamespace(value=fraction))
    return iter(Batches(options, number, begin, spent))


def seconds(batch: Batch) -> float:
    return batch.audio.shape[1] / SAMPLE_RATE


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.9])
def test_batches_follow_the_share_of_the_time_that_is_spent(folder: Path, fraction: float) -> None:
    made = list(islice(batches(folder, 0, 0, fraction), 40))
    assert {seconds(batch) for batch in made} == {step.lesson.seconds for _, step in steps(fraction, 30.0)}
    for one, other in zip(made, batches(folder, 0, 0, fraction), strict=False):
        assert torch.equal(one.audio, other.audio)
        assert torch.equal(one.tokens, other.tokens)


def test_the_processes_of_a_run_have_steps_of_one_kind_and_windows_of_their_own(folder: Path) -> None:
    for one, other in islice(zip(batches(folder, 0, 7), batches(folder, 1, 7), strict=True), 12):
        assert seconds(one) == seconds(other)
        assert not torch.equal(one.audio, other.audio)


def test_a_run_that_goes_on_has_other_windows_than_it_began_with(folder: Path) -> None:
    assert not torch.equal(next(batches(folder, 0, 0)).audio[0, :8000], next(batches(folder, 0, 100)).audio[0, :8000])


def test_without_speech_there_is_nothing_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no speech; make some with tools\.train_nano\.synthesise"):
        next(batches(tmp_path, 0, 0))


def test_the_learning_rate_rises_and_falls_to_nothing() -> None:
    rates = [rate_at(share / 100, 20 * share, 0.002) for share in range(101)]
    top = rates.index(max(rates))
    assert rates[top] == 0.002
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[0] < 0.0001
    assert rates[-1] < 0.0001


class Knowing(nn.Module):
    """Says of each row the tokens that it was given, then goes on after the end with anything."""

    def __init__(self, answers: list[list[int]], script: Script) -> None:
        super().__init__()
        self._answers = answers
        self._end = script.end

    def encoder(self, mel: Tensor, positions: Tensor) -> Tensor:
        assert mel.shape == (len(self._answers), 80, 1200)
        assert positions.tolist() == [list(range(600))] * len(self._answers)
        return torch.zeros((len(positions), 600, 4))

    def decoder(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, list[Tensor]]:
        logits = torch.zeros((*tokens.shape, SHAPE.vocabulary))
        logits[..., self._end + 1 :] = 9.0  # what is no text is never chosen
        at = tokens.shape[1] - 4
        for row, answer in enumerate(self._answers):
            said = [*answer, self._end]
            logits[row, -1, said[at] if at < len(said) else 40] = 5.0
        return logits, []


@pytest.mark.parametrize(
    ("spoil", "rate"),
    [
        (lambda text: text, 0.0),
        (lambda text: text.upper().replace(",", ""), 0.0),
        (lambda text: text.split(" ", 1)[1], 100 / 6),
        (lambda text: "", 100.0),
    ],
)
def test_the_watched_error_rate_is_that_of_the_words(
    tmp_path: Path, tokenizer: Tokenizer, spoil: Callable[[str], str], rate: float
) -> None:
    script = Script(tokenizer)
    utterances = [said(number) for number in range(3)]
    write_shard(tmp_path, f"{VOICE}-0000", utterances)
    corpus = Corpus(tmp_path)
    corpus.refresh()
    net = Knowing([script.text(spoil(one.text).split()) for one in utterances], script)
    assert watch(cast("Whisper", net), script, tokenizer, corpus, LogMel()) == {VOICE: round(rate, 1)}
    assert net.training


# How long each of two runs trains: a step or a few.
HOURS = 0.0003


def run(folder: Path, out: Path, hours: float) -> str:
    """Train as a user does, and return what was printed."""
    small = "--d-model 64 --encoder-layers 1 --decoder-layers 1 --audio 10"
    arguments = f"--hours {hours:.6f} {small} --rate 0.001 --processes 2"
    paths = ["--corpus", str(folder), "--out", str(out), "--tokenizer", str(TOKENIZER)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.train_nano.train", *paths, *arguments.split()],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_leaves_a_checkpoint_and_another_goes_on_from_it(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    printed = run(folder, out, HOURS)
    first = torch.load(out / "checkpoint.pt", weights_only=True)
    assert [path.name for path in out.iterdir()] == ["checkpoint.pt"]
    assert first["count"] >= 1
    assert first["spent"] >= HOURS * 3600
    assert first["audio"] > 0
    assert f"done: step {first['count']}, " in printed
    assert "going on" not in printed
    shape = Shape(**first["shape"])
    assert shape == SHAPE
    Whisper(shape).load_state_dict(first["net"])

    printed = run(folder, out, first["spent"] / 3600 + HOURS)
    second = torch.load(out / "checkpoint.pt", weights_only=True)
    assert f"going on from step {first['count']}, " in printed
    assert second["count"] > first["count"]
    assert second["spent"] >= first["spent"] + HOURS * 3600 - 0.01
    assert second["audio"] > first["audio"]
    assert any(not torch.equal(tensor, first["net"][name]) for name, tensor in second["net"].items())
    assert re.search(r"[\d.]+ M parameters, on ", printed)
