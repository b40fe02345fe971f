"""Settings of `streamer overlay`."""

from typing import Annotated

import msgspec

from streamer.plugins.overlay.place import MAX_SIZE
from streamer.settings.setting import Help, like, within


class OverlaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The captions of `streamer overlay`, over all windows."""

    position: Annotated[
        str,
        like("last|(top|middle|bottom)(-left|-right)?", "bottom-left", "last", "top", "middle", "bottom"),
        Help("top, middle or bottom, with -left or -right or without; last: where they were left", metavar="WHERE"),
    ] = "last"
    size: Annotated[
        int, within(0, MAX_SIZE, "pixels"), Help("height of the letters, at least 8; 0: as it was left")
    ] = 0
    width: Annotated[int, within(0, 20_000, "pixels"), Help("length of a line; 0: as it was left")] = 0
    opacity: Annotated[
        int, within(0, 100, "%"), Help("how much of what is below the plate hides; 0: letters with an outline alone")
    ] = 70
    fade_s: Annotated[
        float, within(0.0, 3600.0, "s"), Help("time without words after which they go away; 0: never", flag="--fade")
    ] = 8.0
