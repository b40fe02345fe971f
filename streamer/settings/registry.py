"""All settings: those of the table, and what plug-ins declare by entry points `streamer.settings`.

An entry point is named like the section that its struct is, or `SECTION.PLUGIN` if it adds to a section of the table.
"""

import typing
from typing import Any

import msgspec

from streamer import entry_points
from streamer.settings.setting import Help, Setting, settings_of
from streamer.settings.table import Settings


def _is_section(found: Any) -> bool:  # noqa: ANN401 - what a plug-in's author has written
    if not (isinstance(found, type) and issubclass(found, msgspec.Struct)):
        return False
    return all(any(isinstance(n, Help) for n in typing.get_args(f.type)) for f in msgspec.structs.fields(found))


def value_of(settings: Settings, name: str) -> object:
    """Return the value of a setting by its dotted name."""
    setting = SETTINGS[name]
    return getattr(settings.of(setting.struct), setting.key)


# By the names of their entry points.
_PLUGINS: dict[str, type[msgspec.Struct]] = entry_points.load_all("streamer.settings", _is_section)

# Sections of which some settings are not known, as their plug-ins cannot be imported.
BROKEN = {name.partition(".")[0] for name in entry_points.names("streamer.settings") if name not in _PLUGINS}

# The struct of each section of the table.
CORE: dict[str, type[msgspec.Struct]] = {
    field.name: field.type for field in msgspec.structs.fields(Settings) if field.name != "plugins"
}

# Those of plug-ins behind them, by section.
_STRUCTS = {section: [struct] for section, struct in CORE.items()}
for _name, _struct in _PLUGINS.items():
    _STRUCTS.setdefault(_name.partition(".")[0], []).append(_struct)

# The struct that a section begins with, whose docstring says what the section is.
SECTIONS = {section: structs[0] for section, structs in _STRUCTS.items()}

# Every setting by its dotted name, in the order of the configuration file. A plug-in takes the place of none.
SETTINGS: dict[str, Setting] = {}
for _section, _structs in _STRUCTS.items():
    for _setting in (each for struct in _structs for each in settings_of(_section, struct)):
        SETTINGS.setdefault(_setting.name, _setting)
