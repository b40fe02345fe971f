"""Division of finals into cues and lines: in a readable style, or as openai-whisper does."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

from streamer.events import Final, Word
from streamer.outputs.breaks import best_break, may_break
from streamer.outputs.subtitles.cues import (
    Cue,
    CueWord,
    SubtitleOptions,
    columns,
    file_line,
    milliseconds,
    spoken_words,
    timed_words,
)

# The readable style, after broadcasters' guides. Wide East Asian characters count twice.
LINE_CHARS = 42
MAX_CUE_LINES = 2
CHARS_PER_S = 17
MIN_CUE_MS = 700
MAX_CUE_MS = 7000
MIN_GAP_MS = 1000  # a shorter gap between two cues is closed
MAX_PAUSE_MS = 1000  # a longer pause between two words begins a new cue

_SENTENCE_ENDS = ".!?…。！？"
_WIDE_CLAUSE_ENDS = "、，；：。！？"
_CLAUSE_ENDS = f",;:–—{_WIDE_CLAUSE_ENDS}"
_CLAUSE_PAUSE_MS = 250
_LINKING_CHARS = 3  # articles, prepositions and conjunctions are that short, and belong to the next word

# openai-whisper's value for no limit of characters, words or lines, and its pause between two starts that ends a cue.
_WHISPER_NO_LIMIT = 1000
_WHISPER_PAUSE_S = 3.0

# Words without a possible line break between them.
_Piece = list[CueWord]


class ReadableLayout:
    """Cues of at most two lines, divided at ends of sentences and clauses. A cue ends with its final and at a pause.

    Words without a space between them stay on one line; a word longer than a line is divided.

    A cue begins with its speech and ends when there was time to read it or the next one begins, so it is held back
    until the next one is known. If the next one begins before its minimum duration, the two become one of two lines,
    or the next one is delayed.
    """

    def __init__(self) -> None:
        # The last cue, whose end is not known yet.
        self._held: Cue | None = None
        # End of the cue before it.
        self._free_ms = 0

    def add(self, final: Final) -> Iterator[Cue]:
        """Yield the cues that the next final completes."""
        for cue in _cues(final):
            yield from self._hold(cue)

    def close(self) -> Iterator[Cue]:
        """Yield the last cue."""
        return self._release(math.inf)

    def _hold(self, cue: Cue) -> Iterator[Cue]:
        """Hold a cue back, and yield the one before if its end is known now."""
        held = self._held
        cue = dataclasses.replace(cue, start_ms=max(cue.start_ms, self._free_ms))
        if held is not None and cue.start_ms - held.start_ms < MIN_CUE_MS:
            if held.n_lines == cue.n_lines == 1:
                first, *others = cue.words
                words = (*held.words, dataclasses.replace(first, text=f"\n{first.text}"), *others)
                end_ms = max(held.end_ms, cue.end_ms)
                self._held = Cue(words, held.timed and cue.timed, held.start_ms, end_ms)
                return
            cue = dataclasses.replace(cue, start_ms=held.start_ms + MIN_CUE_MS)
        yield from self._release(cue.start_ms)
        self._held = cue

    def _release(self, next_ms: float) -> Iterator[Cue]:
        """Yield the held cue, which the next one follows at `next_ms`."""
        cue, self._held = self._held, None
        if cue is None:
            return
        n_columns = sum(columns(word.text.removeprefix("\n")) for word in cue.words)
        end_ms = max(cue.end_ms, cue.start_ms + max(MIN_CUE_MS, math.ceil(n_columns / CHARS_PER_S * 1000)))
        latest_ms = min(next_ms, cue.start_ms + MAX_CUE_MS)
        if end_ms > latest_ms or next_ms - end_ms < MIN_GAP_MS:
            end_ms = int(latest_ms)
        self._free_ms = end_ms
        yield dataclasses.replace(cue, end_ms=end_ms)


@functools.lru_cache(maxsize=64)  # a growing file divides its newest finals again and again
def _cues(final: Final) -> tuple[Cue, ...]:
    """Return the cues of a final as if nothing came before or after."""
    pieces = list(_pieces(final))
    cues: list[Cue] = []
    for begin, end in itertools.pairwise(_cuts(pieces)):
        cue = pieces[begin:end]
        line_begins = {_second_line(cue): "\n", 0: ""}
        words: list[CueWord] = []
        for i, (first, *others) in enumerate(cue):
            if i in line_begins:
                first = dataclasses.replace(first, text=line_begins[i] + first.text.removeprefix(" "))
            words += [first, *others]
        end_ms = max(word.end_ms for word in words)
        cues.append(Cue(tuple(words), bool(final.words), words[0].start_ms, end_ms))
    return tuple(cues)


def _cuts(pieces: list[_Piece]) -> list[int]:
    """Return the indices of pieces at which cues begin and end, with the least total cost."""
    full = MAX_CUE_LINES * LINE_CHARS
    # For each number of pieces: the least cost of their cues, and the beginning of the last cue.
    costs, begins = [0.0, *[math.inf] * len(pieces)], [0] * (len(pieces) + 1)
    for begin, first in enumerate(pieces):
        n_lines, n_columns, line_columns = 1, 0, 0
        for end, piece in enumerate(pieces[begin : begin + full], begin + 1):
            space, width = piece[0].text.startswith(" ") and end > begin + 1, _width([piece])
            n_columns += space + width
            line_columns += space + width
            if line_columns > LINE_CHARS:
                n_lines, line_columns = n_lines + 1, width
            too_much = n_lines > MAX_CUE_LINES or piece[0].start_ms - first[0].start_ms > MAX_CUE_MS
            if end > begin + 1 and (too_much or _is_pause(pieces[end - 2][-1], piece[0])):
                break
            # Prefer few cues of similar lengths, and none that is shown too briefly.
            is_short = piece[-1].end_ms - first[0].start_ms < MIN_CUE_MS
            cost = costs[begin] + 1 + (1 - n_columns / full) ** 2 + is_short
            cost += _break_cost(pieces, end) if end < len(pieces) else 0
            if cost < costs[end]:
                costs[end], begins[end] = cost, begin
    cuts = [len(pieces)]
    while cuts[-1]:
        cuts.append(begins[cuts[-1]])
    return cuts[::-1]


def _second_line(cue: list[_Piece]) -> int:
    """Return the index of the piece that begins the second line of a cue, 0 if one line is enough."""

    def cost(i: int) -> float:
        above, below = _width(cue[:i]), _width(cue[i:])
        fits = max(above, below) <= LINE_CHARS
        return _break_cost(cue, i) + abs(above - below) / LINE_CHARS if fits else math.inf

    return min(range(1, len(cue)), key=cost) if _width(cue) > LINE_CHARS else 0


def _width(pieces: list[_Piece]) -> int:
    return columns("".join(word.text for piece in pieces for word in piece).removeprefix(" "))


def _break_cost(pieces: list[_Piece], i: int) -> float:
    """Return the cost of ending a line or a cue before a piece."""
    word, following = pieces[i - 1][-1], pieces[i][0]
    text = word.text.strip().rstrip("\"'”’»)]")
    if text.endswith(tuple(_SENTENCE_ENDS)):
        return 0
    if text.endswith(tuple(_CLAUSE_ENDS)) or following.start_ms - word.end_ms >= _CLAUSE_PAUSE_MS:
        return 0.5
    return 2.5 if columns(text) <= _LINKING_CHARS else 1.5


def _pieces(final: Final) -> Iterator[_Piece]:
    """Yield the words of a final in pieces, none longer than a line."""
    piece: list[CueWord] = []
    for part in itertools.chain.from_iterable(map(_divided, timed_words(final))):
        if piece and may_break(piece[-1].text, part.text):
            clause_ends = piece[-1].text.endswith(tuple(_WIDE_CLAUSE_ENDS))
            if part.text.startswith(" ") or clause_ends or _is_pause(piece[-1], part):
                yield piece
                piece = []
        piece.append(part)
        while len(piece) > 1 and _width([piece]) > LINE_CHARS:
            begin = best_break([word.text for word in piece])
            yield piece[:begin]
            piece = piece[begin:]
    if piece:
        yield piece


def _divided(word: Word) -> list[CueWord]:
    """Divide a word at spaces within it and into lines; the parts share its time."""
    texts: list[str] = []
    for i, part in enumerate(word.word.split(" ")):
        space, begin = " " if i else "", 0
        while columns(part[begin : begin + LINE_CHARS + 1]) > LINE_CHARS:
            n_chars = next(n for n in range(LINE_CHARS, 0, -1) if columns(part[begin : begin + n]) <= LINE_CHARS)
            end = begin + best_break(part[begin : begin + n_chars + 1])
            texts.append(space + part[begin:end])
            space, begin = "", end
        if begin < len(part):
            texts.append(space + part[begin:])
    step_s = (word.end - word.start) / len(texts)
    return [
        CueWord(text, milliseconds(word.start + i * step_s), milliseconds(word.start + (i + 1) * step_s), word.speaker)
        for i, text in enumerate(texts)
    ]


def _is_pause(last: CueWord, word: CueWord) -> bool:
    return word.start_ms - last.end_ms > MAX_PAUSE_MS


class WhisperLayout:
    """openai-whisper's lines and cues. Segments without word times become one cue each, on one line."""

    def __init__(self, options: SubtitleOptions) -> None:
        self._max_line_chars = options.max_line_width or _WHISPER_NO_LIMIT
        self._max_words = options.max_words_per_line or _WHISPER_NO_LIMIT
        self._max_lines = options.max_line_count or _WHISPER_NO_LIMIT
        # Whether a cue may continue in the next segment.
        self._flows = bool(options.max_line_width and options.max_line_count)
        # The current cue, the number of its lines, and the characters of the last one.
        self._cue: list[CueWord] = []
        self._n_lines = 1
        self._line_chars = 0
        # Start of the last word.
        self._last_start: float | None = None

    def add(self, final: Final) -> Iterator[Cue]:
        """Yield the cues that the next final completes."""
        if not final.words:
            yield from self.close()
            start_ms, end_ms = milliseconds(final.start), milliseconds(final.end)
            yield Cue((CueWord(file_line(final.text), start_ms, end_ms),), False, start_ms, end_ms)
            return
        for i, word in enumerate(spoken_words(final)):
            text = word.word
            paused = self._flows and self._last_start is not None and word.start - self._last_start > _WHISPER_PAUSE_S
            self._last_start = word.start
            begins_cue = paused or (not self._flows and i % self._max_words == 0)
            if self._cue and not begins_cue and self._line_chars + len(text) <= self._max_line_chars:
                self._line_chars += len(text)
            else:
                text = text.removeprefix(" ")
                self._line_chars = len(text)
                if begins_cue or self._n_lines >= self._max_lines:
                    yield from self.close()
                elif self._cue:
                    self._n_lines += 1
                    text = "\n" + text
            self._cue.append(CueWord(text, milliseconds(word.start), milliseconds(word.end), word.speaker))
        if not self._flows:
            yield from self.close()

    def close(self) -> Iterator[Cue]:
        """Yield what is still held back."""
        if self._cue:
            cue, self._cue, self._n_lines = self._cue, [], 1
            yield Cue(tuple(cue), True, cue[0].start_ms, cue[-1].end_ms)
