"""What captions look like on a screen: lines that end at sentences, of which the last ones can still change."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from rich.cells import cell_len, split_graphemes
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from streamer.events import End, Error, Event, Final, Gap, Partial, Ready, Revision, Speakers, Translation
from streamer.outputs.breaks import may_break
from streamer.outputs.subtitles.cues import file_line
from streamer.outputs.subtitles.revised import SpeakerNames, revised, speaker_of, turns
from streamer.outputs.writing import sentence_starts, space_between

UNSTABLE_STYLE = "dim"
LATER_STYLE = "cyan"  # of translations, and of corrections that are printed
LONG_PAUSE_S = 2.0  # ends a line, as a sentence does
MAX_LINE_CHARS = 500  # such a line ends with its final: some models write no marks

# What is written to a terminal.
Drawing = Sequence[Text | Control]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A sentence of an event, or the part of a sentence that is in it."""

    text: Text
    event: Final | Partial
    speaker: str

    # Whether it is the event's first.
    first: bool


@dataclass(frozen=True, slots=True)
class _Layout:
    """The rows of a terminal that hold lines."""

    # None: unknown, as the terminal has divided its rows anew.
    rows: list[Text | None] = field(default_factory=list)

    # Of each line: the index of its first piece, and of its first row.
    lines: list[tuple[int, int]] = field(default_factory=list)


class Captions:
    """Decides what is written to a terminal of a known size, in columns and rows, to show events. Without I/O.

    A row that has left the screen cannot be changed: its text is forgotten. Whatever else is written to the terminal
    meanwhile has to go through `print`.
    """

    def __init__(self) -> None:
        # What may still change its place or its text; a Text is a line of its own.
        self._pieces: list[_Piece | Text] = []
        self._partial: Partial | None = None
        self._names = SpeakerNames()
        # Lines that find their place when the partial is final.
        self._waiting: list[Text] = []

        # What is on the terminal. The cursor is at the beginning of its last row, or of an empty one.
        self._shown = _Layout()
        # How many of its rows have left the screen.
        self._n_hidden = 0
        # Columns of the terminal when that was written.
        self._width = 0

    def handle(self, event: Event, width: int, height: int) -> Drawing:
        """Return what shows the next event."""
        self._resize(width, height)
        match event:
            case Partial():
                self._partial = event
            case Final():
                self._partial = None
                self._pieces += _pieces(self._names.named(event))
            case Revision(session=session, of=of):
                self._change(lambda final: revised(final, event) if _key(final) == (session, of) else final, height)
            case Speakers():
                self._names.learn(event)
                self._change(lambda final: final, height)
            case Translation(session=session, of=of):
                line = Text(file_line(event.text), f"{LATER_STYLE} italic")
                spoken = [i for i, piece in enumerate(self._pieces) if _key(piece) == (session, of)]
                self._insert(line, spoken[-1] + 1 if spoken else self._line_start(), height)
            case Gap(start=start, end=end):
                self._partial = None
                reason = file_line(event.reason)
                self._pieces.append(Text(f"[{start:.1f} s to {end:.1f} s not transcribed: {reason}]", "yellow"))
            case Error():
                line = Text(file_line(f"{event.code}: {event.message}"), "red" if event.fatal else "yellow")
                self._insert(line, self._line_start(), height)
            case Ready() | End():
                self._partial = None
                return [*self._redraw(height), *self._leave()]
        return self._redraw(height)

    def print(self, line: Text, width: int, height: int) -> Drawing:
        """Return what prints a line above the sentence that is being spoken."""
        self._resize(width, height)
        self._insert(line, self._line_start(), height)
        return self._redraw(height)

    def close(self, width: int, height: int) -> Drawing:
        """Return what leaves all text that cannot change any more, and the cursor in an empty row below it."""
        self._resize(width, height)
        if (partial := self._partial) is not None:
            self._partial = None
            self._pieces += _pieces(msgspec.structs.replace(partial, text=partial.text[: max(0, partial.stable)]))
        return [*self._redraw(height), *self._leave()]

    def _leave(self) -> list[Text | Control]:
        """Forget all that is shown; what follows begins in the row below it."""
        is_empty = not self._shown.rows
        self._pieces, self._shown, self._n_hidden, self._names = [], _Layout(), 0, SpeakerNames()
        return [] if is_empty else [Text("\n")]

    def _change(self, change: Callable[[Final], Final], height: int) -> None:
        """Change the finals that are on the screen from their beginning."""
        whole = {_key(piece) for piece in self._pieces if isinstance(piece, _Piece) and piece.first}
        changed: list[_Piece | Text] = []
        for piece in self._pieces:
            if isinstance(piece, Text) or isinstance(piece.event, Partial) or _key(piece) not in whole:
                changed.append(piece)
            elif piece.first:
                changed += _pieces(self._names.named(change(piece.event)))
        if self._is_reachable(changed, height):
            self._pieces = changed

    def _insert(self, line: Text, at: int, height: int) -> None:
        """Put a line before a piece; if that has left the screen, behind what is being spoken, once it is final."""
        pieces = [*self._pieces[:at], line, *self._pieces[at:]]
        if self._is_reachable(pieces, height):
            self._pieces = pieces
        else:
            self._waiting.append(line)

    def _line_start(self) -> int:
        """Return the index of the piece that begins the line to which text may still be added; if none, of the next."""
        last = self._pieces[-1] if self._pieces else None
        if self._partial is None and (not isinstance(last, _Piece) or _ends_sentence(last.text.plain)):
            return len(self._pieces)
        return max((piece for piece, _ in self._shown.lines if piece <= len(self._pieces)), default=len(self._pieces))

    def _resize(self, width: int, height: int) -> None:
        """Take in the terminal's size. Most terminals divide rows that are too long for a new width, and join none."""
        if width != self._width:
            n_rows = [-(-cell_len(row.plain) // width) or 1 if row is not None else 1 for row in self._shown.rows]
            places = [0, *itertools.accumulate(n_rows)]
            lines = [(piece, places[row]) for piece, row in self._shown.lines]
            self._shown, self._n_hidden = _Layout([None] * places[-1], lines), places[self._n_hidden]
            self._width = width
        self._forget(height)

    def _forget(self, height: int) -> None:
        """Forget lines whose beginning has left the screen, except the one that is being spoken."""
        n_rows = len(self._shown.rows)
        self._n_hidden = max(0, min(max(self._n_hidden, n_rows - height), n_rows - 1))
        if self._n_hidden:
            lines = [(piece, row) for piece, row in self._shown.lines if piece <= len(self._pieces)]
            first, top = next((line for line in lines if line[1] >= self._n_hidden), lines[-1])
            del self._pieces[:first]
            lines = [(piece - first, row - top) for piece, row in self._shown.lines if row >= top]
            self._shown, self._n_hidden = _Layout(self._shown.rows[top:], lines), max(0, self._n_hidden - top)

    def _redraw(self, height: int) -> list[Text | Control]:
        """Return what turns what is on the terminal into the present text, as far as it is on the screen."""
        if self._partial is None:
            self._pieces += self._waiting
            self._waiting.clear()
        layout = self._laid_out(self._pieces, height)
        old, new = self._shown.rows, layout.rows
        # The last row in any case: what is typed, such as Ctrl-C, is echoed there.
        n_same = max(min(_n_same(old, new), len(old) - 1), self._n_hidden)
        self._shown = layout
        self._forget(height)
        return _rewritten(len(old), n_same, new)

    def _is_reachable(self, pieces: Sequence[_Piece | Text], height: int) -> bool:
        """Return whether all rows that differ with these pieces are on the screen."""
        return _n_same(self._shown.rows, self._laid_out(pieces, height).rows) >= self._n_hidden

    def _laid_out(self, pieces: Sequence[_Piece | Text], height: int) -> _Layout:
        layout = _Layout()
        partial = _pieces(self._partial) if self._partial is not None else ()
        for first, line in _joined([*pieces, *partial]):
            layout.lines.append((first, len(layout.rows)))
            # A full row would take some terminals to the next one.
            for row in line.divide(_breaks(line.plain, max(1, self._width - 1))):
                row.rstrip()
                layout.rows.append(row)
        # Rows that may change must not leave the screen: those of unstable text, and the one before them, whose end may
        # move.
        n_rows, room = len(layout.rows), max(1, height - 1)
        n_stable = next((i for i, row in enumerate(layout.rows) if row is not None and _is_unstable(row)), n_rows)
        if n_rows - n_stable > room:
            layout.rows[n_stable : n_rows - room + 1] = [Text("…", UNSTABLE_STYLE)]
        return layout


def _n_same(old: Sequence[Text | None], new: Sequence[Text | None]) -> int:
    """Return how many rows both begin with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _is_unstable(row: Text) -> bool:
    return any(span.style == UNSTABLE_STYLE for span in row.spans)


def _rewritten(n_old: int, n_same: int, new: Sequence[Text | None]) -> list[Text | Control]:
    """Return what turns `n_old` rows, the cursor in the last, into others, of which the first `n_same` are the same."""
    n_blank = n_old - max(n_same, len(new))
    drawing: list[Text | Control] = [_up(n_old - 1 - n_same)]
    for i, row in enumerate([*new[n_same:], *[Text()] * n_blank]):
        drawing += [*[Text("\n")] * (i > 0), Control((ControlType.ERASE_IN_LINE, 2)), row or Text()]
    return [*drawing, _up(n_blank if new else n_blank - 1)]


def _up(n_rows: int) -> Control:
    return Control(ControlType.CARRIAGE_RETURN, *([(ControlType.CURSOR_UP, n_rows)] if n_rows > 0 else []))


def _key(said: "Event | _Piece | Text") -> tuple[str, int]:
    """Return what a piece, or its event, is known by in later events; nothing of a line of its own."""
    event = said.event if isinstance(said, _Piece) else said
    return (event.session, event.seq) if isinstance(event, Event) else ("", -1)


def _pieces(event: Final | Partial) -> list[_Piece]:
    """Return the sentences of an event, each of one speaker."""
    if isinstance(event, Partial):
        stable = file_line(event.text[: max(0, event.stable)])
        text = Text(file_line(event.text))
        text.stylize(UNSTABLE_STYLE, len(stable))
        spoken = [("", text)]
    else:
        spoken = [(speaker_of(turn) or event.speaker, Text(file_line(turn.text))) for turn in turns(event)]
    pieces: list[_Piece] = []
    for speaker, text in spoken:
        for sentence in text.divide(sentence_starts(text.plain)):
            sentence.rstrip()
            if sentence.plain:
                pieces.append(_Piece(sentence, event, file_line(speaker), first=not pieces))
    return pieces


def _joined(pieces: Sequence[_Piece | Text]) -> Iterator[tuple[int, Text]]:
    """Yield the lines that pieces make up, each with the index of its first piece."""
    line, first, before = Text(), 0, None
    for i, piece in enumerate(pieces):
        if before is not None and isinstance(piece, _Piece) and _goes_on(line, before, piece):
            line.append(space_between(line.plain, piece.text.plain)).append_text(piece.text)
            # What has no speaker yet is taken for the same one's.
            before = piece if piece.speaker else replace(piece, speaker=before.speaker)
            continue
        if line.plain:
            yield first, line
        first = i
        if isinstance(piece, Text):
            line, before = piece, None
        else:
            line, before = Text.assemble(f"{piece.speaker}: " if piece.speaker else "", piece.text), piece
    if line.plain:
        yield first, line


def _goes_on(line: Text, before: _Piece, piece: _Piece) -> bool:
    """Return whether a piece belongs to the line that ends with the piece before it."""
    return (
        piece.first
        and piece.speaker in ("", before.speaker)
        and piece.event.start - before.event.end < LONG_PAUSE_S
        and len(line) < MAX_LINE_CHARS
        and not _ends_sentence(line.plain, piece.text.plain)
    )


def _ends_sentence(text: str, following: str = "A") -> bool:
    """Return whether a sentence ends between two parts of a text."""
    begin = f"{text}{space_between(text, following)}"
    return len(begin) in sentence_starts(begin + following)


@functools.lru_cache(maxsize=256)
def _breaks(text: str, width: int) -> tuple[int, ...]:
    """Return where a line is divided into rows: at its line breaks, between words, and in words longer than a row."""
    breaks = [0]
    n_cells = 0  # of the row so far
    place = n_before = 0  # where the row may be broken, and how many cells are before that
    for start, end, n in split_graphemes(text)[0]:
        if start and text[start] != " " and may_break(text[start - 1], text[start]):
            place, n_before = start, n_cells
        if n_cells + n > width and n_cells and text[start] != " ":
            if place <= breaks[-1]:
                place, n_before = start, n_cells
            breaks.append(place)
            n_cells -= n_before
        n_cells += n
        if text[end - 1] == "\n":
            breaks.append(end)
            n_cells = 0
    return tuple(breaks[1:])
