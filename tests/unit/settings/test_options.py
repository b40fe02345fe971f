"""What a client may choose for its session, and what comes of it."""

from typing import Any

import msgspec
import pytest

from streamer.errors import ConfigError
from streamer.settings.options import MAX_PROMPT_CHARS, SessionOptions, with_options
from streamer.settings.registry import SETTINGS, value_of
from streamer.settings.table import Settings

# A setting that each option is chosen instead of, and a value that is not the default.
CHOSEN: dict[str, tuple[str, Any]] = {
    "language": ("decoding.language", "de"),
    "task": ("decoding.task", "both"),
    "beam_size": ("decoding.beam_size", 3),
    "initial_prompt": ("decoding.initial_prompt", "A talk."),
    "hotwords": ("decoding.hotwords", ("NPU", "Open VINO")),
    "vad_threshold": ("speech.threshold", 0.7),
    "min_silence_s": ("speech.min_silence_s", 1.0),
    "turns": ("speech.turns", True),
    "turn_threshold": ("speech.turn_threshold", 0.6),
    "turn_silence_s": ("speech.turn_silence_s", 3.0),
    "pace_s": ("stream.pace_s", 0.5),
}


def accepted(option: str, value: object) -> bool:
    """Return whether an option may have a value, as messages bring it."""
    try:
        msgspec.convert({option: value}, SessionOptions)
    except msgspec.ValidationError:
        return False
    return True


def test_what_is_not_chosen_is_as_it_is_set() -> None:
    assert SessionOptions.__struct_fields__ == (*CHOSEN, "languages", "words")
    assert with_options(Settings(), SessionOptions(languages=("de",), words=False)) == Settings()


@pytest.mark.parametrize("option", CHOSEN)
def test_an_option_is_chosen_instead_of_one_setting_and_has_its_range(option: str) -> None:
    name, value = CHOSEN[option]
    settings = with_options(Settings(), msgspec.convert({option: value}, SessionOptions))
    values = {other: value_of(settings, other) for other in SETTINGS}
    changed = {other: found for other, found in values.items() if found != SETTINGS[other].default}
    assert changed == {name: value}
    for limit, beyond in zip(SETTINGS[name].within or (), (0.5, 2), strict=False):
        assert (accepted(option, limit), accepted(option, limit * beyond)) == (True, False)
    assert (accepted(option, None), accepted(option, {})) == (True, False)


@pytest.mark.parametrize(
    ("option", "most", "more"),
    [
        ("language", "auto", "x" * 33),
        ("initial_prompt", "Grüße aus 世界", "two\nlines"),
        ("hotwords", ["x" * 100] * 100, ["x"] * 101),
        ("hotwords", [], [""]),
        ("hotwords", ["x"], ["x" * 101]),
        ("languages", ["de"] * 100, ["de"] * 101),
        ("languages", [], ["x" * 33]),
        ("words", False, 0),
    ],
)
def test_texts_and_lists_are_of_bounded_length(option: str, most: object, more: object) -> None:
    assert (accepted(option, most), accepted(option, more)) == (True, False)


def test_languages_become_codes_and_of_a_prompt_the_end_is_kept() -> None:
    long = "x" * (MAX_PROMPT_CHARS + 1)
    options = SessionOptions(language="Deutsch", languages=("en-US", "german"), initial_prompt=long)
    assert (options.language, options.languages, options.initial_prompt) == ("de", ("en", "de"), long[1:])
    assert SessionOptions(language="").language is None
    for wrong in (SessionOptions, lambda language: SessionOptions(languages=(language,))):
        with pytest.raises(ConfigError):
            wrong(language="klingon")
