"""Files of `torch.save` without torch: what a pickle can ask for, and what it cannot get."""

import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper.weights import torch as torch_file
from streamer.whisper.weights.tensors import Tensor
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.checks import at_most, check_message
from tests.unit.whisper.weights.torch_writer import change_archive, write_archive

HALF = b"ctorch\nHalfStorage\n"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.float16)}, tmp_path / "ab.pt")
    return tmp_path / "ab.pt"


def refuse(path: Path, *parts: str) -> None:
    with at_most(100 << 20):
        checks.refuse(torch_file.read, path, *parts)


def number(value: int) -> bytes:
    data = pickle.encode_long(value)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def storage(kind: bytes = HALF, key: str = "0", count: int = 4) -> bytes:
    return b"(" + text("storage") + kind + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(storage: bytes, offset: bytes, shape: bytes, strides: bytes) -> bytes:
    return REBUILD + b"(" + storage + offset + shape + strides + b"\x89" + b"}" + b"tR"


def program(value: bytes) -> bytes:
    """Return a pickle of {"a": value}."""
    return b"\x80\x02}" + text("a") + value + b"s."


def write(path: Path, value: bytes, storages: dict[str, bytes] | None = None) -> Path:
    return write_archive(path, program(value), {"0": bytes(range(8))} if storages is None else storages)


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
        array = found[name].read().reshape(expected.shape)
        assert array.flags.c_contiguous
        torch.testing.assert_close(
            torch.from_numpy(array), expected.detach(), rtol=0, atol=0, equal_nan=True, check_dtype="bf" not in name
        )


def test_numbers_texts_and_lists(tmp_path: Path) -> None:
    content = {"a": [1, 2**40, -5, 0.5, None, True, False, "é"], "b": {"c": (1, (2, 3), (4, 5, 6, 7), ())}, "d": []}
    torch.save(content, tmp_path / "plain.pt")
    assert torch_file.read(tmp_path / "plain.pt") == content


@pytest.mark.parametrize("value", [[1], torch.ones(2), "text", None, 3])
def test_what_is_no_dictionary(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "value.pt")
    refuse(tmp_path / "value.pt", "not a dictionary")


class Call:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def hostile_calls(made: Path) -> dict[str, Call]:
    code = f"open({str(made)!r}, 'w')"
    return {
        "system": Call(__import__("os").system, f'python -c "{code}"'),
        "eval": Call(eval, code),
        "exec": Call(exec, code),
        "open": Call(open, str(made), "w"),
        "import": Call(__import__, "os"),
        "getattr": Call(getattr, Call(__import__, "os"), "system"),
        "touch": Call(Path.touch, made),
        "torch.load": Call(torch.load, str(made)),
        "nested": Call(__import__("builtins").map, Call(eval, code), [1]),
    }


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("name", list(hostile_calls(Path())))
def test_a_pickle_that_calls_something_runs_nothing(tmp_path: Path, name: str, protocol: int) -> None:
    made = tmp_path / "made"
    path = tmp_path / "hostile.pt"
    write_archive(path, pickle.dumps({"dims": hostile_calls(made)[name]}, protocol))
    refuse(path, "is not taken (it ", "expected tensors, numbers and texts alone")
    assert not made.exists()


def test_those_calls_would_have_made_a_file(tmp_path: Path) -> None:
    """Else the test above shows nothing."""
    made = tmp_path / "made"
    for name in ("system", "eval", "exec", "open", "touch"):
        pickle.loads(pickle.dumps(hostile_calls(made)[name]))
        made.unlink()


@pytest.mark.parametrize(
    "value",
    [
        b"(" + text("echo") + b"ios\nsystem\n",  # INST
        b"(cos\nsystem\n" + text("echo") + b"o",  # OBJ
        b"cos\nsystem\n",
        b"\x82\x01",  # EXT1
        b"ctorch.storage\nUntypedStorage\n",
        b"ctorch._utils\n_rebuild_sparse_tensor\n",
        text("os") + text("system") + b"\x93",  # STACK_GLOBAL
        b"ctorch\nFloatStorage\n)R",
        b"\x96" + struct.pack("<Q", 1 << 40),  # BYTEARRAY8
        b"\x97",  # NEXT_BUFFER
        b"Ppersistent\n",
    ],
)
def test_other_ways_to_call_and_to_fetch(tmp_path: Path, value: bytes) -> None:
    refuse(write(tmp_path / "hostile.pt", value))


@pytest.mark.parametrize(
    "value",
    [
        b"R", b"s", b"u", b"e", b"a", b"t", b"Q", b"b", b"\x85", b"\x87", b"\x93", b"\x94", b"q\x00", b"h\x05",
        b"(u", b"(" + text("b") + b"u", b"]Q", b"]]Rs", b"}" + text("b") + b"a", b"]" + text("b") + b"Nsa",
        b"Nb", b"(((", b"NNb", REBUILD, HALF + b"]R", b"\x8c\xff", b"X\xff\xff\xff\xff", b"\x8a\xff", b"\xff", b"",
        b"\x8d" + b"\xff" * 8, b"\x8b\xff\xff\xff\x7f", b"cos", b"J\x00", b"cos\n\xff\n", b"X\x02\x00\x00\x00\xff\xfe",
    ],
)  # fmt: skip
def test_a_pickle_that_is_no_program(tmp_path: Path, value: bytes) -> None:
    for data in (b"\x80\x02" + value + b".", b"\x80\x02" + value, value, program(value)):
        path = write_archive(tmp_path / "broken.pt", data)
        try:
            assert isinstance(torch_file.read(path), dict)
        except ModelError as error:
            check_message(error)


@pytest.mark.parametrize(
    "value",
    [
        storage(key="1"),
        storage(key="../../data.pkl"),
        storage(key="../version"),
        storage(key="/etc/passwd"),
        storage(count=5),
        storage(count=2**60),
        storage(kind=b"ctorch\nFloatStorage\n", count=3),
        storage(kind=b"ccollections\nOrderedDict\n"),
        storage(kind=text("HalfStorage")),
        b"(" + text("module") + b"tQ",
        text("storage") + b"Q",
    ],
)
def test_a_storage_that_is_not_there(tmp_path: Path, value: bytes) -> None:
    refuse(write(tmp_path / "storage.pt", value), "cannot be read")


TWO_BY_TWO = (storage(), number(0), numbers(2, 2), numbers(2, 1))


def test_a_tensor_by_hand(tmp_path: Path) -> None:
    path = write(tmp_path / "hand.pt", tensor(*TWO_BY_TWO), {"0": struct.pack("<4e", 1, 2, 3, 4)})
    assert torch_file.read(path)["a"].read().tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, b"N"),
        (0, number(1)),
        (1, number(1)),
        (1, number(-1)),
        (1, number(2**62)),
        (1, b"N"),
        (1, b"\x88"),
        (2, numbers(2, 3)),
        (2, numbers(2**60, 2**60)),
        (2, numbers(2**60, 0)),
        (2, numbers(-1, 2)),
        (2, numbers(4)),
        (2, numbers(*[1] * 100)),
        (2, b"(" + b"N" * 2 + b"t"),
        (2, text("22")),
        (3, numbers(3, 1)),
        (3, numbers(-2, 1)),
        (3, numbers(2**40, 1)),
        (3, numbers(2, 1, 1)),
        (3, b"N"),
    ],
)
def test_a_tensor_outside_of_its_storage(tmp_path: Path, place: int, value: bytes) -> None:
    parts = list(TWO_BY_TWO)
    parts[place] = value
    refuse(write(tmp_path / "outside.pt", tensor(*parts)), "the pickle has a ", "fetch it again")


def test_a_tensor_whose_elements_are_to_be_changed(tmp_path: Path) -> None:
    negated = torch.zeros(2, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    torch.save({"a": negated}, tmp_path / "negated.pt")
    refuse(tmp_path / "negated.pt", "is not taken")


def test_the_format_before_archives(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    refuse(path, "that of PyTorch before 1.6", "save it again with torch.save")


@pytest.mark.parametrize("order", [b"big", b"", b"Little", b"\xff" * 100])
def test_another_byte_order(path: Path, order: bytes) -> None:
    refuse(change_archive(path, {"byteorder": order}), "byte order is not little-endian")


def test_an_archive_of_an_older_torch_has_no_byte_order(path: Path) -> None:
    assert set(torch_file.read(change_archive(path, {"byteorder": None}))) == {"a", "b"}


@pytest.mark.parametrize("member", ["data.pkl", "data/0", "data/1"])
def test_a_missing_member(path: Path, member: str) -> None:
    refuse(change_archive(path, {member: None}), f"/{member}' in the archive")


def test_a_storage_shorter_than_its_tensor(path: Path) -> None:
    refuse(change_archive(path, {"data/0": b"1234567"}), "data/0 is shorter than the pickle says")


def test_compressed_and_encrypted_archives(tmp_path: Path) -> None:
    """A compressed storage could be a thousand times as large as the file."""
    path = tmp_path / "zip.pt"
    write_archive(path, program(tensor(*TWO_BY_TWO)), {"0": bytes(8)}, compression=zipfile.ZIP_DEFLATED)
    refuse(path, "is not taken", "is compressed or encrypted", "save it again with torch.save")
    data = write(path, b"N").read_bytes()
    path.write_bytes(data.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"))
    assert path.read_bytes() != data
    refuse(path, "is encrypted")


def test_a_tensor_cannot_be_changed_into_another(tmp_path: Path) -> None:
    state = b"(" + text("/etc/passwd") + text("F16") + numbers(4) + number(0) + b"NNt"
    path = write(tmp_path / "state.pt", tensor(*TWO_BY_TWO) + state + b"b")
    refuse(path, "the pickle is no program")


def test_lists_in_each_other_are_not_written_out(tmp_path: Path) -> None:
    """Each of 100 lists has the one before twice."""
    doubled = b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(100))
    value = b"(]q\x00" + doubled + b"t"
    path = write(tmp_path / "bomb.pt", value)
    with at_most(1 << 20):
        assert set(torch_file.read(path)) == {"a"}
    refuse(write_archive(tmp_path / "bomb.pt", b"\x80\x02" + value + b"."), "it holds a tuple")


OPERATIONS = [
    b"N", b"\x88", b"\x89", b"K\x01", b"K\x02", b"M\x00\x01", number(-1), number(2**62), text("storage"), text("0"),
    text("cpu"), text("a"), b"}", b"]", b")", b"(", b"t", b"\x85", b"\x86", b"\x87", b"a", b"e", b"s", b"u", b"b",
    b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"\x94", b"Q", b"R", HALF, REBUILD, b"ccollections\nOrderedDict\n",
    b"ctorch._utils\n_rebuild_parameter\n", storage(), tensor(*TWO_BY_TWO), numbers(2, 2), numbers(0, 4), b"}h\x00s",
    b"\x93", b"0", b"2",
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(operations=st.lists(st.sampled_from(OPERATIONS), max_size=30))
@example(operations=[b"}", b"q\x00", text("a"), b"h\x00", b"s"])  # a dictionary in itself
@example(operations=[REBUILD, b"(", storage(), b"K\x01", numbers(0, 4), numbers(2, 2), b"\x89", b"}", b"t", b"R"])
def test_any_program_ends_in_data_or_in_one_line(tmp_path: Path, operations: list[bytes]) -> None:
    for data in (b"\x80\x02" + b"".join(operations) + b".", program(b"".join(operations))):
        path = write_archive(tmp_path / "any.pt", data, {"0": bytes(8)})
        try:
            saved: dict[str, Any] = torch_file.read(path)
        except ModelError as error:
            check_message(error)
            continue
        for found in saved.values():
            assert not isinstance(found, Tensor) or 0 in found.shape or found.read().shape == found.shape
