"""What the settings of captions come to in a session: `streamer.setup.session`."""

import copy
import dataclasses
from pathlib import Path

import msgspec
import pytest

from streamer.settings.load import load_settings
from streamer.settings.table import Settings, StreamSettings
from streamer.setup.session import session_settings
from streamer.whisper.heads import all_heads
from streamer.whisper.model import WhisperModel
from tests.unit.whisper.support import NANO, load_on_cpu


@pytest.fixture(scope="module")
def model(cache_dir: Path) -> WhisperModel:
    return load_on_cpu(NANO, cache_dir, windows_s=(5, 15))


@pytest.mark.parametrize(
    ("said", "when", "window_s"),
    [
        ({}, (0.4, 0.6, 1.5), 13.0),
        ({"stream.captions": "early"}, (0.1, 0.3, 1.0), 13.0),
        ({"stream.captions": "exact"}, (0.4, 0.8, 1.5), 28.0),
        ({"stream.captions": "early", "stream.attention_margin_s": "0.2"}, (0.2, 0.3, 1.0), 13.0),
        ({"stream.commit_probability": "0.9", "stream.window_s": "20"}, (0.4, 0.9, 1.5), 20.0),
        ({"stream.captions": "exact", "stream.second_look_s": "3"}, (0.4, 0.8, 3.0), 28.0),
    ],
)
def test_captions_name_when_words_are_stable_and_the_window_unless_these_are_set(
    model: WhisperModel, said: dict[str, str], when: tuple[float, float, float], window_s: float
) -> None:
    chosen = session_settings(load_settings(None, {}, said), model)
    assert (chosen.attention_margin_s, chosen.commit_probability, chosen.second_look_s) == when
    assert chosen.window_s == window_s


def test_words_become_stable_by_agreement_if_the_heads_are_guessed(
    model: WhisperModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "streamer")
    assert session_settings(Settings(), model).policy == "alignatt"
    upper = tuple(head for head in all_heads(model.dims) if head[0] >= model.dims.n_text_layer // 2)
    guessed = copy.copy(model)
    guessed.name, guessed.generation = "distilled", dataclasses.replace(model.generation, alignment_heads=upper)
    for _ in range(2):
        assert session_settings(Settings(), guessed).policy == "agreement"
    assert caplog.text.count("which attention heads of distilled follow the audio") == 1
    for policy in ("agreement", "alignatt"):
        wanted = load_settings(None, {}, {"stream.policy": policy})
        assert {session_settings(wanted, each).policy for each in (model, guessed)} == {policy}


def test_every_setting_of_the_stream_reaches_the_session(model: WhisperModel) -> None:
    stream = StreamSettings(
        pace_s=0.3,
        max_pace_s=3.0,
        max_delay_s=31.0,
        captions="early",
        policy="agreement",
        agreement=3,
        attention_margin_s=0.2,
        commit_probability=0.7,
        second_look_s=2.0,
        show_probability=0.5,
        trim_after_s=9.0,
        final_silence_s=1.1,
        window_s=10.0,
    )
    chosen = session_settings(Settings(stream=stream), model)
    for name, usual in msgspec.structs.asdict(StreamSettings()).items():
        assert getattr(chosen, name) == getattr(stream, name) != usual, name
