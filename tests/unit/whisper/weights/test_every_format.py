"""Which format a path is of, and what loaders make of files that are whole, damaged, or do not fit."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import ctranslate2, formats, huggingface, mlx
from tests.refusals import Refusal, refusals
from tests.unit.whisper.support import NANO, random_checkpoint, write_tiny
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.ctranslate2_writer import write_ctranslate2
from tests.unit.whisper.weights.mlx_writer import write_mlx
from tests.unit.whisper.weights.models import FORMATS, PARTS, TINY, add_files, prepare, read_all

# A larger one, whose largest tensor has 20 MB in float32.
WIDE = ModelDimensions(80, 1500, 128, 2, 1, 40_000, 448, 128, 2, 1)

# Where harm can be done: a table at the beginning or the end, what is around the names of tensors, and anywhere.
REGIONS = ("beginning", "end", "names", "all")

MOST_BYTES = 8 << 20

every_format = pytest.mark.parametrize("name", FORMATS)
untimed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of whole models, by their formats."""
    found = {name: tmp_path_factory.mktemp("tiny") for name in FORMATS | PARTS}
    for name, directory in found.items():
        (FORMATS | PARTS)[name].write(directory, TINY)
    return found


def damaged(whole: Path, directory: Path, name: str, data: bytes | bytearray) -> Path:
    """Return the path of a model whose weights have this content."""
    kind = (FORMATS | PARTS)[name]
    for path in whole.iterdir():
        (directory / path.name).write_bytes(data if path.name == kind.file else path.read_bytes())
    return kind.path(directory)


@every_format
def test_its_format_is_found_and_it_has_the_tensors_of_the_model(tiny: dict[str, Path], name: str) -> None:
    path = FORMATS[name].path(tiny[name])
    format_, found = formats.find(path)
    assert (format_.load, found) == (FORMATS[name].load, path)
    checks.check_loads_or_refuses(format_.load, found)
    assert format_.load(found).dims == TINY.dims


@every_format
def test_opening_reads_no_tensor_and_reading_one_at_a_time(tmp_path: Path, name: str) -> None:
    kind = FORMATS[name]
    kind.write(tmp_path, random_checkpoint(WIDE))
    with checks.at_most(5 << 20):  # any JSON file may have 4 MiB
        found = kind.load(kind.path(tmp_path))
    with checks.at_most(int(kind.most * 4 * WIDE.n_vocab * WIDE.n_text_state)):
        read_all(found)


@every_format
def test_a_file_that_shrinks_or_goes_after_it_was_opened_is_refused(
    tmp_path: Path, tiny: dict[str, Path], name: str
) -> None:
    file = tmp_path / FORMATS[name].file
    found = FORMATS[name].load(damaged(tiny[name], tmp_path, name, (tiny[name] / file.name).read_bytes()))
    with file.open("r+b") as weights:
        weights.truncate(file.stat().st_size // 2)
    checks.refuse(read_all, found)
    file.unlink()
    checks.refuse(read_all, found)


@pytest.mark.parametrize("name", [*FORMATS, "LoRA"])
@untimed
@given(
    flips=st.lists(
        st.tuples(st.sampled_from(REGIONS), st.floats(0, 1, exclude_max=True), st.integers(1, 255)),
        min_size=1,
        max_size=4,
    )
)
@example(flips=[("beginning", 0.0, 255)])
def test_flipped_bytes_never_do_harm(
    tmp_path: Path, tiny: dict[str, Path], name: str, flips: list[tuple[str, float, int]]
) -> None:
    kind = (FORMATS | PARTS)[name]
    data = bytearray((tiny[name] / kind.file).read_bytes())
    named = [place for match in re.finditer(rb"weight|bias", data) for place in range(match.start() - 40, match.end())]
    places = {
        "beginning": range(1200),
        "end": range(len(data) - 1200, len(data)),
        "names": named,
        "all": range(len(data)),
    }
    for region, share, mask in flips:
        data[places[region][int(share * len(places[region]))]] ^= mask
    checks.check_loads_or_refuses(kind.load, damaged(tiny[name], tmp_path, name, data), MOST_BYTES)


@pytest.mark.parametrize("name", [*FORMATS, "LoRA"])
@untimed
@given(share=st.floats(0, 1, exclude_max=True), at_end=st.booleans())
@example(share=0.0, at_end=False)
@example(share=0.9999, at_end=True)
def test_every_truncation_is_refused(
    tmp_path: Path, tiny: dict[str, Path], name: str, share: float, at_end: bool
) -> None:
    kind = (FORMATS | PARTS)[name]
    data = (tiny[name] / kind.file).read_bytes()
    n_bytes = len(data) - 600 + int(600 * share) if at_end else int(len(data) * share)
    with checks.at_most(MOST_BYTES):
        checks.refuse(kind.load, damaged(tiny[name], tmp_path, name, data[:n_bytes]))


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "CTranslate2"])
@pytest.mark.parametrize("tensor", ["decoder.layer_norm.bias", "encoder.conv1.weight"])
def test_a_tensor_that_is_missing_or_of_another_shape_is_refused(tmp_path: Path, name: str, tensor: str) -> None:
    kind = FORMATS[name]
    others = {key: value for key, value in TINY.tensors.items() if key != tensor}
    for changed in (others, {**others, tensor: TINY.tensors["encoder.conv2.weight"][:3]}):
        kind.write(tmp_path, replace(TINY, tensors=changed))
        with pytest.raises(ModelError):
            kind.load(kind.path(tmp_path))


@every_format
def test_a_number_that_is_not_finite_is_found_when_it_is_read(tmp_path: Path, name: str) -> None:
    broken = TINY.tensors["encoder.layer_norm.bias"].copy()
    broken[-1] = float("inf")
    FORMATS[name].write(tmp_path, replace(TINY, tensors={**TINY.tensors, "encoder.layer_norm.bias": broken}))
    found = FORMATS[name].load(FORMATS[name].path(tmp_path))
    assert found.tensors["encoder.layer_norm.weight"].size
    with pytest.raises(ModelError):
        _ = found.tensors["encoder.layer_norm.bias"]


NAMES = [
    *("model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "weights.npz", "openvino_decoder_model.xml"),
]


@pytest.mark.parametrize("name", [*NAMES, "encoder_model.onnx", "onnx/encoder_model.onnx", "base.pt", "ggml-base.bin"])
@pytest.mark.parametrize("n_bytes", [0, 999, 1000])
def test_a_file_that_is_no_whole_checkpoint_is_refused(tmp_path: Path, name: str, n_bytes: int) -> None:
    add_files(tmp_path / "x", {name: "x" * n_bytes, "config.json": json.dumps({"model_type": "whisper"})})
    with pytest.raises(ModelError):
        formats.find(tmp_path / name)


@pytest.mark.parametrize("folder", ["", "onnx/"])
def test_a_directory_of_onnx_alone_is_refused_and_beside_weights_it_does_not_matter(
    tmp_path: Path, folder: str
) -> None:
    add_files(tmp_path / "x", {f"{folder}encoder_model.onnx": "x", "config.json": "{}"})
    with pytest.raises(ModelError):
        formats.find(tmp_path)
    add_files(tmp_path / "x", {"model.safetensors": "x"})
    assert formats.find(tmp_path) == (huggingface, tmp_path)


def test_a_file_of_ctranslate2_is_known_by_its_header(tmp_path: Path) -> None:
    path = write_ctranslate2(tmp_path, TINY) / "model.bin"
    assert formats.find(path) == (ctranslate2, path)
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}', encoding="utf-8")
    assert not ctranslate2.matches(tmp_path)
    for data in (b"", b"lmgg" + bytes(100), b"PK\3\4" + bytes(100), bytes(100), b"\6\0\0\0\x0c\0Whisper"):
        path.write_bytes(data)
        assert not ctranslate2.matches(path)


@pytest.mark.parametrize("file", ["weights.npz", "weights.safetensors", "model.safetensors"])
def test_a_directory_of_mlx_is_known_by_its_config_or_its_names(tmp_path: Path, file: str) -> None:
    assert formats.find(write_mlx(tmp_path, TINY, 4, file=file)) == (mlx, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}', encoding="utf-8")
    assert formats.find(tmp_path) == (mlx, tmp_path)


def test_what_is_not_mlx_or_broken_is_left_to_others(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "hf")
    assert not any(mlx.matches(path) for path in (tiny, NANO, tmp_path, tmp_path / "none", tiny / "config.json"))
    (tiny / "model.safetensors").write_bytes(b"garbage")
    assert not mlx.matches(tiny)
    (tiny / "config.json").write_bytes(b"\xff{")
    assert not mlx.matches(tiny)


# Of the file that a sentence is about, and of what is shown of its content.
MOST_CHARACTERS = 600


@refusals("weights")
def test_a_model_that_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    read = prepare(tmp_path, **refusal.given)
    with refusal.expected(tmp_path), checks.at_most(MOST_BYTES):
        read()
    assert refusal.says.isprintable()
    assert len(refusal.says) < MOST_CHARACTERS
