"""Files of `torch.save`, read without torch: an uncompressed zip archive of a pickle and the bytes of its tensors.

A pickle is a program that may call any function. Here it finds the few names below and nothing else.
Source: `torch/serialization.py` and `torch/_utils.py` of PyTorch.
"""

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from numpy.lib.stride_tricks import as_strided

from streamer.whisper.weights.binary import BROKEN, File, UnfitError, open_file
from streamer.whisper.weights.tensors import TYPES, Tensor, is_shape, stored

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


def read(path: Path) -> dict[str, Any]:
    """Return the dictionary that was saved: numbers, texts, lists, dictionaries, and tensors that are read later.

    Raises ModelError if the file is truncated, of the format before PyTorch 1.6, or holds anything else.
    """
    with open_file(path, "torch.save") as file:
        if file.read(1) == b"\x80":
            raise UnfitError("its format is that of PyTorch before 1.6")
        with zipfile.ZipFile(file) as archive:
            unpickler = _Unpickler(file, archive)
            try:
                saved = unpickler.load()
            except (UnfitError, *BROKEN):
                raise
            except Exception:  # noqa: BLE001 - what a broken pickle raises has no end
                raise ValueError("its pickle is malformed") from None
        if not isinstance(saved, dict):
            raise UnfitError(f"it holds a {type(saved).__name__}, not a dictionary")
    return saved


class _Storage(NamedTuple):
    """Elements in a file, of which tensors are made."""

    path: Path
    dtype: str
    n_elements: int
    start: int  # the first byte


class _Unpickler(pickle.Unpickler):
    """Reads an archive's pickle."""

    def __init__(self, file: File, archive: zipfile.ZipFile) -> None:
        self._file, self._archive = file, archive
        # Of the archive's members, all of them in one; its name is of no interest.
        self._folder = next(iter(archive.namelist()), "").partition("/")[0]
        byte_order = f"{self._folder}/byteorder"
        if byte_order in archive.namelist() and archive.read(byte_order) != b"little":
            raise UnfitError("its byte order is not little-endian")
        super().__init__(io.BytesIO(archive.read(self._member("data.pkl"))))

    def find_class(self, module: str, name: str) -> object:
        if module == "torch" and name in _STORAGE_TYPES:
            return _STORAGE_TYPES[name]
        found = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }.get((module, name))
        if found is None:
            raise UnfitError(f"its pickle refers to {f'{module}.{name}'!r:.60}")
        return found

    def persistent_load(self, key: object) -> "_Storage":
        match key:
            case ("storage", str(dtype), str(name), str(), int(count)) if dtype in TYPES:
                info = self._member(f"data/{name}")
            case _:
                raise ValueError("its pickle refers to a storage in an unknown way")
        with self._archive.open(info):
            start = self._file.tell()  # behind the member's header
        if not 0 <= count * TYPES[dtype].itemsize <= min(info.file_size, self._file.n_bytes - start):
            raise ValueError(f"data/{name:.60} is shorter than its pickle says")
        return _Storage(self._file.path, dtype, count, start)

    def _member(self, name: str) -> zipfile.ZipInfo:
        """Return what the archive says of a member, whose bytes are in the file as they are."""
        try:
            info = self._archive.getinfo(f"{self._folder}/{name}")
        except KeyError:
            raise ValueError(f"{f'{self._folder}/{name}'!r:.60} is missing from the archive") from None
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise UnfitError(f"{name!r:.60} is compressed or encrypted")
        return info


def _tensor(storage: object, offset: int, shape: object, strides: object, *more: object) -> Tensor:
    """Return a tensor from the arguments of `_rebuild_tensor_v2`."""
    if not isinstance(storage, _Storage):
        raise ValueError("its pickle has a tensor without a storage")
    if len(more) > 2:
        raise UnfitError("a tensor's elements are to be changed")
    if not is_shape((offset,)) or not is_shape(shape) or not is_shape(strides) or len(shape) != len(strides):
        raise ValueError("its pickle has a tensor without a valid shape")
    count = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if math.prod(shape) and offset + count > storage.n_elements:
        raise ValueError("its pickle has a tensor beyond the end of its storage")
    n_bytes = TYPES[storage.dtype].itemsize
    steps = [stride * n_bytes for stride in strides]
    elements = stored(storage.path, storage.dtype, (count,), storage.start + offset * n_bytes)
    return elements.view(tuple(shape), lambda values: as_strided(values, shape, steps))
