"""The second pass: consecutive finals are transcribed again together, as a recording is, and get new words.

Live captions decide on each word within a second or two. With all that follows, five beams, timestamps and fallback,
Whisper reads the same speech better: offline decoding is what live text is measured against.
"""

import difflib
import threading
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from streamer.arrays import Float32Array
from streamer.events import Event, Final, Gap, Speech, Word, seconds
from streamer.session.settings import SessionSettings
from streamer.session.windows import MAX_SILENCE_SAMPLES

# The `by` of its revisions.
NAME = "second_pass"

# Longest passage: Whisper's window holds 30 s.
MAX_PASSAGE_S = 28.0

# A passage does not reach over a longer silence, as no window of captions does.
MAX_SILENCE_S = seconds(MAX_SILENCE_SAMPLES)

# Silence after which the passage is transcribed, however short it is.
IDLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Passage:
    """Consecutive finals to transcribe again."""

    finals: tuple[Final, ...]

    # How many of them were part of an earlier passage; they are context.
    n_known: int

    # Settings of the session; None if it is over.
    settings: SessionSettings | None

    # Deadline in seconds of the monotonic clock.
    until_s: float


# Transcribes a passage, given its audio from the first final's start to the last one's end, 16 kHz mono, shape (n,);
# returns words with times of the session, none if they cannot be trusted. Raises TimeoutError at the deadline,
# StreamerError if the model fails.
ReadAgain = Callable[[Passage, Float32Array], Sequence[Word]]


class Passages:
    """Groups the finals of one session into passages."""

    def __init__(self, on_passage: Callable[[tuple[Final, ...], int], object]) -> None:
        """Call `on_passage`, which has to return at once, with the finals of each passage and how many are context."""
        self._on_passage = on_passage
        # The newest finals, oldest first, and how many of them were in a passage.
        self._finals: list[Final] = []
        self._n_known = 0
        self._speaking = False
        self._timer = threading.Timer(IDLE_S, self.close)
        # Guards all of this: the timer has a thread of its own.
        self._lock = threading.RLock()

    def take(self, event: Event) -> None:
        """Note an event of the session, in order."""
        with self._lock:
            match event:
                case Speech():
                    self._speaking = event.state == "start"
                    if self._speaking:
                        self._timer.cancel()
                case Gap(reason=reason) if reason != "unclear":  # of such speech more may be understood
                    self.close()
                    self._finals, self._n_known = [], 0
                case Final(words=(_, *_), task=""):
                    if not _fit(*self._finals[self._n_known :], event):
                        self.close()
                    self._finals.append(event)
                    self._timer.cancel()
                    if not self._speaking:
                        self._timer = threading.Timer(IDLE_S, self.close)
                        self._timer.daemon = True
                        self._timer.start()

    def close(self) -> None:
        """End the passage: pass its finals on, behind as many earlier ones as fit."""
        with self._lock:
            self._timer.cancel()
            if len(self._finals) == self._n_known:
                return
            first = self._n_known
            while first and _fit(*self._finals[first - 1 :]):
                first -= 1
            self._finals, n_known = self._finals[first:], self._n_known - first
            self._n_known = len(self._finals)
            self._on_passage(tuple(self._finals), n_known)


def _fit(*finals: Final) -> bool:
    """Return whether finals can be one passage."""
    return len(finals) < 2 or (
        finals[-1].end - finals[0].start <= MAX_PASSAGE_S
        and all(
            later.start - earlier.end <= MAX_SILENCE_S and later.language == earlier.language
            for earlier, later in pairwise(finals)
        )
    )


def share_words(finals: Sequence[Final], words: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Distribute new words of consecutive finals over these; return the words of each.

    A word goes to the final whose old word it is aligned with. One that is aligned with none goes to the final in whose
    time it lies, but not out of order.
    """
    old = [(_key(word), n) for n, final in enumerate(finals) for word in final.words]
    keys = [_key(word) for word in words]
    owners: list[int | None] = [None] * len(words)
    for block in difflib.SequenceMatcher(None, [key for key, _ in old], keys, autojunk=False).get_matching_blocks():
        for i in range(block.size):
            owners[block.b + i] = old[block.a + i][1]
    ends = [final.end for final in finals[:-1]]
    shares: list[list[Word]] = [[] for _ in finals]
    earliest = 0
    for i, word in enumerate(words):
        latest = next((owner for owner in owners[i:] if owner is not None), len(finals) - 1)
        by_time = bisect_left(ends, (word.start + word.end) / 2)
        earliest = min(max(by_time, earliest), latest)
        shares[earliest].append(_within(word, finals[earliest]))
    return [tuple(share) for share in shares]


def same_but_for_marks(words: Sequence[Word], others: Sequence[Word]) -> bool:
    """Return whether two texts differ in case and punctuation at most."""
    return "".join(map(_key, words)) == "".join(map(_key, others))


def _key(word: Word) -> str:
    """Return the letters and digits of a word; vowel signs and accents are marks in Unicode, and belong to them."""
    return "".join(character for character in word.word.casefold() if unicodedata.category(character)[0] in "LMN")


def _within(word: Word, final: Final) -> Word:
    """Return a word within its final, said by the speaker of the final's words at that time."""
    start, end = (round(min(max(time_s, final.start), final.end), 3) for time_s in (word.start, word.end))
    nearest = next((other for other in final.words if other.end > (start + end) / 2), final.words[-1])
    return msgspec.structs.replace(word, start=start, end=end, speaker=nearest.speaker)
