"""How settings are declared, also by plug-ins."""

import runpy
from typing import Literal

import msgspec
import pytest

from streamer import entry_points
from streamer.errors import ConfigError
from streamer.settings import registry, table
from streamer.settings.setting import section, setting
from streamer.settings.values import checked


def declared() -> type[msgspec.Struct]:
    """Return a section with a setting of each kind."""

    @section
    class Theirs(msgspec.Struct, frozen=True, kw_only=True):
        """Theirs."""

        port: int = setting(1, "theirs")
        mode: Literal["on", "off"] = setting("on", "mode")
        count: int | None = setting(None, "count", within=(1, 3))
        names: tuple[str, ...] = setting((), "names", pattern="[a-z]+", example="x")
        sizes: tuple[int, ...] = setting((), "sizes", within=(1, 3))
        name: str = setting("", "name", pattern="[a-z]+", example="x")
        text: str = setting("", "text")

    return Theirs


@pytest.mark.parametrize(
    ("key", "taken", "refused"),
    [
        ("mode", "off", "of"),
        ("count", None, 4),
        ("names", ("a", "b"), ("a", "B")),
        ("sizes", (1, 3), (0,)),
        ("name", "a", "A"),
        ("text", "A", None),
    ],
)
def test_a_setting_takes_what_its_type_and_its_limits_say(key: str, taken: object, refused: object) -> None:
    theirs = declared().settings[key]  # type: ignore[attr-defined]
    assert checked(theirs, "none" if taken is None else taken, "x") == taken
    with pytest.raises(ConfigError):
        checked(theirs, refused, "x")
    assert getattr(declared()(), key) == theirs.default


def test_plugins_add_settings_and_sections_and_take_the_place_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = {"server.other": declared(), "shouting": declared(), "loud": None}
    monkeypatch.setattr(entry_points, "names", lambda group: list(plugins))
    monkeypatch.setattr(entry_points, "load_all", lambda group, fits: {k: v for k, v in plugins.items() if fits(v)})
    monkeypatch.setattr(table, "OWNERS", dict(table.OWNERS))
    found = runpy.run_path(registry.__file__)
    assert found["BROKEN"] == {"loud"}
    assert found["SETTINGS"]["server.port"] is table.SETTINGS["server.port"]
    names = [name for name in found["SETTINGS"] if name.startswith("server.")]
    assert names[-6:] == [f"server.{key}" for key in declared().settings if key != "port"]  # type: ignore[attr-defined]
    assert found["SETTINGS"]["shouting.port"].variable == "STREAMER_SHOUTING_PORT"
    assert list(found["SECTIONS"])[-1] == "shouting"
