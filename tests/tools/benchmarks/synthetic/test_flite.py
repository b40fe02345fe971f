"""Flite says when it spoke each word, on the clock of the samples."""

import numpy as np
import pytest

from streamer.audio.constants import SAMPLE_RATE
from tests.tools.benchmarks.synthetic.pauses import COMMAS, check_pauses
from tools.benchmarks.synthetic import flite
from tools.benchmarks.synthetic.flite import VOICES, FliteVoice
from tools.benchmarks.synthetic.speech import SynthesisError


@pytest.fixture(scope="module", params=VOICES)
def voice(request: pytest.FixtureRequest) -> FliteVoice:
    return _open(request.param)


def _open(name: str) -> FliteVoice:
    try:
        return FliteVoice(name)
    except SynthesisError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("rate", [0.85, 1.0, 1.2])
def test_the_words_are_loud_and_what_lies_between_them_is_quiet(voice: FliteVoice, rate: float) -> None:
    speech = voice.say(COMMAS, rate)
    check_pauses(speech)


@pytest.mark.parametrize("rate", [0.85, 1.0, 1.2])
def test_a_word_is_heard_when_it_is_told(voice: FliteVoice, rate: float) -> None:
    speech = voice.say("one", rate)
    power = np.abs(speech.samples.astype(np.float64))
    heard = np.flatnonzero(power > 0.1 * power.max()) / SAMPLE_RATE
    assert np.abs(np.subtract(speech.words, [(heard[0], heard[-1])])).max() < 0.04


@pytest.mark.parametrize(
    "text",
    [
        "Many of the men could have been there, out of the way, with no one in the house.",
        'In 1963 "forty-two" of them, (well-known), paid $1,200.50 at 3:45.',
        "one",
    ],
)
def test_each_piece_has_its_time_and_they_follow_one_another(voice: FliteVoice, text: str) -> None:
    speech = voice.say(text)
    assert len(speech.words) == len(text.split())
    assert all(start < end for start, end in speech.words)
    assert all(one[1] <= other[0] for one, other in zip(speech.words, speech.words[1:], strict=False))
    assert speech.words[-1][1] <= len(speech.samples) / SAMPLE_RATE


def test_a_rate_shortens(voice: FliteVoice) -> None:
    usual = len(voice.say(COMMAS).samples)
    assert len(voice.say(COMMAS, rate=1.2).samples) == pytest.approx(usual / 1.2, rel=0.1)
    assert len(voice.say(COMMAS).samples) == usual


def test_voices_take_turns(voice: FliteVoice) -> None:
    usual = voice.say(COMMAS)
    _open("rms").say(COMMAS, 1.2)
    again = voice.say(COMMAS)
    assert len(again.samples) == len(usual.samples)
    assert again.words == usual.words


@pytest.mark.parametrize(
    "text", ["well - known", "well -- known", "so ... it", "an escape \x01 here", "a nul \x00 here", "a café", '"']
)
def test_a_piece_that_cannot_be_spoken_is_an_error_and_the_next_text_is_spoken(voice: FliteVoice, text: str) -> None:
    with pytest.raises(SynthesisError):
        voice.say(text)
    assert len(voice.say("and on").words) == 2


def test_a_voice_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SynthesisError, match=r"the voice none of Flite is not here; .*slt.* libflite1"):
        FliteVoice("none")


def test_without_the_library_a_voice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flite, "_soname", lambda library: f"lib{library}-that-is-nowhere.so.1")
    with pytest.raises(SynthesisError, match="is not here"):
        FliteVoice("slt")
