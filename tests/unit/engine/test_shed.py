"""What a session gives up because there is no time for it, and what it saves passes by."""

from streamer.constants import HOP_LENGTH, SAMPLE_RATE
from streamer.events import Event, Final, Gap
from tests.fakes import SpokenWord, words_at
from tests.unit.engine.simulation import SETTINGS
from tests.unit.session.test_session import Conversation


def talk(words: list[SpokenWord]) -> Conversation:
    """Return a conversation whose windows are decoded only by `transcribe`."""
    told = Conversation(SETTINGS, words, seed=0)
    told.at_work = False
    return told


def shed(told: Conversation, until_s: float) -> list[Event]:
    events = told.session.drop_before(round(until_s * SAMPLE_RATE), "overload")
    told.promises.take(events)
    return events


def words_of(told: Conversation) -> list[str]:
    return [word.word for final in told.promises.finals for word in final.words]


def test_what_no_window_has_shown_is_a_gap_and_the_next_begins_behind_it() -> None:
    told = talk(words_at(*(1.0 + 0.5 * i for i in range(40))))
    told.speak_until(4.0)
    told.transcribe()
    known = told.session.now.waiting_from
    assert known == 4 * SAMPLE_RATE
    told.speak_until(15.0)
    final, gap = shed(told, 10.0)
    assert isinstance(final, Final)
    assert final.end == 4.0
    assert [word.word for word in final.words] == [f" w{i}" for i in range(6)]
    assert gap == Gap(start=4.0, end=10.0, reason="overload")
    # At once, however much audio the pace asks for.
    window = told.transcribe()
    assert (window.start, window.start % HOP_LENGTH) == (10 * SAMPLE_RATE, 0)
    told.finish()
    assert words_of(told) == [f" w{i}" for i in (*range(6), *range(18, 40)) if 1.0 + 0.5 * i < 14.8]


def test_the_rest_of_speech_that_has_ended_is_transcribed_before_what_waits_behind_it() -> None:
    told = talk(words_at(*(1.0 + 0.5 * i for i in range(6)), 8.0, 8.5))
    told.speak_until(10.0)
    (gap,) = shed(told, 2.0)
    assert isinstance(gap, Gap)
    window = told.transcribe()
    assert window.start == 2 * SAMPLE_RATE
    told.finish()
    assert words_of(told) == [f" w{i}" for i in range(2, 8)]


def test_one_window_shows_all_the_speech_that_waits_and_has_ended() -> None:
    told = talk(words_at(1.0, 1.5, 4.0, 4.5, 8.0, 8.5, 12.0))
    told.speak_until(12.5)
    window = told.transcribe()
    # What is still being said waits for its own.
    assert 9.0 * SAMPLE_RATE < window.end < 10.0 * SAMPLE_RATE
    (final,) = told.promises.finals
    assert [word.word for word in final.words] == [f" w{i}" for i in range(6)]
    told.speak_until(14.0)
    told.finish()
    assert words_of(told) == [f" w{i}" for i in range(7)]


def test_where_passes_cost_much_what_is_still_being_said_is_shown_along() -> None:
    told = talk(words_at(1.0, 1.5, 10.0, 10.5, 13.0, 13.5, 14.0, 14.5))
    told.speak_until(3.0)
    told.transcribe(cost_s=9.0)
    told.speak_until(14.75)
    window = told.transcribe(cost_s=9.0)
    assert (window.end, window.last) == (told.position, False)
    # Nothing is final yet of what was said before: the segment goes on.
    assert len(told.promises.finals) == 1
    told.speak_until(17.0)
    told.finish()
    assert words_of(told) == [f" w{i}" for i in range(8)]
    assert len(told.promises.finals) == 2


def test_a_window_shows_no_more_than_it_can_hold_and_no_long_silence() -> None:
    starts_s = (1.0, 6.0, 11.0, 16.0, 21.0, 26.0, 31.0, 36.0, 50.0)
    told = talk(words_at(*starts_s))
    told.speak_until(52.0)
    # The second has words of the first to go on from.
    for begin_s, end_s in ((1.0, 26.5), (31.0 - SETTINGS.window_s / 2, 36.5), (50.0, 50.5)):
        window = told.transcribe()
        assert begin_s - 0.5 < window.start / SAMPLE_RATE < begin_s + 3.0
        assert end_s < window.end / SAMPLE_RATE < end_s + 0.5
    told.finish()
    assert words_of(told) == [f" w{i}" for i in range(len(starts_s))]
