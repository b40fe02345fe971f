"""`streamer config`: the settings that hold, a file to begin with, and what editors check."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from streamer.cli import main
from streamer.settings.documents import SCHEMA_PATH
from streamer.settings.load import load_settings
from streamer.settings.registry import SETTINGS
from streamer.settings.table import Settings


@pytest.fixture(autouse=True)
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the configuration of whoever runs the tests out of them, and say where one would be."""
    path = tmp_path / "user" / "config.yaml"
    monkeypatch.setattr("streamer.settings.load.default_config_path", lambda: path)
    monkeypatch.setattr("streamer.commands.config.default_config_path", lambda: path)
    monkeypatch.delenv("STREAMER_CONFIG", raising=False)
    return path


def comment_of(name: str, shown: str) -> str:
    """Return what stands behind a setting in a configuration file."""
    section, _, key = name.partition(".")
    block = shown.partition(f"\n{section}:")[2]
    return next(line.partition("  # ")[2] for line in block.splitlines() if line.startswith(f"  {key}: "))


def test_show_says_where_each_value_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("server:\n  port: 1\n  max_streams: 3\nchat:\n  api_key: sk-1\n", encoding="utf-8")
    monkeypatch.delenv("STREAMER_MODEL_NAME")
    monkeypatch.setenv("STREAMER_SERVER_PORT", "2")
    monkeypatch.setenv("STREAMER_SERVER_TOKEN", "hush-hush-hush-hush")
    line = ["config", "show", "--config", str(path), "--beam-size", "5", "--input", "-", "--debug"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert comment_of("server.port", shown) == "environment variable STREAMER_SERVER_PORT"
    assert comment_of("server.max_streams", shown) == f"{path}, line 3"
    assert comment_of("decoding.beam_size", shown) == "--beam-size"
    assert comment_of("input.source", shown) == "--input"
    assert comment_of("log.level", shown) == "--debug"
    assert comment_of("stream.pace_s", shown) == "default"
    assert "sk-1" not in shown
    assert "hush" not in shown
    again = tmp_path / "b.yaml"
    again.write_text(shown, encoding="utf-8")
    monkeypatch.delenv("STREAMER_SERVER_PORT")
    monkeypatch.delenv("STREAMER_SERVER_TOKEN")
    found = load_settings(again, {}, {})
    changed = {name: found[name] for name in SETTINGS if found[name] != Settings()[name]}
    assert changed == {
        "server.port": 2,
        "server.max_streams": 3,
        "server.token": "***",
        "chat.api_key": "***",
        "decoding.beam_size": 5,
        "input.source": "-",
        "log.level": "debug",
    }


def test_show_refuses_what_a_start_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--port", "x"]) == 2
    assert main(["config", "show", "--config", str(tmp_path / "missing.yaml")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(": error: ")[0] for line in err.splitlines()] == ["streamer", "streamer"]


def test_init_writes_where_the_program_looks_and_names_the_schema(
    user_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "init"]) == 0
    assert capsys.readouterr().out == f"{user_file}\n"
    text = user_file.read_bytes().decode("utf-8")
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA_PATH.as_uri()}\n")
    assert "\r" not in text
    assert load_settings(None, {}, {}) == Settings()


def test_init_replaces_no_file_unless_it_is_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("server: {port: 1}", encoding="utf-8")
    assert main(["config", "init", "-o", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"streamer: error: {path} is there already: expected a new file; name another with -o, or add --force\n"
    )
    assert path.read_text(encoding="utf-8") == "server: {port: 1}"
    assert main(["config", "init", "-o", str(path), "--force"]) == 0
    assert load_settings(path, {}, {}) == Settings()


def test_init_where_nothing_can_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["config", "init", "-o", str(tmp_path / "file" / "config.yaml")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["config", "init", "-o", str(tmp_path), "--force"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_schema_prints_what_checks_a_file(user_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["config", "init"])
    capsys.readouterr()
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.validate(yaml.safe_load(user_file.read_text(encoding="utf-8")), schema)
    assert schema == json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
