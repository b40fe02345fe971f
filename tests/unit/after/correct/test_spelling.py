"""What a glossary says, and texts with its terms on their way out: nothing that was published as stable changes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.after.correct.corrector import Draft, text_of
from streamer.after.correct.glossary import Form, Term, read_terms
from streamer.after.correct.spelling import Glossary, Spelling
from streamer.errors import ConfigError
from streamer.events import Final, Gap, Partial
from tests.builders import final, partial, words
from tests.promises import Promises

ENTRIES = """
# names
- Katarzyna Wróbel
- 007
- {term: "C++", aliases: see plus plus, kind: acronym}
- term: Gradle
  aliases: [grey dull, great all]
  language: German
  kind: word
- {find: [grey, greyish], replace: gray}
- {mask: damn}
"""
USUAL = frozenset("the of and hell bloody pee en you our a one not".split())  # noqa: SIM905
TERMS = """
- Kubernetes
- Port Dravenholt
- {term: NPU, aliases: [en pee you]}
- {find: colour of, replace: tone in the colour of}
- mask: [damn, bloody hell]
"""
# Parts of terms, and what is none.
WORDS = [
    *("cubernetes", "kubernetes", "cube", "er", "netes", "Kubernetes's", "port", "draven", "hold"),
    *("Draven,", "en", "pee", "you", "NPU.", "colour", "of", "damn", "bloody", "hell!", "the", "not", "one", "and"),
    *("tone", "in", "our"),
]


def glossary_of(folder: Path, terms: str, usual: frozenset[str] = frozenset()) -> Glossary:
    (folder / "terms.yaml").write_text(terms, encoding="utf-8")
    return Glossary(folder / "terms.yaml", usual.__contains__)


@pytest.fixture(scope="module")
def glossary(tmp_path_factory: pytest.TempPathFactory) -> Glossary:
    return glossary_of(tmp_path_factory.mktemp("glossary"), TERMS, USUAL)


def shown(text: str, n_stable: int, segment: int = 1) -> Partial:
    """Return a partial, words of a second each, of which the first are stable."""
    spoken = words(text, step=1.0, probability=0.6, n_stable=n_stable)
    return partial(text, len(text_of(spoken[:n_stable])), segment=segment, words=spoken)


def said(text: str, segment: int = 1, **fields: Any) -> Final:  # noqa: ANN401
    return final(text, segment=segment, words=words(text, step=1.0, probability=0.6), **fields)


def take(spelling: Spelling, text: str, n_stable: int) -> tuple[str, str]:
    """Return a partial's text as it is published, and the part that is stable."""
    event = spelling.spelled(shown(text, n_stable))
    return event.text, event.text[: event.stable]


def test_each_kind_of_entry_is_read(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text(ENTRIES, encoding="utf-8")
    assert read_terms(path) == [
        Term("Katarzyna Wróbel", ("Katarzyna Wróbel",)),
        Term("007", ("007",)),
        Term("C++", ("C++", "see plus plus"), Form.EXACT),
        Term("Gradle", ("Gradle", "grey dull", "great all"), Form.WORD, "de"),
        Term("gray", ("grey", "greyish"), Form.REPLACED),
        Term("", ("damn",), Form.MASKED),
    ]
    for empty in ("# nothing yet\n", "", "''"):
        path.write_text(empty, encoding="utf-8")
        assert read_terms(path) == []


# A pass: how many words of the tail become stable, what the model writes on at the last of these, the new tail, and
# whether looking for terms fails.
PASS = st.tuples(
    st.integers(0, 4),
    st.sampled_from(["", "s", ",", "netes"]),
    st.lists(st.sampled_from(WORDS), max_size=5),
    st.sampled_from([False, False, True]),
)


@given(st.lists(PASS, max_size=8), st.booleans())
def test_what_was_stable_stays_whatever_the_model_writes_and_though_looking_for_terms_fails(
    glossary: Glossary, passes: list[tuple[int, str, list[str], bool]], ends_badly: bool
) -> None:
    spelling, promises, indexes = Spelling(glossary, "en"), Promises(), glossary._indexes
    stable: list[str] = []
    tail: list[str] = []

    def publish(event: Partial | Final, *, fails: bool) -> None:
        glossary._indexes = {} if fails else indexes
        try:
            promises.take([published := spelling.label(event)])
        finally:
            glossary._indexes = indexes
        assert isinstance(published, Partial | Final)
        once = tuple(glossary.correct(Draft(published.words, "en"), 1.0))
        assert tuple(glossary.correct(Draft(once, "en"), 1.0)) == once, "a second look finds something in its own words"

    for n, more, new, fails in passes:
        stable += tail[:n]
        if stable:
            stable[-1] += more
        tail = new
        publish(shown(" ".join(stable + tail), len(stable)), fails=fails)
    publish(said(" ".join(stable + tail)), fails=ends_badly)


def test_a_term_is_replaced_before_it_is_stable_and_not_while_a_part_of_it_may_change(glossary: Glossary) -> None:
    spelling = Spelling(glossary, "en")
    assert take(spelling, "we use cube er netes", 2) == ("we use Kubernetes", "we use")
    assert take(spelling, "we use cube er netes", 4) == ("we use Kubernetes", "we use")
    assert take(spelling, "we use cube er netes, now", 5) == ("we use Kubernetes, now", "we use Kubernetes,")
    # What is stable is not looked at again, and what the model writes on at it is kept.
    assert take(spelling, "we use cube er netes,and now", 5)[0] == "we use Kubernetes,and now"


def test_what_may_be_the_beginning_of_a_term_is_stable_with_the_next_word(glossary: Glossary) -> None:
    spelling = Spelling(glossary, "en")
    assert take(spelling, "in the bloody", 3)[1] == "in the"
    assert take(spelling, "in the bloody end", 3)[1] == "in the bloody"
    assert spelling.spelled(said("in the bloody end, bloody hell")).text == "in the bloody end, ****** ****"


def test_a_term_of_which_a_part_was_stable_comes_as_a_correction(glossary: Glossary) -> None:
    spelling = Spelling(glossary, "en")
    take(spelling, "near pord", 2)
    event = spelling.spelled(said("near pord draven hold."))
    assert event.text == "near pord draven hold."
    corrected = glossary.correct(Draft(event.words, "en"), 1.0)
    assert text_of(corrected) == "near Port Dravenholt."
    assert [(word.start, word.end) for word in corrected[1:]] == [(1.0, 1.8), (1.8, 4.0)]


def test_another_segment_begins_anew_and_other_events_pass(glossary: Glossary) -> None:
    spelling = Spelling(glossary, "en")
    spelling.label(shown("cube er netes", 3))
    gap, beside = Gap(start=0.0, end=1.0, reason="cleared"), said("damn", task="translate")
    assert spelling.label(gap) is gap
    assert spelling.label(beside) is beside
    assert spelling.spelled(shown("the", 1, segment=2)).text == "the"
    assert spelling.spelled(said("the damn", segment=2)).text == "the ****"


def test_terms_of_a_language_wait_until_the_language_is_known(tmp_path: Path) -> None:
    terms = "- {term: Straße, aliases: [strasse], language: german}\n- {find: x, replace: y}"
    spelling = Spelling(glossary_of(tmp_path, terms), "auto")
    assert take(spelling, "die strasse x", 0)[0] == "die strasse y"
    assert spelling.spelled(said("die strasse", language="de")).text == "die Straße"
    assert spelling.spelled(shown("die strasse", 0, segment=2)).text == "die Straße"


def test_a_file_that_has_errors_when_it_is_read_again_changes_nothing(tmp_path: Path) -> None:
    glossary = glossary_of(tmp_path, "- {find: x, replace: y}")
    for terms, expected in (("- {find: x}", "y"), ("- {find: x, replace: z}", "z")):
        (tmp_path / "terms.yaml").write_text(terms, encoding="utf-8")
        if expected == "y":
            with pytest.raises(ConfigError):
                glossary.reread()
        else:
            glossary.reread()()
        assert Spelling(glossary).spelled(said("x")).text == expected


def test_terms_of_a_recording_are_those_of_the_language_of_its_text(tmp_path: Path) -> None:
    glossary = glossary_of(tmp_path, "- {term: Dravenholt, aliases: [draven hold], language: de}")
    german = said("in draven hold", language="de")
    assert glossary.spelled(german, "transcribe").text == "in Dravenholt"
    translated = msgspec.structs.replace(german, task="translate")
    assert glossary.spelled(translated, "transcribe") is translated
    assert glossary.spelled(german, "translate") is german


def test_a_final_begins_with_what_was_stable(glossary: Glossary, monkeypatch: pytest.MonkeyPatch) -> None:
    spelling = Spelling(glossary, "en")
    assert take(spelling, "we use cube er netes now", 5)[1] == "we use Kubernetes"
    monkeypatch.setattr(glossary, "_indexes", {})
    event = spelling.label(said("we use cube er netes, now on draven hold"))
    assert isinstance(event, Final)
    assert event.text == "we use Kubernetes, now on draven hold"
