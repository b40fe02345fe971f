"""Plug-ins: what installed packages add, by entry points of the groups `streamer.*` (docs/plugins.md).

A plug-in that cannot be imported costs a warning and itself, nothing else.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, distributions
from typing import Any

from streamer.outside import one_line

logger = logging.getLogger(__name__)

# Whether what an entry point names is what its group takes.
Fits = Callable[[Any], bool]


@functools.cache
def _declared() -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return the entry points of each group by their names. Of two with one name, that of the first package counts."""
    groups: dict[str, dict[str, EntryPoint]] = {}
    for package in distributions():  # `entry_points()` reads all of them again for each group
        for entry in package.entry_points:
            if entry.group.startswith("streamer."):
                groups.setdefault(entry.group, {}).setdefault(entry.name, entry)
    return groups


def names(group: str) -> list[str]:
    """Return the names in a group, without importing anything."""
    return sorted(_declared().get(group, ()))


def load(group: str, name: str, fits: Fits) -> Any:  # noqa: ANN401 - what fits
    """Import what an entry point names; None, behind a warning, if that fails or does not fit."""
    return _loaded(_declared()[group][name], fits)


def load_all(group: str, fits: Fits) -> dict[str, Any]:
    """Import what the entry points of a group name, by name, except what cannot be imported or does not fit."""
    loaded = {name: load(group, name, fits) for name in names(group)}
    return {name: found for name, found in loaded.items() if found is not None}


@functools.cache  # it warns once
def _loaded(entry: EntryPoint, fits: Fits) -> Any:  # noqa: ANN401 - what fits
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may do anything
        return _refused(entry, f"cannot be imported ({type(error).__name__}: {one_line(error):.200})")
    return found if fits(found) else _refused(entry, f"is not what {entry.group} takes")


def _refused(entry: EntryPoint, why: str) -> None:
    package = entry.dist.name if entry.dist is not None else "an unknown package"
    logger.warning(
        "plug-in %s of %s is left out: %s %s; update or uninstall %s", entry.name, package, entry.value, why, package
    )
