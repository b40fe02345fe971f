"""Which words stand in which line: stable ones stay where they are."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from streamer.events import Event, Gap, Revision
from streamer.plugins.overlay.lines import MAX_LINES, Rolling, Row, units_of, wrapped
from tests.builders import final, partial, ready

COLUMNS = 20
WORDS = st.lists(st.sampled_from(["a", "bcd", "efghi", "jklmnopqrst"]), min_size=1, max_size=25)


def fits(text: str) -> bool:
    return len(text) <= COLUMNS


def rolled(*events: Event) -> Rolling:
    rolling = Rolling(fits)
    for event in events:
        rolling.handle(event)
    return rolling


def shown(rolling: Rolling, n_rows: int = 1000) -> list[tuple[str, str]]:
    return [(row.stable, row.open) for row in rolling.rows(n_rows)]


def test_words_fill_a_line_and_the_newest_lines_are_seen() -> None:
    rolling = rolled(final("One two three four five six seven eight."))
    assert shown(rolling) == [("One two three four", ""), ("five six seven", ""), ("eight.", "")]
    assert shown(rolling, 2) == [("five six seven", ""), ("eight.", "")]


def test_open_words_stand_behind_the_stable_ones_until_they_are_stable_or_gone() -> None:
    rolling = rolled(partial("One two thr", 7, segment=1))
    assert shown(rolling) == [("One two", " thr")]
    rolling.handle(partial("One two three", 13, segment=1))
    assert shown(rolling) == [("One two three", "")]
    rolling.handle(partial("One two three fo", 13, segment=1))
    rolling.handle(ready())
    assert shown(rolling) == [("One two three", "")]
    rolling.handle(partial("Fi", 0, segment=2))
    rolling.handle(Gap(start=0.0, end=1.0, reason="cleared"))
    assert shown(rolling) == [("One two three", "")]


def test_a_word_is_stable_when_all_of_it_is() -> None:
    assert shown(rolled(partial("One twofold", 7))) == [("One", " twofold")]


@given(WORDS, st.data())
def test_stable_words_never_move(words: list[str], data: st.DataObject) -> None:
    rolling, places = Rolling(fits), dict[int, tuple[int, int]]()
    n_stable = 0
    while n_stable < len(words):
        n_stable = len(words) - data.draw(st.integers(0, len(words) - n_stable - 1))
        stable, guess = " ".join(words[:n_stable]), " ".join(["", *data.draw(WORDS)])
        rolling.handle(partial(stable + guess, len(stable), segment=1))
        found = dict(enumerate(positions(rolling)))
        assert places.items() <= found.items()
        places = found
    rolling.handle(final(" ".join(words), segment=1))
    assert dict(enumerate(positions(rolling))).items() >= places.items()
    assert " ".join(row.stable for row in rolling.rows(1000) if row.stable) == " ".join(words)


def positions(rolling: Rolling) -> list[tuple[int, int]]:
    """Return line and column of each stable word; of these tests none is lost above."""
    found = []
    for i, row in enumerate(rolling.rows(1000)):
        column = 0
        for word in row.stable.split():
            found.append((i, column))
            column += len(word) + 1
    return found


def test_lines_never_roll_back_when_open_words_are_taken_back() -> None:
    rolling = rolled(partial("One two three four five", 7))
    assert shown(rolling, 2) == [("One two", " three four"), ("", "five")]
    rolling.handle(partial("One two three", 7))
    assert shown(rolling, 2) == [("One two", " three"), ("", "")]


def test_old_lines_are_forgotten() -> None:
    rolling = rolled(*(final("word " * 30, segment=i, seq=i) for i in range(9)))
    assert len(rolling.rows(1000)) == MAX_LINES


def test_a_revision_is_put_in_the_place_of_its_final() -> None:
    rolling = rolled(*(final(text, segment=i, seq=i) for i, text in enumerate(("One two.", "Tree.", "Five."), 1)))
    better = Revision(session="", of=2, by="second_pass", text="Three or four.", words=(), edits=())
    assert rolling.handle(better)
    assert shown(rolling) == [("One two. Three or", ""), ("four. Five.", "")]
    assert not rolling.handle(better)
    assert not rolling.handle(msgspec.structs.replace(better, of=9))


def test_a_clear_screen_begins_at_the_top_and_gets_new_words_only() -> None:
    rolling = rolled(partial("One two three four five", 13, segment=1))
    rolling.clear()
    assert rolling.rows(2) == []
    rolling.handle(partial("One two three four five", 18, segment=1))
    assert shown(rolling) == [("four", " five")]


def test_the_same_words_are_laid_out_for_another_width() -> None:
    width = [20]
    rolling = Rolling(lambda text: len(text) <= width[0])
    rolling.handle(final("One two three four five."))
    width[0] = 30
    rolling.lay_again()
    assert shown(rolling) == [("One two three four five.", "")]


def test_a_word_that_is_longer_than_a_line_is_divided() -> None:
    assert shown(rolled(final("x" * 45))) == [("x" * 20, ""), ("x" * 20, ""), ("x" * 5, "")]


def test_scripts_without_spaces_are_divided_where_they_may_be() -> None:
    assert list(units_of("你好。 ok")) == ["你", "好。", " ok"]
    rolling = rolled(final("你好。", segment=1), final("再见。", segment=2))
    assert shown(rolling) == [("你好。再见。", "")]


def test_a_sign_behind_a_word_begins_no_line() -> None:
    rolling = rolled(partial("One two three fours", 19), partial("One two three fours...", 22))
    assert shown(rolling) == [("One two three fours...", "")]


def test_whether_there_are_other_words_is_reported() -> None:
    rolling = Rolling(fits)
    assert rolling.handle(partial("One", 0))
    assert not rolling.handle(partial("One", 0))
    assert rolling.handle(partial("One", 3))
    assert not rolling.handle(Gap(start=0.0, end=1.0, reason="paused"))


def test_control_characters_are_not_shown() -> None:
    (row,) = rolled(final("a\x1b[31mb\nc\u202ed")).rows(2)
    assert row.stable.isprintable()


def test_a_message_stands_by_itself() -> None:
    assert wrapped("One two three four five.", fits) == [Row("One two three four"), Row("five.")]
