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
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.source import ModelSource, read_model
from streamer.whisper.weights.checkpoint import expected_shapes
from tests.unit.whisper.support import NANO, check_one_line, random_checkpoint
from tests.unit.whisper.weights.checks import at_most
from tests.unit.whisper.weights.models import WRITERS

pytestmark = pytest.mark.slow

# As small as a model with nano.en's vocabulary can be, and with rows that can be quantized.
DIMS = ModelDimensions(4, 1500, 32, 2, 1, 2022, 32, 32, 2, 1)

# In Python's memory; the files of a model are a hundredth of it.
MOST_BYTES = 64 << 20

COMPANIONS = {
    "generation_config.json": {"alignment_heads": [[0, 0]], "is_multilingual": True, "no_timestamps_token_id": 520},
    "preprocessor_config.json": {"feature_size": 4, "sampling_rate": 16_000, "hop_length": 160, "n_fft": 400},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of whole models, by their formats."""
    found = {name: tmp_path_factory.mktemp("model") for name in WRITERS}
    for name, directory in found.items():
        WRITERS[name](directory, random_checkpoint(DIMS))
        shutil.copy(NANO / "tokenizer.json", directory)
        for file, content in COMPANIONS.items():
            (directory / file).write_text(json.dumps(content), encoding="utf-8")
        source = read_model(directory, name)
        assert all(check.passed for check in source.checks)
        read_all(source)
    return found


def read_all(source: ModelSource) -> None:
    """Read every tensor."""
    for name, shape in expected_shapes(source.checkpoint.dims).items():
        values = source.checkpoint.tensors[name]
        assert values.shape == shape
        assert np.isfinite(values).all()


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


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path, int], None]:
    def replace(path: Path, seed: int) -> None:
        path.unlink()
        make(path)

    return replace


directory_instead = replaced_by(Path.mkdir)
DAMAGES = [truncated, flipped, swapped, replaced_by(Path.touch), replaced_by(lambda path: None), directory_instead]
DAMAGES.append(lambda path, seed: path.chmod(0))
if sys.platform != "win32":  # there a link takes a privilege
    DAMAGES += [replaced_by(os.mkfifo), replaced_by(lambda path: path.symlink_to(path.name))]


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=5)
@given(choice=st.integers(0, 8), damage=st.sampled_from(DAMAGES), seed=st.integers(0, 1 << 40))
@example(choice=0, damage=DAMAGES[-2], seed=0)
@example(choice=4, damage=flipped, seed=12345)
@example(choice=0, damage=directory_instead, seed=0)
def test_a_damaged_file_is_refused_in_one_line_or_does_no_harm(
    models: dict[str, Path], name: str, choice: int, damage: Callable[[Path, int], None], seed: int
) -> None:
    with TemporaryDirectory() as folder:
        directory = shutil.copytree(models[name], Path(folder) / "model")
        files = sorted(directory.iterdir())
        damage(files[choice % len(files)], seed)
        try:
            with at_most(MOST_BYTES):
                read_all(read_model(directory, "damaged"))
        except ModelError as error:
            check_one_line(error)
            assert str(directory) in str(error)  # noqa: PT017 - a good model is fine, too


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


N = 1 << 60
TABLE = json.dumps({"x": {"dtype": "F32", "shape": [N], "data_offsets": [0, 4 * N]}}).encode()

# Files that announce far more than there is: format, file, and what is changed in it; None: it gets 8 GiB long, nothing
# of which is on the disk. What ggml's numbers may be is tried in `weights/test_ggml.py`.
HUGE: list[tuple[str, str, Callable[[bytes], bytes] | None]] = [
    ("Hugging Face", "model.safetensors", lambda _: struct.pack("<Q", len(TABLE)) + TABLE),
    # As long as before, with the digits of 2^60 in place of 32.
    ("MLX, npz", "*.npz", replaced(b"'shape': (32,), }" + b" " * 17, b"'shape': (%d,), }" % N)),
    ("openai-whisper, f16", "*.pt", replaced(struct.pack("<H", 1500), b"\xff\xff")),
    ("OpenVINO, triple", "*_encoder*.xml", replaced(b'size="', b'size="%d' % N)),
    ("OpenVINO, triple", "*_decoder_static*.xml", replaced(b'shape="', b'shape="%d,' % N)),
    ("Hugging Face", "config.json", None),
    ("openai-whisper, f16", "*.pt", None),
    ("ggml, q5_0", "generation_config.json", None),
    ("OpenVINO, triple", "*_encoder.xml", None),
]

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
    paths = [shutil.copytree(models[name], tmp_path / str(i)) for i, (name, _, _) in enumerate(HUGE)]
    for path, (_, pattern, change) in zip(paths, HUGE, strict=True):
        file = next(path.glob(pattern))
        if change is None:
            os.truncate(file, 8 << 30)
        else:
            file.write_bytes(change(file.read_bytes()))
    command = [sys.executable, "-c", _READ, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    for path, line in zip(paths, done.stdout.splitlines(), strict=True):
        assert str(path) in line
        assert len(line) < 700
