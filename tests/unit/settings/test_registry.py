"""How settings are declared, also by plug-ins."""

import runpy
from typing import Annotated, Literal

import msgspec
import pytest

from streamer import entry_points
from streamer.errors import ConfigError
from streamer.settings import registry
from streamer.settings.setting import Help, like, settings_of, within
from streamer.settings.table import ServerSettings
from streamer.settings.values import checked


def declared() -> type[msgspec.Struct]:
    """Return a section with a setting of each kind."""

    class Theirs(msgspec.Struct, frozen=True, kw_only=True):
        """Theirs."""

        port: Annotated[int, Help("theirs")] = 1
        mode: Annotated[Literal["on", "off"], Help("mode")] = "on"
        count: Annotated[Annotated[int, within(1, 3)] | None, Help("count")] = None
        names: Annotated[tuple[Annotated[str, like("[a-z]+", "x")], ...], Help("names")] = ()
        sizes: Annotated[tuple[Annotated[int, within(1, 3)], ...], Help("sizes")] = ()
        name: Annotated[str, like("[a-z]+", "x"), Help("name")] = ""
        text: Annotated[str, Help("text")] = ""

    return Theirs


class Bare(msgspec.Struct):
    """A struct whose field says nothing of itself."""

    port: int = 1


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
    theirs = next(each for each in settings_of("theirs", declared()) if each.key == key)
    assert checked(theirs, "none" if taken is None else taken, "x") == taken
    with pytest.raises(ConfigError):
        checked(theirs, refused, "x")
    assert getattr(declared()(), key) == theirs.default


def test_plugins_add_settings_and_sections_and_take_the_place_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = {"server.other": declared(), "shouting": declared(), "loud": None, "bare": Bare}
    monkeypatch.setattr(entry_points, "names", lambda group: list(plugins))
    monkeypatch.setattr(entry_points, "load_all", lambda group, fits: {k: v for k, v in plugins.items() if fits(v)})
    found = runpy.run_path(registry.__file__)
    assert found["BROKEN"] == {"loud", "bare"}
    assert found["SETTINGS"]["server.port"].struct is ServerSettings
    names = [name for name in found["SETTINGS"] if name.startswith("server.")]
    assert names[-6:] == [f"server.{key}" for key in declared().__struct_fields__ if key != "port"]
    assert found["SETTINGS"]["shouting.port"].variable == "STREAMER_SHOUTING_PORT"
    assert list(found["SECTIONS"])[-1] == "shouting"
