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
from streamer.settings.registry import SETTINGS, value_of
from streamer.settings.setting import Setting
from streamer.settings.table import Settings
from streamer.settings.values import checked
from tools.documents import REPOSITORY


def test_the_configuration_file_is_the_defaults_and_explains_every_setting() -> None:
    path = REPOSITORY / "config.yaml"
    text = path.read_text(encoding="utf-8")
    assert text == config_yaml()
    assert load_settings(path, {}, {}) == Settings()
    assert [f"{section}.{key}" for section, block in yaml.safe_load(text).items() for key in block] == list(SETTINGS)
    for line in text.splitlines():
        assert len(line) <= 120
        assert not line.startswith("  ") or re.search(r"  # \S", line), line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("server.token", text) for text in ("a: b # c", "no", "1e3", "\n\t\u2028\x7f", "[x", "12", "a, b")],
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
    assert value_of(load_settings(path, {}, {}), name) == value


VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 17, 65535, 65536, 0.5, -0.1, "", "a", "none", "nothing", "NPU", "GPU.1", "GPU.one"),
    *([], [1], [5, 10], ["a"], ["a", 1], ["A=b", "C=d"], {}, {"a": 1}),
)


def is_taken(setting: Setting, value: object) -> bool:
    try:
        checked(setting, value, "")
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_schema_explains_every_setting_and_takes_what_the_program_takes(setting: Setting) -> None:
    section, _, key = setting.name.partition(".")
    schema = json.loads(json_schema())["properties"][section]["properties"][key]
    assert setting.help in schema["description"]
    validator = jsonschema.Draft7Validator(schema)
    for value in (*VALUES, setting.default or "none", *setting.choices):
        if setting.name != "decoding.language":  # the program knows more of it: names in many languages
            shown = list(value) if isinstance(value, tuple) else value
            assert validator.is_valid(shown) == is_taken(setting, value), value


@pytest.mark.parametrize("text", ["server:", "{}", "server: {port: 1}", "server: {prot: 1}", "srever: {}", "- server"])
def test_the_schema_knows_sections_and_keys(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    schema = json.loads(json_schema())
    jsonschema.Draft7Validator.check_schema(schema)
    is_valid = jsonschema.Draft7Validator(schema).is_valid(yaml.safe_load(text))
    try:
        load_settings(path, {}, {})
    except ConfigError:
        assert not is_valid
    else:
        assert is_valid
