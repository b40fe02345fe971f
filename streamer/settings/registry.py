"""All settings: those of the table, and what plug-ins declare by entry points `streamer.settings`.

An entry point is named like the section that its struct is, or `SECTION.PLUGIN` if it adds to a section of the table.
"""

from typing import Any

import msgspec

from streamer import entry_points
from streamer.settings import table
from streamer.settings.setting import Setting


def _is_section(found: Any) -> bool:  # noqa: ANN401 - what a plug-in's author has written
    return isinstance(found, type) and issubclass(found, msgspec.Struct) and hasattr(found, "settings")


# By the names of their entry points.
_PLUGINS: dict[str, Any] = entry_points.load_all("streamer.settings", _is_section)

# Sections of which some settings are not known, as their plug-ins cannot be imported.
BROKEN = {name.partition(".")[0] for name in entry_points.names("streamer.settings") if name not in _PLUGINS}

# The struct of each section, and every setting by its dotted name, in the order of the configuration file.
SECTIONS: dict[str, Any] = {**table.SECTIONS}
SETTINGS: dict[str, Setting] = {}


def _add(section: str, struct: Any) -> None:  # noqa: ANN401 - a struct
    """Take over the settings of a plug-in's struct, except those that another one has."""
    for key, known in struct.settings.items():
        name = f"{section}.{key}"
        if name not in table.SETTINGS and name not in SETTINGS:
            SETTINGS[name] = msgspec.structs.replace(known, name=name)
            table.OWNERS[name] = struct


for _name, _struct in _PLUGINS.items():
    SECTIONS.setdefault(_name.partition(".")[0], _struct)
for _section in SECTIONS:
    SETTINGS.update({name: known for name, known in table.SETTINGS.items() if name.startswith(f"{_section}.")})
    for _name, _struct in _PLUGINS.items():
        if _name.partition(".")[0] == _section:
            _add(_section, _struct)
