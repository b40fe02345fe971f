"""Flags of settings: names, help, and what becomes of what is given."""

import argparse
import importlib
import inspect
import re

import pytest

from streamer.settings.flags import add_decoding_flags, add_flags, option_groups
from streamer.settings.load import load_settings
from streamer.settings.registry import SETTINGS, value_of
from streamer.settings.table import OPENAI

OPTIONS = [option for options in option_groups().values() for option in options]


def parser(*, streaming: bool = False) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="x", allow_abbrev=False)
    add_decoding_flags(made, streaming=streaming)
    return made


@pytest.mark.parametrize("streaming", [False, True])
def test_help_names_each_option_that_is_heeded_with_range_default_and_source(
    streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = parser(streaming=streaming).format_help()
    assert [option.name for option in OPTIONS] == [
        name for name in SETTINGS if name.startswith(("decoding.", "output."))
    ]
    assert list(option_groups()) == [option.group for option in OPTIONS if option.group]
    for title, options in option_groups().items():
        assert (f"\n{title}:\n" in text) == any(option.live or not streaming for option in options)
    for option in OPTIONS:
        notes = "; ".join(filter(None, (option.limits, f"default: {option.default_text}", option.source)))
        shown = re.search(rf"\n  {option.option}[ ,].*\s+{re.escape(f'{option.help} ({notes})')}\n", text)
        assert (shown is not None) == (option.live or not streaming), option.name


@pytest.mark.parametrize(
    ("name", "limits", "default"),
    [
        ("server.port", "0 to 65535", "8765"),
        ("server.tls", "", "auto"),
        ("log.level", "debug, info, warning, error", "info"),
        ("decoding.beam_size", "1 to 16", "none"),
        ("decoding.logprob_threshold", "-100 to 0", "-1.0"),
        ("input.exit_at_end", "", "off"),
        ("server.origins", "", "empty"),
    ],
)
def test_limits_and_default_are_said_in_words(name: str, limits: str, default: str) -> None:
    assert (SETTINGS[name].limits, SETTINGS[name].default_text) == (limits, default)


def test_names_are_those_of_openai_whisper() -> None:
    # The package's `transcribe` is the function.
    source = inspect.getsource(importlib.import_module("whisper.transcribe").cli)
    theirs = set(re.findall(r'add_argument\("--([a-z0-9_]+)', source))
    # Where and how it computes, and which files; those are flags of their own.
    others = {"model", "model_dir", "device", "output_dir", "output_format", "verbose", "fp16", "threads"}
    assert theirs - {option.key for option in OPTIONS} == others
    assert [option.name for option in OPTIONS if option.key in theirs and option.source != OPENAI] == []


def test_what_is_given_becomes_the_setting() -> None:
    line = ["--beam-size", "5", "--word-timestamps", "--no-suppress-blank", "--suppress-tokens", "-1"]
    line += ["--logprob-threshold", "none", "--hotwords", "NPU, OpenVINO", "--max-line-width", "20"]
    given = {name: value for name, value in vars(parser().parse_args(line)).items() if value is not None}
    settings = load_settings(None, {}, given)
    assert {name: value_of(settings, name) for name in given} == {
        "decoding.beam_size": 5,
        "decoding.word_timestamps": True,
        "decoding.suppress_blank": False,
        "decoding.suppress_tokens": "-1",
        "decoding.logprob_threshold": None,
        "decoding.hotwords": ("NPU", "OpenVINO"),
        "output.max_line_width": 20,
    }


def test_a_flag_has_the_name_and_the_case_of_its_setting() -> None:
    made, with_port = (argparse.ArgumentParser(prog="x") for _ in range(2))
    add_flags(with_port, "server.port", "server.origins")
    add_flags(made, "input.source", "model.device", "model.name", "input.exit_at_end", "outputs.to")
    line = ["--input", "A.wav", "--device", "npu", "--model", "Base", "--no-exit-at-end", "--to", "A", "--to", "b"]
    assert vars(made.parse_args(line)) == {
        "input.source": "A.wav",
        "model.device": "NPU",
        "model.name": "Base",
        "input.exit_at_end": False,
        "outputs.to": ["A", "b"],
    }
    shown = " ".join(with_port.format_help().split())
    assert "--port N port to listen on; 0 picks a free one (0 to 65535; default: 8765)" in shown
    assert "empty" not in shown
