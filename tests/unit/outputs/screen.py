"""A terminal of a known size, and what it shows."""

import re
import unicodedata

from rich.console import Console

from streamer.events import Event
from streamer.outputs.terminal import Terminal


class Screen:
    """What a terminal shows: as much of the escape sequences as rich uses here, and an error for any other.

    Text that would run into the next row is an error too.
    """

    def __init__(self, width: int = 40, height: int = 12) -> None:
        self.console = Console(
            file=self,  # type: ignore[arg-type]
            force_terminal=True,
            width=width,
            height=height,
            legacy_windows=False,
            color_system="standard",
            _environ={"TERM": "xterm"},
        )
        self.written = ""
        # A character a cell; behind a wide one an empty one. Rows that have left the screen are above `top`.
        self._rows: list[list[str]] = [[]]
        self._top = self._row = self._column = 0

    def write(self, text: str) -> int:
        self.written += text
        for escape, code, char in re.findall(r"(\x1b\[([^a-zA-Z]*[a-zA-Z]))|(.)", text, re.DOTALL):
            if escape:
                self._obey(code[-1], code[:-1])
            elif char == "\n":
                self._row, self._column = self._row + 1, 0
                self._rows += [[] for _ in range(self._row + 1 - len(self._rows))]
                self._top = max(self._top, self._row + 1 - self.console.height)
            elif char == "\r":
                self._column = 0
            else:
                self._put(char)
        return len(text)

    def flush(self) -> None:
        pass

    def _obey(self, code: str, count: str) -> None:
        if code == "A":
            self._row = max(self._top, self._row - int(count))
        elif code == "K":
            assert count == "2"
            self._rows[self._row] = []
        else:
            assert code in "mhl"

    def _put(self, char: str) -> None:
        row = self._rows[self._row]
        if unicodedata.combining(char):
            row[self._column - 1] += char
            return
        cells = [char, ""] if unicodedata.east_asian_width(char) in "WF" else [char]
        assert self._column + len(cells) <= self.console.width, "a row is too long"
        row += [" "] * (self._column - len(row))
        row[self._column : self._column + len(cells)] = cells
        self._column += len(cells)

    def resize(self, width: int, height: int) -> None:
        """Divide rows that are too long, as most terminals do."""
        rows: list[list[str]] = []
        for i, row in enumerate(self._rows):
            rows += [row[at : at + width] for at in range(0, max(1, len(row)), width)]
            if i == self._row:
                self._row = len(rows) - 1
        self._rows = rows
        self._top = max(0, len(rows) - height)
        self.console.size = (width, height)

    def lines(self) -> list[str]:
        """Return all rows, those that have left the screen too, except empty ones at the end."""
        lines = ["".join(row).rstrip() for row in self._rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def show(*events: Event, screen: Screen | None = None, close: bool = True, corrections: bool = False) -> Screen:
    """Show events, numbered from 1 on."""
    screen = screen or Screen()
    sink = Terminal(screen.console, corrections=corrections)
    for number, event in enumerate(events, 1):
        sink.handle(event if event.seq else event.stamped(number, "s"))
    if close:
        sink.close()
        sink.close()
    return screen
