"""Parsers of files: settings, audio, weights, tokenizers, graphs, grammars."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from safetensors.numpy import save_file

from streamer.audio.sources.base import SourceCallbacks
from streamer.audio.sources.file import read_audio
from streamer.audio.sources.stdin import StdinPcm
from streamer.audio.wav import read_wav_header
from streamer.errors import ConfigError, ModelError, StreamerError, UsageError
from streamer.settings.load import load_settings
from streamer.settings.table import SETTINGS
from streamer.whisper.decode.grammar import Grammar
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.generation import read_generation
from streamer.whisper.graphs import saved
from streamer.whisper.hub import cache, files
from streamer.whisper.source import load_checkpoint, read_model
from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import split_to_words
from streamer.whisper.weights import lora
from streamer.whisper.weights.ggml_blocks import BLOCKS, dequantize
from tests.whisper.support import NANO, random_checkpoint
from tests.whisper.test_hostile import COMPANIONS, DIMS, FORMATS
from tools.benchmarks.timeline import Timeline
from tools.parsers.table import Parser, makes_parsers, text, written

ROOT = Path(__file__).resolve().parent.parent.parent

GRAMMARS = (
    b'root ::= (expr "=" term "\\n")+\nexpr ::= term ([-+*/] term)*\n'
    b'term ::= "x" | [0-9]{1,3} | "(" expr ")" # a comment\n',
    b'root ::= "yes" | "no" | other\nother ::= [a-z\\x41-\\u005A]* [^"\\\\]? .\n',
)


@makes_parsers
def _settings(folder: Path) -> list[Parser]:
    path = folder / "config.yaml"
    empty = written(folder / "empty.yaml", b"")
    names = [setting.variable for setting in SETTINGS.values()]

    def environment(data: bytes) -> object:
        name, _, value = text(data).partition("=")
        return load_settings(empty, {name: value}, {})

    def flags(data: bytes) -> object:
        name, _, value = text(data).partition("=")
        return load_settings(empty, {}, {name: value})

    return [
        Parser(
            "config.yaml",
            (
                (ROOT / "config.yaml").read_bytes(),
                b"server:\n  port: 1e3\n  origins: [a, b]\nmodel:\n  windows_s: [5, 10]\n",
                b"decoding: {language: no, task: 'both'}",
            ),
            lambda data: load_settings(written(path, data), {}, {}),
            (ConfigError,),
        ),
        Parser("environment", [f"{name}=5,10".encode() for name in names], environment, (ConfigError,)),
        Parser("flags", [f"{name}=0.5".encode() for name in SETTINGS], flags, (ConfigError,)),
        Parser("GBNF", GRAMMARS, lambda data: Grammar.read(written(folder / "g.gbnf", data)), (ConfigError,)),
        Parser("timeline", (_timeline(),), lambda data: Timeline.from_json(text(data)), (UsageError,)),
    ]


@makes_parsers
def _audio(folder: Path) -> list[Parser]:
    rng = np.random.default_rng(0)
    sound = (0.1 * rng.standard_normal((1600, 2))).astype(np.float32)
    samples: dict[str, bytes] = {}
    for suffix, format, subtype in (
        ("wav", "WAV", "PCM_16"),
        ("flt", "WAV", "FLOAT"),
        ("rf64", "RF64", "PCM_24"),
        ("ext", "WAVEX", "PCM_16"),
        ("flac", "FLAC", "PCM_16"),
        ("ogg", "OGG", "VORBIS"),
        ("opus", "OGG", "OPUS"),
        ("mp3", "MP3", "MPEG_LAYER_III"),
        ("aiff", "AIFF", "PCM_16"),
        ("au", "AU", "ULAW"),
        ("w64", "W64", "PCM_16"),
        ("caf", "CAF", "ALAC_16"),
    ):
        held = io.BytesIO()
        soundfile.write(held, sound, 16_000, format=format, subtype=subtype)
        samples[suffix] = held.getvalue()
    wavs = [samples[name] for name in ("wav", "flt", "rf64", "ext")]

    def read(data: bytes) -> None:
        total = 0
        for block in read_audio(written(folder / "sound", data), lambda error: None):
            total += len(block)
            if total > 1 << 24:  # a header may announce hours of silence, which is no fault
                break

    def piped(data: bytes) -> None:
        ended: list[StreamerError | None] = []
        source = StdinPcm(io.BytesIO(data), "s16le", 16_000, 1)
        nothing = SourceCallbacks(
            on_audio=lambda s: None, on_gap=lambda n, r: None, on_error=lambda e: None, on_end=ended.append
        )
        source._run(nothing)

    return [
        Parser("audio files", list(samples.values()), read, (StreamerError,)),
        Parser("WAV header", wavs, lambda data: read_wav_header(data), ()),
        Parser("standard input", [*wavs, bytes(100)], piped, (StreamerError,)),
    ]


@makes_parsers
def _models(folder: Path) -> list[Parser]:
    checkpoint = random_checkpoint(DIMS)
    parsers = []
    for name, write in FORMATS.items():
        if name == "triple":  # each takes a process; its descriptions are read below
            continue
        whole = folder / name.replace(" ", "-")
        whole.mkdir()
        write(whole, checkpoint)
        shutil.copy(NANO / "tokenizer.json", whole)
        for file, content in COMPANIONS.items():
            (whole / file).write_text(json.dumps(content), encoding="utf-8")
        for path in sorted(whole.iterdir()):
            shared = path.name in COMPANIONS or path.name == "tokenizer.json"
            a_graph = path.suffix == ".xml" or (path.suffix == ".bin" and name == "saved graphs")
            if not a_graph and (name == "Hugging Face" or not shared):
                parsers.append(_one_file(name, whole, path))
    return parsers


def _one_file(name: str, whole: Path, path: Path) -> Parser:
    sound = path.read_bytes()

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        try:
            if path.suffix in (".json", ".txt"):
                read_model(whole, "damaged")
            else:
                _, loaded = load_checkpoint(whole)
                for tensor in loaded.tensors:
                    _ = loaded.tensors[tensor].shape
        finally:
            path.write_bytes(sound)

    return Parser(f"{name}: {path.name}", (sound,), parse, (ModelError,))


@makes_parsers
def _adapters(folder: Path) -> list[Parser]:
    checkpoint = random_checkpoint(DIMS)
    matrices = {
        f"base_model.model.model.encoder.layers.0.fc1.lora_{part}.weight": np.ones(shape, np.float32)
        for part, shape in (("A", (4, 32)), ("B", (128, 4)))
    }
    save_file(matrices, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "rank_pattern": {"fc1": 4}, "alpha_pattern": {"fc1": 8}}
    (folder / lora.CONFIG).write_text(json.dumps(config), encoding="utf-8")

    def parser(path: Path) -> Parser:
        sound = path.read_bytes()

        def run(data: bytes) -> None:
            path.write_bytes(data)
            try:
                tensors = lora.merged(checkpoint, folder).tensors
                for name in tensors:
                    _ = tensors[name].shape
            finally:
                path.write_bytes(sound)

        return Parser(f"LoRA: {path.name}", (sound,), run, (ModelError,))

    return [parser(path) for path in sorted(folder.iterdir())]


@makes_parsers
def _ggml_blocks(folder: Path) -> list[Parser]:
    def parse(data: bytes) -> None:
        for layout in BLOCKS.values():
            n_blocks = len(data) // layout.itemsize
            dequantize(np.frombuffer(data[: n_blocks * layout.itemsize], layout))

    return [Parser("ggml blocks", (bytes(range(256)) * 4,), parse, ())]


@makes_parsers
def _parts(folder: Path) -> list[Parser]:
    tokenizer = Tokenizer.load(NANO, n_vocab=2022)
    dims = ModelDimensions.from_huggingface(json.loads((NANO / "config.json").read_text(encoding="utf-8")), NANO)
    gpt2, tokens, model, record = (folder / name for name in ("gpt2", "tokens", "model", "record"))
    for made in (gpt2, tokens, model, record):
        made.mkdir()
    shutil.copy(NANO / "vocab.json", gpt2)
    ranks = b"".join(b"%s %d\n" % (_base64(bytes([i])), i) for i in range(256)) + b"YWI= 256\n"
    FORMATS["saved graphs"](model, random_checkpoint(DIMS))
    xml = model / "decoder.xml"
    commit = "0" * 40
    record_sample = json.dumps({"commit": commit, "files": {"model.safetensors": 5, "config.json": 2}}).encode()
    generation = (NANO / "generation_config.json").read_bytes()
    return [
        Parser(
            "vocab.json",
            ((gpt2 / "vocab.json").read_bytes(),),
            _kept(gpt2 / "vocab.json", lambda: vocabulary.load(gpt2, 2022)),
            (ModelError,),
        ),
        Parser(
            "tiktoken ranks",
            (ranks,),
            _kept(tokens / "x.tiktoken", lambda: vocabulary.load(tokens, 1800)),
            (ModelError,),
        ),
        Parser(
            "a tokenizer of any name",
            (ranks, b'{"a":0,"b":1}'),
            _kept(tokens / "y", lambda: vocabulary.load(tokens / "y", 300)),
            (ModelError,),
        ),
        Parser(
            "tokenizer.json, used",
            ((NANO / "tokenizer.json").read_bytes(),),
            _kept(tokens / "tokenizer.json", lambda: _use(tokens)),
            (ModelError,),
        ),
        Parser(
            "generation_config.json",
            (generation,),
            _kept(tokens / "generation_config.json", lambda: read_generation(tokens, dims, tokenizer)),
            (ModelError,),
        ),
        Parser(
            "hub record", (record_sample,), lambda data: _record(record, data), (OSError, ValueError, RecursionError)
        ),
        Parser(
            "hub names",
            (b"openai/whisper-tiny.en", b"base.en", b"a/b/ggml-x.bin"),
            lambda data: cache.parse(text(data)),
            (),
        ),
        Parser(
            "hub file lists",
            (
                b"model-00001-of-00002.safetensors\nmodel-00002-of-00002.safetensors\nconfig.json",
                b"ggml-a.bin\nggml-b.bin",
                b"pytorch_model.bin",
            ),
            lambda data: files.choose(text(data).split("\n"), "a/b"),
            (ModelError,),
        ),
        Parser("graphs", (xml.read_bytes(),), _kept(xml, lambda: read_all_of(model)), (ModelError,)),
    ]


def read_all_of(model: Path) -> None:
    """Read a saved model's description, without OpenVINO: a damaged graph may crash it."""
    saved.load(model)


def _use(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder, n_vocab=2022)
    split_to_words(tokenizer, tokenizer.encode("Hello wörld \ud7ff!"), "en")
    tokenizer.decode(range(0, 2022, 7))


def _record(path: Path, data: bytes) -> None:
    cache._read_record(written(path / "record", data))


def _kept(path: Path, parse: Callable[[], object]) -> Callable[[bytes], object]:
    """Return a parser that finds the data at a path, where it stays until the next."""

    def run(data: bytes) -> object:
        path.write_bytes(data)
        return parse()

    return run


def _base64(data: bytes) -> bytes:
    import base64

    return base64.b64encode(data)


def _timeline() -> bytes:
    return (
        Timeline(
            system="s",
            recording="r",
            audio_s=1.0,
            speech=[(0.1, "start", 0.2)],
            revisions=[],
            gaps=[(0.0, 1.0)],
            cpu_s=1.0,
            peak_rss_mb=1.0,
            encoder_calls=1,
            decoder_calls=None,
            decoder_tokens=3,
        )
        .to_json()
        .encode()
    )
