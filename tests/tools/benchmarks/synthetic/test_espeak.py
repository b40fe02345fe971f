"""eSpeak NG says when it spoke each word, even of those that it runs together."""

import pytest

from streamer.audio.constants import SAMPLE_RATE
from tests.tools.benchmarks.synthetic.pauses import COMMAS, check_pauses
from tools.benchmarks.synthetic.espeak import EspeakVoice
from tools.benchmarks.synthetic.speech import SynthesisError


@pytest.fixture(scope="module")
def voice() -> EspeakVoice:
    return _open("en-us")


def _open(name: str) -> EspeakVoice:
    try:
        return EspeakVoice(name)
    except SynthesisError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("rate", [0.85, 1.0, 1.2])
@pytest.mark.parametrize("name", ["en-us", "en-us+f3", "en-gb", "en-029"])
def test_the_words_are_loud_and_what_lies_between_them_is_quiet(name: str, rate: float) -> None:
    speech = _open(name).say(COMMAS, rate)
    check_pauses(speech)


@pytest.mark.parametrize(
    "text",
    [
        "Many of the men could have been there, out of the way, with no one in the house.",
        'In 1963 "forty-two" of them, well-known, paid $1,200.50 at 3:45.',
        "The “café” of Müller.",
        "one",
    ],
)
def test_each_piece_has_its_time_and_they_follow_one_another(voice: EspeakVoice, text: str) -> None:
    speech = voice.say(text)
    assert len(speech.words) == len(text.split())
    assert all(start < end for start, end in speech.words)
    assert all(one[1] <= other[0] for one, other in zip(speech.words, speech.words[1:], strict=False))
    assert speech.words[-1][1] <= len(speech.samples) / SAMPLE_RATE


def test_words_that_are_run_together_are_told_apart_by_their_sounds(voice: EspeakVoice) -> None:
    speech = voice.say("It is in the box.")
    (_, end), (start, after) = speech.words[2:4]
    assert end == start
    assert 0.03 < after - start < 0.2


def test_a_rate_shortens(voice: EspeakVoice) -> None:
    usual = len(voice.say(COMMAS).samples)
    assert len(voice.say(COMMAS, rate=1.2).samples) == pytest.approx(usual / 1.2, rel=0.1)


def test_voices_take_turns(voice: EspeakVoice) -> None:
    usual = len(voice.say(COMMAS).samples)
    _open("en-gb-scotland+f2").say(COMMAS, 1.2)
    assert len(voice.say(COMMAS).samples) == pytest.approx(usual, rel=0.05)


@pytest.mark.parametrize("text", ["well - known", "so ... it", "an escape \x01 here"])
def test_a_piece_that_cannot_be_spoken_is_an_error(voice: EspeakVoice, text: str) -> None:
    with pytest.raises(SynthesisError):
        voice.say(text)


@pytest.mark.usefixtures("voice")
def test_a_voice_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SynthesisError, match="no voice xx-none"):
        EspeakVoice("xx-none")
