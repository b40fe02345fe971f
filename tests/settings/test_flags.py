"""Flags of decoding and output: all settings, each with its default and source, here and in the documents."""

import argparse
import importlib
import inspect
import re
from pathlib import Path

import pytest

from streamer.settings.flags import GROUPS, OPENAI, Flag, add_decoding_flags
from streamer.settings.table import all_settings, load_settings

FLAGS = [flag for flags in GROUPS.values() for flag in flags]
DOCUMENT = Path(__file__).parents[2] / "docs" / "decoding.md"


def parser(*, streaming: bool = False) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="x", allow_abbrev=False)
    add_decoding_flags(made, streaming=streaming)
    return made


def test_there_is_a_flag_for_each_setting_in_their_order() -> None:
    settings = [name for name in all_settings() if name.startswith(("decoding.", "output."))]
    assert [flag.setting for flag in FLAGS] == settings


def test_a_switch_is_a_flag_without_a_value() -> None:
    for flag in FLAGS:
        assert (flag.metavar == "") == (all_settings()[flag.setting].type is bool), flag


def test_help_names_each_with_default_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = parser().format_help()
    for title in GROUPS:
        assert f"\n{title}:\n" in text
    for flag in FLAGS:
        said = re.escape(f"{flag.help} (default: {flag.default}; {flag.source})")
        assert re.search(rf"\n  {flag.option}[ ,].*\s+{said}\n", text), flag


def test_no_line_of_help_runs_on() -> None:
    for flag in FLAGS:
        assert len(f"{flag.help} (default: {flag.default}; {flag.source})") < 120, flag


def test_live_captions_have_only_what_they_heed() -> None:
    options = parser(streaming=True).format_help()
    for flag in FLAGS:
        assert (re.search(rf"{flag.option}[ ,]", options) is not None) == flag.streaming, flag


def test_names_are_those_of_openai_whisper() -> None:
    # The package's `transcribe` is the function.
    source = inspect.getsource(importlib.import_module("whisper.transcribe").cli)
    theirs = set(re.findall(r'add_argument\("--([a-z0-9_]+)', source))
    ours = {flag.setting.partition(".")[2] for flag in FLAGS}
    # Where and how it computes, and which files; those are flags of their own.
    assert theirs - ours == {
        "model",
        "model_dir",
        "device",
        "output_dir",
        "output_format",
        "verbose",
        "fp16",
        "threads",
    }
    for flag in FLAGS:
        if flag.setting.partition(".")[2] in theirs:
            assert flag.source == OPENAI, flag


def test_what_is_given_becomes_the_setting() -> None:
    line = ["--beam-size", "5", "--word-timestamps", "--no-suppress-blank", "--suppress-tokens", "-1"]
    line += ["--logprob-threshold", "none", "--hotwords", "NPU, OpenVINO", "--max-line-width", "20", "--karaoke"]
    given = {name: value for name, value in vars(parser().parse_args(line)).items() if value is not None}
    settings = load_settings(None, {}, given)
    assert settings.decoding.beam_size == 5
    assert settings.decoding.word_timestamps
    assert not settings.decoding.suppress_blank
    assert settings.decoding.suppress_tokens == "-1"
    assert settings.decoding.logprob_threshold is None
    assert settings.decoding.hotwords == ("NPU", "OpenVINO")
    assert settings.output.max_line_width == 20
    assert settings.output.karaoke
    assert len(given) == 8


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: str(flag.setting))
def test_the_document_has_its_default_source_and_use(flag: Flag) -> None:
    name = flag.setting.partition(".")[2]
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1
    cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", rows[0])[1:-1]]
    assert len(cells) == 6
    _, default, source, what, use, applies = cells
    assert default == (flag.default if flag.default == "empty" else f"`{flag.default}`")
    assert source == flag.source
    assert what
    assert use
    assert applies == ("both" if flag.streaming else "files")
