"""A stretch of speech and the words that were heard in it. What happens to it is the session's decision."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from streamer.audio.constants import SAMPLE_RATE
from streamer.events import Partial, Word, seconds

SENTENCE_ENDS = (".", "?", "!", "。", "？", "！")
CLAUSE_ENDS = (",", ";", ":", "—", "，", "、", "；", "：")

# The decoder reads again where so many words follow each other for which it looked no further than before, and for one
# of them it looked back by more than this. Of the other words it looks back as far for one in a hundred, on its own.
MIN_REREAD_WORDS = 2
REREAD_SAMPLES = SAMPLE_RATE // 10


@dataclass(frozen=True, slots=True)
class HeardWord:
    """A word with its place in the session's audio, in absolute samples."""

    text: str
    tokens: tuple[int, ...]
    start: int
    end: int

    # How far into the audio the decoder had to look for it.
    attended: int
    probability: float


@dataclass(slots=True)
class Region:
    """A stretch of speech that is being transcribed."""

    number: int
    start: int

    # Where speech ended; None while it goes on.
    end: int | None = None

    # Behind this a window hears nothing new, once speech has ended.
    heard_from: int = 0

    # Whether it begins behind speech that was given up: its first window is due at once, whatever the pace.
    overdue: bool = False

    # Where the next window begins.
    window_start: int = 0

    # Where the segment that is open begins: where the last final ended.
    segment_start: int = 0

    # End of the newest window that was handed out, and of the newest that came back.
    issued_end: int = 0
    taken_end: int = 0

    # Whether the last window was handed out.
    last_issued: bool = False

    # Settled words, numbered from `n_forgotten` on; the first `n_final` (counted from the region's start) are final.
    words: list[HeardWord] = field(default_factory=list)
    n_forgotten: int = 0
    n_final: int = 0

    # Number of the first settled word that lies in the window.
    first_word: int = 0

    # Unsettled words of the newest hypothesis.
    tail: list[HeardWord] = field(default_factory=list)

    # How many of these, from the first on, are new: those behind them the decoder read again, or went on from there.
    n_new: int = 0

    # Passes in a row that brought no new word before that.
    n_rereading: int = 0

    # Whether the tail begins in the middle of a word, whose beginning is the last settled word.
    tail_writes_on: bool = False

    # What the newest hypothesis said besides its words.
    language: str = ""
    no_speech_prob: float = 0.0
    avg_logprob: float = 0.0

    # The newest partial, so that the same is not said twice, and how many words had settled by then: the segment
    # that it belongs to cannot end before them.
    partial: Partial | None = None
    n_told_stable: int = 0

    def settled_from(self, number: int) -> list[HeardWord]:
        """Return the settled words from a number on."""
        return self.words[max(0, number - self.n_forgotten) :]

    @property
    def n_settled(self) -> int:
        return self.n_forgotten + len(self.words)

    def settle(self, n_words: int) -> None:
        """Settle the first words of the tail."""
        settled = self.tail[:n_words]
        del self.tail[:n_words]
        self.n_new = max(0, self.n_new - n_words)
        if settled and self.tail_writes_on:
            # One word for the decoder is one word here, so that no final ends within a word.
            begun, rest = self.words.pop(), settled[0]
            settled[0] = replace(
                rest, text=begun.text + rest.text, tokens=begun.tokens + rest.tokens, start=begun.start
            )
            self.tail_writes_on = False
        self.words += settled

    def find_cut(self, length: int, trim_after: int, *, full: bool) -> tuple[int, int] | None:
        """Look for a cut behind a settled word, the less particular the longer the window is.

        length : of the window, in samples
        trim_after : length from which any gap between words will do
        full : whether it cannot grow

        Returns after which settled word (its number) and at which position to cut, None for not yet.
        """
        open_words = self.settled_from(self.n_final)
        # Stable words that were told belong to this segment. The last settled word stays: the decoder might still
        # write on at it.
        candidates = range(max(0, self.n_told_stable - self.n_final - 1), len(open_words) - 1)
        for ends, from_samples in ((SENTENCE_ENDS, trim_after // 2), (CLAUSE_ENDS, trim_after * 3 // 4)):
            for i in reversed(candidates):
                if length >= from_samples and open_words[i].text.endswith(ends):
                    return self.n_final + i + 1, between(open_words[i], open_words[i + 1])
        if candidates and (full or length >= trim_after):
            i = max(candidates, key=lambda i: (open_words[i + 1].start - open_words[i].end, i))
            return self.n_final + i + 1, between(open_words[i], open_words[i + 1])
        if open_words and (full or length >= trim_after * 3 // 2):
            # Nothing settles any more. A shorter window is easier to agree on.
            last = open_words[-1]
            return self.n_settled, between(last, self.tail[0]) if self.tail else last.end
        return None


def find_reread(words: Sequence[HeardWord], reach: int) -> range:
    """Find the first stretch of words for which the decoder read again what it had read.

    That is told by where it looked, and not by the text: what is said twice is read in two places.

    reach : how far it had looked before the first word, in absolute samples

    Returns the indices of the stretch: a single one only where that word is the last; an empty range behind the last
    word where nothing was read again.
    """
    first = 0
    while first < len(words):
        behind = next((i for i in range(first, len(words)) if words[i].attended > reach), len(words))
        several = behind - first >= MIN_REREAD_WORDS or behind == len(words)
        if several and any(word.attended < reach - REREAD_SAMPLES for word in words[first:behind]):
            return range(first, behind)
        if behind < len(words):
            reach = words[behind].attended
        first = behind + 1
    return range(len(words), len(words))


def between(left: HeardWord, right: HeardWord) -> int:
    """Return the position in the middle between two words."""
    return (left.end + right.start) // 2


def event_words(words: Sequence[HeardWord], n_stable: int, start: int, end: int) -> tuple[Word, ...]:
    """Turn words into those of an event, in order and within its bounds."""
    result: list[Word] = []
    earliest = start
    for i, word in enumerate(words):
        begin = min(max(word.start, earliest), end)
        earliest = min(max(word.end, begin), end)
        result.append(
            Word(
                word=word.text,
                start=seconds(begin),
                end=seconds(earliest),
                probability=round(word.probability, 3),
                stable=i < n_stable,
            )
        )
    return tuple(result)
