"""Words with their places in a session's audio. Positions are absolute samples."""

import dataclasses
from collections.abc import Sequence

import msgspec

from streamer.constants import SAMPLE_RATE
from streamer.events import Word, seconds
from streamer.session.task import Span
from streamer.whisper.result import TimedWord, is_mark

# The decoder repeats itself if its attention does not advance for this many words in a row, and is further back than
# this for one of them. In other text, attention goes back as far for one word in a hundred, never for two in a row.
MIN_REPEATED_WORDS = 2
REPEATED_SAMPLES = SAMPLE_RATE // 10

# If its attention advances by more than this for one word, it may have leapt ahead: words for which it is in between
# are new. A silence often attracts it, most of all for the first word of a window.
LEAP_SAMPLES = SAMPLE_RATE

SENTENCE_ENDS = (".", "?", "!", "。", "？", "！")
# A full stop after these ends no sentence.
ABBREVIATIONS = frozenset(("Mr", "Mrs", "Ms", "Dr", "Prof", "St"))
CLAUSE_ENDS = (",", ";", ":", "—", "，", "、", "；", "：")


class StableWords(msgspec.Struct, frozen=True, array_like=True):
    """Stable words, numbered from the beginning of the session; the oldest are dropped."""

    words: tuple[TimedWord, ...] = ()

    # Numbers of the first of them, and of the first that is not final.
    first: int = 0
    n_final: int = 0

    @property
    def end(self) -> int:
        """Number of the next word to become stable."""
        return self.first + len(self.words)

    @property
    def open(self) -> tuple[TimedWord, ...]:
        """Those that are not final."""
        return self.since(self.n_final)

    def between(self, start: int, end: int) -> tuple[TimedWord, ...]:
        """Return the words from one number to before another, as far as they are kept."""
        return self.words[max(0, start - self.first) : max(0, end - self.first)]

    def since(self, start: int) -> tuple[TimedWord, ...]:
        return self.between(start, self.end)


def placed(word: TimedWord, window: Span) -> TimedWord:
    """Return a word of a window's hypothesis with its position in the session, limited to the window."""
    start = min(window.start + max(0, word.start_samples), window.end)
    end = min(max(start, window.start + word.end_samples), window.end)
    attended = min(window.start + word.attended_samples, window.end)
    return dataclasses.replace(word, start_samples=start, end_samples=end, attended_samples=attended)


def find_repeated(words: Sequence[TimedWord], known: Sequence[TimedWord] = ()) -> range:
    """Find the first words for which the decoder attended to audio that it had transcribed already.

    The text does not matter: words that are spoken twice have two places.

    known : words of the window before them

    Returns their indices. A single word is returned only if it is the last, an empty range after the last if no word
    is repeated.
    """
    # How far it had attended before the newest word that it attended further for, and with it.
    before, reach = [0, 0, *(word.attended_samples for word in known)][-2:]
    first = 0
    while first < len(words):
        behind = next((i for i in range(first, len(words)) if words[i].attended_samples > reach), len(words))
        several = behind - first >= MIN_REPEATED_WORDS or behind == len(words)
        earliest = min((word.attended_samples for word in words[first:behind]), default=reach)
        if several and earliest < reach - REPEATED_SAMPLES:
            if reach - before <= LEAP_SAMPLES or earliest <= before + REPEATED_SAMPLES:
                return range(first, behind)
            reach = before
            continue
        if behind < len(words):
            before, reach = reach, words[behind].attended_samples
        first = behind + 1
    return range(len(words), len(words))


def ends_sentence(words: Sequence[TimedWord], i: int) -> bool:
    """Return whether a sentence ends with a word, or a mark."""
    abbreviates = i > 0 and words[i].text == "." and words[i - 1].text.strip() in ABBREVIATIONS
    return words[i].text.endswith(SENTENCE_ENDS) and not abbreviates


def pause_before(words: Sequence[TimedWord], i: int) -> tuple[int, int]:
    """Return start and end of the silence before a word; marks have a place but no sound."""
    end = next((word.end_samples for word in reversed(words[:i]) if not is_mark(word.text)), words[i].start_samples)
    return min(end, words[i].start_samples), words[i].start_samples


def mean_log_prob(words: Sequence[TimedWord]) -> float:
    """Return the mean log-probability of the tokens of at least one word, clipped at -100."""
    return max(-100.0, sum(word.log_prob for word in words) / max(1, sum(len(word.tokens) for word in words)))


def event_words(words: Sequence[TimedWord], n_stable: int, start: int, end: int) -> tuple[Word, ...]:
    """Turn words, the first `n_stable` of them stable, into those of an event, in order and within its bounds.

    Punctuation is joined to the word before it, unless only that is stable.
    """
    joined: list[tuple[TimedWord, bool]] = []
    for i, word in enumerate(words):
        if joined and is_mark(word.text) and joined[-1][1] == (i < n_stable):
            last, _ = joined.pop()
            word = dataclasses.replace(last, text=last.text + word.text)
        joined.append((word, i < n_stable))
    result: list[Word] = []
    earliest = start
    for word, stable in joined:
        begin = min(max(word.start_samples, earliest), end)
        earliest = min(max(word.end_samples, begin), end)
        probability = round(word.probability, 3)
        result.append(
            Word(word=word.text, start=seconds(begin), end=seconds(earliest), probability=probability, stable=stable)
        )
    return tuple(result)
