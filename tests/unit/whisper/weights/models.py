"""Whole models of each format, as small as they can be, and ways to damage them."""

import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import (
    ctranslate2,
    formats,
    ggml,
    huggingface,
    lora,
    mlx,
    npz,
    openai,
    openvino,
    safetensors,
)
from streamer.whisper.weights import torch as torch_file
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import nano_table, random_checkpoint, write_huggingface, write_openai
from tests.unit.whisper.weights.ctranslate2_writer import write_ctranslate2
from tests.unit.whisper.weights.ggml_writer import pack_tensor, write_ggml
from tests.unit.whisper.weights.mlx_writer import write_mlx
from tests.unit.whisper.weights.openvino_writer import write_optimum, write_triple

# As small as a Whisper in groups of 64 can be: its encoder positions are fixed.
DIMS = ModelDimensions(2, 1500, 64, 2, 1, 40, 32, 64, 2, 1)
TINY = random_checkpoint(DIMS)

# Layers that `write_adapter` changes, one of them a convolution.
QUERY, FC1, CONV = "encoder.layers.0.self_attn.q_proj", "decoder.layers.0.fc1", "encoder.conv2"
ADAPTER: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "openai/whisper-tiny",
    "r": 4,
    "lora_alpha": 16,
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "target_modules": ["q_proj", "fc1", "conv2"],
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}


class Format(NamedTuple):
    """A format that weights come in: its loader, its writer, and where the tensors are."""

    load: Callable[[Path], Any]
    write: Callable[[Path, Checkpoint], object]
    file: str

    # Memory for reading the largest tensor, in its bytes as float32.
    most: float = 2.0

    def path(self, directory: Path) -> Path:
        """Return what is given to the loader."""
        return directory / self.file if self.file.startswith("x.") else directory


def write_words(directory: Path, checkpoint: Checkpoint, kind: str = "q5_0") -> Path:
    """Write whisper.cpp's form, with nano.en's vocabulary as far as it goes."""
    filters = np.zeros((checkpoint.dims.n_mels, 201), np.float32)
    return write_ggml(directory / "x.bin", checkpoint, nano_table()[: checkpoint.dims.n_vocab], filters, kind)


def matrices(
    checkpoint: Checkpoint = TINY,
    layers: Sequence[str] = (QUERY, FC1, CONV),
    dtype: str = "float32",
    ranks: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return A and B of layers; `ranks` are those of some of them."""
    random = np.random.default_rng(1)
    found = {}
    for layer in layers:
        r = (ranks or {}).get(layer.rpartition(".")[2], 4)
        n_out, *n_in = checkpoint.tensors[f"{layer}.weight"].shape
        for part, shape in (("A", (r, *n_in)), ("B", (n_out, r, *(1,) * (len(n_in) - 1)))):
            values = random.standard_normal(shape, dtype=np.float32).astype(dtype)
            found[f"base_model.model.model.{layer}.lora_{part}.weight"] = values
    return found


def write_adapter(directory: Path, tensors: dict[str, Any] | None = None, /, **config: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({**ADAPTER, **config}), encoding="utf-8")
    save_file(matrices() if tensors is None else tensors, directory / "adapter_model.safetensors")
    return directory


FORMATS = {
    "Hugging Face": Format(huggingface.load, write_huggingface, "model.safetensors", 1.6),
    "openai-whisper": Format(openai.load, lambda d, c: write_openai(d / "x.pt", c, "bfloat16"), "x.pt", 1.6),
    "ggml": Format(ggml.load, write_words, "x.bin"),
    "CTranslate2": Format(ctranslate2.load, lambda d, c: write_ctranslate2(d, c, int8=True), "model.bin"),
    "MLX, npz": Format(mlx.load, lambda d, c: write_mlx(d, c, 8), "weights.npz"),
    "MLX, safetensors": Format(
        mlx.load, lambda d, c: write_mlx(d, c, 4, file="weights.safetensors"), "weights.safetensors"
    ),
}

GRAPHS = {
    "optimum": Format(openvino.load, write_optimum, "openvino_decoder_model.xml"),
    "triple": Format(openvino.load, write_triple, "whisper_medium_decoder_static_kvcache_32_lm_QKs.xml"),
}

# Parts of formats, and what finds the format of a path.
PARTS = {
    "LoRA": Format(partial(lora.merged, TINY), lambda d, _: write_adapter(d), "adapter_model.safetensors"),
    "npz": Format(npz.read_header, lambda d, _: np.savez(d / "x.npz", x=np.zeros(3, np.float32)), "x.npz"),
    "safetensors": Format(
        safetensors.read_header,
        lambda d, _: save_file({"x": np.zeros(2, np.float32)}, d / "x.safetensors"),
        "x.safetensors",
    ),
    "torch.save": Format(torch_file.read, lambda d, _: torch.save({"a": torch.ones(4)}, d / "x.pt"), "x.pt"),
    "any": Format(formats.find, lambda d, _: None, "none"),
}


def prepare(directory: Path, kind: str, **damages: Any) -> Callable[[], None]:  # noqa: ANN401 - see DAMAGES
    """Write a model of a format, damage it, and return what reads all of it."""
    found = {**FORMATS, **GRAPHS, **PARTS}[kind]
    found.write(directory, TINY)
    path, file = found.path(directory), directory / found.file
    at = damages.pop("at", "")
    if "path" in damages:
        path = directory / damages.pop("path")
    for damage, value in damages.items():
        if damage in ("bytes", "numbers"):
            value = (at, *value)
        DAMAGES[damage](file, value)

    def read() -> None:
        read_all(found.load(path))

    return read


def read_all(found: object) -> None:
    """Read the tensors of a checkpoint one by one."""
    if isinstance(found, Checkpoint):
        for name in found.tensors:
            assert found.tensors[name].size


def change_config(file: Path, changes: Mapping[str, object]) -> None:
    """Change keys of the JSON file beside; "" takes one out."""
    (path,) = file.parent.glob("*config.json")
    data = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({key: value for key, value in data.items() if value != ""}), encoding="utf-8")


def change_arrays(file: Path, changes: Mapping[str, Any]) -> None:
    """Replace arrays of a file, add them, or take them out with None; "float32 2 3" stands for zeros of a shape."""

    def changed(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in {**arrays, **given}.items() if value is not None}

    given = {name: zeros(value) if isinstance(value, str) else value for name, value in changes.items()}
    if file.suffix == ".npz":
        np.savez(file, **changed(np.load(file)))
    elif file.suffix == ".pt":
        content = torch.load(file)
        given = {name: value if value is None else torch.from_numpy(value) for name, value in given.items()}
        torch.save({**content, "model_state_dict": changed(content["model_state_dict"])}, file)
    elif file.suffix == ".safetensors":
        save_file(changed(load_file(file)), file)
    else:
        with file.open("ab") as appended:
            for name, value in given.items():
                appended.write(pack_tensor(name, np.asarray(value), "f32"))


def zeros(text: str) -> np.ndarray | None:
    dtype, *shape = text.split() or [""]
    return np.zeros([int(length) for length in shape], dtype) if dtype else None


def overwrite(layout: str, file: Path, given: tuple[str, int, int]) -> None:
    """Write numbers at a distance from a text, else from the beginning."""
    text, offset, *numbers = given
    data = bytearray(file.read_bytes())
    begin = data.index(text.encode()) if text else 0
    struct.pack_into(f"<{len(numbers)}{layout}", data, begin + offset, *numbers)
    file.write_bytes(data)


def change_members(file: Path, changes: Mapping[str, str]) -> None:
    """Replace members of an archive, by their name without the folder, add them, or take them out with ""."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    folder = next(iter(members)).rpartition("/")[0]
    members |= {f"{folder}/{name}".lstrip("/"): data.encode("latin-1") for name, data in changes.items()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            if data:
                archive.writestr(name, data)


def add_files(file: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = file.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("latin-1"))


def program(value: bytes) -> bytes:
    """Return a pickle of {"a": value}."""
    return b"\x80\x02}X\1\0\0\0a" + value + b"s."


def write_archive(path: Path, program: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """Write an archive as `torch.save` does, around any pickle, with one storage of 8 bytes."""
    members = {"data.pkl": program, "byteorder": b"little", "data/0": bytes(range(8)), "version": b"3\n"}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(f"model/{name}", data)
    return path


def write_description(file: Path, description: str, data: bytes = bytes(12), version: int = 1) -> None:
    """Write an archive of one array with any description."""
    length = struct.pack("<H" if version == 1 else "<I", len(description))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY" + bytes((version, 0)) + length + description.encode("latin-1") + data)


def write_table(file: Path, table: object, n_bytes: int = 8) -> None:
    """Write a file of safetensors with any header, JSON or not."""
    header = table.encode("latin-1") if isinstance(table, str) else json.dumps(table).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(n_bytes))


DAMAGES: dict[str, Callable[[Path, Any], object]] = {
    "add": add_files,
    "arrays": change_arrays,
    "bytes": partial(overwrite, "B"),
    "compressed": lambda file, _: write_archive(file, pickle.dumps({}), zipfile.ZIP_DEFLATED),
    "config": change_config,
    "content": lambda file, text: file.write_bytes(text.encode("latin-1")),
    "cut": lambda file, n_bytes: file.write_bytes(file.read_bytes()[:n_bytes]),
    "description": write_description,
    "members": change_members,
    "numbers": partial(overwrite, "i"),
    "pickle": lambda file, text: write_archive(file, program(text.encode("latin-1"))),
    "remove": lambda file, name: (file.parent / name).unlink(),
    "renamed": lambda file, names: file.write_text(file.read_text("utf-8").replace(*names), "utf-8"),
    "saved": lambda file, value: torch.save(value, file),
    "table": write_table,
}
