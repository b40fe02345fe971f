"""Files of `torch.save`, read without torch: an uncompressed zip archive of a pickle and the bytes of its tensors.

The pickle is a program for a stack machine, and is not run by `pickle`: the machine here knows the operations that
`torch.save` writes, and calls nothing. Where the program asks for a call, only those that put a tensor together from
its storage are understood. So a file can neither run anything, nor take more memory than in proportion to its length:
Python's unpickler makes room for what nine bytes announce, before it looks whether that is there.

Source: `pickletools` of Python's library describes the operations, `torch/serialization.py` and `torch/_utils.py` of
PyTorch what they mean.
"""

import math
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from streamer.whisper.weights.tensors import ITEM_BYTES, StoredTensor, is_shape, spread
from streamer.whisper.weights.zipped import Archive, UnfitError, open_file

# That of large-v3 has 200 kB and 46 thousand operations; with an optimizer's state it is three times as much.
_MAX_PICKLE_BYTES = 4 << 20
_MAX_OPERATIONS = 1 << 19

# A tensor may be a view of a larger one, and two may share a storage, both within reason.
_MAX_SPREAD = 16
_MAX_SHARING = 4

_STORAGE_TYPES = {
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.FloatStorage": "F32",
    "torch.DoubleStorage": "F64",
    "torch.BoolStorage": "BOOL",
    "torch.ByteStorage": "U8",
    "torch.CharStorage": "I8",
    "torch.ShortStorage": "I16",
    "torch.IntStorage": "I32",
    "torch.LongStorage": "I64",
}
_ORDERED_DICT = "collections.OrderedDict"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
_GLOBALS = frozenset((*_STORAGE_TYPES, _ORDERED_DICT, _TENSOR, _PARAMETER))

T = TypeVar("T")


def read(path: Path) -> dict[str, Any]:
    """Return the dictionary that was saved: numbers, texts, lists, dictionaries by name, and where its tensors are.

    Raises ModelError where the file is truncated, of the format before PyTorch 1.6, or holds anything else.
    """
    with open_file(path, "torch.save") as file:
        head = file.read(512)
        if head.startswith(b"\x80") or head[257:262] == b"ustar":
            raise UnfitError("its format is that of PyTorch before 1.6")
        saved = _Machine(path, Archive(file)).run()
        if not isinstance(saved, dict):
            raise UnfitError(f"it holds a {type(saved).__name__.strip('_')}, not a dictionary")
    return saved


@dataclass(frozen=True, slots=True)
class _Global:
    """What a pickle asks for by name."""

    name: str


@dataclass(slots=True)
class _Storage:
    """Elements that tensors are made of."""

    dtype: str
    start: int
    count: int
    used: int = 0  # elements of the tensors made of it so far


class _Machine:
    """Runs the program of an archive's pickle. On its stack are plain data, and instances of the classes above."""

    def __init__(self, path: Path, archive: Archive) -> None:
        self._path = path
        self._archive = archive
        # Of the archive's members, all of them in one; its name is of no interest.
        self._folder = next(iter(archive.names), "").partition("/")[0]
        if f"{self._folder}/byteorder" in archive.names and self._read("byteorder") != b"little":
            raise UnfitError("its byte order is not little-endian")
        self._storages: dict[str, _Storage] = {}
        self._stack: list[Any] = []
        # Lengths of the stack at the marks.
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> object:
        try:
            for n, (operation, argument, _) in enumerate(pickletools.genops(self._read("data.pkl"))):
                if n == _MAX_OPERATIONS:
                    raise UnfitError(f"its pickle has more than {_MAX_OPERATIONS} operations")
                self._step(operation.name, argument)
            return self._stack.pop()
        except (IndexError, KeyError):
            raise ValueError("the pickle takes from where nothing is") from None

    def _read(self, name: str) -> bytes:
        start, n_bytes = self._archive.find(f"{self._folder}/{name}")
        if n_bytes > _MAX_PICKLE_BYTES:
            raise UnfitError(f"{name} has more than {_MAX_PICKLE_BYTES >> 20} MiB")
        return self._archive.read(start, n_bytes)

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
                raise UnfitError(f"it has the operation {operation}")

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
            raise UnfitError(f"it asks for {name!r:.60}")
        return _Global(name)

    def _storage(self, key: object) -> _Storage:
        match key:
            case ("storage", _Global(kind), str(name), str(), int(count)) if kind in _STORAGE_TYPES:
                dtype = _STORAGE_TYPES[kind]
            case _:
                raise ValueError("the pickle names a storage in another way")
        if name not in self._storages:
            start, n_bytes = self._archive.find(f"{self._folder}/data/{name}")
            self._storages[name] = _Storage(dtype, start, n_bytes // ITEM_BYTES[dtype])
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
        raise UnfitError(f"it calls {function}")

    def _tensor(self, arguments: tuple[Any, ...]) -> StoredTensor:
        storage = self._expect(arguments[0], _Storage)
        offset, shape, strides = arguments[1:4]
        if not is_shape((offset,)) or not is_shape(shape) or not is_shape(strides) or len(shape) != len(strides):
            raise ValueError("the pickle has a tensor without a shape")
        shape, strides = tuple(shape), tuple(strides)
        count = math.prod(shape)
        storage.used += count
        if count:
            n_spread = spread(shape, strides)
            if offset + n_spread > storage.count:
                raise ValueError("the pickle has a tensor that its storage does not hold")
            if n_spread > _MAX_SPREAD * count or storage.used > _MAX_SHARING * storage.count:
                raise UnfitError("a tensor is spread over its storage, or repeats it")
        start = storage.start + offset * ITEM_BYTES[storage.dtype]
        return StoredTensor(self._path, storage.dtype, shape, start, strides)

    @staticmethod
    def _expect(value: object, kind: type[T]) -> T:
        if not isinstance(value, kind):
            raise ValueError(
                f"the pickle has a {type(value).__name__.strip('_')} in the place of a {kind.__name__.strip('_')}"
            )
        return value
