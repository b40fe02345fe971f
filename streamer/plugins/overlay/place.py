"""Where captions stand on a screen, and how large: geometry, and the file in which it is kept.

All lengths are logical pixels, from the upper left corner of the screen.
"""

import logging
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from streamer.outside import one_line

logger = logging.getLogger(__name__)

N_ROWS = 2
ROW_EM = 1.4  # height of a line, by the size of the text
PADDING_EM = 0.4  # between the text and the edges
HEIGHT_EM = N_ROWS * ROW_EM + 2 * PADDING_EM
MARGIN = 24  # between the captions and the edges of the screen, before they are moved
WIDTH_EM = 22  # width before it is changed: 40 to 45 characters
MIN_WIDTH = 120
MIN_SIZE, MAX_SIZE, USUAL_SIZE = 8, 400, 40
GRIP = 18  # width of the edges that are dragged
MAX_FILE_BYTES = 4096

# What is dragged: everything, or an edge.
Grip = Literal["all", "left", "right", "bottom"]

_Length = Annotated[int, msgspec.Meta(ge=-100_000, le=100_000)]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The captions' place on a screen."""

    # Name of the screen, as the desktop has it; empty: the main one.
    screen: str = ""
    x: _Length
    y: _Length
    width: Annotated[int, msgspec.Meta(ge=1, le=100_000)]

    # Height of the letters, as CSS has it.
    size: Annotated[int, msgspec.Meta(ge=MIN_SIZE, le=MAX_SIZE)]

    @property
    def padding(self) -> int:
        return round(PADDING_EM * self.size)

    @property
    def row(self) -> int:
        """Height of a line."""
        return round(ROW_EM * self.size)

    @property
    def height(self) -> int:
        return N_ROWS * self.row + 2 * self.padding

    def within(self, width: int, height: int) -> "Place":
        """Return the nearest place that is on a screen of this size as a whole, as far as it can be."""
        # A desktop whose screens are off has one without any size.
        width, height = max(width, MIN_WIDTH), max(height, round(MIN_SIZE * HEIGHT_EM) + 2)
        # Lines and padding are rounded up by two pixels at most.
        size = max(MIN_SIZE, min(self.size, int((height - 2) / HEIGHT_EM)))
        place = msgspec.structs.replace(self, size=size, width=max(MIN_WIDTH, min(self.width, width)))
        x, y = (max(0, min(place.x, width - place.width)), max(0, min(place.y, height - place.height)))
        return msgspec.structs.replace(place, x=x, y=y)

    def at(self, position: str, width: int, height: int) -> "Place":
        """Return the place at an edge of a screen of this size, such as `top` and `bottom-left`, or in the `middle`."""
        row, _, column = position.partition("-")
        free_x, free_y = width - self.width, height - self.height
        x = {"left": MARGIN, "right": free_x - MARGIN}.get(column, free_x // 2)
        y = {"top": MARGIN, "bottom": free_y - MARGIN}.get(row, free_y // 2)
        return msgspec.structs.replace(self, x=x, y=y).within(width, height)

    def resized(self, size: int) -> "Place":
        """Return the place with letters of another size, its middle where it was."""
        place = msgspec.structs.replace(self, size=max(MIN_SIZE, min(MAX_SIZE, size)))
        return msgspec.structs.replace(place, y=self.y + (self.height - place.height) // 2)

    def grip(self, x: int, y: int) -> Grip | None:
        """Return what is dragged at a point of the screen; None beside the captions."""
        left, below = x - self.x, y - self.y
        if not (0 <= left < self.width and 0 <= below < self.height):
            return None
        if left < GRIP:
            return "left"
        if left >= self.width - GRIP:
            return "right"
        return "bottom" if below >= self.height - GRIP else "all"

    def dragged(self, grip: Grip, x: int, y: int) -> "Place":
        """Return the place after a drag by so much to the right and down. The lower edge changes the letters' size."""
        change = msgspec.structs.replace
        match grip:
            case "left":
                width = max(MIN_WIDTH, self.width - x)
                return change(self, width=width, x=self.x + self.width - width)
            case "right":
                return change(self, width=max(MIN_WIDTH, self.width + x))
            case "bottom":
                size = round((self.height + y) / HEIGHT_EM)
                return change(self, size=max(MIN_SIZE, min(MAX_SIZE, size)))
            case "all":
                return change(self, x=self.x + x, y=self.y + y)


def usual(width: int, height: int, *, size: int = 0) -> Place:
    """Return the place at first: at the bottom of a screen of this size, in the middle. `size` 0: the usual one."""
    size = size or USUAL_SIZE
    place = Place(x=0, y=0, width=min(WIDTH_EM * size, width - 2 * MARGIN), size=size)
    return place.at("bottom", width, height)


def read(path: Path) -> Place | None:
    """Return the place that was kept; None, behind a warning, if the file is damaged."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_FILE_BYTES), type=Place)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("the place in %s is not used (%s): the captions are at the bottom", path, one_line(error))
        return None


def write(path: Path, place: Place) -> None:
    """Keep a place instead of the one that was. Without a file that can be written it is only logged."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.encode(place))
        partial.replace(path)
    except OSError as error:
        logger.warning("the place cannot be kept in %s (%s)", path, one_line(error))
