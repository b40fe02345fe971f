"""Words with their places in a session's audio. Positions are absolute samples."""

from collections.abc import Sequence
from dataclasses import replace

from streamer.audio.constants import SAMPLE_RATE
from streamer.events import Word, seconds
from streamer.stream.window import Window
from streamer.whisper.result import TimedWord, is_mark

# The decoder reads again where so many words follow each other for which it looked no further than before, and for one
# of them it looked back by more than this. Of the other words it looks back as far for one in a hundred, on its own.
MIN_REREAD_WORDS = 2
REREAD_SAMPLES = SAMPLE_RATE // 10

SENTENCE_ENDS = (".", "?", "!", "。", "？", "！")
# Behind these a full stop ends no sentence.
ABBREVIATIONS = frozenset(("Mr", "Mrs", "Ms", "Dr", "Prof", "St"))
CLAUSE_ENDS = (",", ";", ":", "—", "，", "、", "；", "：")


def placed(word: TimedWord, window: Window) -> TimedWord:
    """Return a word of a window's hypothesis at its place in the session, which lies within the window."""
    start = min(window.start + max(0, word.start_samples), window.end)
    end = min(max(start, window.start + word.end_samples), window.end)
    attended = min(window.start + word.attended_samples, window.end)
    return replace(word, start_samples=start, end_samples=end, attended_samples=attended)


def find_reread(words: Sequence[TimedWord], reach: int) -> range:
    """Find the first stretch of words for which the decoder read again what it had read.

    That is told by where it looked, and not by the text: what is said twice is read in two places.

    reach : how far it had looked before the first word, in absolute samples

    Returns the indices of the stretch: a single one only where that word is the last; an empty range behind the last
    word where nothing was read again.
    """
    first = 0
    while first < len(words):
        behind = next((i for i in range(first, len(words)) if words[i].attended_samples > reach), len(words))
        several = behind - first >= MIN_REREAD_WORDS or behind == len(words)
        if several and any(word.attended_samples < reach - REREAD_SAMPLES for word in words[first:behind]):
            return range(first, behind)
        if behind < len(words):
            reach = words[behind].attended_samples
        first = behind + 1
    return range(len(words), len(words))


def ends_sentence(words: Sequence[TimedWord], i: int) -> bool:
    """Return whether a sentence ends with a word, or a mark."""
    abbreviates = i > 0 and words[i].text == "." and words[i - 1].text.strip() in ABBREVIATIONS
    return words[i].text.endswith(SENTENCE_ENDS) and not abbreviates


def pause_before(words: Sequence[TimedWord], i: int) -> tuple[int, int]:
    """Return the positions between which nothing is said before a word: marks have a place, and no sound."""
    end = next((word.end_samples for word in reversed(words[:i]) if not is_mark(word.text)), words[i].start_samples)
    return min(end, words[i].start_samples), words[i].start_samples


def mean_log_prob(words: Sequence[TimedWord]) -> float:
    """Return the mean log-probability of the tokens of some words, of which there must be one; no less than -100."""
    return max(-100.0, sum(word.log_prob for word in words) / max(1, sum(len(word.tokens) for word in words)))


def event_words(words: Sequence[TimedWord], n_stable: int, start: int, end: int) -> tuple[Word, ...]:
    """Turn words into those of an event, in order and within its bounds.

    Punctuation is joined to the word before it, unless that is stable and the punctuation is not.

    n_stable : how many of the words are stable
    """
    joined: list[tuple[TimedWord, bool]] = []
    for i, word in enumerate(words):
        if joined and is_mark(word.text) and joined[-1][1] == (i < n_stable):
            last, _ = joined.pop()
            word = replace(last, text=last.text + word.text)
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
