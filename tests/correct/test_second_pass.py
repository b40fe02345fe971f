"""What becomes of a second reading, without a model."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.constants import N_SAMPLES, SAMPLE_RATE
from streamer.correct.corrector import Heard, text_of
from streamer.correct.pipeline import Corrections
from streamer.correct.second_pass import MARGIN, Readers, Region, SecondPass
from streamer.errors import ModelError, StreamerError
from streamer.events import Event, Final, Revision, Word
from streamer.stream.eventlog import EventLog

WAIT_S = 10.0
HEARD = " the sea of green"
READ = " the sea is green"

Score = Callable[[Region, Sequence[Word]], float]


def words_of(text: str, start: float = 0.0, speaker: str | None = None) -> tuple[Word, ...]:
    """Return words of half a second each."""
    return tuple(
        Word(
            word=f" {word}",
            start=start + n / 2,
            end=start + (n + 1) / 2,
            probability=0.9,
            stable=True,
            speaker=speaker,
        )
        for n, word in enumerate(text.split())
    )


SAMPLES: Float32Array = np.zeros(2 * SAMPLE_RATE, np.float32)


def heard(samples: Float32Array | None = SAMPLES, speaker: str | None = None) -> Heard:
    """Return a final from second 7 to 9."""
    words = words_of(HEARD, 7.0, speaker)
    final = Final(
        segment=1,
        start=7.0,
        end=9.0,
        text=text_of(words),
        words=words,
        language="en",
        no_speech_prob=0.0,
        avg_logprob=-0.1,
    )
    return Heard(final, words, (), lambda: samples)


def liking(gain: float) -> Score:
    """Return a score by which what was read is likelier by so much."""
    return lambda region, words: -1.0 + gain * (text_of(words) != HEARD.strip())


def second_pass(read: Callable[[Region], Sequence[Word]], *gains: float) -> SecondPass:
    readers: Future[Readers] = Future()
    readers.set_result(Readers(read, [liking(gain) for gain in gains]))
    return SecondPass(readers)


def reading(text: str) -> Callable[[Region], Sequence[Word]]:
    return lambda region: words_of(text)


@pytest.mark.parametrize("gains", [(0.5,), (0.5, 0.1)])
def test_what_every_model_finds_likelier_is_told_at_its_place_in_the_session(gains: tuple[float, ...]) -> None:
    found = second_pass(reading(f"{READ} indeed"), *gains).correct(heard(speaker="S1"), WAIT_S)
    assert text_of(found) == "the sea is green indeed"
    # None behind the final's end.
    assert [(word.start, word.end) for word in found] == [(7.0, 7.5), (7.5, 8.0), (8.0, 8.5), (8.5, 9.0), (9.0, 9.0)]
    assert [word.speaker for word in found] == ["S1"] * 4 + [None]


@pytest.mark.parametrize("gains", [(0.5, -0.1), (-0.1, 0.5), (-0.1,), (MARGIN / 2,), (0.5, MARGIN / 2)])
def test_what_one_of_the_models_finds_less_likely_changes_nothing(gains: tuple[float, ...]) -> None:
    final = heard()
    assert second_pass(reading(READ), *gains).correct(final, WAIT_S) == final.words


@pytest.mark.parametrize("text", ["", HEARD])
def test_nothing_and_the_same_are_not_even_compared(text: str) -> None:
    def score(region: Region, words: Sequence[Word]) -> float:
        raise AssertionError("there is nothing to compare")

    readers: Future[Readers] = Future()
    readers.set_result(Readers(reading(text), [score]))
    final = heard()
    assert SecondPass(readers).correct(final, WAIT_S) == final.words


@pytest.mark.parametrize("n_samples", [None, 0, N_SAMPLES + 1])
def test_audio_that_is_gone_or_longer_than_a_window_is_not_read(n_samples: int | None) -> None:
    def read(region: Region) -> Sequence[Word]:
        raise AssertionError("there is nothing to read")

    final = heard(None if n_samples is None else np.zeros(n_samples, np.float32))
    assert second_pass(read, 0.5).correct(final, WAIT_S) == final.words


def told(corrector: SecondPass) -> tuple[list[Event], Corrections]:
    """Return the revisions of a session with one final."""
    log = EventLog("abc", 100)
    events: list[Event] = []
    log.subscribe(events.append)
    corrections = Corrections([corrector], deadline_s=WAIT_S)
    finals = corrections.follow(log, lambda start, end: np.zeros(round((end - start) * SAMPLE_RATE), np.float32))
    log.append(heard().final)
    over: Future[None] = Future()
    finals.finish(lambda: over.set_result(None))
    over.result(WAIT_S)
    return [event for event in events if isinstance(event, Revision)], corrections


def test_the_reader_knows_the_deadline_and_what_is_late_is_dropped() -> None:
    until: list[float] = []

    def read(region: Region) -> Sequence[Word]:
        until.append(region.until_s - time.monotonic())
        raise TimeoutError

    revisions, corrections = told(second_pass(read, 0.5))
    assert (revisions, corrections.failing.why) == ([], {})
    assert 0 < until[0] <= WAIT_S


def test_a_model_that_cannot_be_loaded_is_told_and_one_that_is_not_there_yet_is_not() -> None:
    readers: Future[Readers] = Future()
    corrector = SecondPass(readers)
    final = heard()
    assert corrector.correct(final, WAIT_S) == final.words
    readers.set_exception(ModelError("there is no such model: fetch it"))
    with pytest.raises(StreamerError, match="no such model"):
        corrector.correct(final, WAIT_S)
    revisions, corrections = told(corrector)
    assert (revisions, corrections.failing.why) == ([], {"second_pass": "there is no such model: fetch it"})


def test_a_model_that_fails_changes_nothing() -> None:
    def read(region: Region) -> Sequence[Word]:
        raise StreamerError("the device is lost")

    revisions, corrections = told(second_pass(read, 0.5))
    assert (revisions, corrections.failing.why) == ([], {"second_pass": "the device is lost"})
