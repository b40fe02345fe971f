"""The files of the models that are measured."""

from pathlib import Path

import pytest

from tools.benchmarks.model_files import NAMES, ModelFiles, dimensions, random_checkpoint
from tools.benchmarks.peers.environment import PeerUnavailable


@pytest.mark.parametrize("name", ["tiny", "base", "small"])
def test_dimensions_are_the_published_ones(name: str) -> None:
    from tests.whisper.sizes import SIZES

    assert dimensions(name) == SIZES[name]
    assert name in NAMES


def test_random_weights_are_the_same_each_time_and_of_a_spread_that_stays() -> None:
    from streamer.whisper.dims import ModelDimensions

    dims = ModelDimensions(8, 1500, 128, 2, 1, 51865, 448, 128, 2, 1)
    first, second = random_checkpoint(dims), random_checkpoint(dims)
    assert all((first.tensors[name] == second.tensors[name]).all() for name in first.tensors)
    assert first.tensors["decoder.layer_norm.weight"].mean() == pytest.approx(1, abs=0.05)
    assert first.tensors["encoder.layers.0.fc2.weight"].std() == pytest.approx(512**-0.5, rel=0.05)


def test_a_format_is_made_once_and_never_half(tmp_path: Path) -> None:
    weights = ModelFiles("tiny", tmp_path)
    made: list[Path] = []

    def fails(place: Path) -> None:
        place.mkdir()
        (place / "half").touch()
        raise PeerUnavailable("converter: no")

    def works(place: Path) -> None:
        place.mkdir()
        made.append(place)

    with pytest.raises(PeerUnavailable):
        weights._made("format", fails)
    found = weights._made("format", works)
    assert found.is_dir()
    assert not (found / "half").exists()
    assert weights._made("format", works) == found
    assert len(made) == 1
