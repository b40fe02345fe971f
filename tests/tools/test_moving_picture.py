"""The moving picture of README.md: it shows each text at its time, and what may change in a class of its own."""

import xml.etree.ElementTree as ET

import numpy as np

from streamer.events import Event, Revision
from tests.builders import final, partial
from tools.moving_picture import draw, frames


def test_texts_are_shown_from_the_moment_they_came() -> None:
    timeline: list[tuple[float, Event]] = [
        (1.0, partial("Good mor", 4)),
        (2.0, final("Good morning.", seq=5)),
        (2.5, partial("Yes")),
        (3.0, Revision(of=5, by="glossary", text="Good evening.", words=(), edits=())),
    ]
    assert frames(timeline) == [
        (0.0, "", ""),
        (1.0, "Good", " mor"),
        (2.0, "Good morning.", ""),
        (2.5, "Good morning.", " Yes"),
        (3.0, "Good evening.", ""),
    ]


def test_the_picture_is_svg_with_all_texts_escaped() -> None:
    samples = np.linspace(-1, 1, 32_000, dtype=np.float32)
    picture = draw([(0.0, "", ""), (0.5, "a < b", " & c")], samples, "Captions")
    root = ET.fromstring(picture)
    assert "a < b & c" in "".join(root.itertext())
    assert root.find(".//{*}tspan[@class='u']") is not None
