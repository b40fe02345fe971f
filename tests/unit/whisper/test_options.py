"""Options that contradict each other, and what is made of the others."""

import copy
import dataclasses
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.check import check_options
from streamer.errors import ConfigError
from streamer.outputs.subtitles import SubtitleOptions, subtitle_options
from streamer.settings.load import load_settings
from streamer.settings.table import DecodingSettings, Settings
from streamer.whisper.decode.grammar import GrammarFilter
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.model import WhisperModel
from streamer.whisper.option_checks import check_options_of_model
from streamer.whisper.options import clip_seconds, decode_options, temperatures
from tests.refusals import Refusal, refusals
from tests.unit.whisper.support import table

GRAMMARS = Path(__file__).parents[2] / "data"
DIGITS = str(GRAMMARS / "digits.gbnf")

OPTIONS = table("options")


def settings(**options: object) -> Settings:
    """Return settings with some of decoding, output (`output_...`) or the model's name (`model`)."""
    overrides = {}
    for name, value in options.items():
        section, _, key = name.partition("_") if name.startswith("output_") else ("decoding", "", name)
        overrides["model.name" if name == "model" else f"{section}.{key}"] = value
    return load_settings(None, {}, overrides)


@refusals("whisper_options")
def test_contradictions_and_what_does_not_fit_the_model_are_refused(
    refusal: Refusal, model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(GRAMMARS)
    options = dict(refusal.given)
    streaming = options.pop("streaming", False)
    with refusal.expected():
        check_options(settings(**options), streaming=streaming)
        check_options_of_model(settings(**options).decoding, model)


@pytest.mark.parametrize("options", OPTIONS["accepted"])
def test_what_goes_together_is_accepted(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GRAMMARS)
    check_options(settings(**options), streaming=False)
    # Live captions have no fallback: such options are for files, in the same configuration.
    check_options(settings(best_of=5, temperature_increment_on_fallback="none"), streaming=True)


def test_a_short_name_that_is_a_model_here_says_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base.en").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        check_options(settings(language="de", model="base.en"), streaming=False)
    (tmp_path / "base.en" / "config.json").write_text('{"model_type": "whisper"}', encoding="utf-8")
    check_options(settings(language="de", model="base.en"), streaming=False)


def test_what_fits_the_model_is_accepted(model: WhisperModel) -> None:
    check_options_of_model(DecodingSettings(), model)
    for fitting in (
        settings(initial_prompt="a " * 100, prefix="one", sample_len=200, hotwords="NPU,OpenVINO"),
        settings(prefix="a", sample_len=222),
        settings(beam_size=1, sample_len=224),
    ):
        check_options_of_model(fitting.decoding, model)


def test_without_an_increment_there_is_one_temperature() -> None:
    assert temperatures(DecodingSettings(temperature=0.7, temperature_increment_on_fallback=None)) == (0.7,)


@given(first=st.integers(0, 100).map(lambda n: n / 100), increment=st.integers(1, 100).map(lambda n: n / 100))
def test_the_temperatures_are_those_of_openai_whispers_command_line(first: float, increment: float) -> None:
    decoding = DecodingSettings(temperature=first, temperature_increment_on_fallback=increment)
    np.testing.assert_allclose(temperatures(decoding), np.arange(first, 1.0 + 1e-6, increment), atol=1e-6)


@given(text=st.text(alphabet="0123456789.,-+ einfa", max_size=20))
def test_any_text_is_clips_in_order_or_refused(text: str) -> None:
    try:
        times = clip_seconds(text)
    except ConfigError:
        return
    assert list(times) == sorted(times)
    assert all(start < end for start, end in zip(times[::2], times[1::2], strict=False))
    assert all(0 <= time < float("inf") for time in times)


def test_the_defaults_are_those_of_openai_whisper(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    options = decode_options(DecodingSettings(), model)
    assert options.temperatures == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert clip_seconds(options.settings.clip_timestamps) == (0.0,)
    assert options.words
    # As nano.en says of itself.
    assert options.conditioned
    assert options.generation.silent_padding
    # Along as many beams as the model was loaded for, up to those of openai-whisper's command.
    for loaded_for, n_beams in ((1, 1), (4, 4), (8, 5)):
        monkeypatch.setattr(model, "n_beams", loaded_for)
        options = decode_options(DecodingSettings(), model)
        assert (options.n_beams, options.best_of) == (n_beams, 5)
    assert subtitle_options(Settings()) == SubtitleOptions()


@pytest.mark.parametrize(("option", "value", "where", "expected"), OPTIONS["arrives"])
def test_an_option_arrives(model: WhisperModel, option: str, value: object, where: str, expected: object) -> None:
    given = settings(**{option: value}).decoding
    resolved, default = decode_options(given, model), decode_options(DecodingSettings(), model)
    assert resolved.settings == given
    found = attrgetter(where)(resolved)
    assert ([*found] if isinstance(found, tuple) else "none" if found is None else found) == expected
    assert found != attrgetter(where)(default)


def test_hot_words_and_a_grammar_are_rules_on_the_next_token(model: WhisperModel) -> None:
    resolved = decode_options(settings(hotwords="NPU", grammar=DIGITS).decoding, model)
    assert [type(rule) for rule in resolved.filters] == [HotWords, GrammarFilter]
    assert not decode_options(DecodingSettings(), model).filters


@pytest.mark.parametrize(("prompted", "expected"), [(True, " NPU, OpenVINO. A talk."), (False, " A talk.")])
def test_hot_words_are_in_the_prompt_of_a_model_that_was_trained_with_prompts(
    model: WhisperModel, prompted: bool, expected: str
) -> None:
    decoding = settings(hotwords="NPU,OpenVINO", initial_prompt="A talk.").decoding
    other = copy.copy(model)
    other.generation = dataclasses.replace(model.generation, prompted=prompted)
    assert model.tokenizer.decode(decode_options(decoding, other).initial_prompt) == expected
