"""A checkpoint becomes a model that others load, with heads that tell where words are."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import WhisperForConditionalGeneration

from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import load_model
from tests.tools.train_nano.support import Said, write_shard
from tools.train_nano import export
from tools.train_nano.corpus import Utterance
from tools.train_nano.network import Shape, Whisper
from tools.train_nano.windows import Script

NANO = Path(__file__).parents[3] / "models" / "nano.en"
SHAPE = Shape(d_model=64, heads=1, encoder_layers=1, decoder_layers=2, vocabulary=2022)


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(Tokenizer.from_file(str(NANO / "tokenizer.json")))


@pytest.fixture(scope="module")
def net() -> Whisper:
    torch.manual_seed(0)
    return Whisper(SHAPE).eval()


@pytest.fixture(scope="module")
def exported(net: Whisper, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    samples = (3000 * np.random.default_rng(0).standard_normal(16_000)).astype(np.int16)
    said = Said("One two.", [(0.1, 0.4), (0.5, 0.9)], [("pau", 1.0)], samples)
    write_shard(folder / "corpus", "flite-slt-0000", [said])
    torch.save({"net": net.state_dict(), "shape": asdict(SHAPE)}, folder / "checkpoint.pt")
    with pytest.MonkeyPatch.context() as patch:
        arguments = ["--checkpoint", str(folder / "checkpoint.pt"), "--corpus", str(folder / "corpus")]
        patch.setattr("sys.argv", ["export", *arguments, "--tokenizer", str(NANO), "--out", str(folder / "model")])
        export.main()
    return folder / "model"


def test_transformers_computes_the_same(net: Whisper, exported: Path) -> None:
    reference = WhisperForConditionalGeneration.from_pretrained(exported, dtype=torch.float32)
    mel = torch.randn(1, 80, 3000)
    tokens = torch.tensor([[513, 514, 516, 520, 40, 50]])
    with torch.no_grad():
        expected = reference(input_features=mel, decoder_input_ids=tokens).logits
        found = net.decoder(tokens, net.encoder(mel, torch.arange(1500)[None]))[0]
    # The file has 16-bit floats.
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=1e-2)


def test_streamer_loads_it(exported: Path) -> None:
    model = load_model(str(exported), DeviceSettings("CPU"), cache_dir=str(exported / "cache"))
    assert model.dims.n_text_layer == 2
    assert model.generation.prompted


def test_the_weights_have_sixteen_bits_and_the_names_of_the_layout(net: Whisper, exported: Path) -> None:
    weights = load_file(exported / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert set(weights) == {f"model.{name}" for name in net.state_dict()}


def test_the_configuration_is_that_of_the_model_that_is_shipped(script: Script) -> None:
    shipped = json.loads((NANO / "config.json").read_text(encoding="utf-8"))
    shape = Shape(
        d_model=shipped["d_model"],
        heads=shipped["encoder_attention_heads"],
        encoder_layers=shipped["encoder_layers"],
        decoder_layers=shipped["decoder_layers"],
        vocabulary=shipped["vocab_size"],
    )
    assert export.config(shape, script) == shipped
    generation = json.loads((NANO / "generation_config.json").read_text(encoding="utf-8"))
    heads = [(layer, number) for layer, number in generation["alignment_heads"]]
    assert export.generation_config(script, heads) == generation


def test_the_heads_that_look_where_words_are_said_are_found(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of which one head looks at the words and the others anywhere."""
    times = [(0.2, 0.6), (0.7, 1.4), (1.6, 2.0), (2.2, 3.0)]
    utterance = Utterance("flite-slt", "one two three four", "", times, [], np.zeros(4 * 16_000, dtype=np.int16))
    lengths = [len(script.word(word)[0]) for word in utterance.text.split()]
    middles = [0.1] * 3 + [
        start + (end - start) * (part + 0.5) / count
        for (start, end), count in zip(times, lengths, strict=True)
        for part in range(count)
    ]
    middles.append(times[-1][1])  # where the end of the text is predicted
    frames = (torch.arange(1500) + 0.5) * 0.02
    knowing = torch.exp(-((frames - torch.tensor(middles)[:, None]) ** 2) / 0.02)
    generator = torch.Generator().manual_seed(0)

    class Net:
        shape = Shape(d_model=128, heads=2, decoder_layers=2)

        @staticmethod
        def encoder(mel: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return mel

        @staticmethod
        def decoder(tokens: torch.Tensor, features: torch.Tensor) -> tuple[None, list[torch.Tensor]]:
            layers = torch.rand(2, 1, 2, tokens.shape[1], 1500, generator=generator)
            layers[1, 0, 0] = knowing[: tokens.shape[1]]
            return None, [layer / layer.sum(-1, keepdim=True) for layer in layers]

    heads, error = export.alignment_heads(Net(), script, [utterance])  # type: ignore[arg-type]
    assert (1, 0) in heads
    assert error < 0.3


@pytest.mark.parametrize("missing", ["checkpoint", "corpus"])
def test_what_is_missing_is_told_in_a_line(
    net: Whisper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "corpus":
        torch.save({"net": net.state_dict(), "shape": asdict(SHAPE)}, tmp_path / "checkpoint.pt")
    arguments = ["--checkpoint", str(tmp_path / "checkpoint.pt"), "--corpus", str(tmp_path / "none")]
    monkeypatch.setattr("sys.argv", ["export", *arguments, "--tokenizer", str(NANO), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="is missing" if missing == "checkpoint" else "there is no speech"):
        export.main()
    assert not (tmp_path / "out").exists()
