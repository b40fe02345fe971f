"""Model directories with one file damaged: each is one line of refusal or a good model, never a hang or a balloon."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from streamer.constants import HOP_LENGTH, N_FFT, SAMPLE_RATE
from streamer.errors import ModelError
from streamer.whisper.device.masks import OURS
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.source import ModelSource, read_model
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from tests.unit.whisper.support import NANO, config_of, random_checkpoint, write_huggingface, write_openai
from tests.unit.whisper.test_source import vocabulary
from tests.unit.whisper.triple import write_triple
from tests.unit.whisper.weights.checks import at_most
from tests.unit.whisper.weights.ctranslate2_writer import write_ctranslate2
from tests.unit.whisper.weights.ggml_writer import write_ggml
from tests.unit.whisper.weights.mlx_writer import write_mlx
from tests.unit.whisper.weights.optimum_writer import write_optimum

pytestmark = pytest.mark.slow

# As small as a model with nano.en's vocabulary can be, and with rows that can be quantized.
DIMS = ModelDimensions(4, 1500, 32, 2, 1, 2022, 32, 32, 2, 1)
HEADS = ((0, 0),)

# In Python's memory; the files of a model are a hundredth of it.
MOST_BYTES = 64 << 20

COMPANIONS: dict[str, dict[str, object]] = {
    "generation_config.json": {"alignment_heads": [[0, 0]], "is_multilingual": True, "no_timestamps_token_id": 520},
    "preprocessor_config.json": {
        "feature_size": 4,
        "sampling_rate": SAMPLE_RATE,
        "hop_length": HOP_LENGTH,
        "n_fft": N_FFT,
    },
}


def write_shards(directory: Path, checkpoint: Checkpoint) -> None:
    names = list(checkpoint.tensors)
    weight_map: dict[str, str] = {}
    for i in (0, 1):
        part = {f"model.{name}": checkpoint.tensors[name] for name in names[i::2]}
        save_file(part, directory / f"model-{i}.safetensors")
        weight_map |= dict.fromkeys(part, f"model-{i}.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(config_of(DIMS)), encoding="utf-8")


FORMATS: dict[str, Callable[[Path, Checkpoint], object]] = {
    "Hugging Face": write_huggingface,
    "shards": write_shards,
    "openai-whisper": lambda directory, checkpoint: write_openai(directory / "tiny.pt", checkpoint),
    "ggml": lambda directory, checkpoint: write_ggml(
        directory / "ggml-tiny.bin", checkpoint, vocabulary(), np.zeros((4, 201), np.float32), "q5_0"
    ),
    "CTranslate2": lambda directory, checkpoint: write_ctranslate2(directory, checkpoint, int8=True),
    "MLX": lambda directory, checkpoint: write_mlx(directory, checkpoint),
    "MLX, deflated": lambda directory, checkpoint: write_mlx(directory, checkpoint, save=np.savez_compressed),
    "optimum-intel": lambda directory, checkpoint: write_optimum(directory, checkpoint),
    "triple": lambda directory, checkpoint: write_triple(directory, checkpoint, OURS, capacity=32),
}

# Graphs of others, which a process of its own reads first.
PROBED = ("optimum-intel", "triple")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of whole models, by their formats."""
    checkpoint = random_checkpoint(DIMS)
    found = {}
    for name, write in FORMATS.items():
        directory = tmp_path_factory.mktemp(name.replace(" ", "_"))
        write(directory, checkpoint)
        shutil.copy(NANO / "tokenizer.json", directory)
        for file, content in COMPANIONS.items():
            (directory / file).write_text(json.dumps(content), encoding="utf-8")
        found[name] = directory
    return found


def read_all(source: ModelSource) -> None:
    """Read every tensor, or every graph."""
    if source.checkpoint is None:
        for build in source.graphs.build.values():
            build()
        return
    for name, shape in expected_shapes(source.checkpoint.dims).items():
        values = source.checkpoint.tensors[name]
        assert values.shape == shape
        assert np.isfinite(values).all()


def check_reads_or_refuses(directory: Path) -> None:
    try:
        with at_most(MOST_BYTES):
            read_all(read_model(directory, "damaged"))
    except ModelError as error:
        message = str(error)
    else:
        return
    assert message.isprintable()
    assert len(message) < 700
    assert str(directory) in message


@pytest.mark.parametrize("name", FORMATS)
def test_a_whole_model_is_read(models: dict[str, Path], name: str) -> None:
    source = read_model(models[name], name)
    assert all(check.passed for check in source.checks)
    read_all(source)


def truncated(path: Path, seed: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: seed % max(len(data), 1)])


def flipped(path: Path, seed: int) -> None:
    data = bytearray(path.read_bytes())
    # Headers are at the beginnings of most files, and at the ends of archives.
    for where in (seed % 97, seed % 4001, -1 - seed % 997, seed % 1_000_003):
        data[where % len(data)] ^= 1 + seed % 255
    path.write_bytes(data)


def swapped(path: Path, seed: int) -> None:
    others = sorted(path.parent.iterdir())
    other = others[seed % len(others)]
    ours, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(ours)


def emptied(path: Path, seed: int) -> None:
    path.write_bytes(b"")


def missing(path: Path, seed: int) -> None:
    path.unlink()


def unreadable(path: Path, seed: int) -> None:
    path.chmod(0)


def directory_instead(path: Path, seed: int) -> None:
    path.unlink()
    path.mkdir()


def pipe_instead(path: Path, seed: int) -> None:
    if sys.platform != "win32":
        path.unlink()
        os.mkfifo(path)


def loop_instead(path: Path, seed: int) -> None:
    if sys.platform != "win32":  # there it takes a privilege
        path.unlink()
        path.symlink_to(path.name)


DAMAGES = (truncated, flipped, swapped, emptied, missing, unreadable, directory_instead, pipe_instead, loop_instead)


def check_damage(whole: Path, choice: int, damage: Callable[[Path, int], None], seed: int) -> None:
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        shutil.copytree(whole, directory)
        files = sorted(directory.iterdir())
        damage(files[choice % len(files)], seed)
        check_reads_or_refuses(directory)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in PROBED])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=st.integers(0, 8), damage=st.sampled_from(DAMAGES), seed=st.integers(0, 1 << 40))
@example(choice=0, damage=pipe_instead, seed=0)
@example(choice=1, damage=pipe_instead, seed=0)
@example(choice=2, damage=pipe_instead, seed=0)
@example(choice=0, damage=directory_instead, seed=0)
@example(choice=0, damage=unreadable, seed=0)
def test_one_damaged_file(
    models: dict[str, Path], name: str, choice: int, damage: Callable[[Path, int], None], seed: int
) -> None:
    check_damage(models[name], choice, damage, seed)


# Each takes a process that reads the graphs first, since a damaged one may crash OpenVINO.
@pytest.mark.parametrize("name", PROBED)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=st.integers(0, 8), damage=st.sampled_from(DAMAGES), seed=st.integers(0, 1 << 40))
@example(choice=0, damage=pipe_instead, seed=0)
@example(choice=4, damage=flipped, seed=12345)
def test_one_damaged_file_of_graphs_of_others(
    models: dict[str, Path], name: str, choice: int, damage: Callable[[Path, int], None], seed: int
) -> None:
    check_damage(models[name], choice, damage, seed)


class TestDirectories:
    @pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="permissions are POSIX's, bind no root")
    @pytest.mark.parametrize("mode", [0o000, 0o300, 0o400])
    @pytest.mark.parametrize("name", FORMATS)
    def test_one_that_may_not_be_looked_into(
        self, models: dict[str, Path], tmp_path: Path, name: str, mode: int
    ) -> None:
        directory = shutil.copytree(models[name], tmp_path / "model")
        directory.chmod(mode)
        try:
            check_reads_or_refuses(directory)
        finally:
            directory.chmod(0o700)

    @pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes in directories")
    def test_a_pipe_is_no_checkpoint(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "ggml-x.bin")
        with pytest.raises(ModelError, match=r"config\.json is missing"):
            read_model(tmp_path, "pipe")

    def test_a_file_of_pytorch_before_1_6_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")
        with pytest.raises(ModelError, match=r"its format is that of PyTorch before 1\.6"):
            read_model(tmp_path / "old.pt", "old")


class TestNumbersThatAreNotFinite:
    @pytest.mark.parametrize("name", ["Hugging Face", "shards", "openai-whisper", "MLX"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_the_tensor_is_named(self, tmp_path: Path, name: str, value: float) -> None:
        checkpoint = random_checkpoint(DIMS)
        broken = "decoder.embed_positions.weight"
        checkpoint.tensors[broken][-1, -1] = value  # the last position is met by no check of the running model
        FORMATS[name](tmp_path, checkpoint)
        shutil.copy(NANO / "tokenizer.json", tmp_path)
        source = read_model(tmp_path, "broken")
        assert source.checkpoint is not None
        with pytest.raises(ModelError, match=rf"{tmp_path.name}.* has a number in {broken} that is not finite"):
            source.graphs.build["decoder"]()


def rewritten(**values: object) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **values}).encode()


def patched(at: int, layout: str, *numbers: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + struct.pack(layout, *numbers) + data[at + struct.calcsize(layout) :]


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


N, MOST = 1 << 60, 2**31 - 1
TABLE = json.dumps({"x": {"dtype": "F32", "shape": [N], "data_offsets": [0, 4 * N]}}).encode()
WORDS_AT = 56 + 4 * 4 * 201

# Files that announce far more than there is: format, file, and what is changed in it.
HUGE: dict[str, tuple[str, str, Callable[[bytes], bytes]]] = {
    "config": ("Hugging Face", "config.json", rewritten(vocab_size=N, d_model=N)),
    "table's length": ("Hugging Face", "model.safetensors", patched(0, "<Q", N)),
    "tensor": ("Hugging Face", "model.safetensors", lambda _: struct.pack("<Q", len(TABLE)) + TABLE),
    "ggml sizes": ("ggml", "*.bin", patched(4, "<11i", *[MOST] * 11)),
    "ggml filters": ("ggml", "*.bin", patched(48, "<ii", MOST, 201)),
    "ggml words": ("ggml", "*.bin", patched(WORDS_AT, "<i", MOST)),
    "ggml word": ("ggml", "*.bin", patched(WORDS_AT + 4, "<i", MOST)),
    # As long as before, with the digits of 2^60 in place of 32.
    "npz": ("MLX", "*.npz", replaced(b"'shape': (32,), }" + b" " * 17, b"'shape': (%d,), }" % N)),
    "storage": ("openai-whisper", "*.pt", replaced(struct.pack("<H", 1500), b"\xff\xff")),
    "graph": ("triple", "*_encoder.xml", replaced(b'size="', b'size="1152921504606846976')),
    "graph's shape": ("triple", "*_encoder.xml", replaced(b'shape="', b'shape="1152921504606846976,')),
    "decoder": ("triple", "*_decoder_static*.xml", replaced(b'size="', b'size="1152921504606846976')),
    "decoder's shape": ("triple", "*_decoder_static*.xml", replaced(b'shape="', b'shape="1152921504606846976,')),
}

# Files of 8 GiB that are nothing but a length on disk, and the formats that they are of.
LONG = {
    "config.json": "Hugging Face",
    "model.safetensors": "Hugging Face",
    "tokenizer.json": "MLX",
    "*.pt": "openai-whisper",
    "generation_config.json": "ggml",
    "preprocessor_config.json": "triple",
    "*_encoder.xml": "triple",
}


_READ = """
import resource, sys
from pathlib import Path
from streamer.errors import ModelError
from streamer.whisper.source import read_model
import numpy, openvino, tokenizers

in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 30),) * 2)
for path in sys.argv[1:]:
    try:
        source = read_model(Path(path), "huge")
        for build in source.graphs.build.values():
            build()
        print("good", flush=True)
    except ModelError as error:
        print(error, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="how much memory is in use is read from /proc")
def test_what_is_announced_is_not_allocated(models: dict[str, Path], tmp_path: Path) -> None:
    paths: dict[str, Path] = {}
    for what, (name, file, change) in HUGE.items():
        paths[what] = shutil.copytree(models[name], tmp_path / what.replace(" ", "_"))
        path = next(paths[what].glob(file))
        path.write_bytes(change(path.read_bytes()))
    for file, name in LONG.items():
        paths[file] = shutil.copytree(models[name], tmp_path / f"file{len(paths)}")
        os.truncate(next(paths[file].glob(file)), 8 << 30)
    done = subprocess.run(
        [sys.executable, "-c", _READ, *map(str, paths.values())], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    lines = dict(zip(paths, done.stdout.splitlines(), strict=True))
    for what, line in lines.items():
        assert str(paths[what]) in line, (what, line)
        assert len(line) < 700
