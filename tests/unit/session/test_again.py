"""What is decoded again, and how: loops, speech without words, and what is in another language."""

import pytest

from tests.fakes import Manners, words_at
from tests.unit.engine.simulation import SETTINGS
from tests.unit.session.scene import CLEAR, Scene
from tests.unit.session.test_session import Conversation

LOOP = "on .5 .8"
SO_FAR = "so .5 .8 / far. .8 1.2"


def after_hello(talk: float, rest: float = 0.0) -> Scene:
    """Return a scene in which "hello." is final, and speech has begun again at 3.7 s."""
    scene = Scene()
    scene.talk(2.0)
    scene.read("hello. .5 1", rest=2.3)
    assert scene.rest(4.0)[-1] == "0-2.32: hello."
    scene.talk(talk)
    scene.rest(rest)
    return scene


@pytest.mark.parametrize("rest_s", [6.3, 7.0], ids=["a pause", "the end"])
def test_words_before_a_segment_that_lead_into_a_loop_are_dropped_and_the_window_decoded_without_them(
    rest_s: float,
) -> None:
    scene = after_hello(6.0, rest_s)
    assert scene.ask().prefix == " hello."
    assert scene.read(LOOP, looped=True) == []
    # No chunk has come since: the window is the same, and wanted.
    asked = scene.ask()
    assert (asked.context, asked.request.first) == (("en", 3.7, "", ""), False)
    events = scene.read("on_and_on. 4.2 5.5") + scene.rest(8.0)
    assert events[-1] == "3.7-6.32: on and on."
    assert not scene.session.due


@pytest.mark.parametrize("start_s", [0.5, 0.7, 0.9, 1.1])  # within a mel frame, and at its edge
def test_a_decoder_that_does_nothing_but_loop_is_not_asked_for_ever(start_s: float) -> None:
    words = words_at(*(start_s + 0.5 * i for i in range(4)))
    conversation = Conversation(SETTINGS, words, seed=1, manners=Manners(loop=1.0))
    conversation.speak_until(3.0)
    conversation.finish()
    assert len(conversation.windows) < 10


def test_a_window_on_its_way_with_words_that_led_into_a_loop_is_replaced() -> None:
    scene = after_hello(6.0)
    loops = scene.ask()
    waiting = scene.ask(6.6)
    assert waiting.start_s == loops.start_s == 0
    scene.asked = loops
    scene.read(LOOP, looped=True)
    assert scene.session.task(waiting.task.span) is None
    asked = scene.ask()
    assert (asked.end_s, asked.context) == (waiting.end_s, ("en", 3.7, "", ""))


def test_a_loop_in_a_full_window_that_reaches_the_end_of_speech_is_decoded_once_more() -> None:
    scene = after_hello(4.3)
    # What is kept behind the last sound ends beyond the window, what has to be heard of it within.
    scene.talk(30.0 - 0.25 - 0.04)
    scene.rest(36.0)
    assert scene.ask().end_s == 30
    assert scene.read(LOOP, looped=True) == []
    assert scene.read("on_and_on. 4.2 5.5")[-1] == "3.7-30.03: on and on."


def test_a_loop_settles_nothing() -> None:
    scene = Scene()
    scene.read("and .5 .8", 2.0)
    assert scene.read("and .5 .8", 3.0, looped=True) == []
    assert scene.read("and .5 .8 / so .9 1", 4.0) == ["|and so"]


@pytest.mark.parametrize("n_speaking_on", [0, 30])
def test_a_loop_that_stays_ends_with_what_was_known(n_speaking_on: int) -> None:
    """Its window begins within the open segment, whose words before the window are its prompt."""
    scene = Scene(trim_after_s=60.0, window_s=8.0, policy="alignatt")
    said = [(0.5 * i + 0.1, f"w{i} {0.5 * i + 0.1} {0.5 * i + 0.5}") for i in range(20)]
    for i in range(20):
        scene.talk(0.5 * i + 1.0)
        if scene.session.due:
            start_s = scene.ask().start_s
            scene.read(" / ".join(word for begin_s, word in said[: i + 1] if begin_s >= start_s))
    assert scene.ask(11.2).prompt
    scene.asked = None
    scene.talk(11.7 + n_speaking_on)
    events = scene.tell(scene.session.finish(scene.session.position))
    for _ in range(20):
        if not scene.session.finished:
            events += scene.read(LOOP, looped=True)
    assert scene.session.finished, "it is decoded again and again"
    assert any(final.text.endswith("w19") for final in scene.promises.finals)


def test_a_copy_of_the_prompt_is_decoded_without_it() -> None:
    scene = Scene()
    sentence = "we .2 .4 / do .4 .6 / not .6 .8 / know .8 1 / that 1 1.2 / yet. 1.2 1.4"
    scene.read(sentence, 2.0)
    scene.read(sentence, rest=8.0)
    scene.rest(14.0)
    scene.talk(16.0)
    assert scene.ask(rest=18.0).context == ("en", 13.71, "", " we do not know that yet.")
    copied = "we 14 14.4 / do 14.4 14.6 / not 14.6 14.8 / know 14.8 15 / that 15 15.2 / yet. 15.2 15.4"
    assert scene.read(copied) == []
    assert scene.ask().context == ("en", 13.71, "", "")
    assert scene.read(copied) == ["13.72-16.3: we do not know that yet."]


def test_speech_without_words_is_decoded_once_more_without_what_was_said_before_and_then_a_gap() -> None:
    scene = Scene()
    scene.read(SO_FAR, 2.0)
    scene.read(SO_FAR, rest=5.0)
    scene.hear(9.0, CLEAR)
    asked = scene.ask(rest=11.0)
    assert asked.task.span.last
    assert asked.prefix == " so far.", "it reaches back to what was said before"
    assert scene.read(SO_FAR) == []
    asked = scene.ask()
    assert (asked.prefix, asked.prompt) == ("", "")
    assert asked.request.retry_s > 0, "however busy the machine is"
    assert scene.read("") == ["gap 4.72-9.32 unclear"]
    assert not scene.session.final_awaited


def test_a_second_try_that_finds_the_words_makes_them_final() -> None:
    scene = Scene(language="auto")
    scene.read("eins .5 .8 / zwei. .8 1.2", 2.0, language="de")
    scene.hear(6.0, CLEAR)
    assert scene.read("eins .5 .8 / zwei. .8 1.2", rest=8.0, language="de") == ["0-1.2: eins zwei."]
    assert scene.ask().start_s == 1.2
    words = "drei 2.2 2.7 / vier 3.2 4.2 / acht 4.3 5.6"
    assert scene.read(words, language="de") == ["1.2-6.32: drei vier acht"]


def test_speech_without_words_is_decoded_in_the_next_likely_language() -> None:
    scene = Scene(language="auto", policy="alignatt")
    scene.hear(5.0, CLEAR)
    assert scene.read("", rest=7.0, language="cy", other_language="de") == []
    request = scene.ask().request
    assert (request.language, request.chosen) == ("de", False)
    words = " / ".join(f"w{i} {i + 0.2} {i + 0.8}" for i in range(5))
    assert scene.read(words, language="de") == ["0-5.32: w0 w1 w2 w3 w4"]
    assert scene.promises.finals[0].language == "de"


def test_what_was_known_stays_if_another_try_finds_less() -> None:
    scene = Scene(language="auto", policy="alignatt")
    scene.hear(8.0, CLEAR)
    known = "eins .3 .8 / zwei 3.5 4 / drei 4.5 5 / vier 5.6 6.2 / acht 7 7.8"
    events = scene.read(known, rest=10.0, language="de", other_language="cy", avg_logprob=-0.3)
    assert events == ["0-0.8: eins"]
    assert scene.read("Unsinn 6.8 7.7", language="de", other_language="cy") == []
    assert scene.read("", language="cy") == ["gap 0.8-3.5 unclear", "3.5-8.3: zwei drei vier acht"]
    assert scene.promises.finals[-1].language == "de"


def test_words_behind_speech_without_words_wait_until_it_is_filled_or_a_gap() -> None:
    scene = Scene(policy="alignatt")
    scene.hear(4.0, CLEAR)
    words = "now .3 .8 / then 3 3.4 / more 3.4 3.6"
    assert scene.read(words) == ["now| then more"]
    scene.hear(5.0, CLEAR)
    assert scene.read(f"{words} / said 4 4.5") == ["0-0.8: now"], (
        "the second pass in a row: what follows is decoded alone"
    )
    scene.hear(6.0, CLEAR)
    words = "then 3 3.4 / more 3.4 3.6 / said 4.6 4.8"
    assert scene.read(words) == ["|then more said"]
    scene.hear(7.0, CLEAR)
    assert scene.read(f"{words} / here 5.6 6.2") == ["gap 0.8-3 unclear", "|then more said here"]
    scene.hear(8.0, CLEAR)
    assert scene.read(words)[-1].startswith("then more said|")


def test_after_long_speech_without_a_word_what_begins_the_window_is_left_out() -> None:
    scene = Scene(policy="alignatt")
    for until_s in (2.0, 4.0, 5.8, 6.4):
        scene.hear(until_s, CLEAR)
        assert scene.ask().start_s == 0
        assert scene.read("") == []
    scene.hear(8.0, CLEAR)
    assert scene.ask().start_s == 4.4
    words = "then 6.5 7 / more 7 7.5"
    assert scene.read(words) == ["|then more"]
    scene.hear(9.0, CLEAR)
    assert scene.read(f"{words} / said 8 8.6")[0] == "gap 0-6.5 unclear"


def german(*, again: bool = True, language: str = "auto") -> Scene:
    """Return a scene in which "eins" was said in German, and speech has begun again at 5.7 s."""
    scene = Scene(policy="alignatt", language=language)
    scene.read("eins .5 1", 3.0, language="de")
    if again:
        scene.read("eins .5 1", rest=3.3, language="de")
        scene.rest(6.0)
        scene.talk(6.5)
    return scene


def test_nothing_is_stable_before_the_language_is_sure() -> None:
    scene = Scene(language="auto", policy="alignatt")
    words = "one .3 .6 / two. .6 .9 / three 1.2 1.4"
    assert scene.read(words, 0.8, language="cy", sure=False) == []
    assert scene.read(words, 1.5, language="cy", sure=False) == ["|one two. three"]
    assert scene.ask(2.3).context == ("auto", 0, "", "")
    assert scene.read(words, language="de") == ["one two. three|"]
    assert scene.ask(3.0).context == ("de", 0, " one two. three", "")


def test_a_new_utterance_is_heard_alone_until_its_language_is_sure_and_then_with_what_was_said_before() -> None:
    scene = german()
    assert scene.ask(7.0).context == ("auto", 5.71, "", "")
    assert scene.read("zwei 6 6.2", language="de", sure=False) == ["|zwei"]
    # A session goes on elsewhere before its language is sure.
    scene.move()
    scene.read("zwei 6 6.2", 7.6, language="de")
    assert scene.session.needed_from == 0
    assert scene.ask(8.2).context == ("de", 0, " eins", "")


def test_a_short_utterance_is_decoded_once_more_with_what_was_said_before() -> None:
    scene = german()
    scene.tell(scene.session.flush())
    assert scene.read("zwei 6 6.2", language="de", sure=False) == []
    assert scene.ask().context == ("de", 0, " eins", "")
    assert scene.read("eins .5 1 / zwei 6.2 6.4", language="de")[0].endswith(": zwei")
    assert scene.promises.finals[-1].language == "de"


def test_when_the_language_is_to_be_found_in_mid_speech_nothing_is_published_twice() -> None:
    scene = german(language="en")
    assert scene.ask().context == ("en", 0, " eins", "")
    scene.asked = None
    scene.session.change(german().settings)
    assert scene.ask(8.5).context[:2] == ("auto", 5.71)
    assert scene.read("zwei 6 6.5", language="de") == ["zwei|"]
    # Nor by what follows in the new language.
    assert scene.ask(9.5).context == ("de", 5.71, " zwei", "")


def test_text_in_another_language_is_no_context() -> None:
    scene = german()
    scene.ask(8.0)
    assert scene.read("two 6 6.2", language="en") == ["two|"]
    asked = scene.ask(9.0)
    assert asked.context == ("en", 5.71, " two", "")
    assert asked.request.known_languages == ("de", "en")


def test_where_another_language_goes_on_the_next_window_begins_behind_what_is_stable() -> None:
    scene = german(again=False)
    words = "eins .5 1 / Zuluft 1.5 2"
    assert scene.read(words, 4.0, language="de", sure=False) == ["eins| Zuluft"]
    assert scene.read(words, 5.0, language="de", sure=False)[0] == "0-1: eins"
    assert scene.promises.finals[0].language == "de"
    assert scene.ask(6.0).context == ("auto", 1, "", "")
    assert scene.read("two 1.5 2", language="en") == ["two|"]


def test_the_end_of_speech_is_decoded_once_more_where_it_is_in_another_language() -> None:
    scene = german(again=False)
    scene.talk(3.5)
    scene.tell(scene.session.flush())
    assert scene.read("eins .5 1 / Zuluft 1.5 2", language="de", sure=False) == ["0-1: eins"]
    assert scene.ask().context == ("auto", 1, "", "")
    assert scene.read("two 1.5 2", language="en")[0].endswith(": two")
    assert scene.promises.finals[-1].language == "en"


def test_a_language_that_was_set_stays() -> None:
    assert not Scene(language="fr").ask(3.0).request.chosen
