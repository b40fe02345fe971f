"""The picture of wrong words over delay."""

import itertools
import xml.etree.ElementTree as ET

import pytest

from streamer.errors import UsageError
from tools.benchmarks.curve import Point, best, draw
from tools.benchmarks.figures import Figures
from tools.benchmarks.utterances import Utterance

SVG = "{http://www.w3.org/2000/svg}"


def some(name: str, stable_s: float, n_wrong: int) -> Figures:
    """Return the figures of a system with words wrong in one of two utterances of 50 words, offline one."""
    utterances = [Utterance(50, n_wrong, n_wrong, offline=1), Utterance(50, 0, 0, offline=0)]
    return Figures(name, [name], 100.0, stable=[stable_s], utterances=utterances)


def drawn(*figures: Figures) -> ET.Element:
    return ET.fromstring(draw({each.system: each for each in figures}))


def test_later_is_further_right_and_wronger_further_up() -> None:
    root = drawn(some("a < b", 0.5, 6), some("late", 2.0, 2))
    (first, second) = root.findall(f"{SVG}g")
    sooner, later = (g.find(f"{SVG}circle") for g in (first, second))
    assert sooner is not None
    assert later is not None
    assert float(sooner.get("cx", "")) < float(later.get("cx", ""))
    assert float(sooner.get("cy", "")) < float(later.get("cy", ""))
    assert [g.findtext(f"{SVG}text") for g in (first, second)] == ["a < b", "late"]
    assert first.findtext(f"{SVG}title") == "a < b: 0.50 s, +5.0 points [+0.0, +10.0]"
    # All of it is within the picture.
    (interval,) = first.findall(f"{SVG}path")
    assert all(48 <= float(end) <= 364 for end in interval.get("d", "").partition(" ")[2].split("V"))


def test_names_do_not_cover_each_other() -> None:
    root = drawn(*(some(f"point {k}", 1.0, 3) for k in range(3)))
    feet = sorted(float(g.find(f"{SVG}text").get("y", "")) for g in root.findall(f"{SVG}g"))  # type: ignore[union-attr]
    assert all(b - a >= 12 for a, b in itertools.pairwise(feet))


def test_the_line_is_through_those_that_no_other_beats() -> None:
    points = [Point(name, stable_s, delta, 0, 0) for name, stable_s, delta in (("a", 2, 1), ("b", 1, 3), ("c", 1.5, 3))]
    assert [point.name for point in best([*points, Point("d", 1, 4, 0, 0)])] == ["b", "a"]


def test_nothing_to_draw_is_reported() -> None:
    with pytest.raises(UsageError, match="nothing can be drawn"):
        draw({"a": Figures("a", ["a"], 1.0, stable=[1.0])})
