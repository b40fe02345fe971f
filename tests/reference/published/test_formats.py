"""The same tokens whatever format holds the published weights; other programs write or read each of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import transformers
import whisper
from whisper.normalizers import EnglishTextNormalizer

from streamer.audio.mel import mel_filters
from streamer.constants import SAMPLE_RATE
from streamer.offline import transcribe_segments
from streamer.whisper.model import WhisperModel
from streamer.whisper.source import read_model
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.reference.published.parity import Pair
from tests.reference.sizes import whisper_config
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.support import SAMPLE, Untyped, load_on_cpu, read
from tests.unit.whisper.tokens.published import TEXTS
from tests.unit.whisper.weights.ggml_writer import write_ggml
from tests.unit.whisper.weights.mlx_writer import write_mlx
from tools.benchmarks.files import WORKER
from tools.benchmarks.peers.environment import Environment, PeerUnavailable, run
from tools.benchmarks.published import FASTER_WHISPER, PublishedModel, to_ctranslate2, write_pt
from tools.benchmarks.text import errors

pytestmark = pytest.mark.real

# Of 8-bit weights, or of another program's arithmetic in float16.
MOST_WRONG = 0.05

WHISPER_CPP = Environment("pywhispercpp", (("pywhispercpp==1.5.1",),))
MLX = Environment(
    "mlx-whisper",
    (
        ("mlx[cpu]==0.32.4", "numba", "scipy", "tqdm", "more-itertools", "tiktoken", "huggingface_hub"),
        ("--no-deps", "mlx-whisper==0.4.3"),  # without torch, which only its converter takes
    ),
)


class Written:
    """A published model, written once in each format."""

    def __init__(self, published: PublishedModel, ours: WhisperModel) -> None:
        self.published = published
        self.ours = ours
        self.checkpoint: Checkpoint = published.checkpoint()

    def path(self, format_: str) -> Path:
        """Return the folder of a format; its tokenizer is the published one."""
        folder = self.published.temporary / format_
        if not folder.exists():
            WRITERS[format_](self, folder)
            if not (folder / "tokenizer.json").is_file():
                shutil.copy(self.published.path / "tokenizer.json", folder)
        return folder

    def huggingface(self, folder: Path) -> None:
        """Write with transformers, with the settings that the published model has."""
        untyped: Untyped = transformers
        end = self.ours.tokenizer.special.end_of_text
        config = whisper_config(self.checkpoint.dims, bos_token_id=end, eos_token_id=end)
        model = untyped.WhisperForConditionalGeneration(config)
        tensors = {f"model.{name}": torch.from_numpy(np.array(v)) for name, v in self.checkpoint.tensors.items()}
        model.load_state_dict(tensors, strict=False)
        model.tie_weights()
        known, special = self.ours.generation, self.ours.tokenizer.special
        model.generation_config = untyped.GenerationConfig(
            suppress_tokens=list(known.suppress_tokens),
            begin_suppress_tokens=list(known.begin_suppress_tokens),
            alignment_heads=[list(head) for head in known.alignment_heads],
            is_multilingual=known.multilingual,
            max_initial_timestamp_index=known.max_initial_timestamp_index,
            no_timestamps_token_id=special.no_timestamps,
            decoder_start_token_id=special.start_of_transcript,
            eos_token_id=end,
            pad_token_id=end,
        )
        model.half().save_pretrained(folder)

    def openai(self, folder: Path) -> None:
        """Write as openai-whisper's `torch.save` does, and have it read."""
        folder.mkdir()
        write_pt(folder / "model.pt", self.checkpoint)
        untyped: Untyped = whisper
        assert untyped.load_model(str(folder / "model.pt"), device="cpu").dims.n_vocab == self.checkpoint.dims.n_vocab

    def whisper_cpp(self, folder: Path) -> None:
        """Write as whisper.cpp's converter does, with the ranks of openai-whisper's vocabulary."""
        untyped: Untyped = whisper.tokenizer
        encoding = untyped.get_tokenizer(self.published.multilingual).encoding
        ranks = [encoding.decode_single_token_bytes(number) for number in range(encoding.eot_token)]
        folder.mkdir()
        write_ggml(folder / "ggml-model.bin", self.checkpoint, ranks, mel_filters(self.checkpoint.dims.n_mels), "f16")

    def mlx(self, folder: Path) -> None:
        """Write as the converter of mlx-examples does, which no package carries."""
        write_mlx(folder, self.checkpoint)

    def ctranslate2(self, quantization: str) -> Callable[[Path], None]:
        """Return what writes with CTranslate2's own converter."""

        def write(folder: Path) -> None:
            to_ctranslate2(self.path("Hugging Face"), folder, quantization, self.published.peers_folder)

        return write


WRITERS: dict[str, Callable[[Written, Path], None]] = {
    "Hugging Face": Written.huggingface,
    "openai-whisper": Written.openai,
    "whisper.cpp": Written.whisper_cpp,
    "MLX": Written.mlx,
    "CTranslate2 float16": lambda written, folder: written.ctranslate2("float16")(folder),
    "CTranslate2 int8": lambda written, folder: written.ctranslate2("int8")(folder),
}


@pytest.fixture(scope="module")
def written(published: PublishedModel, pair: Pair) -> Written:
    return Written(published, pair.ours)


@pytest.mark.parametrize("format_", WRITERS)
def test_a_format_has_the_same_tokens(pair: Pair, written: Written, format_: str) -> None:
    try:
        folder = written.path(format_)
    except PeerUnavailable as error:
        pytest.skip(str(error))
    model = load_on_cpu(folder, folder / "compiled")
    if format_ == "CTranslate2 int8":
        assert words_wrong(text_of(pair.ours), text_of(model)) <= MOST_WRONG
    else:
        assert tokens(model) == tokens(pair.ours)


def test_weights_without_a_vocabulary_have_the_published_one(pair: Pair, written: Written, tmp_path: Path) -> None:
    write_pt(tmp_path / "alone.pt", written.checkpoint)
    found, expected = read_model(tmp_path / "alone.pt", "alone").tokenizer, pair.ours.tokenizer
    assert Path(found.where).suffix == ".tiktoken"  # of the installed openai-whisper, or fetched
    assert Path(expected.where).name == "tokenizer.json"
    assert (found.spelled, found.special, found.languages) == (expected.spelled, expected.special, expected.languages)
    for text in TEXTS.values():
        assert found.encode(text) == expected.encode(text)


@pytest.mark.parametrize(
    ("system", "format_", "environment"),
    [
        ("pywhispercpp", "whisper.cpp", WHISPER_CPP),
        ("mlx-whisper", "MLX", MLX),
        ("faster-whisper", "CTranslate2 float16", FASTER_WHISPER),
    ],
)
def test_another_program_reads_it(
    pair: Pair, written: Written, tmp_path: Path, system: str, format_: str, environment: Environment
) -> None:
    soundfile.write(tmp_path / "sample.wav", read(SAMPLE), SAMPLE_RATE, subtype="PCM_16")
    try:
        python = environment.python(written.published.peers_folder)
        folder = written.path(format_)
        path = next(folder.glob("ggml-*.bin"), folder)
        task = {"model": str(path), "language": "en", "audio": str(tmp_path), "output": str(tmp_path)}
        run(system, [str(python), "-P", str(WORKER), system, json.dumps(task)])
    except PeerUnavailable as error:
        pytest.skip(str(error))
    assert words_wrong(text_of(pair.ours), (tmp_path / "sample.txt").read_text(encoding="utf-8")) <= MOST_WRONG


def tokens(model: WhisperModel) -> list[int]:
    """Return the tokens of the sample, greedily."""
    decoding = as_whisper(model, language="en", temperature=(0.0,))
    return [token for segment in transcribe_segments(model, read(SAMPLE), decoding) for token in segment.tokens]


def text_of(model: WhisperModel) -> str:
    return model.tokenizer.decode([token for token in tokens(model) if token < model.tokenizer.special.end_of_text])


def words_wrong(expected: str, actual: str) -> float:
    """Return the word error rate of a text beside another, behind Whisper's normaliser."""
    normalise = EnglishTextNormalizer()
    return errors(normalise(expected).split(), normalise(actual).split()).rate or 0.0
