"""Festival says when it spoke each word, and is started again when it hangs or ends."""

from collections.abc import Iterator

import pytest

from streamer.audio.constants import SAMPLE_RATE
from tests.tools.benchmarks.synthetic.pauses import COMMAS, check_pauses
from tools.benchmarks.synthetic import festival
from tools.benchmarks.synthetic.festival import VOICES, FestivalVoice
from tools.benchmarks.synthetic.speech import SynthesisError


@pytest.fixture(scope="module", params=VOICES)
def voice(request: pytest.FixtureRequest) -> Iterator[FestivalVoice]:
    try:
        opened = FestivalVoice(request.param)
    except SynthesisError as error:
        pytest.skip(str(error))
    yield opened
    opened.close()


@pytest.mark.parametrize("rate", [0.85, 1.0, 1.2])
def test_the_words_are_loud_and_what_lies_between_them_is_quiet(voice: FestivalVoice, rate: float) -> None:
    speech = voice.say(COMMAS, rate)
    check_pauses(speech)


@pytest.mark.parametrize(
    "text", ['In 1963 "forty-two" of them, (well-known), paid $5.', 'It\'s \\"so\\" C:\\new', "(quit)"]
)
def test_each_piece_has_its_time_and_they_follow_one_another(voice: FestivalVoice, text: str) -> None:
    speech = voice.say(text)
    assert len(speech.words) == len(text.split())
    assert all(start < end for start, end in speech.words)
    assert all(one[1] <= other[0] for one, other in zip(speech.words, speech.words[1:], strict=False))
    assert speech.words[-1][1] <= len(speech.samples) / SAMPLE_RATE


def test_a_rate_shortens(voice: FestivalVoice) -> None:
    usual = len(voice.say(COMMAS).samples)
    assert len(voice.say(COMMAS, rate=1.2).samples) == pytest.approx(usual / 1.2, rel=0.1)
    assert len(voice.say(COMMAS).samples) == usual


@pytest.mark.parametrize("text", ["well -- known", "a café", "a nul \x00 here", ""])
def test_what_cannot_be_spoken_is_an_error_and_the_next_text_is_spoken(voice: FestivalVoice, text: str) -> None:
    with pytest.raises(SynthesisError):
        voice.say(text)
    assert len(voice.say("and on").words) == 2


def test_a_process_that_does_not_answer_is_ended_and_started_again(
    voice: FestivalVoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(festival, "TIMEOUT_S", 0.05)
        with pytest.raises(SynthesisError, match="did not answer"):
            voice.say("word " * 500)
    assert len(voice.say("and on").words) == 2


def test_a_closed_voice_speaks_again_and_can_be_closed_twice(voice: FestivalVoice) -> None:
    voice.close()
    voice.close()
    assert len(voice.say("and on").words) == 2


@pytest.mark.parametrize("name", ["none_diphone", "kal) (quit"])
def test_a_voice_that_is_not_there_is_an_error(name: str) -> None:
    with pytest.raises(SynthesisError):
        FestivalVoice(name)
