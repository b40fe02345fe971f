"""Flite says when it spoke each word, on the clock of the samples."""

import numpy as np
import pytest

from streamer.audio.constants import SAMPLE_RATE
from tests.tools.train_nano.support import COMMAS, check_pauses
from tools.train_nano import flite
from tools.train_nano.flite import VOICES, FliteVoice
from tools.train_nano.speech import Speech, SynthesisError


@pytest.fixture(scope="module", params=VOICES)
def voice(request: pytest.FixtureRequest) -> FliteVoice:
    return _open(request.param)


def _open(name: str) -> FliteVoice:
    try:
        return FliteVoice(name)
    except SynthesisError as error:
        pytest.skip(str(error))


def _pitch(speech: Speech) -> float:
    """In hertz: the median over the frames that repeat themselves most."""
    size, shortest, longest = 1024, SAMPLE_RATE // 320, SAMPLE_RATE // 60
    found = []
    for start in range(0, len(speech.samples) - size, size):
        frame = speech.samples[start : start + size].astype(np.float64)
        frame -= frame.mean()
        spectrum = np.fft.rfft(frame, 2 * size)
        repeats = np.fft.irfft(np.abs(spectrum) ** 2)[:longest]
        lag = shortest + int(np.argmax(repeats[shortest:]))
        if repeats[lag] > 0.5 * repeats[0] > 0:
            found.append(SAMPLE_RATE / lag)
    return float(np.median(found))


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


def test_the_sounds_end_in_order_and_with_the_samples(voice: FliteVoice) -> None:
    speech = voice.say(COMMAS)
    ends = [end for _, end in speech.phones]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(len(speech.samples) / SAMPLE_RATE, abs=0.05)


def test_words_begin_and_end_where_their_sounds_do(voice: FliteVoice) -> None:
    speech = voice.say("It is in the box.")
    ends = [end for _, end in speech.phones]
    begins = dict(zip(ends[:-1], [name for name, _ in speech.phones[1:]], strict=True))
    names = dict(zip(ends, [name for name, _ in speech.phones], strict=True))
    assert begins[speech.words[3][0]] == "dh"
    assert begins[speech.words[4][0]] == "b"
    assert names[speech.words[4][1]] == "s"


def test_a_rate_shortens_and_a_pitch_does_not(voice: FliteVoice) -> None:
    usual = len(voice.say(COMMAS).samples)
    assert len(voice.say(COMMAS, rate=1.2).samples) == pytest.approx(usual / 1.2, rel=0.1)
    assert len(voice.say(COMMAS, pitch=1.2).samples) == pytest.approx(usual, rel=0.02)
    assert len(voice.say(COMMAS).samples) == usual


@pytest.mark.parametrize("name", [name for name in VOICES if name != "rms"])
@pytest.mark.parametrize("pitch", [0.85, 1.2])
def test_a_pitch_is_a_factor(name: str, pitch: float) -> None:
    voice = _open(name)
    assert _pitch(voice.say(COMMAS, pitch=pitch)) == pytest.approx(pitch * _pitch(voice.say(COMMAS)), rel=0.07)


def test_voices_take_turns(voice: FliteVoice) -> None:
    usual = voice.say(COMMAS)
    _open("rms").say(COMMAS, 1.2, 0.8)
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
