"""What `--to` names, for tests of plug-ins' sinks."""

from collections.abc import Callable

from streamer.outputs.sink import Target
from streamer.outputs.subtitles import SubtitleOptions
from streamer.settings.load import load_settings


def target(argument: str, said_at: Callable[[float], float] = float, **outputs: str) -> Target:
    """Return what `--to KIND:ARGUMENT` asks for beside settings of the section `outputs`."""
    settings = load_settings(None, {}, {f"outputs.{name}": value for name, value in outputs.items()})
    return Target(argument=argument, settings=settings, lines=SubtitleOptions(), said_at=said_at)
