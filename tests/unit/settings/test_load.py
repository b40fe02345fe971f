"""Settings: which source wins, what a value becomes, and what is refused."""

import inspect
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
from streamer.settings.registry import SETTINGS, value_of
from streamer.settings.setting import Setting
from streamer.settings.table import DecodingSettings, Settings
from streamer.whisper.decode.grammar import GRAMMAR_PENALTY
from streamer.whisper.decode.hotwords import HOTWORDS_BOOST
from tests.refusals import Refusal, refusals


@pytest.fixture(autouse=True)
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the configuration of whoever runs the tests out of them; return where it would be."""
    monkeypatch.setattr(load, "default_config_path", lambda: tmp_path / "user.yaml")
    return tmp_path / "user.yaml"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def taken(path: Path | None, overrides: Mapping[str, object]) -> Settings | None:
    """Return the settings; None if they are refused, which must be in one short line."""
    try:
        return load_settings(path, {}, overrides)
    except ConfigError as error:
        says = str(error)
    assert "\n" not in says
    assert len(says) < 600
    return None


@refusals("settings")
def test_a_refusal_says_where_it_stands(refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = refusal.given
    path = write(tmp_path / "a.yaml", source["file"]) if "file" in source else None
    with refusal.expected(tmp_path):
        load_settings(path, source.get("environ", {}), source.get("flags", {}))


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    path, environ = write(tmp_path / "a.yaml", "server: {port: 1}"), {"STREAMER_SERVER_PORT": "2"}
    assert load_settings(None, {}, {}) == Settings()
    assert load_settings(path, {}, {}).server.port == 1
    assert load_settings(path, environ, {}).server.port == 2
    assert load_settings(path, environ, {"server.port": 3}).server.port == 3
    assert load_settings(path, environ, {"server.port": "4"}).server.port == 4


def test_the_flag_names_the_file_before_the_variable_before_the_users_own(tmp_path: Path, user_file: Path) -> None:
    write(user_file, "server: {port: 1}")
    environ = {"STREAMER_CONFIG": str(write(tmp_path / "b.yaml", "server: {port: 2}"))}
    path = write(tmp_path / "c.yaml", "server: {port: 3}")
    assert load_settings(None, {}, {}).server.port == 1
    assert load_settings(None, environ, {}).server.port == 2
    assert load_settings(path, environ, {}).server.port == 3


def test_a_file_of_the_user_that_cannot_be_looked_for_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "default_config_path", lambda: tmp_path / ("x" * 5000) / "config.yaml")
    assert load_settings(None, {}, {}) == Settings()


@pytest.mark.parametrize("text", ["", "# nothing\n", "server:\n  # port: 1\nlog:\n", "null", "{}", "\ufeffserver:\r\n"])
def test_an_empty_file_or_section_is_the_defaults(tmp_path: Path, text: str) -> None:
    assert load_settings(write(tmp_path / "a.yaml", text), {}, {}) == Settings()


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"file": "input: {speed: 2}"}, "input.speed", 2.0),
        ({"file": "input: {speed: 1e2}"}, "input.speed", 100.0),
        ({"file": "input: {exit_at_end: yes}"}, "input.exit_at_end", True),
        ({"file": "server: {origins: []}"}, "server.origins", ()),
        ({"file": "server: {origins:\n  [http://a]}"}, "server.origins", ("http://a",)),
        ({"file": "server:\n  tls: on"}, "server.tls", "on"),
        ({"file": "server:\n  tls: off"}, "server.tls", "off"),
        ({"file": "server:\n  tls: 'on'"}, "server.tls", "on"),
        ({"file": "decoding: {language: 'no'}"}, "decoding.language", "no"),
        ({"file": "model: {decoder_device: NPU.3720}"}, "model.decoder_device", "NPU.3720"),
        ({"file": "model:\n  decoder_device:"}, "model.decoder_device", ""),
        ({"file": "decoding: {logprob_threshold: none}"}, "decoding.logprob_threshold", None),
        ({"file": "model: {properties: [NPU_TURBO=YES, A=b=c]}"}, "model.properties", ("NPU_TURBO=YES", "A=b=c")),
        ({"environ": "2"}, "input.speed", 2.0),
        ({"environ": "0"}, "input.exit_at_end", False),
        ({"environ": " No"}, "input.exit_at_end", False),
        ({"environ": "yes"}, "input.exit_at_end", True),
        ({"environ": "a, b,"}, "server.origins", ("a", "b")),
        ({"environ": ""}, "server.origins", ()),
        ({"environ": "12"}, "server.token", "12"),
        ({"environ": " None"}, "decoding.logprob_threshold", None),
        ({"environ": "-1"}, "decoding.logprob_threshold", -1.0),
        ({"environ": "-1"}, "decoding.suppress_tokens", "-1"),
        ({"environ": "5, 10"}, "model.windows_s", (5, 10)),
        ({"environ": "Deutsch"}, "decoding.language", "de"),
    ],
)
def test_a_value_becomes_its_settings_type(tmp_path: Path, given: dict[str, str], name: str, value: object) -> None:
    path = write(tmp_path / "a.yaml", given["file"]) if "file" in given else None
    environ = {SETTINGS[name].variable: given["environ"]} if "environ" in given else {}
    found = value_of(load_settings(path, environ, {}), name)
    assert found == value
    assert type(found) is type(value)


def test_other_variables_are_let_through() -> None:
    environ = {"STREAMER_CACHE_DIR": "x", "STREAMER_TOKEN": "x", "STREAMERS": "1", "streamer_port": "1"}
    assert load_settings(None, environ, {}) == Settings()


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"server:\n  host: \xff\xfe\n")
    for path in (tmp_path / "a.yaml", tmp_path / "missing.yaml", tmp_path, Path("a\0b")):
        assert taken(path, {}) is None


def test_settings_of_a_plugin_that_cannot_be_imported_are_let_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "BROKEN", {"shouting", "server"})
    path = write(tmp_path / "a.yaml", "shouting: {volume: 11}\nserver: {theirs: 1, port: 1}")
    environ = {"STREAMER_SHOUTING_VOLUME": "11", "STREAMER_SERVER_THEIRS": "x", "STREAMER_SERVER_HOST": "h"}
    settings = load_settings(path, environ, {})
    assert (settings.server.port, settings.server.host) == (1, "h")
    assert taken(write(path, "loudness: {volume: 11}"), {}) is None


def test_aliases_do_not_make_a_small_file_large(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 20)}]" for i in range(1, 30)]
    tracemalloc.start()
    try:
        assert taken(write(tmp_path / "a.yaml", "\n".join(lines)), {}) is None
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["[" * 200, f"input:\n  speed: {10**400}", f"server:\n  port: {'9' * 5000}"])
def test_what_is_huge_is_refused_in_a_short_line(tmp_path: Path, text: str) -> None:
    assert taken(write(tmp_path / "a.yaml", text), {}) is None


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_can_be_given_in_the_file_and_in_the_environment(tmp_path: Path, name: str) -> None:
    section, _, key = name.partition(".")
    value = other_value(SETTINGS[name])
    in_file = list(value) if isinstance(value, tuple) else value
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    from_file = load_settings(write(tmp_path / "a.yaml", yaml.safe_dump({section: {key: in_file}})), {}, {})
    assert from_file == load_settings(None, {SETTINGS[name].variable: text}, {})
    assert value_of(from_file, name) == value
    assert [other for other in SETTINGS if value_of(from_file, other) != value_of(Settings(), other)] == [name]


def test_the_defaults_are_those_of_openai_whisper_and_of_the_decoder() -> None:
    transcribe, options = (inspect.signature(call).parameters for call in (whisper.transcribe, whisper.DecodingOptions))
    ours = {name.removeprefix("decoding."): known.default for name, known in SETTINGS.items()}
    # The reference says a ladder of temperatures, True, None for no text, and None to find the language out.
    other = {"temperature", "condition_on_previous_text", "initial_prompt", "prefix", "language"}
    theirs = {name: parameter.default for name, parameter in {**transcribe, **options}.items() if name in ours}
    shared = {name: default for name, default in theirs.items() if name not in other}
    assert len(shared) == 19
    assert {name: ours[name] for name in shared} == shared
    decoding = DecodingSettings()
    assert (decoding.hotwords_boost, decoding.grammar_penalty) == (HOTWORDS_BOOST, GRAMMAR_PENALTY)


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
    settings = taken(None, {name: value})
    if settings is None:
        return
    found = value_of(settings, name)
    if found is None:
        assert setting.may_be_none
        assert isinstance(value, str)
        assert value.strip().lower() == "none"
        return
    items = found if isinstance(found, tuple) else (found,)
    kinds = typing.get_args(setting.kind)[:1] or (setting.kind,)
    assert isinstance(found, tuple) == bool(typing.get_args(setting.kind))
    assert all(type(item) in kinds for item in items)
    if setting.choices and not setting.example:
        assert found in setting.choices
    if setting.within is not None:
        low, high = setting.within
        assert all(low <= number <= high for number in items)


@given(text=st.text(alphabet=st.sampled_from("server:port [],{}#&*!|>'\"%@`-?\n\t0aé\x00\x85 "), max_size=60))
def test_any_text_is_settings_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    taken(path, {})
