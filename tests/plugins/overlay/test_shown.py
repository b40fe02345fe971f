"""What is to be seen when: captions, a message, or nothing. The clock is moved by hand."""

from streamer.plugins.overlay.shown import AWAY_S, SAID_S, Shown
from tests.builders import final, partial
from tests.fakes import Clock

FADE_S = 8.0


class Seen:
    """Captions on a screen of one line of 60 columns."""

    def __init__(self, fade_s: float = FADE_S) -> None:
        self.clock = Clock()
        self.shown = Shown(lambda text: len(text) <= 60, fade_s)

    @property
    def text(self) -> str:
        return " ".join(row.stable + row.open for row in self.shown.rows(2, self.clock()))

    def listening(self) -> "Seen":
        """Reach the daemon, and let the message about that go."""
        self.shown.meet("open", self.clock())
        self.clock.advance(SAID_S)
        return self


def test_how_to_start_captions_is_said_until_they_are_there() -> None:
    seen = Seen()
    for _ in range(2):
        seen.shown.meet("waiting", seen.clock())
        seen.clock.advance(1000.0)
        assert "streamer run" in seen.text
    assert seen.shown.due_s() is None
    seen.shown.meet("open", seen.clock())
    assert "streamer run" not in seen.text
    assert seen.text
    assert seen.shown.due_s() == seen.clock() + SAID_S
    seen.clock.advance(SAID_S)
    assert seen.text == ""


def test_words_take_the_place_of_a_message_and_go_when_no_more_follow() -> None:
    seen = Seen()
    seen.shown.meet("open", seen.clock())
    seen.shown.handle(partial("One two", 3, segment=1), seen.clock())
    assert seen.text == "One two"
    seen.clock.advance(FADE_S - 1)
    seen.shown.handle(partial("One two", 7, segment=1), seen.clock())
    seen.clock.advance(FADE_S - 1)
    assert seen.text == "One two"
    assert seen.shown.due_s() == seen.clock() + 1
    seen.clock.advance(1.0)
    assert seen.text == ""
    seen.shown.handle(final("One two three.", segment=1), seen.clock())
    assert seen.text == "three."


def test_events_without_other_words_keep_none_on_the_screen() -> None:
    seen = Seen().listening()
    seen.shown.handle(partial("One", 3, segment=1), seen.clock())
    seen.clock.advance(FADE_S - 1)
    seen.shown.handle(partial("One", 3, segment=1), seen.clock())
    seen.clock.advance(1.0)
    assert seen.text == ""


def test_captions_that_do_not_fade_stay() -> None:
    seen = Seen(fade_s=0.0).listening()
    seen.shown.handle(final("One."), seen.clock())
    seen.clock.advance(10_000.0)
    assert seen.text == "One."
    assert seen.shown.due_s() is None


def test_a_pause_is_said_and_hides_all_that_follows() -> None:
    seen = Seen().listening()
    seen.shown.handle(final("One.", segment=1), seen.clock())
    seen.shown.pause(seen.clock(), on=True)
    assert "paused" in seen.text
    seen.clock.advance(SAID_S)
    assert seen.text == ""
    seen.shown.handle(final("Two.", segment=2), seen.clock())
    assert seen.text == ""
    seen.shown.pause(seen.clock(), on=False)
    seen.clock.advance(SAID_S)
    assert seen.text == "One. Two."


def test_a_daemon_that_goes_away_is_said_for_a_while_and_the_end_is_not() -> None:
    seen = Seen().listening()
    seen.shown.handle(final("One."), seen.clock())
    seen.shown.meet("ended", seen.clock())
    seen.shown.meet("open", seen.clock())
    assert seen.text == "One."
    seen.shown.meet("waiting", seen.clock())
    assert "away" in seen.text
    seen.clock.advance(AWAY_S)
    assert seen.text == ""
    seen.shown.meet("waiting", seen.clock())
    assert seen.text == ""


def test_while_they_are_moved_it_is_said_how() -> None:
    seen = Seen().listening()
    seen.shown.handle(final("One."), seen.clock())
    seen.shown.mode = "moving"
    assert "Drag" in seen.text
    seen.shown.mode = "shown"
    assert seen.text == "One."
