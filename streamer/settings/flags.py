"""Command-line flags of settings, made of the table."""

import argparse

from streamer.settings.registry import SETTINGS
from streamer.settings.setting import Setting


def option_groups() -> dict[str, list[Setting]]:
    """Return the options of decoding and output, by the title of their group."""
    groups: dict[str, list[Setting]] = {}
    title = ""
    for setting in SETTINGS.values():
        if setting.name.startswith(("decoding.", "output.")):
            title = setting.group or title
            groups.setdefault(title, []).append(setting)
    return groups


def add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the flags of settings, which are named as in `server.port`.

    A flag leaves text, or for a switch a bool, under its setting's name, and None if it was not given. The text is
    checked with all other settings, so that ranges stand in one place.
    """
    for name in names:
        setting = SETTINGS[name]
        default = "" if setting.default_text == "empty" else f"default: {setting.default_text}"
        _add(parser, setting, setting.limits, default)


def add_decoding_flags(parser: argparse.ArgumentParser, *, streaming: bool) -> None:
    """Add the flags of decoding and output in their groups; with `streaming` only those that live captions heed."""
    for title, settings in option_groups().items():
        heeded = [setting for setting in settings if setting.live or not streaming]
        if not heeded:
            continue
        group = parser.add_argument_group(title)
        for setting in heeded:
            _add(group, setting, setting.limits, f"default: {setting.default_text}", setting.source)


def _add(parser: argparse._ActionsContainer, setting: Setting, *notes: str) -> None:
    noted = "; ".join(filter(None, notes))
    help = f"{setting.help} ({noted})" if noted else setting.help
    help = help.replace("%", "%%")
    if setting.kind is bool:
        parser.add_argument(setting.option, dest=setting.name, action=argparse.BooleanOptionalAction, help=help)
        return
    # Devices are written in capitals.
    to = str.upper if setting.choices and all(choice == choice.upper() for choice in setting.choices) else str
    action = "append" if setting.repeated else "store"
    metavar = setting.metavar or ("N" if setting.kind is int else "X")
    parser.add_argument(setting.option, dest=setting.name, action=action, type=to, metavar=metavar, help=help)
