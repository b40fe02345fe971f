"""`streamer config`: the settings that hold, a file to begin with, and what editors check."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from streamer.settings.documents import SCHEMA_NAME
from streamer.settings.load import load_settings
from streamer.settings.registry import SETTINGS, value_of
from streamer.settings.table import Settings
from tests.daemon import Outcome

Run = Callable[..., Outcome]


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's own configuration would be."""
    path = tmp_path / "user" / "config.yaml"
    for module in ("settings.load", "commands.config"):
        monkeypatch.setattr(f"streamer.{module}.default_config_path", lambda: path)
    return path


def test_show_says_where_each_value_comes_from_and_is_a_configuration_file(
    run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("server:\n  port: 1\n  max_streams: 3\nchat:\n  api_key: sk-1\n", encoding="utf-8")
    monkeypatch.delenv("STREAMER_MODEL_NAME")
    monkeypatch.setenv("STREAMER_SERVER_PORT", "2")
    monkeypatch.setenv("STREAMER_SERVER_TOKEN", "hush-hush-hush-hush")
    shown = run_here(
        *("config", "show", "--config", path, "--best-of", "5", "--debug"),
        *("--input", "https://me:pass1234@h/a.m3u8?key=pass1234"),
    ).stdout
    assert shown.startswith(f"# {path}\n")
    comments = {
        line.partition(":")[0].strip(): line.partition("  # ")[2]
        for line in shown.splitlines()
        if line.startswith("  ")
    }
    assert {key: comments[key] for key in ("max_streams", "best_of", "source", "level", "pace_s", "port")} == {
        "max_streams": f"{path}, line 3",
        "best_of": "--best-of",
        "source": "--input",
        "level": "--debug",
        "pace_s": "default",
        "port": "environment variable STREAMER_SERVER_PORT",
    }
    assert not any(secret in shown for secret in ("sk-1", "hush", "pass1234"))
    again = tmp_path / "b.yaml"
    again.write_text(shown, encoding="utf-8")
    found = load_settings(again, {}, {})
    values = {name: value_of(found, name) for name in SETTINGS}
    changed = {name: value for name, value in values.items() if value != SETTINGS[name].default}
    assert str(changed.pop("input.source")).startswith("https://")
    assert changed == {
        "server.port": 2,
        "server.max_streams": 3,
        "server.token": "***",
        "chat.api_key": "***",
        "decoding.best_of": 5,
        "log.level": "debug",
    }


def test_init_writes_where_the_program_looks_what_the_schema_accepts(run_here: Run, user_file: Path) -> None:
    assert run_here("config", "show").stdout.startswith(f"# {user_file} (not there)\n")
    assert run_here("config", "init").stdout == f"{user_file}\n"
    text = user_file.read_bytes().decode("utf-8")
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA_NAME}\n")
    assert "\r" not in text
    assert load_settings(None, {}, {}) == Settings()
    schema = json.loads(run_here("config", "schema").stdout)
    jsonschema.validate(yaml.safe_load(text), schema)
    assert schema == json.loads(user_file.with_name(SCHEMA_NAME).read_text(encoding="utf-8"))


def test_init_replaces_a_file_if_it_is_told_to(run_here: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("server: {port: 1}", encoding="utf-8")
    assert run_here("config", "init", "-o", path, "--force").exit_code == 0
    assert load_settings(path, {}, {}) == Settings()
