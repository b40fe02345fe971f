"""Which language a window is taken to be in, by what Whisper finds and how much it heard."""

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.session.language import choose_language, is_doubtful, language_outside, only_among


@pytest.mark.parametrize(
    ("found", "probability", "length_s", "known", "expected"),
    [
        # What Whisper said of German, Portuguese and Chinese (with an English name) after so much of it.
        ("en", 0.90, 0.7, (), ("en", False)),
        ("de", 0.97, 1.5, (), ("de", False)),
        ("de", 0.99, 2.0, (), ("de", True)),
        ("en", 0.95, 1.5, (), ("en", False)),
        ("en", 0.73, 2.0, (), ("en", False)),
        ("zh", 0.85, 3.0, (), ("zh", True)),
        ("hi", 0.14, 2.0, (), ("hi", False)),
        ("pt", 0.76, 3.0, (), ("pt", False)),
        ("pt", 0.76, 4.0, (), ("pt", True)),
        # At some time one must be taken.
        ("nn", 0.3, 7.9, (), ("nn", False)),
        ("nn", 0.3, 8.0, (), ("nn", True)),
        # Who spoke a language before soon speaks it again; a new one needs more.
        ("de", 0.5, 1.4, ("de",), ("de", False)),
        ("de", 0.5, 1.5, ("de",), ("de", True)),
        ("de", 0.4, 4.0, ("de",), ("de", False)),
        ("en", 0.9, 1.9, ("de",), ("de", False)),
        ("en", 0.9, 2.0, ("de",), ("en", True)),
        ("en", 0.7, 4.0, ("de",), ("de", False)),
        ("en", 0.7, 8.0, ("de",), ("de", True)),
        # The newest counts where nothing is sure, any where it is.
        ("cy", 0.5, 1.5, ("de", "fr"), ("fr", False)),
        ("de", 0.5, 1.5, ("de", "fr"), ("de", True)),
        # One that is not allowed any more does not count.
        ("en", 0.4, 1.0, ("ja",), ("en", False)),
    ],
)
def test_the_language_is_sure_after_enough_speech(
    found: str, probability: float, length_s: float, known: tuple[str, ...], expected: tuple[str, bool]
) -> None:
    others = dict.fromkeys({"cy", "de", "en", "fr", "nn"} - {found}, min(probability / 2, (1 - probability) / 4))
    assert choose_language({found: probability} | others, round(length_s * SAMPLE_RATE), known) == expected


def test_a_language_that_is_hardly_heard_any_more_is_doubtful() -> None:
    assert is_doubtful(0.1, 2 * SAMPLE_RATE)
    assert not is_doubtful(0.3, 2 * SAMPLE_RATE)
    assert not is_doubtful(0.1, SAMPLE_RATE)


def test_probabilities_among_the_allowed_languages_add_up_to_one() -> None:
    assert only_among({"de": 0.6, "en": 0.3, "fr": 0.1}, ("en", "fr")) == pytest.approx({"en": 0.75, "fr": 0.25})


def test_languages_of_which_none_is_spoken_stay_improbable() -> None:
    assert only_among({"de": 0.96, "en": 0.03, "fr": 0.01}, ("en", "fr")) == {"en": 0.03, "fr": 0.01}


@pytest.mark.parametrize(
    ("german", "length_s", "allowed", "outside"),
    [
        pytest.param(0.98, 2.0, ("en", "fr"), "de", id="surely spoken"),
        pytest.param(0.98, 2.0, ("en", "de"), "", id="allowed"),
        pytest.param(0.98, 1.9, ("en", "fr"), "", id="too short"),
        pytest.param(0.96, 8.0, ("en", "fr"), "", id="not sure"),
    ],
)
def test_a_language_outside_of_the_allowed_ones(
    german: float, length_s: float, allowed: tuple[str, ...], outside: str
) -> None:
    probabilities = {"de": german, "en": 1.0 - german, "fr": 0.0}
    assert language_outside(probabilities, round(length_s * SAMPLE_RATE), allowed) == outside
