"""Files of `torch.save` without torch: what a pickle can ask for, and what it cannot get."""

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper.weights import torch as torch_file
from streamer.whisper.weights.tensors import Tensor
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.models import change_members, program, write_archive

HALF = b"ctorch\nHalfStorage\n"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def refuse(path: Path, *parts: str) -> None:
    with checks.at_most(100 << 20):
        checks.refuse(torch_file.read, path, *parts)


def number(value: int) -> bytes:
    data = pickle.encode_long(value)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def storage(kind: bytes = HALF, key: str = "0", count: int = 4) -> bytes:
    return b"(" + text("storage") + kind + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(storage: bytes, offset: bytes, shape: bytes, strides: bytes) -> bytes:
    return REBUILD + b"(" + storage + offset + shape + strides + b"\x89" + b"}" + b"tR"


TWO_BY_TWO = (storage(), number(0), numbers(2, 2), numbers(2, 1))


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


def test_numbers_texts_and_lists_come_back(tmp_path: Path) -> None:
    content = {"a": [1, 2**40, -5, 0.5, None, True, False, "é"], "b": {"c": (1, (2, 3), (4, 5, 6, 7), ())}, "d": []}
    torch.save(content, tmp_path / "plain.pt")
    assert torch_file.read(tmp_path / "plain.pt") == content


def test_an_archive_of_an_older_torch_has_no_byte_order(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    change_members(tmp_path / "a.pt", {"byteorder": ""})
    assert set(torch_file.read(tmp_path / "a.pt")) == {"a"}


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
        "touch": Call(Path.touch, made),
        "import": Call(__import__, "os"),
        "getattr": Call(getattr, Call(__import__, "os"), "system"),
        "torch.load": Call(torch.load, str(made)),
        "nested": Call(__import__("builtins").map, Call(eval, code), [1]),
    }


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("name", list(hostile_calls(Path())))
def test_a_pickle_that_calls_something_runs_nothing(tmp_path: Path, name: str, protocol: int) -> None:
    made = tmp_path / "made"
    call = hostile_calls(made)[name]
    refuse(write_archive(tmp_path / "hostile.pt", pickle.dumps({"dims": call}, protocol)))
    assert not made.exists()
    if name in ("system", "eval", "exec", "open", "touch"):
        pickle.loads(pickle.dumps(call))
        assert made.exists(), "else the test shows nothing"


@pytest.mark.parametrize(
    "value",
    [
        b"(" + text("echo") + b"ios\nsystem\n",  # INST
        b"(cos\nsystem\n" + text("echo") + b"o",  # OBJ
        b"\x82\x01",  # EXT1
        b"ctorch.storage\nUntypedStorage\n",
        b"ctorch._utils\n_rebuild_sparse_tensor\n",
        text("os") + text("system") + b"\x93",  # STACK_GLOBAL
        b"ctorch\nFloatStorage\n)R",
        b"\x96" + struct.pack("<Q", 1 << 40),  # BYTEARRAY8
        b"\x97",  # NEXT_BUFFER
        b"Ppersistent\n",
        *(storage(key=key) for key in ("1", "../../data.pkl", "../version", "/etc/passwd")),
        *(storage(count=count) for count in (-1, 5, 2**60)),
        storage(kind=b"ctorch\nFloatStorage\n", count=3),
        storage(kind=b"ccollections\nOrderedDict\n"),
        storage(kind=text("HalfStorage")),
        b"(" + text("module") + b"tQ",
        text("storage") + b"Q",
    ],
)
def test_nothing_else_is_called_or_fetched(tmp_path: Path, value: bytes) -> None:
    refuse(write_archive(tmp_path / "hostile.pt", program(value)))


def test_a_tensor_by_hand_is_read(tmp_path: Path) -> None:
    found = torch_file.read(write_archive(tmp_path / "hand.pt", program(tensor(*TWO_BY_TWO))))["a"].read()
    np.testing.assert_array_equal(found, np.frombuffer(bytes(range(8)), "<f2").reshape(2, 2))


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (0, [b"N", number(1)]),
        (1, [number(1), number(-1), number(2**62), b"N", b"\x88"]),
        (2, [numbers(2, 3), numbers(2**60, 2**60), numbers(2**60, 0), numbers(-1, 2), numbers(4), numbers(*[1] * 100)]),
        (2, [b"(NNt", text("22")]),
        (3, [numbers(3, 1), numbers(-2, 1), numbers(2**40, 1), numbers(2, 1, 1), b"N"]),
    ],
)
def test_a_tensor_outside_of_its_storage_is_refused(tmp_path: Path, place: int, values: list[bytes]) -> None:
    for value in values:
        parts = [*TWO_BY_TWO[:place], value, *TWO_BY_TWO[place + 1 :]]
        refuse(write_archive(tmp_path / "outside.pt", program(tensor(*parts))))


def test_a_tensor_whose_elements_are_to_be_changed_is_refused(tmp_path: Path) -> None:
    negated = torch.zeros(2, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    torch.save({"a": negated}, tmp_path / "negated.pt")
    refuse(tmp_path / "negated.pt")


def test_a_tensor_cannot_be_changed_into_another(tmp_path: Path) -> None:
    state = b"(" + text("/etc/passwd") + text("F16") + numbers(4) + number(0) + b"NNt"
    refuse(write_archive(tmp_path / "state.pt", program(tensor(*TWO_BY_TWO) + state + b"b")))


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "zip.pt", program(b"N"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"))
    assert path.read_bytes() != data
    refuse(path)


def test_lists_in_each_other_are_not_written_out(tmp_path: Path) -> None:
    """Each of 100 lists has the one before twice."""
    doubled = b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(100))
    value = b"(]q\x00" + doubled + b"t"
    with checks.at_most(1 << 20):
        assert set(torch_file.read(write_archive(tmp_path / "bomb.pt", program(value)))) == {"a"}
        checks.refuse(torch_file.read, write_archive(tmp_path / "bomb.pt", b"\x80\x02" + value + b"."))


OPERATIONS = [
    b"N", b"\x88", b"\x89", b"K\x01", b"K\x02", b"M\x00\x01", number(-1), number(2**62), text("storage"), text("0"),
    text("cpu"), text("a"), b"}", b"]", b")", b"(", b"t", b"\x85", b"\x86", b"\x87", b"a", b"e", b"s", b"u", b"b",
    b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"\x94", b"Q", b"R", HALF, REBUILD, b"ccollections\nOrderedDict\n",
    b"ctorch._utils\n_rebuild_parameter\n", storage(), tensor(*TWO_BY_TWO), numbers(2, 2), numbers(0, 4), b"}h\x00s",
    b"\x93", b"0", b"2", b"\x8c\xff", b"X\xff\xff\xff\xff", b"\x8a\xff", b"\xff", b"\x8d" + b"\xff" * 8,
    b"cos", b"J\x00", b"\x8b\xff\xff\xff\x7f", b"cos\n\xff\n", b"X\x02\x00\x00\x00\xff\xfe",
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(operations=st.lists(st.sampled_from(OPERATIONS), max_size=30))
@example(operations=[b"}", b"q\x00", text("a"), b"h\x00", b"s"])  # a dictionary in itself
@example(operations=[REBUILD, b"(", storage(), b"K\x01", numbers(0, 4), numbers(2, 2), b"\x89", b"}", b"t", b"R"])
def test_any_program_ends_in_data_or_in_one_line(tmp_path: Path, operations: list[bytes]) -> None:
    joined = b"".join(operations)
    for data in (b"\x80\x02" + joined + b".", joined, program(joined)):
        try:
            saved: dict[str, Any] = torch_file.read(write_archive(tmp_path / "any.pt", data))
        except ModelError as error:
            checks.check_message(error)
            continue
        for found in saved.values():
            assert not isinstance(found, Tensor) or 0 in found.shape or found.read().shape == found.shape
