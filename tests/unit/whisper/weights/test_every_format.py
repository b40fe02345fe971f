"""Which format a path is of, and what comes of models that are whole, damaged, or do not fit."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.source import load_checkpoint
from streamer.whisper.weights import ctranslate2, formats, huggingface, mlx
from streamer.whisper.weights.checkpoint import expected_shapes
from tests.refusals import Refusal, refusals
from tests.unit.whisper.support import check_one_line, random_checkpoint, write_huggingface
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.models import FORMATS, GRAPHS, PARTS, TINY, add_files, prepare, read_all

# Of a model whose largest tensor has 20 MB in float32.
WIDE = ModelDimensions(80, 1500, 128, 2, 1, 40_000, 448, 128, 2, 1)

# Of Python's memory; the files of a model take a tenth of it.
MOST_BYTES = 8 << 20

every_format = pytest.mark.parametrize("name", FORMATS)


def read(path: Path, lora: Path | None = None) -> None:
    """Read all of a model, and check that its tensors are what graphs are built of."""
    _, checkpoint = load_checkpoint(path, lora)
    for name, shape in expected_shapes(checkpoint.dims).items():
        tensor = checkpoint.tensors[name]
        assert (tensor.shape, tensor.flags.c_contiguous) == (shape, True)
        assert tensor.dtype in (np.float16, np.float32)


@every_format
def test_its_format_is_found_and_all_of_it_is_read(tmp_path: Path, name: str) -> None:
    kind = FORMATS[name]
    kind.write(tmp_path, TINY)
    format_, found = formats.find(kind.path(tmp_path))
    assert (format_.load, found) == (kind.load, kind.path(tmp_path))
    read(found)


@every_format
def test_opening_reads_no_tensor_and_reading_one_at_a_time(tmp_path: Path, name: str) -> None:
    kind = FORMATS[name]
    kind.write(tmp_path, random_checkpoint(WIDE))
    with checks.at_most(5 << 20):  # any JSON file may have 4 MiB
        found = kind.load(kind.path(tmp_path))
    with checks.at_most(int(kind.most * 4 * WIDE.n_vocab * WIDE.n_text_state)):
        read_all(found)


@every_format
def test_what_only_shows_when_it_is_read_is_refused_then(tmp_path: Path, name: str) -> None:
    """A file that shrinks or goes after it was opened, and a number that is not finite."""
    kind = FORMATS[name]
    kind.write(tmp_path, TINY)
    found, file = kind.load(kind.path(tmp_path)), tmp_path / kind.file
    os.truncate(file, file.stat().st_size // 2)
    checks.refuse(read_all, found)
    file.unlink()
    checks.refuse(read_all, found)
    broken = TINY.tensors["encoder.layer_norm.bias"].copy()
    broken[-1] = float("inf")
    kind.write(tmp_path, replace(TINY, tensors={**TINY.tensors, "encoder.layer_norm.bias": broken}))
    found = kind.load(kind.path(tmp_path))
    assert found.tensors["encoder.layer_norm.weight"].size
    checks.refuse(read_all, found)


def flipped(path: Path, choices: random.Random) -> None:
    """Change bytes where harm can be done: in a table at the beginning or the end, around names, and anywhere."""
    data = bytearray(path.read_bytes())
    names = [match.start() + choices.randint(-40, 6) for match in re.finditer(rb"weight|bias", data)]
    for _ in range(choices.randint(1, 4)):
        near = choices.randrange(min(1200, len(data)))
        place = choices.choice((near, -near, choices.choice(names or [0]), choices.randrange(len(data))))
        data[place] ^= choices.randint(1, 255)
    path.write_bytes(data)


def truncated(path: Path, choices: random.Random) -> None:
    n_bytes = path.stat().st_size
    os.truncate(path, choices.choice((choices.randrange(n_bytes), max(0, n_bytes - choices.randint(1, 600)))))


def swapped(path: Path, choices: random.Random) -> None:
    other = choices.choice(sorted(path.parent.iterdir()))
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    def replace(path: Path, _: random.Random) -> None:
        path.unlink()
        make(path)

    return replace


directory_instead = replaced_by(Path.mkdir)
DAMAGES = [flipped, flipped, truncated, swapped, directory_instead, replaced_by(lambda path: None)]
if sys.platform != "win32":  # there a link takes a privilege
    DAMAGES += [replaced_by(os.mkfifo), replaced_by(lambda path: path.symlink_to(path.name))]


@pytest.mark.parametrize(
    ("name", "n_times"),
    [*((name, 80) for name in (*FORMATS, "LoRA")), *(pytest.param(name, 8, marks=pytest.mark.slow) for name in GRAPHS)],
)
def test_a_damaged_file_is_refused_in_one_line_or_does_no_harm(tmp_path: Path, name: str, n_times: int) -> None:
    base = write_huggingface(tmp_path / "base", TINY) if name == "LoRA" else None
    for seed in range(n_times):
        choices, directory = random.Random(seed), tmp_path / str(seed)
        directory.mkdir()
        (FORMATS | GRAPHS | PARTS)[name].write(directory, TINY)
        files = sorted(directory.iterdir())
        weights = [file for file in files if file.suffix != ".json"]
        damage = DAMAGES[seed % len(DAMAGES)]
        damage(choices.choice([*weights, *weights, *files]), choices)
        try:
            with checks.at_most(MOST_BYTES):
                read(base or directory, base and directory)
        except ModelError as error:
            check_one_line(error)
            assert str(directory) in str(error)  # noqa: PT017 - a good model is fine, too
        else:
            assert damage is not truncated


# Files that announce far more than there is: of which model, and what is changed in it; nothing: it gets 8 GiB long,
# none of which is on the disk. Others are rows of `weights.toml`, for which Python's memory is watched.
HUGE = [
    ("triple", "*_encoder*.xml", b'size="', b'size="%d' % (1 << 60)),
    ("triple", "*_decoder_static*.xml", b'shape="', b'shape="%d,' % (1 << 60)),
    ("triple", "*_encoder.xml", b"", b""),
    ("openai-whisper", "*.pt", b"", b""),
    ("Hugging Face", "config.json", b"", b""),
]

_READ = """
import resource, sys
from pathlib import Path
from streamer.errors import ModelError
from streamer.whisper.source import load_checkpoint
import numpy, openvino

in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 30),) * 2)
for path in sys.argv[1:]:
    try:
        _, checkpoint = load_checkpoint(Path(path))
        for name in checkpoint.tensors:
            checkpoint.tensors[name]
        print("good", flush=True)
    except ModelError as error:
        print(error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="how much memory is in use is read from /proc")
def test_what_is_announced_is_not_allocated(tmp_path: Path) -> None:
    paths = [tmp_path / str(i) for i in range(len(HUGE))]
    for path, (name, pattern, old, new) in zip(paths, HUGE, strict=True):
        path.mkdir()
        (FORMATS | GRAPHS)[name].write(path, TINY)
        file = next(path.glob(pattern))
        if old:
            file.write_bytes(file.read_bytes().replace(old, new))
        else:
            os.truncate(file, 8 << 30)
    command = [sys.executable, "-c", _READ, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    for path, line in zip(paths, done.stdout.splitlines(), strict=True):
        assert str(path) in line
        assert len(line) < 700


OF_WHISPER = {"config.json": '{"model_type": "whisper"}'}


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        ("CTranslate2", {}, ctranslate2),
        ("CTranslate2", OF_WHISPER, huggingface),
        ("MLX, npz", OF_WHISPER, mlx),
        ("MLX, safetensors", OF_WHISPER, mlx),
        ("Hugging Face", {"onnx/encoder_model.onnx": "x"}, huggingface),
        ("Hugging Face", {"model.safetensors": "garbage"}, huggingface),
        ("Hugging Face", {"config.json": "\xff{"}, huggingface),
    ],
)
def test_a_directory_is_known_by_its_config_or_its_names(
    tmp_path: Path, name: str, files: dict[str, str], expected: object
) -> None:
    FORMATS[name].write(tmp_path, TINY)
    add_files(tmp_path / "x", files)
    assert formats.find(tmp_path) == (expected, tmp_path)


# Of the file that a sentence is about, and of what is shown of its content.
MOST_CHARACTERS = 600


@refusals("weights")
def test_a_model_that_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    read_it = prepare(tmp_path, **refusal.given)
    with refusal.expected(tmp_path), checks.at_most(MOST_BYTES):
        read_it()
    assert refusal.says.isprintable()
    assert len(refusal.says) < MOST_CHARACTERS
