"""What every loader makes of its files, whole, damaged, and with tensors that do not fit."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import ctranslate2, ggml, huggingface, mlx, openai
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import random_checkpoint, write_huggingface, write_openai
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.ctranslate2_writer import write_ctranslate2
from tests.unit.whisper.weights.ggml_writer import write_ggml
from tests.unit.whisper.weights.mlx_writer import write_mlx

# As small as a Whisper in groups of 64 can be: its encoder positions are fixed.
DIMS = ModelDimensions(2, 1500, 64, 2, 1, 40, 32, 64, 2, 1)
TINY = random_checkpoint(DIMS)

# A larger one, whose largest tensor has 20 MB in float32.
WIDE = ModelDimensions(80, 1500, 128, 2, 1, 40_000, 448, 128, 2, 1)

# Where harm can be done: a table at the beginning or the end, what is around the names of tensors, and anywhere.
REGIONS = ("beginning", "end", "names", "all")


class Format(NamedTuple):
    load: Callable[[Path], Checkpoint]
    write: Callable[[Path, Checkpoint], object]
    file: str

    # Memory for reading the largest tensor, in its bytes as float32.
    most: float = 1.6

    def path(self, directory: Path) -> Path:
        """Return what is given to the loader."""
        return directory / self.file if self.load in (openai.load, ggml.load) else directory


def _write_ggml(directory: Path, checkpoint: Checkpoint) -> None:
    filters = np.zeros((checkpoint.dims.n_mels, 201), np.float32)
    write_ggml(directory / "ggml-x.bin", checkpoint, [b"a", b"", b"\xff\xfe"], filters, "q5_0")


FORMATS = {
    "Hugging Face": Format(huggingface.load, lambda d, c: write_huggingface(d, c, "bfloat16"), "model.safetensors"),
    "openai-whisper": Format(openai.load, lambda d, c: write_openai(d / "x.pt", c, "bfloat16"), "x.pt"),
    "ggml": Format(ggml.load, _write_ggml, "ggml-x.bin", 2.0),
    "CTranslate2": Format(ctranslate2.load, lambda d, c: write_ctranslate2(d, c, int8=True), "model.bin", 2.0),
    "MLX, npz": Format(mlx.load, lambda d, c: write_mlx(d, c, 8), "weights.npz", 2.0),
    "MLX, safetensors": Format(
        mlx.load, lambda d, c: write_mlx(d, c, 4, file="weights.safetensors"), "weights.safetensors", 2.0
    ),
}

every_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of whole models, by their formats."""
    found = {name: tmp_path_factory.mktemp("tiny") for name in FORMATS}
    for name, directory in found.items():
        FORMATS[name].write(directory, TINY)
    return found


def damaged(whole: Path, directory: Path, name: str, data: bytes | bytearray) -> Path:
    """Return the path of a model whose weights have this content."""
    for path in whole.iterdir():
        (directory / path.name).write_bytes(data if path.name == FORMATS[name].file else path.read_bytes())
    return FORMATS[name].path(directory)


@every_format
def test_opening_reads_no_tensor_and_reading_one_at_a_time(tmp_path: Path, name: str) -> None:
    kind = FORMATS[name]
    kind.write(tmp_path, random_checkpoint(WIDE))
    with checks.at_most(5 << 20):  # any JSON file may have 4 MiB
        tensors = kind.load(kind.path(tmp_path)).tensors
    with checks.at_most(int(kind.most * 4 * WIDE.n_vocab * WIDE.n_text_state)):
        for tensor in tensors:
            assert tensors[tensor].size


@every_format
def test_a_file_that_shrinks_or_goes_after_it_was_opened(tmp_path: Path, tiny: dict[str, Path], name: str) -> None:
    kind = FORMATS[name]
    path = damaged(tiny[name], tmp_path, name, (tiny[name] / kind.file).read_bytes())
    tensors, weights = kind.load(path).tensors, tmp_path / kind.file
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    with pytest.raises(ModelError, match="became shorter while it was read"):
        dict(tensors)
    weights.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        dict(tensors)


@every_format
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=75, deadline=None)
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
    data = bytearray((tiny[name] / FORMATS[name].file).read_bytes())
    named = [place for match in re.finditer(rb"weight|bias", data) for place in range(match.start() - 40, match.end())]
    places = {
        "beginning": range(2000),
        "end": range(len(data) - 2000, len(data)),
        "names": named,
        "all": range(len(data)),
    }
    for region, share, mask in flips:
        data[places[region][int(share * len(places[region]))]] ^= mask
    checks.check_loads_or_refuses(
        FORMATS[name].load, damaged(tiny[name], tmp_path, name, data), most_bytes=(4 if name == "ggml" else 8) << 20
    )


@every_format
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=75, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True), at_end=st.booleans())
@example(share=0.0, at_end=False)
@example(share=0.9999, at_end=True)
def test_every_truncation_is_refused(
    tmp_path: Path, tiny: dict[str, Path], name: str, share: float, at_end: bool
) -> None:
    data = (tiny[name] / FORMATS[name].file).read_bytes()
    n_bytes = len(data) - 600 + int(600 * share) if at_end else int(len(data) * share)
    with checks.at_most((4 if name == "ggml" else 8) << 20):
        checks.refuse(FORMATS[name].load, damaged(tiny[name], tmp_path, name, data[:n_bytes]), "cannot be read")


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "CTranslate2"])
def test_tensors_that_are_missing_or_of_another_shape(tmp_path: Path, name: str) -> None:
    kind, path = FORMATS[name], FORMATS[name].path(tmp_path)

    def write(**changes: np.ndarray | None) -> None:
        tensors = {**TINY.tensors, **changes}
        kept = {name: values for name, values in tensors.items() if values is not None}
        kind.write(tmp_path, replace(TINY, tensors=kept))

    write(**{"decoder.layer_norm.bias": None})
    checks.refuse(kind.load, path, "lacks the tensor decoder.layer_norm.bias:", "fetch it again, all of it")
    write(**dict.fromkeys(("decoder.layer_norm.bias", "encoder.conv1.bias", "encoder.conv2.bias")))
    checks.refuse(kind.load, path, "lacks the tensor decoder.layer_norm.bias and 2 more")
    write(**{"encoder.conv1.weight": np.zeros((64, 5, 3), "float32")})
    checks.refuse(kind.load, path, "encoder.conv1.weight of shape [64, 5, 3],", "asks for [64, 2, 3]: they are of")
