"""Where captions stand: geometry, and the file that keeps it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.plugins.overlay.place import (
    GRIP,
    MARGIN,
    MAX_SIZE,
    MIN_SIZE,
    MIN_WIDTH,
    Place,
    read,
    usual,
    write,
)

WIDTH, HEIGHT = 1280, 720
PLACE = Place(screen="eDP-1", x=100, y=300, width=600, size=40)

places = st.builds(
    Place,
    x=st.integers(-9999, 9999),
    y=st.integers(-9999, 9999),
    width=st.integers(1, 9999),
    size=st.integers(MIN_SIZE, MAX_SIZE),
)


@given(places, st.integers(300, 4000), st.integers(200, 3000))
def test_captions_are_on_the_screen_as_a_whole(place: Place, width: int, height: int) -> None:
    found = place.within(width, height)
    assert 0 <= found.x <= width - found.width
    assert 0 <= found.y <= height - found.height
    assert found.within(width, height) == found


def test_on_a_screen_that_is_off_they_are_small() -> None:
    found = PLACE.within(0, 0)
    assert found.width > 0
    assert found.height > 0


def test_a_place_on_the_screen_is_kept() -> None:
    assert PLACE.within(WIDTH, HEIGHT) == PLACE


def test_they_are_at_the_bottom_at_first_with_two_lines_of_some_forty_characters() -> None:
    place = usual(WIDTH, HEIGHT)
    assert place.x == (WIDTH - place.width) // 2
    assert place.y + place.height == HEIGHT - MARGIN
    assert 20 < place.width / place.size < 25
    assert usual(400, 300).width <= 400
    assert usual(WIDTH, HEIGHT, size=20).size == 20


@pytest.mark.parametrize(
    ("position", "x", "y"),
    [
        ("top-left", MARGIN, MARGIN),
        ("middle", (WIDTH - 600) // 2, (HEIGHT - PLACE.height) // 2),
        ("bottom-right", WIDTH - 600 - MARGIN, HEIGHT - PLACE.height - MARGIN),
    ],
)
def test_they_are_put_at_an_edge(position: str, x: int, y: int) -> None:
    found = PLACE.at(position, WIDTH, HEIGHT)
    assert (found.x, found.y) == (x, y)


def test_letters_change_their_size_around_the_middle() -> None:
    larger = PLACE.resized(60)
    assert larger.size == 60
    assert abs((larger.y + larger.height / 2) - (PLACE.y + PLACE.height / 2)) <= 1
    assert PLACE.resized(9999).size == MAX_SIZE
    assert PLACE.resized(0).size == MIN_SIZE


def test_what_is_dragged() -> None:
    middle, bottom = PLACE.y + PLACE.height // 2, PLACE.y + PLACE.height
    assert PLACE.grip(100, middle) == PLACE.grip(99 + GRIP, middle) == "left"
    assert PLACE.grip(699, middle) == PLACE.grip(700 - GRIP, middle) == "right"
    assert PLACE.grip(400, bottom - 1) == "bottom"
    assert PLACE.grip(400, middle) == "all"
    for beside in ((99, middle), (700, middle), (400, PLACE.y - 1), (400, bottom)):
        assert PLACE.grip(*beside) is None


def test_a_drag_moves_or_resizes() -> None:
    assert PLACE.dragged("all", -7, 9) == Place(screen="eDP-1", x=93, y=309, width=600, size=40)
    assert PLACE.dragged("right", 50, 9) == Place(screen="eDP-1", x=100, y=300, width=650, size=40)
    assert PLACE.dragged("left", 50, 9) == Place(screen="eDP-1", x=150, y=300, width=550, size=40)
    narrow = PLACE.dragged("left", 9999, 0)
    assert (narrow.x + narrow.width, narrow.width) == (700, MIN_WIDTH)
    lower = PLACE.dragged("bottom", 0, 36)
    assert (lower.size, lower.y) == (50, 300)
    assert lower.height == PLACE.height + 36


def test_a_place_is_kept_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "state" / "overlay.json"
    assert read(file) is None
    write(file, PLACE)
    write(file, PLACE.resized(50))
    assert read(file) == PLACE.resized(50)
    assert [path.name for path in file.parent.iterdir()] == ["overlay.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"x":1}', b'{"x":1,"y":1,"width":0,"size":40}', b"\xff", b"[" * 4000]
)
def test_a_damaged_file_costs_the_place_alone(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "overlay.json"
    file.write_bytes(content)
    assert read(file) is None
    assert len(caplog.records) == 1
    write(file, PLACE)
    assert read(file) == PLACE


def test_a_file_that_cannot_be_written_costs_the_place_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").write_text("a file", encoding="utf-8")
    write(tmp_path / "state" / "overlay.json", PLACE)
    assert len(caplog.records) == 1
