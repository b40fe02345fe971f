"""Files of `torch.save`, read without torch: an uncompressed zip archive of a pickle and the bytes of its tensors.

A pickle is a program, which may call any function and announce any length. Here Python's unpickler has the operations
that `torch.save` writes and no others, finds the few names below and nothing else, and gets no more than a megabyte to
work on. Nothing of a file is run, and it takes no more memory than in proportion to its length.

Source: `torch/serialization.py` and `torch/_utils.py` of PyTorch; `pickletools` of Python describes the operations.
"""

import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from streamer.whisper.weights.binary import UnfitError, open_file
from streamer.whisper.weights.tensors import ITEM_BYTES, StoredTensor, is_shape, spread
from streamer.whisper.weights.zipped import Archive

# That of large-v3 has 200 kB; with an optimizer's state it is three times as much.
_MAX_PICKLE_BYTES = 1 << 20

# Tensors may share a storage, and a small file may not become a large model: bytes of all of them over the file's.
_MAX_GROWTH = 4

_STORAGE_TYPES = {
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ShortStorage": "I16",
    "IntStorage": "I32",
    "LongStorage": "I64",
}

# None of them makes room for what it announces, or takes the hash of something other than a number or a text.
_OPERATIONS = [
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE1"),
    *("TUPLE2", "TUPLE3", "TUPLE", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "BINPERSID", "REDUCE"),
]
_CODES = [getattr(pickle, name)[0] for name in _OPERATIONS]


def read(path: Path) -> dict[str, Any]:
    """Return the dictionary that was saved: numbers, texts, lists, dictionaries by name, and where its tensors are.

    Raises ModelError if the file is truncated, of the format before PyTorch 1.6, or holds anything else.
    """
    with open_file(path, "torch.save") as file:
        if file.read(1) == b"\x80":
            raise UnfitError("its format is that of PyTorch before 1.6")
        try:
            saved = _Unpickler(path, Archive(file)).load()
        except KeyError:
            raise UnfitError("it has operations that torch.save does not write") from None
        except (pickle.UnpicklingError, AttributeError, IndexError, TypeError):
            raise ValueError("the pickle is no program") from None
        if not isinstance(saved, dict):
            raise UnfitError(f"it holds a {type(saved).__name__}, not a dictionary")
    return saved


class _Names(dict[str, Any]):
    """A dictionary by name. Other keys are left out: numbers, chosen for it, make a dictionary slow."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

    def __setitem__(self, key: object, value: object) -> None:
        if isinstance(key, str):
            super().__setitem__(key, value)


class _Unpickler(pickle._Unpickler):
    """Reads an archive's pickle. Not `pickle.Unpickler`: that makes room for all the memo that a number announces."""

    stack: list[Any]  # of the base class

    def __init__(self, path: Path, archive: Archive) -> None:
        self._path = path
        self._archive = archive
        # Of the archive's members, all of them in one; its name is of no interest.
        self._folder = next(iter(archive.names), "").partition("/")[0]
        if f"{self._folder}/byteorder" in archive.names and self._read("byteorder") != b"little":
            raise UnfitError("its byte order is not little-endian")
        self._n_bytes = 0  # of all tensors so far
        super().__init__(io.BytesIO(self._read("data.pkl")))

    def find_class(self, module: str, name: str) -> object:
        if module == "torch" and name in _STORAGE_TYPES:
            return _STORAGE_TYPES[name]
        found = {
            ("collections", "OrderedDict"): _Names,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }.get((module, name))
        if found is None:
            raise UnfitError(f"it asks for {f'{module}.{name}'!r:.60}")
        return found

    def persistent_load(self, key: object) -> StoredTensor:
        """Return a storage, as a tensor of all of its elements."""
        match key:
            case ("storage", str(dtype), str(name), str(), int(count)) if dtype in ITEM_BYTES:
                start, n_bytes = self._archive.find(f"{self._folder}/data/{name}")
            case _:
                raise ValueError("the pickle names a storage in another way")
        if count > n_bytes // ITEM_BYTES[dtype]:
            raise ValueError(f"data/{name:.60} is shorter than the pickle says")
        return StoredTensor(self._path, dtype, (n_bytes // ITEM_BYTES[dtype],), start)

    def _read(self, name: str) -> bytes:
        with self._archive.open(f"{self._folder}/{name}") as member:
            data = member.read(_MAX_PICKLE_BYTES + 1)
        if len(data) > _MAX_PICKLE_BYTES:
            raise UnfitError(f"{name} has more than {_MAX_PICKLE_BYTES >> 20} MiB")
        return data

    def _tensor(self, storage: object, offset: int, shape: object, strides: object, *more: object) -> StoredTensor:
        """Return a tensor from the arguments of `_rebuild_tensor_v2`."""
        if not isinstance(storage, StoredTensor) or storage.strides is not None:
            raise ValueError("the pickle has a tensor without a storage")
        if len(more) > 2:
            raise UnfitError("a tensor's elements are to be changed")
        if not is_shape((offset,)) or not is_shape(shape) or not is_shape(strides) or len(shape) != len(strides):
            raise ValueError("the pickle has a tensor without a shape")
        shape, strides = tuple(shape), tuple(strides)
        item_bytes, count = ITEM_BYTES[storage.dtype], math.prod(shape)
        if count and offset + spread(shape, strides) > storage.shape[0]:
            raise ValueError("the pickle has a tensor that its storage does not hold")
        self._n_bytes += count * item_bytes
        if self._n_bytes > _MAX_GROWTH * self._archive.n_bytes:
            raise UnfitError(f"its tensors have more than {_MAX_GROWTH} times its size")
        return StoredTensor(self._path, storage.dtype, shape, storage.start + offset * item_bytes, strides)

    def _load_dict(self) -> None:
        self.stack.append(_Names())

    def _load_state(self) -> None:
        """Leave out an object's attributes, such as the `_metadata` of weights, which no tensor depends on."""
        self.stack.pop()

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code: pickle._Unpickler.dispatch[code] for code in _CODES},
        pickle.EMPTY_DICT[0]: _load_dict,
        pickle.BUILD[0]: _load_state,
    }
