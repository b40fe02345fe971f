"""A few examples for the parsers of tools/fuzz_parsers.py that take little, and that it finds what is wrong."""

from pathlib import Path

import pytest

from streamer.errors import ConfigError
from tools import fuzz_parsers
from tools.fuzz_parsers import Fuzzer, try_out
from tools.parsers import wire
from tools.parsers.table import Parser

SAMPLES = (b'{"a": 1}',)


def parser(parse: object) -> Parser:
    assert callable(parse)
    return Parser("planted", SAMPLES, parse, (ConfigError,))


def fail(error: Exception) -> object:
    def parse(data: bytes) -> None:
        if data != SAMPLES[0]:
            raise error

    return parse


@pytest.mark.parametrize(
    ("error", "n_failures"),
    [(KeyError("a"), 1), (ConfigError("two\nlines"), 1), (ConfigError("x" * 3000), 1), (ConfigError("one line"), 0)],
)
def test_an_error_of_another_type_or_shape_is_found_once(
    error: Exception, n_failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_parsers, "EXAMPLES", (20, 20))
    fuzzer = Fuzzer([planted := parser(fail(error))])
    for seed in (1, 2):
        fuzzer.turn(planted, seed)
    assert len(fuzzer.failures["planted"]) == n_failures


def test_parsers_of_the_wire_name_all_their_errors(tmp_path: Path) -> None:
    for one in wire.make_parsers(tmp_path):
        for sample in one.samples:
            for damaged in (sample[:-1], sample[1:], sample * 2, sample.replace(b":", b"\x00"), b"[" * 20_000, b"\xff"):
                try_out(one, damaged)  # raises what the parser should not
