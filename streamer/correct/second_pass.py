"""Finals are read again, with more beams or by a larger model, and read better where that is likelier."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from streamer.arrays import Float32Array
from streamer.audio.constants import N_SAMPLES
from streamer.correct.corrector import Heard, text_of
from streamer.errors import StreamerError
from streamer.events import Final, Word

# A text has to be likelier by this, in nats a token. On the corpus's tuning half nano.en's wrong words went from 30.4 %
# to 25.8 % where anything likelier was taken, to 24.1 % with 0.02 to 0.05, and to 25.8 % with 0.1.
MARGIN = 0.03


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The audio of a final, to be read again."""

    heard: Heard

    # Shape (n,) at 16 kHz, 30 s at most.
    samples: Float32Array

    # When nobody wants it any more, by the monotonic clock.
    until_s: float


@dataclass(frozen=True, slots=True)
class Readers:
    """What reads, and what judges. All raise TimeoutError where the region's time is up."""

    # Returns words with times from the region's beginning; none where they are a loop, too unlikely, or silence.
    read: Callable[[Region], Sequence[Word]]

    # Of each model the mean log-probability of a text's tokens, were that said in the region.
    scores: Sequence[Callable[[Region, Sequence[Word]], float]]


class SecondPass:
    """See `Corrector`."""

    name = "second_pass"
    slow = True

    def __init__(self, readers: "Future[Readers]") -> None:
        """Correct nothing before there are readers."""
        self.readers = readers

    def correct(self, heard: Heard, left_s: float) -> Sequence[Word]:
        if not self.readers.done():
            return heard.words
        if error := self.readers.exception():
            raise StreamerError(str(error))  # another one each time: its traceback would grow
        readers, samples = self.readers.result(), heard.audio()
        if samples is None or not 0 < len(samples) <= N_SAMPLES:
            return heard.words
        region = Region(heard, samples, time.monotonic() + left_s)
        words = _in_session(readers.read(region), heard.final)
        if text_of(words) in ("", heard.text):
            return heard.words
        # Where one of them cannot be written by a model's rules, it has nothing to compare.
        gains = (score(region, words) - score(region, heard.words) for score in readers.scores)
        return words if all(MARGIN < gain < math.inf for gain in gains) else heard.words


def _in_session(words: Sequence[Word], final: Final) -> tuple[Word, ...]:
    """Return words with times of the session, within their final, and said by whom the final's words there are."""
    placed: list[Word] = []
    for word in words:
        start, end = (round(min(final.start + time_s, final.end), 3) for time_s in (word.start, word.end))
        said = next((other.speaker for other in final.words if other.end > (start + end) / 2), None)
        placed.append(msgspec.structs.replace(word, start=start, end=end, speaker=said))
    return tuple(placed)
