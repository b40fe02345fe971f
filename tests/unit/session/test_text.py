"""Which words of hypotheses are shown, become stable, and become final."""

from typing import Any

import pytest

from streamer.whisper.result import TimedWord
from tests.unit.session.scene import Scene, tokens_of, words_of

# "so far away", read once, then again at the same places, and what is said behind it.
ONCE = "so .5 .8 / far .9 1.2 / away 1.3 1.6"
TWICE = f"{ONCE} / so 1.6 1.6 .8 / far 1.6 1.6 1.2 / away 1.6 1.6"
GOES_ON = f"{TWICE} / we 1.6 1.8 / went 1.9 2.3"

CERTAIN: dict[str, Any] = {"policy": "alignatt", "commit_probability": 0.4}


def test_words_settle_when_two_hypotheses_agree_and_not_where_the_audio_cuts_them_off() -> None:
    scene = Scene()
    assert scene.read("so .5 .8 / far .9 1.5", 2.0) == ["|so far"]
    assert scene.read("so .5 .8 / far .9 2.9", 3.0) == ["so| far"]
    assert scene.ask(4.0).prefix == " so"


def test_a_sure_decoder_settles_words_at_first_sight() -> None:
    scene = Scene(**CERTAIN)
    assert scene.read("so .5 .8 / far .9 1.2 1.9 / away 1.2 1.4", 2.0) == ["so| far away"], "none after an unstable one"
    assert scene.read("so .5 .8 / far@.3 .9 1.2 / away 1.2 1.4", 3.0) == ["so far away|"], "two hypotheses agree"


def test_what_is_read_twice_is_said_once() -> None:
    scene = Scene(**CERTAIN)
    assert scene.read(TWICE, 2.0) == ["so far away|"]
    assert scene.read(TWICE, 2.6) == [], "the stable words that it was given"
    assert scene.read(f"{ONCE} / we 1.7 1.8 / went 1.9 2.3", 3.2) == ["so far away we went|"]
    scene = Scene()
    scene.read(GOES_ON, 2.0)
    assert scene.read(GOES_ON, 2.6) == ["so far away|"], "passes that agree do not make it stable"


def test_where_the_decoder_keeps_reading_again_the_next_window_begins_behind_that() -> None:
    scene = Scene(**CERTAIN)
    assert scene.read(GOES_ON, 2.6) == ["so far away|"]
    assert scene.read(GOES_ON, 3.2) == []
    assert scene.read(GOES_ON, 3.8) == ["0-1.6: so far away"]
    assert scene.ask(4.4).context == ("en", 1.6, "", " so far away")


@pytest.mark.parametrize("ended", [False, True])
def test_a_pause_and_the_end_of_speech_say_once_what_was_read_twice_and_hear_what_follows_it(ended: bool) -> None:
    scene = Scene(**CERTAIN)
    scene.read(ONCE, 1.8)
    scene.talk(2.4)
    span = scene.ask(rest=4.0 if ended else 2.7).task.span
    assert (span.last, span.pause) == (ended, True)
    assert scene.read(GOES_ON) == ["0-1.6: so far away"]
    asked = scene.ask()
    assert (asked.start_s, asked.task.span.last) == (1.6, ended)
    events = scene.read("we 1.6 1.8 / went 1.9 2.3")
    if not ended:
        assert events == ["we went|"]
        events = scene.rest(4.0)[1:]
    assert events == ["1.6-2.7: we went"]


def test_words_around_one_for_which_the_attention_leapt_ahead_are_not_lost() -> None:
    """For the first word, base often attends to the silence after the sentence."""
    scene = Scene(**CERTAIN)
    scene.talk(3.3)
    words = "so .5 .8 3.5 / far .9 1.2 / away 1.3 1.8 / we 2.2 2.4 / went. 2.5 2.9"
    assert scene.read(words, rest=3.6) == ["so far away we went.|"]
    assert scene.rest(5.5) == ["end 3.63", "0-3.63: so far away we went."]
    scene = Scene(**CERTAIN)
    assert scene.read("so .5 .8 2.5", 3.0) == ["so|"]
    words = "so .5 .8 2.5 / far .9 1.2 / away 1.3 1.8 / we 2.2 2.4 / went 2.6 3"
    assert not [text for until_s in (3.6, 4.2) for text in scene.read(words, until_s) if text[0].isdigit()]
    assert scene.read(words, rest=6.0) == ["0-4.52: so far away we went"]


def test_what_will_hardly_stay_is_not_shown() -> None:
    scene = Scene()
    assert scene.read("so .5 .8 / far 1.8 2 / away 2.016 2.016", 2.0) == ["|so far"], "it begins where the audio ends"
    scene = Scene(show_probability=0.5)
    assert scene.read("so .5 .8 / far@.4 .9 1.2 / away 1.2 1.4", 2.0) == ["|so"]
    # What is seen stays while it is said again, however unsure.
    assert scene.read("so@.2 .5 .8 / fur .9 1.4 / further 2 2.95", 3.0) == ["so| fur"]


def test_unlikely_words_where_nobody_speaks_are_no_words() -> None:
    scene = Scene()
    assert scene.read("The@.4 .2 .5", 2.0, no_speech_prob=0.9, avg_logprob=-0.7) == []
    assert scene.read("The@.4 .2 .5", rest=4.0, no_speech_prob=0.9, avg_logprob=-0.7) == ["0-2.32: "]


@pytest.mark.parametrize("text", ["...", "🎵", "[Music]"])
def test_bare_punctuation_and_notes_are_no_words(text: str) -> None:
    """Nothing of them is shown, and the final covers the speech all the same."""
    scene = Scene()
    assert scene.read(f"{text} .5 1", 2.0) == scene.read(f"{text} .5 1", 3.0) == []
    assert scene.read(f"{text} .5 1", rest=5.0) == ["0-3.31: "]
    assert scene.promises.finals[0].words == ()


def test_what_is_said_behind_punctuation_is_shown_with_it() -> None:
    scene = Scene()
    assert scene.read("... .5 .6", 2.0) == []
    assert scene.read("... .5 .6 / and .7 1 / so 1.1 1.4", 3.0) == ["...| and so"]


def test_punctuation_at_the_end_of_the_sound_is_neither_shown_nor_stable() -> None:
    scene = Scene(policy="alignatt")
    scene.talk(1.7)
    assert scene.read("one .5 1 / two 1.2 1.6 / . 1.6 1.7", rest=2.0) == ["one two|"]
    assert scene.ask(3.5).prefix == " one two"
    assert scene.read("one .5 1 / two 1.2 1.6 / , 1.6 1.7 / three 2.6 3") == ["one two, three|"]
    partial = scene.promises.partial
    assert partial is not None
    assert [word.word for word in partial.words] == [" one", " two,", " three"]
    # Before, a mark that is not stable is no part of a stable word.
    words = "one .5 1 / two 1.2 1.6 / , 1.6 1.7 / three 2.6 3 / , 3 3.1 / fo@.99 4.8 4.9"
    assert scene.read(words, 5.0) == ["one two, three,| fo"]


def test_punctuation_that_comes_behind_a_final_is_left_out() -> None:
    scene = Scene()
    scene.talk(1.7)
    scene.read("one .5 1", rest=2.0)
    assert scene.rest(3.0)[-1] == "0-2.03: one"
    assert scene.read("one .5 1 / . 1 1.1 / Two 3.5 3.9", 4.5) == ["|Two"]


def president(probability: float = 0.5) -> list[TimedWord]:
    whole = TimedWord(" President's", (*tokens_of(" President"), 999_999), 8000, 20000, probability)
    return [*words_of("the .2 .4"), whole]


def test_a_word_that_the_decoder_writes_on_at_stays_one_word() -> None:
    scene = settled("the .2 .4 / President .5 1")
    assert scene.read(president(), 4.0) == ["the President|'s"]
    assert scene.read(president(), 5.0) == ["the President's|"]
    partial = scene.promises.partial
    assert partial is not None
    assert [word.word for word in partial.words] == [" the", " President's"]


def test_an_improbable_end_of_a_stable_word_is_left_out_of_the_final() -> None:
    scene = settled("the .2 .4 / President .5 1")
    assert scene.read(president(0.1), rest=4.0, avg_logprob=-2.0) == ["0-3.02: the President"]


def settled(words: str) -> Scene:
    """Return a scene in which words are stable, at 2.7 s."""
    scene = Scene()
    scene.read(words, 2.0)
    scene.read(words, 2.7)
    return scene


@pytest.mark.parametrize(
    ("stable", "text", "expected"),
    [
        (["你", "好"], "你好吗", "你好吗"),  # words of a character each become one word
        (["你", "好"], "好吗", "你好吗"),
        ([" Octo"], " October", "October"),
    ],
)
def test_where_words_are_split_otherwise_nothing_new_is_lost(stable: list[str], text: str, expected: str) -> None:
    scene = Scene()
    words = [TimedWord(word, tokens_of(word), 3200 * i + 3200, 3200 * i + 6400, 0.5) for i, word in enumerate(stable)]
    scene.read(words, 2.0)
    scene.read(words, 2.7)
    prefix = scene.ask(4.0).prefix
    assert prefix == "".join(stable)
    before = prefix.removesuffix(next(text[:n] for n in range(len(text), 0, -1) if prefix.endswith(text[:n])))
    words = [TimedWord(before, tokens_of(before), 0, 4000, 0.9)] if before else []
    (partial,) = scene.read([*words, TimedWord(text, tokens_of(text), 4000, 20000, 0.9)])
    assert partial.replace("|", "") == expected


def test_long_speech_is_cut_behind_a_sentence_and_the_window_goes_on() -> None:
    scene = Scene()
    words = "one .5 1 / two 1 2 / three 2 3 / four. 3 4 / five 4.2 5 / six 5 6"
    scene.read(words, 7.0)
    assert scene.read(f"{words} / seven 6.1 6.9", 8.2) == ["0-4.1: one two three four.", "five six| seven"]
    assert scene.ask(9.0).context == ("en", 0, " one two three four. five six", "")


def test_speech_becomes_final_behind_a_longer_silence_than_ends_it() -> None:
    scene = Scene(final_silence_s=1.5)
    scene.talk(1.7)
    scene.read("one .5 1", rest=2.0)
    assert scene.rest(3.0) == ["end 2.03"]
    # Speech that goes on before that is of the same segment.
    assert scene.talk(4.0) == ["start 2.71"]
    assert scene.read("one .5 1 / two 3.2 3.6", 4.5) == ["one| two"]
    scene.read("one .5 1 / two 3.2 3.6", rest=4.9)
    assert scene.rest(7.0) == ["end 4.81", "0-4.81: one two"]


@pytest.mark.parametrize(("probability", "finals"), [(0.9, ["0-2.03: one."]), (0.3, [])])
def test_a_sentence_that_probably_ends_is_final_as_soon_as_speech_ends(probability: float, finals: list[str]) -> None:
    scene = Scene(final_silence_s=1.5)
    scene.talk(1.7)
    scene.read(f"one .5 1 / .@{probability} 1.25 1.3", rest=2.0)
    assert scene.rest(2.5) == ["end 2.03", *finals]


def test_a_hypothesis_without_its_prefix_takes_nothing_back() -> None:
    scene = settled("so .5 .8")
    scene.ask(rest=3.1)
    scene.rest(4.0)
    assert scene.read("") == ["0-3.02: so"]


def test_more_words_than_can_be_spoken_are_no_text() -> None:
    scene = Scene()
    words = " / ".join(f"w{i} {0.1 + i / 50} {0.12 + i / 50}" for i in range(40))
    scene.read(words, 1.5)
    assert scene.read(words, rest=4.0) == ["0-1.8: "]


def test_a_last_text_that_fails_its_thresholds_is_decoded_once_more_where_there_is_time() -> None:
    scene = Scene()
    scene.talk(2.0)
    assert scene.ask(rest=2.3, retry_s=1.0).request.retry_s == 0, "it is not the last yet"
    scene.rest(4.0)
    assert scene.read("mumble .5 1", avg_logprob=-2.0) == []
    assert scene.ask(retry_s=1.0).request.retry_s == 1
    assert scene.read("hello .5 1") == ["0-2.32: hello"]
