"""The settings of a start: from the file, the environment and flags, or refused in one line with place and reason."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
import yaml

from streamer.errors import ConfigError
from streamer.outside import one_line, printable
from streamer.settings.registry import BROKEN, CORE, SECTIONS, SETTINGS
from streamer.settings.setting import ENVIRONMENT_PREFIX
from streamer.settings.table import ServerSettings, Settings
from streamer.settings.values import checked, described, from_text

CONFIG_VARIABLE = "STREAMER_CONFIG"  # names the configuration file
CACHE_VARIABLE = "STREAMER_CACHE_DIR"  # read by what compiles models; here only known, so that it is let through
TOKEN_VARIABLE = "STREAMER_TOKEN"  # what `listen` and `chat` show a daemon; here only known  # noqa: S105

# Of our environment variables those that are no setting.
_OTHER_VARIABLES = (CONFIG_VARIABLE, CACHE_VARIABLE, TOKEN_VARIABLE)

# Dotted name by environment variable.
_VARIABLES = {setting.variable: name for name, setting in SETTINGS.items()}


@dataclass(frozen=True, slots=True)
class Given:
    """A value that is not left to the default, and where it stands, such as `--port` or `config.yaml, line 3`."""

    value: object
    where: str


def load_settings(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Settings:
    """Read the settings: overrides win over the environment, over the file, over the defaults.

    See `given_values` for the arguments and what is raised.
    """
    values: dict[type[msgspec.Struct], dict[str, object]] = {}
    for name, given in given_values(path, environ, overrides).items():
        setting = SETTINGS[name]
        values.setdefault(setting.struct, {})[setting.key] = given.value
    core: dict[str, Any] = {section: struct(**values.pop(struct, {})) for section, struct in CORE.items()}
    plugins = [struct(**keys) for struct, keys in values.items()]
    return Settings(**core, plugins=tuple(part for part in plugins if part != type(part)()))


def given_values(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> dict[str, Given]:
    """Return what is given for settings, by their dotted names, and where each stands.

    The file is `path`, or what `config_path` finds. `overrides`, from flags, map dotted names to values, or to text
    that is read as an environment variable is.

    Raises ConfigError for a file that is missing or cannot be read, a name that is unknown, and a value of the wrong
    type or out of range.
    """
    return {**_from_file(path, environ), **_from_environment(environ), **_from_overrides(overrides)}


def config_path(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Return which file is read: `path`, else the one that STREAMER_CONFIG names, else the user's own."""
    named = path or environ.get(CONFIG_VARIABLE)
    return Path(named) if named else default_config_path()


def default_config_path() -> Path:
    return platformdirs.user_config_path("streamer", appauthor=False) / "config.yaml"


def token_path(server: ServerSettings) -> Path:
    """Return the file of tokens, which need not be there: the one that is set, else the user's own."""
    return Path(server.token_file) if server.token_file else default_token_path()


def default_token_path() -> Path:
    """Return where tokens are kept when no file is named."""
    return default_config_path().with_name("tokens.json")


def _from_file(path: Path | None, environ: Mapping[str, str]) -> dict[str, Given]:
    named = "" if path is not None or not environ.get(CONFIG_VARIABLE) else f" ({CONFIG_VARIABLE} names it)"
    found = config_path(path, environ)
    if path is None and not named:
        try:
            if not found.exists():
                return {}
        except OSError:  # a home directory that is not this user's
            return {}
    return _parse(found, _read(found, named))


def _read(path: Path, named: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"configuration file {path} does not exist{named}: expected a YAML file; correct the name, or leave it out"
            " to use the defaults"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a name with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"configuration file {path} cannot be read{named} ({reason}): expected a YAML file in UTF-8 that this user"
            " may read"
        ) from None


def _parse(path: Path, text: str) -> dict[str, Given]:
    # Nodes know their line; an alias stays one object, so that aliases cannot make a small file large.
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        raise ConfigError(
            f"{path}{f':{mark.line + 1}' if mark else ''}: not valid YAML ({problem or one_line(error)}): expected"
            " sections such as `server:` with indented `key: value` lines below"
        ) from None
    values: dict[str, Given] = {}
    for section, section_line, block in _entries(path, loader, root, "sections such as `server:`"):
        if section not in SECTIONS and section in BROKEN:
            continue  # as a warning has said
        if section not in SECTIONS:
            nearest = _nearest(section, [*SECTIONS, *SETTINGS])
            raise ConfigError(f"{path}:{section_line}: unknown section {section!r:.80}: {nearest}")
        for key, line, node in _entries(path, loader, block, f"`key: value` lines below `{section}:`"):
            name = f"{section}.{key}"
            if name not in SETTINGS and section in BROKEN:
                continue
            if name not in SETTINGS:
                raise ConfigError(f"{path}:{line}: unknown setting {name!r:.80}: {_nearest(name, SETTINGS)}")
            value = _value(loader, node)
            if (value is None or isinstance(value, bool)) and node.value in SETTINGS[name].choices:
                value = node.value  # YAML 1.1 reads `on` and `off` as true and false, and an empty value as null
            values[name] = Given(checked(SETTINGS[name], value, f"{path}:{line}: {name}"), f"{path}, line {line}")
    return values


def _entries(
    path: Path, loader: "_Loader", node: yaml.Node | None, expected: str
) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield key, line and value of a mapping, whose keys must be text and different; nothing if it is empty."""
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise ConfigError(f"{path}:{line}: found {described(_value(loader, node))}: expected {expected}")
    seen: dict[str, int] = {}
    for key_node, value in node.value:
        line, name = key_node.start_mark.line + 1, str(key_node.value)
        if name in seen:
            raise ConfigError(f"{path}:{line}: {name!r:.80} is already set in line {seen[name]}: delete one of the two")
        seen[name] = line
        yield name, line, value


def _value(loader: "_Loader", node: yaml.Node) -> object:
    """Return the value of a node; its text if that is not of the type that it looks like, such as 2026-13-45."""
    try:
        return loader.construct_object(node, deep=True)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return node.value if isinstance(node, yaml.ScalarNode) else {}


class _Loader(yaml.SafeLoader):
    """Reads 1e3, too, as a number, as YAML 1.2 does; PyYAML reads YAML 1.1."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]{1,3}$"), [*"-+0123456789"]
)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    values: dict[str, Given] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _OTHER_VARIABLES:
            continue
        section = variable.removeprefix(ENVIRONMENT_PREFIX).partition("_")[0].lower()
        if variable not in _VARIABLES and section in BROKEN:
            continue
        if variable not in _VARIABLES:
            nearest = _nearest(variable, [*_VARIABLES, *_OTHER_VARIABLES])
            raise ConfigError(f"unknown environment variable {printable(variable):.80}: {nearest}")
        setting = SETTINGS[_VARIABLES[variable]]
        where = f"environment variable {variable}"
        values[setting.name] = Given(checked(setting, from_text(setting, text), where), where)
    return values


def _from_overrides(overrides: Mapping[str, object]) -> dict[str, Given]:
    values: dict[str, Given] = {}
    for name, value in overrides.items():
        if name not in SETTINGS:
            raise ConfigError(f"command line: unknown setting {name!r:.80}: {_nearest(name, SETTINGS)}")
        setting = SETTINGS[name]
        value = from_text(setting, value) if isinstance(value, str) else value
        values[name] = Given(checked(setting, value, setting.option), setting.option)
    return values


def _nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a message on an unknown name: the one that has the nearest key, in the same section if any."""
    section, _, key = name.rpartition(".")
    by_key = {
        other.rpartition(".")[2]: other for other in sorted(names, key=lambda each: each.startswith(f"{section}."))
    }
    near = difflib.get_close_matches(key, by_key, 1)
    return f"did you mean {by_key[near[0]]}?" if near else "`streamer config show` lists all settings"
