"""What every loader makes of its files, whole, damaged, and with tensors that do not fit."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import formats
from tests.unit.whisper.support import random_checkpoint
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.models import FORMATS, PARTS, TINY, read_all

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
