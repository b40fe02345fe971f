"""Settings: who wins, what is refused, and what the refusal says."""

import inspect
import os
import tracemalloc
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import whisper
import yaml
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import ConfigError
from streamer.settings import load
from streamer.settings.load import load_settings
from streamer.settings.registry import SETTINGS
from streamer.settings.setting import Setting
from streamer.settings.table import DecodingSettings, Settings
from streamer.whisper.decode.grammar import GRAMMAR_PENALTY
from streamer.whisper.decode.hotwords import HOTWORDS_BOOST


@pytest.fixture(autouse=True)
def _no_user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the configuration of whoever runs the tests out of them."""
    monkeypatch.setattr(load, "default_config_path", lambda: tmp_path / "user" / "config.yaml")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(
    path: Path | None = None, environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
) -> str:
    """Return the message with which settings are refused, which must be one line of bounded length."""
    with pytest.raises(ConfigError) as caught:
        load_settings(path, environ or {}, overrides or {})
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def one_line(error: ConfigError) -> None:
    assert "\n" not in str(error)


def test_nothing_given_is_the_defaults() -> None:
    assert load_settings(None, {}, {}) == Settings()


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "server: {port: 1}")
    environ = {"STREAMER_SERVER_PORT": "2"}
    assert load_settings(path, {}, {}).server.port == 1
    assert load_settings(path, environ, {}).server.port == 2
    assert load_settings(path, environ, {"server.port": 3}).server.port == 3
    assert load_settings(path, environ, {"server.port": "4"}).server.port == 4


def test_the_flag_names_the_file_before_the_variable_before_the_user_directory(tmp_path: Path) -> None:
    write(tmp_path / "user" / "config.yaml", "server: {port: 1}")
    by_variable = {"STREAMER_CONFIG": str(write(tmp_path / "b.yaml", "server: {port: 2}"))}
    by_flag = write(tmp_path / "c.yaml", "server: {port: 3}")
    assert load_settings(None, {}, {}).server.port == 1
    assert load_settings(None, by_variable, {}).server.port == 2
    assert load_settings(by_flag, by_variable, {}).server.port == 3


@pytest.mark.parametrize("text", ["", "# nothing\n", "server:\n", "server:\n  # port: 1\nlog:\n", "null", "{}"])
def test_an_empty_file_or_section_is_the_defaults(tmp_path: Path, text: str) -> None:
    assert load_settings(write(tmp_path / "a.yaml", text), {}, {}) == Settings()


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfserver:\r\n  port: 7\r\n")
    assert load_settings(path, {}, {}).server.port == 7


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("input: {speed: 2}", "input.speed", 2.0),
        ("input: {speed: 1e2}", "input.speed", 100.0),
        ("input: {exit_at_end: yes}", "input.exit_at_end", True),
        ("server: {origins: []}", "server.origins", ()),
        ("server: {origins: [a, b]}", "server.origins", ("a", "b")),
        ("server: {origins:\n  [http://a]}", "server.origins", ("http://a",)),
        ("decoding: {language: 'no'}", "decoding.language", "no"),
        ("model: {device: GPU.1}", "model.device", "GPU.1"),
        ("model: {decoder_device: NPU.3720}", "model.decoder_device", "NPU.3720"),
        ("model: {decoder_device: ''}", "model.decoder_device", ""),
        ("model:\n  decoder_device:", "model.decoder_device", ""),
        ("model: {properties: [NPU_TURBO=YES, A=b=c]}", "model.properties", ("NPU_TURBO=YES", "A=b=c")),
    ],
)
def test_values_of_a_file(tmp_path: Path, text: str, name: str, value: object) -> None:
    found = load_settings(write(tmp_path / "a.yaml", text), {}, {})[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("1.5", "input.speed", 1.5),
        ("2", "input.speed", 2.0),
        ("true", "input.exit_at_end", True),
        ("0", "input.exit_at_end", False),
        ("No", "input.exit_at_end", False),
        ("a, b,", "server.origins", ("a", "b")),
        ("", "server.origins", ()),
        ("", "server.token", ""),
        ("12", "server.token", "12"),
        ("5", "decoding.beam_size", 5),
        (" None", "decoding.logprob_threshold", None),
        ("-1", "decoding.logprob_threshold", -1.0),
        ("-1", "decoding.suppress_tokens", "-1"),
        ("no", "decoding.suppress_blank", False),
        ("NPU_TURBO=YES, NUM_STREAMS=1", "model.encoder_properties", ("NPU_TURBO=YES", "NUM_STREAMS=1")),
    ],
)
def test_values_of_the_environment(text: str, name: str, value: object) -> None:
    found = load_settings(None, {f"STREAMER_{name.replace('.', '_').upper()}": text}, {})[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("server:\n  prot: 1", 2, ["'server.prot'", "nearest is server.port"]),
        ("srever:\n  port: 1", 1, ["'srever'", "nearest is server"]),
        ("\nport: 1", 2, ["'port'", "nearest is server.port"]),
        ("stream:\n  port: 1", 2, ["'stream.port'", "nearest is server.port"]),
        ("server:\n  exit_at_end: true", 2, ["nearest is input.exit_at_end"]),
        ("correction:\n  devise: x", 2, ["nearest is correction.device"]),
        ("decoding:\n  diarize: true", 2, ["no setting 'decoding.diarize': `streamer config show` lists all"]),
        ("server:\n  port: 1\n  port: 2", 3, ["'port'", "line 2", "delete one"]),
        ("log: {}\nlog: {}", 2, ["'log'", "line 1"]),
        ("server:\n  port: '80'", 2, ["is '80': expected a whole number from 0 to 65535"]),
        ("server:\n  port: true", 2, ["true", "whole number"]),
        ("server:\n  port: 8.5", 2, ["8.5", "whole number"]),
        ("server:\n  port: 65536", 2, ["65536", "0 to 65535"]),
        ("server:\n  port: -1", 2, ["-1", "0 to 65535"]),
        ("server:\n  port:", 2, ["is empty: expected a whole number"]),
        ("server:\n  port: {a: {b: c}}", 2, ["a mapping", "whole number"]),
        ("server:\n  origins: http://a", 2, ["is 'http://a': expected a list of text"]),
        ("server:\n  origins: [a, 1]", 2, ["has 1: expected a list of text"]),
        ("server:\n  host: 1", 2, ["is 1: expected text"]),
        ("input:\n  exit_at_end: 'yes'", 2, ["is 'yes': expected true or false"]),
        ("input:\n  exit_at_end: 1", 2, ["1", "true or false"]),
        ("input:\n  speed: .nan", 2, ["nan", "from 0 to 1000"]),
        ("input:\n  speed: .inf", 2, ["inf", "from 0 to 1000"]),
        (f"input:\n  speed: {10**400}", 2, ["from 0 to 1000"]),
        (f"server:\n  port: {'9' * 5000}", 2, ["0 to 65535"]),
        ("decoding:\n  language: no", 2, ["is false: expected text"]),
        ("decoding:\n  beam_size: 0", 2, ["0", "whole number from 1 to 16, or none"]),
        ("decoding:\n  best_of: '5'", 2, ["'5'", "or none"]),
        ("decoding:\n  best_of:", 2, ["empty", "or none"]),
        ("decoding:\n  length_penalty: 1.5", 2, ["1.5", "a number from 0 to 1, or none"]),
        ("decoding:\n  temperature: none", 2, ["'none'", "a number from 0 to 1"]),
        ("decoding:\n  suppress_tokens: -1", 2, ["is -1: expected text"]),
        ("decoding:\n  clip_timestamps: [0, 1]", 2, ["a list", "text"]),
        ("decoding:\n  hotwords: NPU", 2, ["list of text"]),
        ("model:\n  device: npu", 2, ["'npu'", "AUTO, NPU, GPU, CPU", "nearest is NPU"]),
        ("model:\n  device: 1990-13-45", 2, ["AUTO, NPU, GPU, CPU"]),
        ('model:\n  device: "CPU\\n"', 2, ["'CPU\\n'", "AUTO, NPU, GPU, CPU"]),
        ('model:\n  properties: ["A=1\\n"]', 2, ["has 'A=1\\n'", "such as NPU_TURBO=YES"]),
        ("model:\n  device: GPU.one", 2, ["'GPU.one'", "AUTO, NPU, GPU, CPU, or a full name such as GPU.1"]),
        ("model:\n  properties: NPU_TURBO=YES", 2, ["list of text such as NPU_TURBO=YES"]),
        ("model:\n  properties: [A=1, NPU_TURBO]", 2, ["has 'NPU_TURBO'", "such as NPU_TURBO=YES"]),
        ("model:\n  windows_s: 10", 2, ["is 10: expected a list of whole numbers from 2 to 30"]),
        ("model:\n  windows_s: [10, 31]", 2, ["has 31", "list of whole numbers from 2 to 30"]),
        ("model:\n  windows_s: [10, 1.5, true]", 2, ["has 1.5", "list of whole numbers from 2 to 30"]),
        ("model:\n  properties: {NPU_TURBO: YES}", 2, ["a mapping", "such as NPU_TURBO=YES"]),
        ("server:\n  port: !!python/name:os.system x", 2, ["whole number"]),
        ("server:\n  <<: {port: 1}", 2, ["'server.<<'"]),
        ("- server", 1, ["a list", "sections"]),
        ("server: [port]", 1, ["a list", "`server:`"]),
        ("hello", 1, ["'hello'", "sections"]),
        ('server:\n  origins: "a\\nb"', 2, ["is 'a\\nb': expected"]),
        ("server:\n  port: [1", 2, ["not YAML"]),
        ("server:\n\tport: 1", 2, ["not YAML"]),
        ("a: b: c", 1, ["not YAML"]),
        ("log: {}\n---\nlog: {}", 2, ["not YAML", "another document"]),
    ],
)
def test_a_refusal_names_file_line_finding_and_expectation(
    tmp_path: Path, text: str, line: int, words: list[str]
) -> None:
    path = write(tmp_path / "a.yaml", text)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: ")
    for word in words:
        assert word in message


def test_a_missing_file_is_refused_with_where_its_name_came_from(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    assert f"{path} does not exist" in refusal(path)
    message = refusal(environ={"STREAMER_CONFIG": str(path)})
    assert "does not exist" in message
    assert "STREAMER_CONFIG" in message


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user whom permissions stop")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "")
    path.chmod(0)
    assert "cannot be read" in refusal(path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"server:\n  host: \xff\xfe\n")
    assert "in position 16" in refusal(path)
    path.write_bytes(b"\x00\x01\x02")
    assert "not YAML" in refusal(path)


def test_aliases_do_not_make_a_small_file_large(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 20)}]" for i in range(1, 30)]
    tracemalloc.start()
    try:
        refusal(write(tmp_path / "a.yaml", "\n".join(lines)))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    assert "not YAML (maximum recursion depth exceeded" in refusal(write(tmp_path / "a.yaml", "[" * 20_000))


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("STREAMER_SERVER_PROT", "1", ["nearest is STREAMER_SERVER_PORT"]),
        ("STREAMER_PORT", "1", ["STREAMER_SERVER_PORT"]),
        ("STREAMER_CONFIGURATION", "x", ["nearest is STREAMER_CONFIG"]),
        ("STREAMER_SERVER_PORT", "http", ["STREAMER_SERVER_PORT is 'http'", "whole number from 0 to 65535"]),
        ("STREAMER_SERVER_PORT", "", ["whole number"]),
        ("STREAMER_SERVER_PORT", "9" * 6000, ["0 to 65535"]),
        ("STREAMER_INPUT_SPEED", "nan", ["from 0 to 1000"]),
        ("STREAMER_INPUT_EXIT_AT_END", "2", ["true or false"]),
        ("STREAMER_MODEL_DEVICE", "TPU", ["AUTO, NPU, GPU, CPU", "nearest is"]),
        ("STREAMER_MODEL_WINDOWS_S", "10,ten", ["has 'ten'", "list of whole numbers from 2 to 30"]),
    ],
)
def test_a_refused_variable_is_named(variable: str, text: str, words: list[str]) -> None:
    message = refusal(environ={variable: text})
    assert variable in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["on", "off", "'on'"])
def test_a_choice_that_yaml_takes_for_true_or_false_is_itself(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"server:\n  tls: {text}\n", encoding="utf-8")
    assert load_settings(path, {}, {}).server.tls == text.strip("'")


def test_a_variable_that_steers_the_terminal_is_told_in_a_line() -> None:
    assert refusal(environ={"STREAMER_\x1b[31m\nPORT": "1"}).isprintable()


def test_other_variables_are_let_through() -> None:
    environ = {"STREAMER_CACHE_DIR": "x", "STREAMERS": "1", "HOME": "/", "streamer_port": "1"}
    assert load_settings(None, environ, {}) == Settings()


def test_a_refused_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^--port is 99999: expected a whole number from 0 to 65535$"):
        load_settings(None, {}, {"server.port": "99999"})
    assert "nearest is server.port" in refusal(overrides={"server.prot": 1})


@pytest.mark.parametrize("name", ["server.token", "chat.api_key"])
def test_a_refused_secret_is_not_repeated(tmp_path: Path, name: str) -> None:
    section, _, key = name.partition(".")
    message = refusal(write(tmp_path / "a.yaml", f"{section}:\n  {key}: 123454321"))
    assert "123454321" not in message
    assert "expected text" in message


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_can_be_given_in_the_file_and_in_the_environment(tmp_path: Path, name: str) -> None:
    section, _, key = name.partition(".")
    value = other_value(SETTINGS[name])
    in_file = list(value) if isinstance(value, tuple) else value
    path = write(tmp_path / "a.yaml", yaml.safe_dump({section: {key: in_file}}))
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    from_file = load_settings(path, {}, {})
    from_environment = load_settings(None, {f"STREAMER_{section}_{key}".upper(): text}, {})
    assert from_file[name] == value != Settings()[name]
    assert from_environment == from_file
    changed = [other for other in SETTINGS if from_file[other] != Settings()[other]]
    assert changed == [name]


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.may_be_none])
def test_none_is_said_in_the_file_in_the_environment_and_in_a_flag(tmp_path: Path, name: str) -> None:
    section, _, key = name.partition(".")
    path = write(tmp_path / "a.yaml", f"{section}: {{{key}: none}}")
    assert load_settings(path, {}, {})[name] is None
    assert load_settings(None, {f"STREAMER_{section}_{key}".upper(): "none"}, {})[name] is None
    assert load_settings(None, {}, {name: "None"})[name] is None


def test_the_defaults_are_those_of_openai_whisper() -> None:
    reference = {
        **inspect.signature(whisper.transcribe).parameters,
        **inspect.signature(whisper.DecodingOptions).parameters,
    }
    ours = {name.removeprefix("decoding."): known.default for name, known in SETTINGS.items()}
    # The reference says a ladder of temperatures, True, None for no text, and None to find the language out.
    other = {"temperature", "condition_on_previous_text", "initial_prompt", "prefix", "language"}
    shared = {name: parameter.default for name, parameter in reference.items() if name in ours and name not in other}
    assert len(shared) == 19
    assert {name: ours[name] for name in shared} == shared


def test_the_defaults_are_those_of_the_parts_that_heed_them() -> None:
    decoding = DecodingSettings()
    assert decoding.hotwords_boost == HOTWORDS_BOOST
    assert decoding.grammar_penalty == GRAMMAR_PENALTY


def other_value(setting: Setting) -> Any:  # noqa: ANN401 - any setting
    """Return a valid value that is not the default."""
    if setting.name == "decoding.language":
        return "de"
    if setting.choices:
        return next(choice for choice in setting.choices if choice != setting.default)
    if setting.kind is bool:
        return not setting.default
    if setting.kind in (int, float):
        return setting.kind(next(limit for limit in setting.within or () if limit != setting.default))
    if setting.kind == tuple[int, ...]:
        return setting.within
    if setting.example:
        return (setting.example,)
    return ("http://a", "http://b") if setting.kind == tuple[str, ...] else "something"


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=5,
)


@given(name=st.sampled_from(list(SETTINGS)), value=plain_values)
def test_any_value_is_taken_as_its_type_or_refused(name: str, value: Any) -> None:  # noqa: ANN401 - any value
    setting = SETTINGS[name]
    try:
        found = load_settings(None, {}, {name: value})[name]
    except ConfigError as error:
        one_line(error)
        return
    if found is None:
        assert setting.may_be_none
        assert isinstance(value, str)
        assert value.strip().lower() == "none"
        return
    items = found if isinstance(found, tuple) else (found,)
    kinds = typing.get_args(setting.kind)[:1] or (setting.kind,)
    assert isinstance(found, tuple) == bool(typing.get_args(setting.kind))
    assert all(type(item) in kinds for item in items)
    if setting.choices and not setting.pattern:
        assert found in setting.choices
    if setting.within is not None:
        low, high = setting.within
        assert all(low <= number <= high for number in items)


@given(text=st.text(alphabet=st.sampled_from("server:port [],{}#&*!|>'\"%@`-?\n\t0aé\x00\x85 "), max_size=60))
def test_any_text_is_settings_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    try:
        load_settings(path, {}, {})
    except ConfigError as error:
        one_line(error)
