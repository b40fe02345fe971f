"""The models that raw speed is measured with, in every system's own format, with weights of 8 bits.

Random weights in the dimensions of the published models, since speed is a matter of size, and nano.en's own; all in the
standard vocabulary of 51865 tokens.
"""

import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from tools.benchmarks.peers import ggml
from tools.benchmarks.peers.environment import TORCH, Environment, run
from tools.benchmarks.peers.weights import CONVERTER, N_STANDARD, ranks, standard_nano, write_huggingface

NANO = "nano.en"

# Width and layers of each half, as in OpenAI's checkpoints; every head is 64 wide.
_SIZES = {"tiny": (384, 4), "base": (512, 6), "small": (768, 12)}

NAMES = (NANO, *_SIZES)

# optimum-intel asks for torchvision, whose build for CPUs is not to be had, and which no Whisper needs.
EXPORTER = Environment(
    "optimum",
    (
        (TORCH,),
        ("transformers==5.5.4", "nncf==3.4.0", "openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0", TORCH),
        ("requests", "setuptools", TORCH),
        ("--no-deps", "optimum==2.3.0", "optimum-intel==2.2.0"),
    ),
)


@dataclass(frozen=True, slots=True)
class RawWeights:
    """One model's files, each made when it is asked for and kept, but ours, which is made anew each time.

    All raise PeerUnavailable where a converter cannot be installed, or fails.
    """

    name: str

    # Where the peers' environments are; the models lie beside them.
    folder: Path

    def huggingface(self) -> Path:
        """Return the checkpoint that all other formats are made of: float32, in transformers' layout."""
        return self._made("huggingface", self._write_huggingface)

    def streamer(self) -> Path:
        """Return what `streamer models convert --weights int8` makes of it."""
        shutil.rmtree(self._place("streamer"), ignore_errors=True)
        command = [sys.executable, "-m", "streamer", "models", "convert", str(self.huggingface())]
        flags = ["--weights", "int8", "--no-report", "--output"]
        return self._made("streamer", lambda place: run("streamer", [*command, *flags, str(place)]))

    def ctranslate2(self) -> Path:
        """Return what CTranslate2's converter makes of it with `--quantization int8`."""
        convert = CONVERTER.python(self.folder).with_name("ct2-transformers-converter")
        command = [str(convert), "--model", str(self.huggingface()), "--quantization", "int8"]
        files = ["--copy_files", "tokenizer.json", "preprocessor_config.json", "--output_dir"]
        return self._made("ctranslate2", lambda place: run(CONVERTER.name, [*command, *files, str(place)]))

    def openvino_genai(self) -> Path:
        """Return what `optimum-cli export openvino --weight-format int8` makes of it."""
        command = [str(EXPORTER.python(self.folder).with_name("optimum-cli")), "export", "openvino"]
        flags = ["--task", "automatic-speech-recognition-with-past", "--weight-format", "int8"]
        model = ["--model", str(self.huggingface())]
        return self._made("openvino_genai", lambda place: run(EXPORTER.name, [*command, *model, *flags, str(place)]))

    def whisper_cpp(self) -> Path:
        """Return whisper.cpp's file of 8-bit blocks (q8_0)."""
        return self._made("ggml-q8_0.bin", lambda place: ggml.write(place, self._checkpoint(), ranks(), blocks=True))

    def _place(self, name: str) -> Path:
        return self.folder / "raw" / self.name / name

    def _made(self, name: str, make: Callable[[Path], object]) -> Path:
        place = self._place(name)
        if not place.exists():
            # What was left half made has another name.
            begun = place.with_name(f"begun-{name}")
            shutil.rmtree(begun, ignore_errors=True)
            begun.parent.mkdir(parents=True, exist_ok=True)
            make(begun)
            begun.replace(place)
        return place

    def _checkpoint(self) -> Checkpoint:
        return standard_nano() if self.name == NANO else random_checkpoint(dimensions(self.name))

    def _write_huggingface(self, directory: Path) -> None:
        checkpoint = self._checkpoint()
        write_huggingface(directory, checkpoint)
        path = directory / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**config, **_sizes(checkpoint.dims)}, indent=1), encoding="utf-8")


def dimensions(name: str) -> ModelDimensions:
    """Return the dimensions of tiny, base or small."""
    width, n_layers = _SIZES[name]
    half = (width, width // 64, n_layers)
    return ModelDimensions(80, 1500, *half, N_STANDARD, 448, *half)


def random_checkpoint(dims: ModelDimensions) -> Checkpoint:
    """Return random weights of a spread that keeps values finite and logits apart."""
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in expected_shapes(dims).items():
        values = random.standard_normal(shape, dtype=np.float32)
        spread = np.float32(math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1)
        tensors[name] = values * spread + np.float32("layer_norm.weight" in name)
    return Checkpoint(dims, tensors)


def _sizes(dims: ModelDimensions) -> dict[str, int]:
    """Return the entries of transformers' config.json that are dimensions."""
    return {
        "vocab_size": dims.n_vocab,
        "num_mel_bins": dims.n_mels,
        "d_model": dims.n_audio_state,
        "encoder_layers": dims.n_audio_layer,
        "encoder_attention_heads": dims.n_audio_head,
        "encoder_ffn_dim": 4 * dims.n_audio_state,
        "max_source_positions": dims.n_audio_ctx,
        "decoder_layers": dims.n_text_layer,
        "decoder_attention_heads": dims.n_text_head,
        "decoder_ffn_dim": 4 * dims.n_text_state,
        "max_target_positions": dims.n_text_ctx,
    }
