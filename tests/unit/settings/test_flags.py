"""Flags of settings: names, help, and what becomes of what is given."""

import argparse
import importlib
import inspect
import re

import pytest

from streamer.settings.flags import add_decoding_flags, add_flags, option_groups
from streamer.settings.load import load_settings
from streamer.settings.registry import SETTINGS
from streamer.settings.table import OPENAI

OPTIONS = [option for options in option_groups().values() for option in options]


def parser(*, streaming: bool = False) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="x", allow_abbrev=False)
    add_decoding_flags(made, streaming=streaming)
    return made


def test_there_is_a_flag_for_each_option_in_their_order() -> None:
    assert [option.name for option in OPTIONS] == [
        name for name in SETTINGS if name.startswith(("decoding.", "output."))
    ]


def test_help_names_each_with_range_default_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = parser().format_help()
    for title in option_groups():
        assert f"\n{title}:\n" in text
    for option in OPTIONS:
        notes = "; ".join(filter(None, (option.limits, f"default: {option.default_text}", option.source)))
        said = re.escape(f"{option.help} ({notes})")
        assert re.search(rf"\n  {option.option}[ ,].*\s+{said}\n", text), option.name


def test_no_line_of_help_runs_on() -> None:
    for setting in SETTINGS.values():
        assert len(setting.help) < 100, setting.name


def test_live_captions_have_only_what_they_heed() -> None:
    shown = parser(streaming=True).format_help()
    for option in OPTIONS:
        assert (re.search(rf"{option.option}[ ,]", shown) is not None) == option.live, option.name


def test_names_are_those_of_openai_whisper() -> None:
    # The package's `transcribe` is the function.
    source = inspect.getsource(importlib.import_module("whisper.transcribe").cli)
    theirs = set(re.findall(r'add_argument\("--([a-z0-9_]+)', source))
    # Where and how it computes, and which files; those are flags of their own.
    assert theirs - {option.key for option in OPTIONS} == {
        "model",
        "model_dir",
        "device",
        "output_dir",
        "output_format",
        "verbose",
        "fp16",
        "threads",
    }
    for option in OPTIONS:
        if option.key in theirs:
            assert option.source == OPENAI, option.name


def test_what_is_given_becomes_the_setting() -> None:
    line = ["--beam-size", "5", "--word-timestamps", "--no-suppress-blank", "--suppress-tokens", "-1"]
    line += ["--logprob-threshold", "none", "--hotwords", "NPU, OpenVINO"]
    line += ["--max-line-width", "20", "--highlight-words"]
    given = {name: value for name, value in vars(parser().parse_args(line)).items() if value is not None}
    settings = load_settings(None, {}, given)
    assert settings.decoding.beam_size == 5
    assert settings.decoding.word_timestamps
    assert not settings.decoding.suppress_blank
    assert settings.decoding.suppress_tokens == "-1"
    assert settings.decoding.logprob_threshold is None
    assert settings.decoding.hotwords == ("NPU", "OpenVINO")
    assert settings.output.max_line_width == 20
    assert settings.output.highlight_words
    assert len(given) == 8


def test_a_flag_has_the_name_and_the_case_of_its_setting() -> None:
    made = argparse.ArgumentParser(prog="x")
    add_flags(made, "input.source", "model.device", "model.name", "input.exit_at_end")
    given = vars(made.parse_args(["--input", "A.wav", "--device", "npu", "--model", "Base", "--no-exit-at-end"]))
    assert given == {
        "input.source": "A.wav",
        "model.device": "NPU",
        "model.name": "Base",
        "input.exit_at_end": False,
    }
