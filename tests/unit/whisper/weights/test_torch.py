"""Files of `torch.save` without torch: what a pickle can ask for, and what it cannot get; see also `weights.toml`."""

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamer.whisper.weights import torch as torch_file
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.models import change_members, program, write_archive

MOST_BYTES = 100 << 20


def test_tensors_of_all_kinds_are_where_torch_finds_them(tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    tensors = {
        "plain": base,
        "transposed": base.transpose(0, 2),
        "sliced": base[:, 1:, ::2],
        "scalar": torch.tensor(1.5),
        "single": base[1:, 2:, 3:],
        "half": base.half(),
        "bfloat16": torch.randn(3, 5).bfloat16(),
        "specials": torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45]),
        "bfloat16 specials": torch.tensor([float("inf"), -0.0, 1e-40]).bfloat16(),
        "parameter": torch.nn.Parameter(base),
    }
    torch.save(tensors, tmp_path / "all.pt")
    found = torch_file.read(tmp_path / "all.pt")
    assert list(found) == list(tensors)
    for name, expected in tensors.items():
        array = torch.from_numpy(found[name].read().reshape(expected.shape))
        assert array.is_contiguous()
        assert torch.equal(array.float().nan_to_num(7), expected.float().nan_to_num(7))
        assert "bf" in name or array.dtype == expected.dtype


def test_numbers_texts_and_lists_come_back(tmp_path: Path) -> None:
    content = {"a": [1, 2**40, -5, 0.5, None, True, False, "é"], "b": {"c": (1, (2, 3), (4, 5, 6, 7), ())}, "d": []}
    torch.save(content, tmp_path / "plain.pt")
    # An older torch writes no byte order.
    change_members(tmp_path / "plain.pt", {"byteorder": ""})
    assert torch_file.read(tmp_path / "plain.pt") == content


class Call:
    """Pickles as a call that makes a file."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.made,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_calls_something_runs_nothing(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    data = pickle.dumps({"dims": Call(made)}, protocol)
    with checks.at_most(MOST_BYTES):
        checks.refuse(torch_file.read, write_archive(tmp_path / "hostile.pt", data))
    assert not made.exists()
    pickle.loads(data)
    assert made.exists(), "else the test shows nothing"


def test_a_tensor_whose_elements_are_to_be_changed_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2, dtype=torch.complex64).conj().imag}, tmp_path / "negated.pt")
    checks.refuse(torch_file.read, tmp_path / "negated.pt")


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "zip.pt", program(b"N"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"))
    assert path.read_bytes() != data
    checks.refuse(torch_file.read, path)


def test_a_storage_that_goes_beyond_the_end_of_the_file_is_refused(tmp_path: Path) -> None:
    """Whatever the archive says of its length."""

    def written(count: int) -> Path:
        number = struct.pack("<i", count)
        storage = b"(X\7\0\0\0storagectorch\nByteStorage\nX\1\0\0\x000X\3\0\0\0cpuJ" + number + b"tQ"
        path = write_archive(tmp_path / "long.pt", program(storage))
        path.write_bytes(path.read_bytes().replace(struct.pack("<2I", 8, 8), struct.pack("<2I", 9999, 9999)))
        return path

    data = written(0).read_bytes()
    checks.refuse(torch_file.read, written(len(data) - data.index(bytes(range(8))) + 1))


def test_lists_in_each_other_are_not_written_out(tmp_path: Path) -> None:
    """Each of 100 lists has the one before twice."""
    doubled = b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(100))
    value = b"(]q\x00" + doubled + b"t"
    with checks.at_most(1 << 20):
        assert set(torch_file.read(write_archive(tmp_path / "bomb.pt", program(value)))) == {"a"}
        checks.refuse(torch_file.read, write_archive(tmp_path / "bomb.pt", b"\x80\x02" + value + b"."))
