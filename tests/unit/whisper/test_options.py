"""Options that contradict each other, and what is made of the others."""

import copy
import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.check import check_options
from streamer.errors import ConfigError, UsageError
from streamer.outputs.subtitles import SubtitleOptions, subtitle_options
from streamer.settings.load import load_settings
from streamer.settings.table import DecodingSettings, Settings
from streamer.whisper.decode.fallback import FallbackOptions
from streamer.whisper.decode.grammar import GrammarFilter
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.decode.window import WindowOptions
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.options import check_options_of_model, clip_seconds, resolve_decoding, temperatures
from tests.unit.whisper.support import NANO

GRAMMARS = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    return load_model(str(NANO))


def settings(**options: object) -> Settings:
    """Return settings with some of decoding, output (`output_...`) or the model's name (`model`)."""
    overrides = {}
    for name, value in options.items():
        section, _, key = name.partition("_") if name.startswith("output_") else ("decoding", "", name)
        overrides["model.name" if name == "model" else f"{section}.{key}"] = value
    return load_settings(None, {}, overrides)


def refusal(streaming: bool = False, **options: object) -> str:
    with pytest.raises(UsageError) as caught:
        check_options(settings(**options), streaming=streaming)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def test_the_defaults_are_fine() -> None:
    check_options(Settings(), streaming=False)
    check_options(Settings(), streaming=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"beam_size": 5, "best_of": 5, "temperature_increment_on_fallback": "none"},
            "beam_size is 5 and best_of 5, and only temperature 0 is tried",
        ),
        ({"best_of": 5, "temperature_increment_on_fallback": "none"}, "best_of is 5, and only temperature 0 is tried"),
        ({"beam_size": 5, "temperature": 0.4}, "beam_size is 5 and temperature 0.4"),
        ({"beam_size": 5, "best_of": 2, "temperature": 0.4}, "beam_size is 5 and temperature 0.4"),
        ({"language": "xx"}, "language is 'xx', which Whisper does not know: expected auto, or a language's"),
        ({"language": "de", "model": "nano.en"}, "language is de, and nano.en knows English only"),
        ({"language": "de", "model": "base.en"}, "language is de, and base.en knows English only"),
        ({"task": "translate", "model": "nano.en"}, "task is translate, and nano.en knows English only"),
        ({"task": "both", "model": "tiny.en"}, "task is both, and tiny.en knows English only"),
        ({"prefix": "a " * 1000}, "prefix has 1000 words"),
        ({"suppress_tokens": "1,two"}, "suppress_tokens is '1,two'"),
        ({"suppress_tokens": "-2"}, "suppress_tokens is '-2'"),
        ({"suppress_regex": "("}, "suppress_regex '(' cannot be used (unclosed group)"),
        ({"grammar": "no such file"}, "'no such file' cannot be read"),
        ({"grammar": str(GRAMMARS / "digits.gbnf"), "grammar_rule": "letters"}, "there is no rule 'letters'"),
        ({"hotwords": "a" * 1000}, "the hot word"),
        ({"clip_timestamps": "0,ten"}, "clip_timestamps is '0,ten'"),
        ({"clip_timestamps": "-1"}, "clip_timestamps is '-1'"),
        ({"clip_timestamps": "nan"}, "clip_timestamps is 'nan'"),
        ({"clip_timestamps": "0,inf"}, "clip_timestamps is '0,inf'"),
        ({"clip_timestamps": "5,1"}, "1 comes after 5"),
        ({"clip_timestamps": "5,5"}, "5 comes after 5"),
        ({"clip_timestamps": "0,10,5"}, "5 comes after 10"),
        ({"hallucination_silence_threshold": 2.0}, "hallucination_silence_threshold is 2 without word_timestamps"),
        (
            {"output_max_words_per_line": 3, "output_max_line_width": 20, "output_max_line_count": 2},
            "max_words_per_line is 3 beside",
        ),
    ],
)
def test_contradictions_are_refused_in_one_sentence(options: dict[str, Any], words: str) -> None:
    assert words in refusal(**options)


@pytest.mark.parametrize(
    "options",
    [
        # What openai-whisper's command line has by default.
        {"beam_size": 5, "best_of": 5},
        {"best_of": 5},
        {"best_of": 5, "temperature": 0.2, "temperature_increment_on_fallback": "none"},
        {"patience": 2.0},
        {"beam_size": 5, "patience": 2.0, "temperature_increment_on_fallback": "none"},
        {"length_penalty": 0.6},
        {"language": "en"},
        {"language": "de", "task": "both", "model": "tiny"},
        # Only its tokenizer knows what this one hears.
        {"language": "gsw", "task": "translate", "model": "somebody/swiss.en"},
        {"initial_prompt": "a " * 1000},
        {"suppress_tokens": ""},
        {"suppress_tokens": "-1, 5"},
        {"suppress_regex": " ?[0-9]+"},
        {"grammar": str(GRAMMARS / "digits.gbnf")},
        {"clip_timestamps": "0,10,10,20,30"},
        {"hallucination_silence_threshold": 2.0, "word_timestamps": True},
        {"output_max_words_per_line": 3, "output_max_line_width": 20},
        {"output_subtitle_style": "whisper", "output_max_line_width": 20},
    ],
)
def test_what_goes_together_is_let_through(options: dict[str, Any]) -> None:
    check_options(settings(**options), streaming=False)


def test_live_captions_are_translated_beside_and_have_no_fallback() -> None:
    assert "tiny.en knows English only" in refusal(streaming=True, task="both", model="tiny.en")
    check_options(settings(task="both", model="tiny"), streaming=True)
    # For files, in the same configuration.
    check_options(settings(best_of=5, temperature_increment_on_fallback="none"), streaming=True)


def test_a_short_name_that_is_a_model_here_says_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base.en").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "base.en knows English only" in refusal(language="de", model="base.en")
    (tmp_path / "base.en" / "config.json").write_text('{"model_type": "whisper"}', encoding="utf-8")
    check_options(settings(language="de", model="base.en"), streaming=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"language": "de"}, "does not know the language 'de'"),
        ({"prefix": "electroencephalographically " * 50}, "prefix has"),
        ({"prefix": "one two three four five", "sample_len": 222}, "expected at most 2"),
        ({"prefix": "one", "sample_len": 224}, "leaves no room for prefix 'one'"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(model: WhisperModel, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_options_of_model(settings(**options).decoding, model)


def test_what_fits_the_model_is_let_through(model: WhisperModel) -> None:
    check_options_of_model(DecodingSettings(), model)
    fitting = settings(initial_prompt="a " * 100, prefix="one", sample_len=200, hotwords="NPU,OpenVINO")
    check_options_of_model(fitting.decoding, model)


@pytest.mark.parametrize(
    ("first", "increment", "expected"),
    [
        (0.0, 0.2, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (0.4, 0.2, (0.4, 0.6, 0.8, 1.0)),
        (0.0, 0.3, (0.0, 0.3, 0.6, 0.9)),
        (1.0, 0.2, (1.0,)),
        (0.0, None, (0.0,)),
        (0.7, None, (0.7,)),
    ],
)
def test_the_ladder_of_temperatures(first: float, increment: float | None, expected: tuple[float, ...]) -> None:
    decoding = DecodingSettings(temperature=first, temperature_increment_on_fallback=increment)
    assert temperatures(decoding) == expected


@given(first=st.integers(0, 100).map(lambda n: n / 100), increment=st.integers(1, 100).map(lambda n: n / 100))
def test_the_ladder_is_that_of_the_references_command_line(first: float, increment: float) -> None:
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
    resolved = resolve_decoding(DecodingSettings(), model)
    assert resolved.fallback.temperatures == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    # Along as many beams as the model was loaded for, up to those of its command.
    for loaded_for, n_beams in ((1, 1), (4, 4), (5, 5), (8, 5)):
        monkeypatch.setattr(model, "n_beams", loaded_for)
        window = resolve_decoding(DecodingSettings(), model).window
        assert (window.n_beams, window.best_of) == (n_beams, 5)
    greedy = resolve_decoding(DecodingSettings(beam_size=1, best_of=1), model).window
    assert (greedy.n_beams, greedy.best_of) == (1, 1)
    assert resolved.clips == (0.0,)
    # nano.en was not trained to go on from what came before, and was with silence behind short windows.
    assert resolved.condition_on_previous_text
    assert resolved.pad_with_silence
    assert subtitle_options(Settings()) == SubtitleOptions()


def test_every_option_arrives(model: WhisperModel) -> None:
    decoding = settings(
        language="en",
        beam_size=3,
        patience=2.0,
        length_penalty=0.5,
        sample_len=50,
        without_timestamps=True,
        max_initial_timestamp=2.0,
        best_of=4,
        compression_ratio_threshold=3.0,
        logprob_threshold=-2.0,
        no_speech_threshold=0.5,
        entropy_threshold=2.4,
        initial_prompt="One.",
        prefix="two",
        suppress_blank=False,
        temperature=0.0,
        temperature_increment_on_fallback=0.5,
        condition_on_previous_text="never",
        clip_timestamps="1,2",
        suppress_tokens="-1,5",
        suppress_regex=" the",
        hotwords="NPU",
        grammar=str(GRAMMARS / "digits.gbnf"),
    ).decoding
    resolved = resolve_decoding(decoding, model)
    assert resolved.settings == decoding
    assert resolved.fallback == FallbackOptions(
        temperatures=(0.0, 0.5, 1.0),
        compression_ratio_threshold=3.0,
        logprob_threshold=-2.0,
        no_speech_threshold=0.5,
        entropy_threshold=2.4,
    )
    assert resolved.window == WindowOptions(
        language="en",
        timestamps=False,
        prefix=tuple(model.tokenizer.encode(" two")),
        max_tokens=50,
        best_of=4,
        n_beams=3,
        patience=2.0,
        length_penalty=0.5,
        filters=resolved.window.filters,
        text_only=False,
        keep_attention=False,
    )
    assert [type(rule) for rule in resolved.window.filters] == [HotWords, GrammarFilter]
    assert resolved.initial_prompt == tuple(model.tokenizer.encode(" NPU. One."))
    assert not resolved.condition_on_previous_text
    assert resolved.clips == (1.0, 2.0)
    assert {5, *model.tokenizer.encode(" the"), *model.generation.suppress_tokens} <= {
        *resolved.generation.suppress_tokens
    }
    assert resolved.generation.begin_suppress_tokens == ()
    assert resolved.generation.max_initial_timestamp_index == 100


@pytest.mark.parametrize("hotwords", ["", "NPU,OpenVINO"])
def test_of_a_long_prompt_the_model_sees_the_end(
    model: WhisperModel, hotwords: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    decoding = settings(hotwords=hotwords, initial_prompt="electroencephalographically " * 500).decoding
    check_options_of_model(decoding, model)
    n_tokens = len(resolve_decoding(decoding, model).initial_prompt)
    assert n_tokens > 223
    assert f"the model sees the last 223 of its {n_tokens} tokens" in caplog.text


def test_hot_words_are_shown_to_a_model_that_heeds_a_prompt(model: WhisperModel) -> None:
    decoding = settings(hotwords="NPU,OpenVINO", initial_prompt="A talk.").decoding
    for prompted, expected in ((True, " NPU, OpenVINO. A talk."), (False, " A talk.")):
        heeding = copy.copy(model)
        heeding.generation = dataclasses.replace(model.generation, prompted=prompted)
        assert model.tokenizer.decode(resolve_decoding(decoding, heeding).initial_prompt) == expected
