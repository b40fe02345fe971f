"""The models that are measured, in every system's own format.

nano.en, and random weights of larger dimensions, of which only speed and memory are measured. All have the standard
vocabulary of 51865 tokens, since the cost of logits depends on it.
"""

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import streamer.whisper
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from tools.benchmarks.peers import ggml
from tools.benchmarks.peers.environment import INSTALL_TIMEOUT_S, TORCH, Environment, run
from tools.benchmarks.peers.weights import (
    CONVERTER,
    N_STANDARD,
    NANO,
    alignment_heads,
    ranks,
    standard_nano,
    write_huggingface,
    write_openai,
)

# Width, and layers of encoder and decoder, as in OpenAI's checkpoints; every head is 64 wide.
_SIZES = {"tiny": (384, 4, 4), "base": (512, 6, 6), "small": (768, 12, 12), "turbo": (1280, 32, 4)}

NAMES = ("nano.en", *_SIZES)

# Changes with the layout of the files below, which are made again then.
_VERSION = "6"

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
class ModelFiles:
    """One model's files, each made when it is asked for and kept; ours as long as our program makes the same of it.

    All raise PeerUnavailable where a converter cannot be installed, or fails.
    """

    name: str

    # Where the peers' environments are; the models lie beside them.
    folder: Path

    def huggingface(self) -> Path:
        """Return the checkpoint that all other formats are made of: float32, in transformers' layout."""
        return self._made("huggingface", self._write_huggingface)

    def openai(self) -> Path:
        """Return nano.pt in float32, with its tokenizer beside it.

        It is not nano.en.pt: from that name WhisperLiveKit takes a model to have the vocabulary of English-only models.
        """
        return self._made("openai", lambda place: write_openai(place, self.checkpoint())) / "nano.pt"

    def streamer(self, precision: str = "int8") -> Path:
        """Return what `streamer models convert --weights PRECISION` makes of it."""
        name = f"streamer-{precision}-{_our_version()}"
        for older in self._root().glob(f"streamer-{precision}-*"):
            if older.name != name:
                shutil.rmtree(older)
        command = [sys.executable, "-m", "streamer", "models", "convert", str(self.huggingface())]
        flags = ["--weights", precision, "--output"]
        return self._converted(name, "streamer", [*command, *flags])

    def ctranslate2(self) -> Path:
        """Return what CTranslate2's converter makes of it with `--quantization int8`."""
        return self._made("ctranslate2", lambda place: to_ctranslate2(self.huggingface(), place, "int8", self.folder))

    def openvino_genai(self) -> Path:
        """Return what `optimum-cli export openvino --weight-format int8` makes of it."""
        command = [str(EXPORTER.python(self.folder).with_name("optimum-cli")), "export", "openvino"]
        flags = ["--task", "automatic-speech-recognition-with-past", "--weight-format", "int8"]
        model = ["--model", str(self.huggingface())]
        return self._converted("openvino_genai", EXPORTER.name, [*command, *model, *flags])

    def whisper_cpp(self) -> Path:
        """Return whisper.cpp's file of 8-bit blocks (q8_0)."""
        return self._made("ggml-q8_0.bin", lambda place: ggml.write(place, self.checkpoint(), ranks(), blocks=True))

    def checkpoint(self) -> Checkpoint:
        """Return the weights."""
        if self.name == "nano.en":
            return standard_nano()
        return random_checkpoint(dimensions(self.name))

    def alignment_heads(self) -> Sequence[tuple[int, int]]:
        """Return layer and number of each head of nano.en whose cross-attention tells the words' times."""
        return alignment_heads()

    def _root(self) -> Path:
        """Return the folder of all formats, empty where it was filled from other weights or in another way."""
        root = self.folder / "models" / self.name
        weights = hashlib.sha256((NANO / "model.safetensors").read_bytes()).hexdigest()[:12]
        version = f"{_VERSION} {CONVERTER.fingerprint()} {EXPORTER.fingerprint()} {weights}"
        record = root / "version"
        if not (record.is_file() and record.read_text(encoding="utf-8") == version):
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            record.write_text(version, encoding="utf-8")
        return root

    def _converted(self, name: str, program: str, command: list[str]) -> Path:
        """Return what a command makes whose last argument is the place."""
        return self._made(name, lambda place: run(program, [*command, str(place)], timeout_s=INSTALL_TIMEOUT_S))

    def _made(self, name: str, make: Callable[[Path], object]) -> Path:
        place = self._root() / name
        if not place.exists():
            # What was left half made has another name.
            begun = place.with_name(f"begun-{name}")
            shutil.rmtree(begun, ignore_errors=True)
            make(begun)
            begun.replace(place)
        return place

    def _write_huggingface(self, directory: Path) -> None:
        checkpoint = self.checkpoint()
        write_huggingface(directory, checkpoint)
        _edit(directory / "config.json", lambda config: {**config, **sizes(checkpoint.dims)})
        if self.name != "nano.en":
            _edit(directory / "generation_config.json", _as_published)


def to_ctranslate2(source: Path, target: Path, quantization: str, folder: Path) -> None:
    """Convert a model in transformers' layout with CTranslate2's own converter, which is installed in `folder`.

    quantization : such as float16 or int8

    Raises PeerUnavailable where the converter cannot be installed, or fails.
    """
    python = CONVERTER.python(folder)
    command = [str(python.with_name(f"ct2-transformers-converter{python.suffix}")), "--model", str(source)]
    names = [name for name in ("tokenizer.json", "preprocessor_config.json") if (source / name).is_file()]
    flags = ["--quantization", quantization, "--copy_files", *names, "--output_dir", str(target)]
    run(CONVERTER.name, [*command, *flags], timeout_s=INSTALL_TIMEOUT_S)


def _our_version() -> str:
    """Return a short name of our own sources, which say what a converted model is."""
    paths = sorted(Path(streamer.whisper.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:8]


def _as_published(generation: dict[str, object]) -> dict[str, object]:
    """Return what generation_config.json says, without the beams that nano.en asks for."""
    return {key: value for key, value in generation.items() if key != "stream_beams"}


def _edit(path: Path, change: Callable[[dict[str, object]], dict[str, object]]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(change(data), indent=1), encoding="utf-8")


def dimensions(name: str) -> ModelDimensions:
    """Return the dimensions of tiny, base or small; of turbo with the vocabulary and the mel bins of these."""
    width, n_audio_layer, n_text_layer = _SIZES[name]
    heads = width // 64
    return ModelDimensions(80, 1500, width, heads, n_audio_layer, N_STANDARD, 448, width, heads, n_text_layer)


def random_checkpoint(dims: ModelDimensions) -> Checkpoint:
    """Return random weights of a spread that keeps values finite and logits apart."""
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in expected_shapes(dims).items():
        values = random.standard_normal(shape, dtype=np.float32)
        spread = np.float32(math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1)
        tensors[name] = values * spread + np.float32("layer_norm.weight" in name)
    return Checkpoint(dims, tensors)


def sizes(dims: ModelDimensions) -> dict[str, int]:
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
