"""Captions in lines that roll, as on television: which words stand in which line. Without I/O.

Words fill a line, and the first that does not fit begins the next, by the rules of `server/static/rolling.js`. What is
stable stays where it is until its line rolls away.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from streamer.events import Event, Final, Gap, Partial, Ready, Revision
from streamer.outputs.breaks import may_break
from streamer.outputs.subtitles.cues import file_line
from streamer.outputs.writing import space_between

MAX_LINES = 24  # that are kept; more than are seen at once
MAX_FINALS = 50  # that can be revised

_WORD = re.compile(r"\s*\S+")
_SIGNS = re.compile(r"[^\w\s]{1,3}")  # behind a word that stands already; they begin no line

# Whether a text is no wider than a line.
Fits = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """A line: the text that does not change any more, and what follows it and may."""

    stable: str
    open: str = ""


@dataclass(frozen=True, slots=True)
class _Unit:
    """A word, or the part of one behind which a line may end, with the space before it."""

    text: str
    segment: tuple[str, int] = ("", 0)
    begins: bool = False  # the segment


class Rolling:
    """Turns events into lines. Stable words never change their places in them, except where a revision does."""

    def __init__(self, fits: Fits) -> None:
        self._fits = fits

        # The newest segment, and how many characters of its text stand in the lines.
        self._segment = ("", 0)
        self._n_placed = 0

        # Stable units, by lines, and the text behind them, which may change.
        self._lines: list[list[_Unit]] = []
        self._open: list[_Unit] = []

        # Segments of the newest finals, by session and number.
        self._finals: dict[tuple[str, int], tuple[str, int]] = {}

        # Lines that are no longer kept, and lines since the screen was empty: these never roll back.
        self._n_gone = self._n_rows = 0

    def handle(self, event: Event) -> bool:
        """Take the next event. Returns whether there are other words to see."""
        opened, changed = self._open, False
        match event:
            case Partial(text=text, stable=stable):
                changed = self._place(event, file_line(text), len(file_line(text[: max(0, stable)])))
            case Final(task="", text=text):
                changed = self._place(event, file_line(text), len(text))
                self._finals[event.session, event.seq] = self._segment
                if len(self._finals) > MAX_FINALS:
                    del self._finals[next(iter(self._finals))]
            case Revision(session=session, of=of, text=text):
                return self._revise(self._finals.get((session, of)), file_line(text))
            case Ready() | Gap(reason="cleared"):  # no final comes of the open words
                self._open = []
        return changed or [unit.text for unit in self._open] != [unit.text for unit in opened]

    def rows(self, n_rows: int) -> list[Row]:
        """Return the newest lines that are to be seen, the oldest first; none on an empty screen."""
        lines = [*self._lines[:-1], *([[*self._lines[-1]]] if self._lines else [])]
        n_stable = [len(line) for line in lines]
        for unit in self._open:
            self._put(lines, unit)
        self._n_rows = max(self._n_rows, self._n_gone + len(lines))
        lines += [[] for _ in range(self._n_rows - self._n_gone - len(lines))]
        n_stable += [0] * (len(lines) - len(n_stable))
        rows = []
        for line, n in list(zip(lines, n_stable, strict=True))[-n_rows:]:
            stable = _text(line[:n])
            rows.append(Row(stable, _text(line)[len(stable) :]))
        return rows

    def clear(self) -> None:
        """Begin with an empty screen. Words of an open segment that stood on the old one do not come again."""
        self._lines, self._open = [], []
        self._n_gone = self._n_rows = 0

    def lay_again(self) -> None:
        """Lay the same words out again, because lines have another width."""
        self._n_gone = self._n_rows = 0
        self._lay([unit for line in self._lines for unit in line])

    def _place(self, event: Partial | Final, text: str, n_chars: int) -> bool:
        """Add the whole units of a text's first characters; a part of one would have to move with the rest of it."""
        segment = (event.session, event.segment)
        if segment != self._segment:
            self._segment, self._n_placed = segment, 0
        begins = self._n_placed == 0
        units = [_Unit(each, segment) for each in units_of(text[self._n_placed :])]
        n, n_placed = 0, self._n_placed
        while n < len(units) and n_placed + len(units[n].text) <= n_chars:
            n_placed += len(units[n].text)
            n += 1
        self._n_placed = n_placed
        if begins and units:
            units[0] = _Unit(f"{self._space_before(units[0].text)}{units[0].text}", segment, begins=True)
        for unit in units[:n]:
            self._put(self._lines, unit)
        self._drop()
        self._open = units[n:]
        return n > 0

    def _space_before(self, text: str) -> str:
        return space_between(_text(self._lines[-1]), text) if self._lines and self._lines[-1] else " "

    def _revise(self, segment: tuple[str, int] | None, text: str) -> bool:
        """Put a segment's newer text in its place, if all of it is still there."""
        units = [unit for line in self._lines for unit in line]
        first = next((i for i, unit in enumerate(units) if unit.begins and unit.segment == segment), None)
        if segment is None or first is None:
            return False
        end = next((i for i in range(first, len(units)) if units[i].segment != segment), len(units))
        space = units[first].text[: len(units[first].text) - len(units[first].text.lstrip())]
        newer = [_Unit(each, segment, i == 0) for i, each in enumerate(units_of(space + text))]
        if [unit.text for unit in newer] == [unit.text for unit in units[first:end]]:
            return False
        self._lay([*units[:first], *newer, *units[end:]])
        return True

    def _lay(self, units: Iterable[_Unit]) -> None:
        self._lines = []
        for unit in units:
            self._put(self._lines, unit)
        self._drop()

    def _drop(self) -> None:
        n_gone = max(0, len(self._lines) - MAX_LINES)
        del self._lines[:n_gone]
        self._n_gone += n_gone

    def _put(self, lines: list[list[_Unit]], unit: _Unit) -> None:
        """Put a unit behind the last line, or into lines of its own."""
        if lines and (_SIGNS.fullmatch(unit.text) or self._fits(_text([*lines[-1], unit]))):
            lines[-1].append(unit)
            return
        for i, piece in enumerate(_pieces(unit.text, self._fits)):
            lines.append([_Unit(piece, unit.segment, unit.begins and i == 0)])


def units_of(text: str) -> Iterator[str]:
    """Yield the words of a text with the spaces before them; of a script without spaces, what a line may end behind."""
    for word in _WORD.findall(text):
        start, n_spaces = 0, len(word) - len(word.lstrip())
        for i in range(n_spaces + 1, len(word)):
            if may_break(word[i - 1], word[i]):
                yield word[start:i]
                start = i
        yield word[start:]


def wrapped(text: str, fits: Fits) -> list[Row]:
    """Return the lines of a text that stands by itself."""
    rolling = Rolling(fits)
    rolling._lay(map(_Unit, units_of(text)))
    return rolling.rows(MAX_LINES)


def _text(line: Sequence[_Unit]) -> str:
    return "".join(unit.text for unit in line).lstrip()


def _pieces(text: str, fits: Fits) -> Iterator[str]:
    """Yield a unit in pieces that fit into a line, of one character at least."""
    while text:
        n = len(text)
        while n > 1 and not fits(text[:n].lstrip()):
            n -= 1
        yield text[:n]
        text = text[n:]
