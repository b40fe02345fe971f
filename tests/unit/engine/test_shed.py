"""What a session gives up because there is no time for it, and what it saves passes by."""

from streamer.audio.constants import HOP_LENGTH, SAMPLE_RATE
from streamer.audio.vad import CHUNK_SAMPLES
from streamer.engine.session import Session
from streamer.engine.window import Window
from streamer.events import Event, Final, Gap
from tests.fakes import Speaker, SpokenWord, words_at
from tests.promises import Promises
from tests.unit.engine.test_session import SETTINGS


class Told:
    """A session that hears words, what it said, and a decoder for its windows."""

    def __init__(self, words: list[SpokenWord]) -> None:
        self.session = Session(SETTINGS)
        self.speaker = Speaker(words)
        self.promises = Promises()
        self.position = 0

    def hear_until(self, time_s: float) -> None:
        while self.position < time_s * SAMPLE_RATE:
            end = self.position + CHUNK_SAMPLES
            talks = self.speaker.talks(self.position, end)
            self.take(self.session.advance(end, 0.9 if talks else 0.05, end / SAMPLE_RATE))
            self.position = end

    def transcribe(self, cost_s: float = 0.1) -> Window:
        window = self.session.next_window(0.0)
        assert window is not None
        request = self.session.request(window)
        assert request is not None
        hypothesis = self.speaker.hypothesis(window.start, window.end, request.prefix)
        self.take(self.session.apply_hypothesis(window, request, hypothesis, cost_s))
        return window

    def shed(self, until_s: float) -> list[Event]:
        events = self.session.drop_before(round(until_s * SAMPLE_RATE), "overload")
        self.take(events)
        return events

    def finish(self) -> None:
        self.take(self.session.finish(self.position))
        while self.session.next_window_due():
            self.transcribe()
        assert self.session.finished
        self.promises.check_all_told()

    def take(self, events: list[Event]) -> None:
        self.promises.take(events)

    @property
    def words(self) -> list[str]:
        return [word.word for final in self.promises.finals for word in final.words]


def test_what_no_window_has_shown_is_a_gap_and_the_next_begins_behind_it() -> None:
    told = Told(words_at(*(1.0 + 0.5 * i for i in range(40))))
    told.hear_until(4.0)
    told.transcribe()
    known = told.session.waiting_from
    assert known == 4 * SAMPLE_RATE
    told.hear_until(15.0)
    final, gap = told.shed(10.0)
    assert isinstance(final, Final)
    assert final.end == 4.0
    assert [word.word for word in final.words] == [f" w{i}" for i in range(6)]
    assert gap == Gap(start=4.0, end=10.0, reason="overload")
    # At once, however much audio the pace asks for.
    window = told.transcribe()
    assert (window.start, window.start % HOP_LENGTH) == (10 * SAMPLE_RATE, 0)
    told.finish()
    assert told.words == [f" w{i}" for i in (*range(6), *range(18, 40)) if 1.0 + 0.5 * i < 14.8]


def test_speech_that_has_ended_is_given_up_with_what_lies_between() -> None:
    told = Told(words_at(1.0, 1.5, 4.0, 4.5, 8.0, 8.5, 9.0))
    told.hear_until(11.0)
    assert told.session.final_awaited
    (gap,) = told.shed(6.0)
    # From where the first began to where the second ended; nothing was said between that and 6 s.
    assert isinstance(gap, Gap)
    assert 0.6 < gap.start < 0.8
    assert 5.2 < gap.end < 5.4
    told.finish()
    assert told.words == [" w4", " w5", " w6"]


def test_the_rest_of_speech_that_has_ended_is_transcribed_before_what_waits_behind_it() -> None:
    told = Told(words_at(*(1.0 + 0.5 * i for i in range(6)), 8.0, 8.5))
    told.hear_until(10.0)
    (gap,) = told.shed(2.0)
    assert isinstance(gap, Gap)
    window = told.transcribe()
    assert window.start == 2 * SAMPLE_RATE
    told.finish()
    assert told.words == [f" w{i}" for i in range(2, 8)]


def test_where_everything_was_shown_nothing_is_lost() -> None:
    told = Told(words_at(*(1.0 + 0.5 * i for i in range(10))))
    told.hear_until(4.0)
    told.transcribe()
    (final,) = told.shed(3.0)
    assert isinstance(final, Final)
    told.hear_until(7.0)
    told.finish()
    assert not told.promises.gaps


def test_without_speech_there_is_nothing_to_give_up() -> None:
    told = Told([])
    told.hear_until(5.0)
    assert told.session.waiting_from is None
    assert told.shed(4.0) == []


def test_one_window_shows_all_the_speech_that_waits_and_has_ended() -> None:
    told = Told(words_at(1.0, 1.5, 4.0, 4.5, 8.0, 8.5, 12.0))
    told.hear_until(12.5)
    window = told.transcribe()
    # What is still being said waits for its own.
    assert 9.0 * SAMPLE_RATE < window.end < 10.0 * SAMPLE_RATE
    (final,) = told.promises.finals
    assert [word.word for word in final.words] == [f" w{i}" for i in range(6)]
    told.hear_until(14.0)
    told.finish()
    assert told.words == [f" w{i}" for i in range(7)]


def test_where_passes_cost_much_what_is_still_being_said_is_shown_along() -> None:
    told = Told(words_at(1.0, 1.5, 10.0, 10.5, 13.0, 13.5, 14.0, 14.5))
    told.hear_until(3.0)
    told.transcribe(cost_s=9.0)
    told.hear_until(14.75)
    window = told.transcribe(cost_s=9.0)
    assert (window.end, window.last) == (told.position, False)
    # Nothing is final yet of what was said before: the segment goes on.
    assert len(told.promises.finals) == 1
    told.hear_until(17.0)
    told.finish()
    assert told.words == [f" w{i}" for i in range(8)]
    assert len(told.promises.finals) == 2


def test_a_window_shows_no_more_than_it_can_hold_and_no_long_silence() -> None:
    starts_s = (1.0, 6.0, 11.0, 16.0, 21.0, 26.0, 31.0, 36.0, 50.0)
    told = Told(words_at(*starts_s))
    told.hear_until(52.0)
    # The second has words of the first to go on from.
    for begin_s, end_s in ((1.0, 26.5), (31.0 - SETTINGS.window_s / 2, 36.5), (50.0, 50.5)):
        window = told.transcribe()
        assert begin_s - 0.5 < window.start / SAMPLE_RATE < begin_s + 3.0
        assert end_s < window.end / SAMPLE_RATE < end_s + 0.5
    told.finish()
    assert told.words == [f" w{i}" for i in range(len(starts_s))]
