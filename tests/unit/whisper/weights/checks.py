"""How a loader has to take a file: as what was written, or with one line of refusal, in little memory."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from streamer.errors import ModelError
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import check_one_line

T = TypeVar("T")


def refuse(load: Callable[[T], object], path: T) -> None:
    """Check that loading fails with one line that holds the path."""
    with pytest.raises(ModelError) as caught:
        load(path)
    check_one_line(caught.value)
    assert not isinstance(path, Path) or str(path) in str(caught.value)


@contextmanager
def at_most(n_bytes: int) -> Iterator[None]:
    """Check that the block, whether it raises or not, never has allocated more than this."""
    tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < n_bytes, f"{peak} bytes"


def assert_tensors_equal(found: Checkpoint, expected: Checkpoint) -> None:
    """Check all tensors, to the bit and the type."""
    assert found.dims == expected.dims
    assert set(found.tensors) == set(expected.tensors)
    for name in expected.tensors:
        assert found.tensors[name].dtype == expected.tensors[name].dtype, name
        np.testing.assert_array_equal(found.tensors[name], expected.tensors[name], err_msg=name)
