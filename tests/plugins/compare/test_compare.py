"""Comparisons of models: candidates as they are named, texts beside each other, and the figures."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from streamer.commands.figures import Run
from streamer.commands.words import words
from streamer.plugins.compare.candidates import parse_candidates
from streamer.plugins.compare.compare import columns, compare
from streamer.plugins.compare.runs import Runs
from streamer.plugins.compare.table import print_comparison

SAID = "The cat sat on the mat."


def runs(*texts: str, error: str = "", language: str = "en") -> Runs:
    found = [Run(segments=[(0.0, text)], language=language, audio_s=2.0, wall_s=1.0, cpu_s=1.5) for text in texts]
    return Runs(recordings=[*found, *([None] if error else [])], error=error, load_s=0.5, peak_rss_mb=200.0)


def grid(*texts: str) -> list[list[str]]:
    """Return what each text has in each column, `-` for nothing."""
    found = columns([words([(0.0, text)]) for text in texts])
    return [[column[row].compared if column[row] else "-" for column in found] for row in range(len(texts))]  # type: ignore[union-attr]


def test_a_candidate_is_a_model_with_settings_of_its_own() -> None:
    assert parse_candidates(
        ["base.en, base.en@decoding.beam_size=5", '"tiny@decoding.hotwords=Ada,Grace@decoding.language=en"']
    ) == {
        "base.en": {"model.name": "base.en"},
        "base.en@decoding.beam_size=5": {"model.name": "base.en", "decoding.beam_size": "5"},
        "tiny@decoding.hotwords=Ada,Grace@decoding.language=en": {
            "model.name": "tiny",
            "decoding.hotwords": "Ada,Grace",
            "decoding.language": "en",
        },
    }


def test_texts_stand_beside_each_other_and_what_the_first_lacks_too() -> None:
    assert grid(
        "the cat sat on the mat", "a cat sat the mat", "the cat now sat on the mat", "the cat now then sat on a mat"
    ) == [
        ["the", "cat", "-", "-", "sat", "on", "the", "mat"],
        ["a", "cat", "-", "-", "sat", "-", "the", "mat"],
        ["the", "cat", "now", "-", "sat", "on", "the", "mat"],
        ["the", "cat", "now", "then", "sat", "on", "a", "mat"],
    ]


TEXT = st.lists(st.sampled_from("abcd"), max_size=8).map(" ".join)


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_no_word_is_lost_and_the_columns_have_the_fewest_edits(texts: list[str]) -> None:
    rows = grid(*texts)
    assert [" ".join(word for word in row if word != "-") for row in rows] == texts
    assert all(any(row[k] != "-" for row in rows) for k in range(len(rows[0])))
    (found,) = compare(["r"], [f"x {texts[0]}"], {"m": runs(texts[-1])}).recordings
    row = compare(["r"], [f"x {texts[0]}"], {"m": runs(texts[-1])}).rows[0]
    both = [(said.compared, word.compared) for said, word in found.columns if said and word]
    assert [row.figures[name] for name in ("substitutions", "deletions", "insertions")] == [
        sum(said != word for said, word in both),
        sum(word is None for _, word in found.columns),
        sum(said is None for said, _ in found.columns),
    ]


def test_errors_are_counted_against_the_reference_over_all_recordings() -> None:
    found = compare(
        ["a", "b"], [SAID, "yes"], {"good": runs(SAID, "Yes!"), "bad": runs("the bat sat on mat", "oh yes")}
    )
    good, bad = (row.figures for row in found.rows)
    assert (good["wer"], good["words"]) == (0.0, 7)
    assert (bad["substitutions"], bad["deletions"], bad["insertions"]) == (1, 1, 1)
    assert bad["wer"] == pytest.approx(3 / 7)
    assert (bad["real_time_factor"], bad["cpu_per_audio"], bad["wall_s"], bad["audio_s"]) == (0.5, 0.75, 2.0, 4.0)
    assert found.recordings[0].labels == ["reference", "good", "bad"]


def test_without_a_reference_candidates_disagree_with_each_other() -> None:
    found = compare(["a"], [], {"x": runs("a b c d"), "y": runs("a b c"), "z": runs("a b c")})
    assert found.disagreement == [[None, 0.25, 0.25], [0.25, None, 0.0], [0.25, 0.0, None]]
    assert [row.figures["wer"] for row in found.rows] == [None, None, None]
    assert found.rows[1].figures["disagreement"] == pytest.approx(0.125)
    assert found.recordings[0].places == [[3]]


def test_who_fails_is_told_and_the_others_are_compared() -> None:
    found = compare(["a"], [SAID], {"x": runs(SAID), "y": runs(error="no memory"), "z": runs(SAID)})
    failed = found.rows[1]
    assert (failed.error, failed.figures["wer"], failed.figures["wall_s"]) == ("no memory", None, None)
    assert found.disagreement[0] == [None, None, 0.0]
    assert found.recordings[0].labels == ["reference", "x", "z"]
    assert "y: no memory" in printed(x=runs(SAID), y=runs(error="no memory"))


def test_candidates_that_hear_different_languages_are_named() -> None:
    assert "x en, y de" in printed(x=runs(SAID), y=runs("die", language="de"))


def test_json_has_words_in_columns() -> None:
    report = json.loads(compare(["a"], ["Yes, sir"], {"x": runs("yes")}).to_json())
    assert report["models"][0]["wer"] == 0.5
    assert report["recordings"] == [
        {"name": "a", "texts": ["reference", "x"], "columns": [["Yes,", "yes"], ["sir", None]], "places": [[1]]}
    ]


def printed(**candidates: Runs) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_comparison(compare(["a.wav"], [SAID], candidates), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_the_places_where_texts_differ_with_what_stands_before() -> None:
    text = printed(x=runs(SAID), y=runs("the cat sat at a mat"))
    assert "differ in 2 of 6 words" in text
    (line,) = (line for line in text.splitlines() if "on the" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["0:00", "The cat sat", "on the", "on the", "at a"]
