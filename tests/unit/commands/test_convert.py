"""`streamer models convert`: what it writes, prints and refuses, and how much memory it takes."""

import dataclasses
import io
import json
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from rich.console import Console
from safetensors.numpy import save_file

from streamer.commands.convert import convert
from streamer.errors import ModelError, UsageError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.generation import GenerationConfig, read_generation
from streamer.whisper.graphs import saved
from streamer.whisper.graphs.compress import parse_precisions
from streamer.whisper.source import ModelSource, read_model
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights.checkpoint import Checkpoint, LazyTensors, expected_shapes
from tests.unit.whisper.support import NANO, random_checkpoint

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ALL = ("encoder", "cross_kv", "decoder")

# openai/whisper-base's config.json, as far as it gives dimensions.
BASE = {
    "model_type": "whisper",
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "d_model": 512,
    "encoder_attention_heads": 8,
    "encoder_layers": 6,
    "vocab_size": 51865,
    "max_target_positions": 448,
    "decoder_attention_heads": 8,
    "decoder_layers": 6,
}


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return read_model(NANO, "nano.en")


def run(source: ModelSource, output: Path, weights: str) -> str:
    """Convert, and return what was printed."""
    console = Console(file=io.StringIO(), width=200)
    assert convert(source, output, precisions=parse_precisions(weights), force=False, console=console) == 0
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_converted_model_is_whole_and_its_settings_come_back(source: ModelSource, tmp_path: Path) -> None:
    printed = run(source, tmp_path / "nano", "f16")
    assert f"{tmp_path / 'nano'}\nUse it with: streamer run --model {tmp_path / 'nano'}" in printed
    assert "Speed" not in printed
    model = saved.load(tmp_path / "nano")
    assert tuple(model.description.precisions) == ALL
    assert (model.description.name, model.description.origin) == ("nano.en", "streamer/nano.en")
    assert set(saved.COMPANIONS) < set(model.description.files)
    assert source.checkpoint is not None
    dims = source.checkpoint.dims
    tokenizer = Tokenizer.load(tmp_path / "nano", n_vocab=dims.n_vocab)
    assert read_generation(tmp_path / "nano", dims, tokenizer) == source.generation
    preprocessor = json.loads((tmp_path / "nano" / "preprocessor_config.json").read_text(encoding="utf-8"))
    assert preprocessor["feature_size"] == dims.n_mels
    assert preprocessor["sampling_rate"] == 16_000


def test_generation_settings_of_another_model_are_known(source: ModelSource, tmp_path: Path) -> None:
    run(source, tmp_path / "nano", "f16")
    assert source.checkpoint is not None
    dims = source.checkpoint.dims
    special = dataclasses.replace(source.tokenizer.special, no_timestamps=519)
    other = Tokenizer.load(tmp_path / "nano", n_vocab=dims.n_vocab)
    other.special = special
    with pytest.raises(ModelError, match=r"no_timestamps_token_id 520, .* has 519: the files are from"):
        read_generation(tmp_path / "nano", dims, other)


@pytest.mark.skipif(sys.platform == "win32", reason="the command that is printed is for a POSIX shell")
def test_the_command_that_is_printed_can_be_pasted(source: ModelSource, tmp_path: Path) -> None:
    printed = run(source, tmp_path / "my model's", "f16")
    command = printed.partition("Use it with: ")[2]
    assert shlex.split(command) == ["streamer", "run", "--model", str(tmp_path / "my model's")]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send")
def test_an_interrupted_conversion_fails_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "streamer", "models", "convert", str(NANO), "-o", str(tmp_path / "nano")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stderr is not None
        while "building the encoder" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)  # which is made a SIGINT of, so that this tries both
        printed, said = process.communicate()
    assert process.returncode == 1
    assert printed == ""
    assert said.splitlines()[-1] == "streamer: error: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_a_taken_directory_is_told_before_the_work(source: ModelSource, tmp_path: Path) -> None:
    def read(name: str) -> np.ndarray:
        raise AssertionError(f"{name} was read")

    assert source.checkpoint is not None
    tensors = LazyTensors({name: lambda: read("a tensor") for name in source.checkpoint.tensors})
    unread = dataclasses.replace(source, checkpoint=Checkpoint(source.checkpoint.dims, tensors))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="is no saved model"):
        run(unread, tmp_path / "mine", "f16")


@pytest.mark.parametrize("name", ["encoder.layer_norm.bias", "decoder.layers.2.encoder_attn.v_proj.bias"])
def test_a_checkpoint_that_breaks_in_the_middle_leaves_nothing(source: ModelSource, tmp_path: Path, name: str) -> None:
    def fail() -> np.ndarray:
        raise ModelError("model.safetensors became shorter while it was read")

    checkpoint = source.checkpoint
    assert checkpoint is not None
    tensors = {key: lambda key=key: checkpoint.tensors[key] for key in checkpoint.tensors}
    broken = Checkpoint(checkpoint.dims, LazyTensors({**tensors, name: fail}))
    with pytest.raises(ModelError, match="became shorter"):
        run(dataclasses.replace(source, checkpoint=broken), tmp_path / "new", "f16")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of base's size, random, as float32 on disk: 290 MB."""
    directory = tmp_path_factory.mktemp("base")
    dims = ModelDimensions.from_huggingface(BASE, directory)
    save_file({f"model.{k}": v for k, v in random_checkpoint(dims).tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(BASE), encoding="utf-8")
    return directory


def test_converting_base_takes_less_than_two_and_a_half_times_its_weights(base: Path, tmp_path: Path) -> None:
    """Peak of the whole process, interpreter and libraries included; its own, so that nothing else counts."""
    code = f"""
        import pathlib, sys
        import psutil
        from rich.console import Console
        from streamer.commands import convert as module
        from streamer.whisper.graphs.compress import parse_precisions
        from streamer.whisper.generation import GenerationConfig
        from streamer.whisper.source import ModelSource
        from streamer.whisper.weights import huggingface
        generation = GenerationConfig(
            suppress_tokens=(), begin_suppress_tokens=(), max_initial_timestamp_index=50,
            alignment_heads=tuple((i, j) for i in (3, 4, 5) for j in range(8)), multilingual=True,
        )
        path = pathlib.Path({str(base)!r})
        checkpoint = huggingface.load(path)
        source = ModelSource(path, "", "base", "", None, None, generation, checkpoint=checkpoint)
        module._companions = lambda *_: {{}}
        module.convert(
            source, pathlib.Path({str(tmp_path / "new")!r}), precisions=parse_precisions("int8"),
            force=False, console=Console(stderr=True),
        )
        if sys.platform == "win32":
            print(psutil.Process().memory_info().peak_wset)
        elif sys.platform == "darwin":
            import resource
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        else:  # Linux begins to count ru_maxrss at what the parent has
            status = pathlib.Path("/proc/self/status").read_text()
            print(1024 * int(status.partition("VmHWM:")[2].split()[0]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, encoding="utf-8", cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    n_bytes = sum(
        4 * int(np.prod(shape)) for shape in expected_shapes(ModelDimensions.from_huggingface(BASE, base)).values()
    )
    assert n_bytes == pytest.approx(290e6, rel=0.01)
    assert int(done.stdout) < 2.5 * n_bytes


def test_the_decoder_is_told_what_the_generation_settings_say(source: ModelSource, tmp_path: Path) -> None:
    changed: GenerationConfig = dataclasses.replace(source.generation, alignment_heads=((2, 1),), multilingual=False)
    run(dataclasses.replace(source, generation=changed), tmp_path / "nano", "f32")
    model = saved.load(tmp_path / "nano")
    assert model.description.alignment_heads == ((2, 1),)
    assert model.read("decoder").output("cross_attention").partial_shape == ov.PartialShape([-1, 1, -1, 1500])
