"""Precisions by name, and graphs with fewer bits."""

import math
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from streamer.errors import ConfigError, UsageError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs import build as graphs
from streamer.whisper.graphs import compress as module
from streamer.whisper.graphs.compress import check_nncf, compress, needs_nncf, parse_precisions
from streamer.whisper.graphs.ports import GraphId
from tests.whisper.graphs.test_build import run
from tests.whisper.support import random_checkpoint

ROOT = Path(__file__).parents[3]

# As narrow as groups of 64 weights allow.
DIMS = ModelDimensions(8, 1500, 64, 1, 1, 100, 32, 64, 1, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int8", ("int8", "int8", "int8")),
        ("f32", ("f32", "f32", "f32")),
        ("encoder=f16,cross_kv=f32,decoder=int8", ("f16", "f32", "int8")),
        (" decoder = int4 ", ("f16", "f16", "int4")),
        ("cross_kv=int8, encoder=f32", ("f32", "int8", "f16")),
    ],
)
def test_precisions_are_for_all_stages_or_for_some(text: str, expected: tuple[str, str, str]) -> None:
    assert parse_precisions(text) == dict(zip(("encoder", "cross_kv", "decoder"), expected, strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int9", "there is no precision 'int9': did you mean int8?"),
        ("F16", "there is no precision 'F16': did you mean f16?"),
        ("", "there is no precision '': use one of f32, f16, int8, int4"),
        ("decodr=int8", "there is no stage 'decodr': did you mean decoder?"),
        ("decoder=bf16", "there is no precision 'bf16': did you mean f16?"),
        ("decoder=", "there is no precision ''"),
        ("decoder=int8,int4", "name a precision for 'int4': expected STAGE=PRECISION"),
        ("decoder=int8,decoder=int4", "name decoder twice"),
        ("x" * 10_000, "there is no precision 'xxx"),
    ],
)
def test_an_unknown_precision_or_stage_names_the_nearest(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_precisions(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_without_nncf_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"need NNCF, .*pip install nncf, or choose f16"):
        check_nncf()
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(UsageError, match="pip install nncf, or"):
        compress(ov.Model([], [], "empty"), "int8")
    for precision in ("f32", "f16"):
        assert not needs_nncf(precision)
        model = ov.Model([], [], "empty")
        assert compress(model, precision) is model


def stored_bytes(model: ov.Model) -> float:
    outputs = [node.output(0) for node in model.get_ops() if node.get_type_name() == "Constant"]
    return float(sum(math.prod(output.shape) * output.element_type.bitwidth / 8 for output in outputs))


@pytest.mark.parametrize(("precision", "least", "most"), [("int8", 0.25, 0.35), ("int4", 0.13, 0.27)])
def test_the_weights_shrink_and_the_graph_stays(
    precision: str, least: float, most: float, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nncf")
    tensors = random_checkpoint(DIMS).tensors

    def build() -> list[ov.Model]:
        return [
            graphs.build_encoder(DIMS, tensors),
            graphs.build_cross_kv(DIMS, tensors),
            graphs.build_decoder(DIMS, tensors, [(1, 0)]),
        ]

    capsys.readouterr()
    small, large = [compress(model, precision) for model in build()], build()
    assert capsys.readouterr() == ("", "")
    # The encoder is mostly its positions here, which are no matrix.
    assert least < sum(map(stored_bytes, small[1:])) / sum(map(stored_bytes, large[1:])) < most
    for ours, theirs in zip(small, large, strict=True):
        for found, expected in zip(ours.inputs + ours.outputs, theirs.inputs + theirs.outputs, strict=True):
            assert found.names == expected.names
            assert found.partial_shape == expected.partial_shape
            assert found.element_type == expected.element_type
    kinds = Counter(
        node.output(0).element_type.get_type_name()
        for node in small[2].get_ops()
        if node.get_type_name() == "Constant" and math.prod(node.output(0).shape) >= 64 * 64
    )
    # The embeddings of tokens (which are the logits' matrix too) and of positions keep 8 bits.
    assert kinds == ({"u8": kinds.total()} if precision == "int8" else {"u8": 1, "u4": kinds.total() - 1})

    mel = {"input_features": np.random.default_rng(0).standard_normal((1, 8, 3000), np.float32)}
    found, expected = (run(model, mel)["last_hidden_state"] for model in (small[0], large[0]))
    assert 0 < np.abs(found - expected).mean() < (0.05 if precision == "int8" else 0.5)


def test_a_compressed_decoder_can_be_fixed_and_keeps_its_bits() -> None:
    pytest.importorskip("nncf")
    decoder = compress(graphs.build_decoder(DIMS, random_checkpoint(DIMS).tensors, [(1, 0)]), "int8")
    fixed = graphs.fix_sizes(decoder, GraphId("decoder", n_tokens=4).ports(DIMS, 1).inputs)
    assert not fixed.is_dynamic()
    assert stored_bytes(fixed) == stored_bytes(decoder)


def test_nncf_is_quiet_tells_nobody_and_needs_no_torch() -> None:
    """In a process of its own: under pytest NNCF switches its telemetry off by itself."""
    pytest.importorskip("nncf")
    code = """
        import socket, sys
        def refuse(*args):
            raise AssertionError(f"the network: {args}")
        socket.socket.connect = socket.socket.connect_ex = refuse
        socket.getaddrinfo = refuse
        import numpy as np, openvino as ov
        import openvino.opset13 as ops
        import openvino_telemetry
        started = []
        openvino_telemetry.Telemetry.__init__ = lambda *args, **keywords: started.append(args)
        from streamer.whisper.graphs.compress import compress
        x = ops.parameter([1, 64], np.float32, "x")
        weight = ops.constant(np.random.rand(64, 64).astype(np.float32))
        model = ov.Model([ops.result(ops.matmul(x, weight, False, True))], [x], "m")
        compress(model, "int8")
        from nncf.telemetry.wrapper import telemetry
        assert type(telemetry).__name__ == "MagicMock", type(telemetry)
        assert not started
        assert "torch" not in sys.modules
        assert sys.modules["openvino_telemetry"] is openvino_telemetry
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, encoding="utf-8", cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""


def test_every_width_of_whisper_is_a_multiple_of_the_group() -> None:
    for width in (192, 384, 512, 768, 1024, 1280):
        assert width % module.GROUP_SIZE == 0
