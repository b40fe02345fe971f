"""Texts with terms on their way out: nothing that was published as stable changes."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.after.correct.corrector import Draft, text_of
from streamer.after.correct.spelling import Glossary, Spelling
from streamer.errors import ConfigError
from streamer.events import Final, Gap, Partial, Word
from tests import builders
from tests.promises import Promises

USUAL = frozenset("the of and hell bloody pee en you our a one not".split())  # noqa: SIM905
TERMS = """
- Kubernetes
- Port Dravenholt
- {term: NPU, aliases: [en pee you]}
- {find: colour of, replace: tone in the colour of}
- mask: [damn, bloody hell]
"""
# Parts of terms, and what is none.
WORDS = (
    *(
        "cube",
        "er",
        "netes",
        "cubernetes",
        "kubernetes",
        "port",
        "draven",
        "hold",
        "Draven,",
        "en",
        "pee",
        "you",
        "NPU.",
    ),
    *("colour", "of", "damn", "bloody", "hell!", "the", "not", "one", "and", "tone", "in", "our", "Kubernetes's"),
)


@pytest.fixture(scope="module")
def glossary(tmp_path_factory: pytest.TempPathFactory) -> Glossary:
    path = tmp_path_factory.mktemp("glossary") / "terms.yaml"
    path.write_text(TERMS, encoding="utf-8")
    return Glossary(path, USUAL.__contains__)


def words_of(texts: list[str], n_stable: int | None = None, probability: float = 0.6) -> tuple[Word, ...]:
    return tuple(
        Word(word=text, start=float(i), end=i + 0.9, probability=probability, stable=n_stable is None or i < n_stable)
        for i, text in enumerate(texts)
    )


def partial(texts: list[str], n_stable: int, segment: int = 1) -> Partial:
    words = words_of(texts, n_stable)
    stable = len(text_of(words[:n_stable]))
    return builders.partial(text_of(words), stable, segment=segment, end=99.0, words=words)


def final(texts: list[str], segment: int = 1) -> Final:
    words = words_of(texts)
    return builders.final(text_of(words), segment=segment, end=99.0, words=words)


def spaced(text: str) -> list[str]:
    return [f" {word}" for word in text.split()]


# A pass: how many words of the tail settle, what the model writes on at the last of these, and the new tail.
PASS = st.tuples(
    st.integers(0, 4), st.sampled_from(["", "s", ",", "netes"]), st.lists(st.sampled_from(WORDS), max_size=5)
)


@given(st.lists(PASS, max_size=8))
def test_what_was_stable_stays_whatever_the_model_thinks_better_of(
    glossary: Glossary, passes: list[tuple[int, str, list[str]]]
) -> None:
    spelling, promises = Spelling(glossary, "en"), Promises()
    settled: list[str] = []
    tail: list[str] = []
    for n, more, new in passes:
        settled += tail[:n]
        if settled:
            settled[-1] += more
        tail = [f" {word}" for word in new]
        promises.take([spelling.spelled(partial(settled + tail, len(settled)))])
    event = spelling.spelled(final(settled + tail))
    promises.take([event])
    once = tuple(glossary.correct(Draft(event.words, "en"), 1.0))
    assert tuple(glossary.correct(Draft(once, "en"), 1.0)) == once, "a second look finds something in its own words"


def test_a_term_is_replaced_before_it_settles_and_not_while_a_part_of_it_may_change(glossary: Glossary) -> None:
    spelling = Spelling(glossary, "en")
    shown = spelling.spelled(partial(spaced("we use cube er netes"), 2))
    assert (shown.text, shown.stable) == ("we use Kubernetes", len("we use"))
    shown = spelling.spelled(partial(spaced("we use cube er netes"), 4))
    assert (shown.text, shown.stable) == ("we use Kubernetes", len("we use"))
    shown = spelling.spelled(partial(spaced("we use cube er netes, now"), 5))
    assert (shown.text, shown.stable) == ("we use Kubernetes, now", len("we use Kubernetes,"))
    # What settled is not looked at again, and what the model writes on at it is kept.
    shown = spelling.spelled(partial(spaced("we use cube er netes,and now"), 5))
    assert shown.text == "we use Kubernetes,and now"


def test_what_may_be_the_beginning_of_a_term_settles_with_the_next_word(glossary: Glossary) -> None:
    spelling = Spelling(glossary, "en")
    assert spelling.spelled(partial(spaced("in the bloody"), 3)).stable == len("in the")
    assert spelling.spelled(partial(spaced("in the bloody end"), 3)).stable == len("in the bloody")
    assert spelling.spelled(final(spaced("in the bloody end, bloody hell"))).text == "in the bloody end, ****** ****"


def test_a_term_of_which_a_part_had_settled_comes_as_a_correction(glossary: Glossary) -> None:
    spelling = Spelling(glossary, "en")
    spelling.spelled(partial(spaced("near pord"), 2))
    event = spelling.spelled(final(spaced("near pord draven hold.")))
    assert event.text == "near pord draven hold."
    corrected = glossary.correct(Draft(event.words, "en"), 1.0)
    assert text_of(corrected) == "near Port Dravenholt."
    assert [(word.start, word.end) for word in corrected[1:]] == [(1.0, 1.773), (1.773, 3.9)]


def test_another_segment_begins_anew_and_other_events_pass(glossary: Glossary) -> None:
    spelling = Spelling(glossary, "en")
    spelling.label(partial(spaced("cube er netes"), 3))
    gap = Gap(start=0.0, end=1.0, reason="cleared")
    assert spelling.label(gap) is gap
    beside = msgspec.structs.replace(final(spaced("damn")), task="translate")
    assert spelling.label(beside) is beside
    assert spelling.spelled(partial(spaced("the"), 1, segment=2)).text == "the"
    assert spelling.spelled(final(spaced("the damn"), segment=2)).text == "the ****"


def test_terms_of_a_language_wait_until_the_language_is_known(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text("- {term: Straße, aliases: [strasse], language: german}\n- {find: x, replace: y}", encoding="utf-8")
    spelling = Spelling(Glossary(path, lambda word: False), "auto")
    assert spelling.spelled(partial(spaced("die strasse x"), 0)).text == "die strasse y"
    german = msgspec.structs.replace(final(spaced("die strasse")), language="de")
    assert spelling.spelled(german).text == "die Straße"
    assert spelling.spelled(partial(spaced("die strasse"), 0, segment=2)).text == "die Straße"


def test_a_file_that_has_errors_when_it_is_read_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text("- {find: x, replace: y}", encoding="utf-8")
    glossary = Glossary(path, lambda word: False)
    path.write_text("- {find: x}", encoding="utf-8")
    with pytest.raises(ConfigError):
        glossary.reread()()
    assert Spelling(glossary).spelled(final(spaced("x"))).text == "y"
    path.write_text("- {find: x, replace: z}", encoding="utf-8")
    glossary.reread()()
    assert Spelling(glossary).spelled(final(spaced("x"))).text == "z"


def test_terms_of_a_recording_are_those_of_the_language_of_its_text(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text("- {term: Dravenholt, aliases: [draven hold], language: de}", encoding="utf-8")
    german = Glossary(path, lambda word: False)
    said = msgspec.structs.replace(final(spaced("in draven hold")), language="de")
    assert german.spelled(said, "transcribe").text == "in Dravenholt"
    translated = msgspec.structs.replace(said, task="translate")
    assert german.spelled(translated, "transcribe") is translated
    assert german.spelled(said, "translate") is said


@given(st.lists(st.tuples(PASS, st.booleans()), max_size=8), st.booleans())
def test_what_was_stable_stays_though_looking_for_terms_fails(
    glossary: Glossary, passes: list[tuple[tuple[int, str, list[str]], bool]], ends_badly: bool
) -> None:
    spelling, promises = Spelling(glossary, "en"), Promises()
    indexes = glossary._indexes
    settled: list[str] = []
    tail: list[str] = []

    def publish(event: Partial | Final, *, fails: bool) -> None:
        glossary._indexes = {} if fails else indexes
        try:
            promises.take([spelling.label(event)])
        finally:
            glossary._indexes = indexes

    for (n, more, new), fails in passes:
        settled += tail[:n]
        if settled:
            settled[-1] += more
        tail = [f" {word}" for word in new]
        publish(partial(settled + tail, len(settled)), fails=fails)
    publish(final(settled + tail), fails=ends_badly)


def test_a_final_whose_terms_cannot_be_found_begins_with_what_was_stable(
    glossary: Glossary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spelling = Spelling(glossary, "en")
    shown = spelling.label(partial(spaced("we use cube er netes now"), 5))
    assert isinstance(shown, Partial)
    assert shown.text[: shown.stable] == "we use Kubernetes"
    monkeypatch.setattr(glossary, "_indexes", {})
    event = spelling.label(final(spaced("we use cube er netes, now on draven hold")))
    assert isinstance(event, Final)
    assert event.text == "we use Kubernetes, now on draven hold"
    assert "the terms of a final event could not be found" in caplog.text
