"""Files of `torch.save`, read without torch: an uncompressed zip archive of a pickle and the bytes of its tensors.

The pickle is a program for a stack machine, and is not run by `pickle`: the machine here knows the operations that
`torch.save` writes, and calls nothing. Where the program asks for a call, only those that put a tensor together from
its storage are understood. So a file can neither run anything, nor take more memory than in proportion to its length.

Source: `pickletools` of Python's library describes the operations, `torch/serialization.py` and `torch/_utils.py` of
PyTorch what they mean.
"""

import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from streamer.errors import ModelError
from streamer.whisper.weights.tensors import StoredTensor, is_shape, last_element

# That of large-v3 has 200 kB and 46 thousand operations; with an optimizer's state it is three times as much.
_MAX_PICKLE_BYTES = 4 << 20
_MAX_OPERATIONS = 1 << 19

# The archive's table of contents of large-v3 has 130 kB.
_MAX_DIRECTORY_BYTES = 4 << 20

# A tensor may be a view of a larger one, and two may share a storage, both within reason.
_MAX_SPREAD = 16
_MAX_SHARING = 4

_STORAGE_TYPES = {
    "torch.HalfStorage": ("F16", 2),
    "torch.BFloat16Storage": ("BF16", 2),
    "torch.FloatStorage": ("F32", 4),
    "torch.DoubleStorage": ("F64", 8),
    "torch.BoolStorage": ("BOOL", 1),
    "torch.ByteStorage": ("U8", 1),
    "torch.CharStorage": ("I8", 1),
    "torch.ShortStorage": ("I16", 2),
    "torch.IntStorage": ("I32", 4),
    "torch.LongStorage": ("I64", 8),
}
_ORDERED_DICT = "collections.OrderedDict"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
_GLOBALS = frozenset((*_STORAGE_TYPES, _ORDERED_DICT, _TENSOR, _PARAMETER))

T = TypeVar("T")

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a member of the archive: signature, lengths of name and extra field
_ENCRYPTED = 1


def read(path: Path) -> dict[str, Any]:
    """Return the dictionary that was saved: numbers, texts, lists, dictionaries by name, and where its tensors are.

    Raises ModelError where the file is truncated, of the format before PyTorch 1.6, or holds anything else.
    """
    try:
        with _File(path) as file:
            head = file.read(512)
            if head.startswith(b"\x80") or head[257:262] == b"ustar":
                raise _UnfitError("its format is that of PyTorch before 1.6")
            with zipfile.ZipFile(file) as archive:
                saved = _Machine(_Archive(path, file, archive.infolist())).run()
        if not isinstance(saved, dict):
            raise _UnfitError(f"it holds a {type(saved).__name__.strip('_')}, not a dictionary")
    except _UnfitError as error:
        raise ModelError(
            f"{path} is not taken ({error}): expected tensors, numbers and texts alone; save it again with torch.save"
        ) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): expected a file that you may read") from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OverflowError, struct.error) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{path} cannot be read ({reason:.120}): it is truncated or no file of torch.save; fetch it again"
        ) from None
    return saved


def tensors_of(saved: Mapping[str, object]) -> dict[str, StoredTensor]:
    """Return those entries that are tensors."""
    return {name: value for name, value in saved.items() if isinstance(value, StoredTensor)}


class _UnfitError(Exception):
    """A whole file with something in it that is not read. The text is the reason."""


class _File(io.FileIO):
    """A file for `zipfile`, which reads and seeks as the file says."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_SET and offset < 0:
            raise ValueError("a part before the beginning of the file")
        return super().seek(offset, whence)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise ValueError(f"a table of contents of more than {_MAX_DIRECTORY_BYTES >> 20} MiB")
        return super().read(size) or b""


class _Archive:
    """The members of an archive, all of them in one folder whose name is of no interest."""

    def __init__(self, path: Path, file: _File, members: list[zipfile.ZipInfo]) -> None:
        self.path = path
        self._file = file
        self._n_bytes = file.seek(0, io.SEEK_END)
        self._members = {info.filename.partition("/")[2]: info for info in members}
        if "byteorder" in self._members and self.read("byteorder") != b"little":
            raise _UnfitError("its byte order is not little-endian")

    def read(self, name: str) -> bytes:
        """Return a small member."""
        start, n_bytes = self.find(name)
        if n_bytes > _MAX_PICKLE_BYTES:
            raise _UnfitError(f"{name} has more than {_MAX_PICKLE_BYTES >> 20} MiB")
        self._file.seek(start)
        return self._file.read(n_bytes)

    def find(self, name: str) -> tuple[int, int]:
        """Return first byte and length of a member, which lies in the file as it is."""
        info = self._members.get(name)
        if info is None:
            raise ValueError(f"no {name!r:.60} in the archive")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
            raise _UnfitError(f"{name!r:.60} is compressed or encrypted")
        self._file.seek(info.header_offset)
        signature, *lengths = _LOCAL_HEADER.unpack(self._file.read(_LOCAL_HEADER.size))
        start = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
        if signature != b"PK\x03\x04" or start + info.file_size > self._n_bytes:
            raise ValueError(f"{name!r:.60} is not where the archive says")
        return start, info.file_size


@dataclass(frozen=True, slots=True)
class _Global:
    """What a pickle asks for by name."""

    name: str


@dataclass(slots=True)
class _Storage:
    """Elements that tensors are made of."""

    dtype: str
    item_bytes: int
    start: int
    count: int
    # Elements of the tensors made of it so far.
    used: int = 0


class _Machine:
    """Runs the program of an archive's pickle. On its stack are plain data, and instances of the classes above."""

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive
        self._storages: dict[str, _Storage] = {}
        self._stack: list[Any] = []
        # Lengths of the stack at the marks.
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> object:
        """Return what was pickled."""
        try:
            for n, (operation, argument, _) in enumerate(pickletools.genops(self._archive.read("data.pkl"))):
                if n == _MAX_OPERATIONS:
                    raise _UnfitError(f"its pickle has more than {_MAX_OPERATIONS} operations")
                self._step(operation.name, argument)
            return self._stack.pop()
        except (IndexError, KeyError):
            raise ValueError("the pickle takes from where nothing is") from None

    def _step(self, operation: str, argument: Any) -> None:  # noqa: ANN401 - as `pickletools` decodes it
        stack, memo = self._stack, self._memo
        match operation:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(operation == "NEWTRUE")
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._take(int(operation[-1]))))
            case "TUPLE":
                stack.append(tuple(self._take_to_mark()))
            case "MARK":
                self._marks.append(len(stack))
            case "APPEND":
                self._extend(self._take(1))
            case "APPENDS":
                self._extend(self._take_to_mark())
            case "SETITEM":
                self._update(self._take(2))
            case "SETITEMS":
                self._update(self._take_to_mark())
            case "BUILD":
                # A dictionary's attributes, such as the `_metadata` of a state, which no tensor depends on.
                self._take(1)
                self._expect(stack[-1], dict)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(self._global(".".join(argument.split(" "))))
            case "STACK_GLOBAL":
                module, name = self._take(2)
                stack.append(self._global(f"{self._expect(module, str)}.{self._expect(name, str)}"))
            case "BINPERSID":
                stack.append(self._storage(stack.pop()))
            case "REDUCE":
                function, arguments = self._take(2)
                stack.append(self._call(self._expect(function, _Global).name, self._expect(arguments, tuple)))
            case _:
                raise _UnfitError(f"it has the operation {operation}")

    def _take(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _take_to_mark(self) -> list[Any]:
        mark = self._marks.pop()
        taken = self._stack[mark:]
        del self._stack[mark:]
        return taken

    def _extend(self, values: list[Any]) -> None:
        self._expect(self._stack[-1], list).extend(values)

    def _update(self, items: list[Any]) -> None:
        entries = zip(items[::2], items[1::2], strict=True)
        # Other keys are not looked for, and numbers can be chosen so that a dictionary of them becomes slow.
        named = {key: value for key, value in entries if isinstance(key, str)}
        self._expect(self._stack[-1], dict).update(named)

    @staticmethod
    def _global(name: str) -> _Global:
        if name not in _GLOBALS:
            raise _UnfitError(f"it asks for {name!r:.60}")
        return _Global(name)

    def _storage(self, key: object) -> _Storage:
        match key:
            case ("storage", _Global(kind), str(name), str(), int(count)) if kind in _STORAGE_TYPES:
                dtype, item_bytes = _STORAGE_TYPES[kind]
            case _:
                raise ValueError("the pickle names a storage in another way")
        if name not in self._storages:
            start, n_bytes = self._archive.find(f"data/{name}")
            self._storages[name] = _Storage(dtype, item_bytes, start, n_bytes // item_bytes)
        storage = self._storages[name]
        if storage.dtype != dtype or storage.count < count:
            raise ValueError(f"data/{name:.60} is shorter than the pickle says")
        return storage

    def _call(self, function: str, arguments: tuple[Any, ...]) -> object:
        if function == _ORDERED_DICT and not arguments:
            return {}
        if function == _PARAMETER and arguments:
            return self._expect(arguments[0], StoredTensor)
        if function == _TENSOR and len(arguments) == 6:  # a seventh would say that the elements are to be changed
            return self._tensor(arguments)
        raise _UnfitError(f"it calls {function}")

    def _tensor(self, arguments: tuple[Any, ...]) -> StoredTensor:
        storage = self._expect(arguments[0], _Storage)
        offset, shape, strides = arguments[1:4]
        if not is_shape((offset,)) or not is_shape(shape) or not is_shape(strides) or len(shape) != len(strides):
            raise ValueError("the pickle has a tensor without a shape")
        shape, strides = tuple(shape), tuple(strides)
        count = math.prod(shape)
        storage.used += count
        if count:
            spread = 1 + last_element(shape, strides)
            if offset + spread > storage.count:
                raise ValueError("the pickle has a tensor that its storage does not hold")
            if spread > _MAX_SPREAD * count or storage.used > _MAX_SHARING * storage.count:
                raise _UnfitError("a tensor is spread over its storage, or repeats it")
        return StoredTensor(
            self._archive.path, storage.dtype, shape, storage.start + offset * storage.item_bytes, strides
        )

    @staticmethod
    def _expect(value: object, kind: type[T]) -> T:
        if not isinstance(value, kind):
            raise ValueError(
                f"the pickle has a {type(value).__name__.strip('_')} in the place of a {kind.__name__.strip('_')}"
            )
        return value
