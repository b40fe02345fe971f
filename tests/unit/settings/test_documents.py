"""What is made of the table of settings: the committed files, and what editors do with them."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from streamer.errors import ConfigError
from streamer.settings.documents import config_yaml, json_schema, settings_yaml
from streamer.settings.load import load_settings
from streamer.settings.registry import SETTINGS
from streamer.settings.table import Settings
from tools.documents import REPOSITORY, options_markdown


def test_the_configuration_file_is_the_defaults_and_explains_every_setting() -> None:
    path = REPOSITORY / "config.yaml"
    assert load_settings(path, {}, {}) == Settings()
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [f"{section}.{key}" for section, block in raw.items() for key in block] == list(SETTINGS)
    for line in path.read_text(encoding="utf-8").splitlines():
        assert len(line) <= 120
        if line.startswith("  "):
            assert re.search(r"  # \S", line), line


def test_the_first_line_names_the_schema() -> None:
    first = (REPOSITORY / "config.yaml").read_text(encoding="utf-8").splitlines()[0]
    found = re.fullmatch(r"# yaml-language-server: \$schema=(.*)", first)
    assert found
    assert (REPOSITORY / found[1]).is_file()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server.token", "a: b # c"),
        ("server.token", "no"),
        ("server.token", "1e3"),
        ("server.token", "\n\t\u2028\x7f"),
        ("server.token", "[x"),
        ("input.source", "-"),
        ("decoding.hotwords", ("a, b", "NPU", "")),
        ("model.windows_s", (5, 10)),
        ("decoding.suppress_blank", False),
        ("decoding.logprob_threshold", None),
    ],
)
def test_any_value_is_written_so_that_it_is_read_again(tmp_path: Path, name: str, value: object) -> None:
    values = {other: setting.default for other, setting in SETTINGS.items()} | {name: value}
    path = tmp_path / "config.yaml"
    path.write_text(settings_yaml(values, dict.fromkeys(SETTINGS, "x")), encoding="utf-8")
    assert load_settings(path, {}, {})[name] == value


SCHEMA: dict[str, Any] = json.loads(json_schema())


@pytest.mark.parametrize(
    "text",
    [
        config_yaml("x"),
        "server:",
        "{}",
        "server: {port: 65535}",
        "server: {port: 65536}",
        "server: {prot: 1}",
        "srever: {}",
        "input: {speed: 2}",
        "input: {speed: -0.1}",
        "input: {stdin_format: f32le}",
        "input: {stdin_format: mp3}",
        "input: {exit_at_end: 1}",
        "decoding: {beam_size: none}",
        "decoding: {beam_size: nothing}",
        "decoding: {beam_size: 16}",
        "decoding: {beam_size: 17}",
        "decoding: {suppress_tokens: -1}",
        "decoding: {hotwords: [a, b]}",
        "decoding: {hotwords: a}",
        "model: {device: GPU.1}",
        "model: {device: GPU.one}",
        "model: {device: ''}",
        "model: {decoder_device: ''}",
        "model: {properties: [NPU_TURBO=YES]}",
        "model: {properties: [NPU_TURBO]}",
        "model: {windows_s: [5, 10]}",
        "model: {windows_s: [1]}",
        "- server",
    ],
)
def test_the_schema_takes_what_the_program_takes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        load_settings(path, {}, {})
    except ConfigError:
        is_taken = False
    else:
        is_taken = True
    assert jsonschema.Draft7Validator(SCHEMA).is_valid(yaml.safe_load(text)) == is_taken


def test_the_schema_is_valid_and_explains_every_setting() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    for setting in SETTINGS.values():
        section, _, key = setting.name.partition(".")
        assert setting.help in SCHEMA["properties"][section]["properties"][key]["description"]


def test_the_tables_have_every_option() -> None:
    rows = {}
    for line in options_markdown().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("| `"):
            assert len(cells) == 4
            rows[cells[0].strip("`")] = cells[1:]
    assert list(rows) == [s.key for s in SETTINGS.values() if s.name.startswith(("decoding.", "output."))]
    default, live, what = rows["max_initial_timestamp"]
    assert (default, live, what) == ("`1.0`", "", SETTINGS["decoding.max_initial_timestamp"].help)
    assert rows["language"][1] == "yes"
