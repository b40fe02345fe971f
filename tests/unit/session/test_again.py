"""What is decoded again, and how: loops, speech without words, and what is in another language."""

import pytest

from tests.fakes import Manners, words_at
from tests.unit.engine.simulation import SETTINGS
from tests.unit.session.scene import Scene, play, scenes
from tests.unit.session.test_session import Conversation

LOOPS = """
Words before a segment that lead into a loop are dropped, and the last window decoded without them.
  talk 2 ; rest 2.3 ; read hello. .5 1 ; rest 4 -> end 2.32 + 0-2.32 hello.
  talk 6 ; rest 7 ; ask en 0 " hello." {last=True} ; read on .5 .8 {looped=True} ->
  ask en 3.7 "" "" {first=False} ; read on_and_on. 4.2 5.5 -> 3.7-6.32 on and on.
  is due False

In a pause, too: no chunk has come since, the window is the same, and wanted.
  talk 2 ; rest 2.3 ; read hello. .5 1 ; rest 4
  talk 6 ; rest 6.3 ; ask en 0 {pause=True} ; read on .5 .8 {looped=True} ->
  ask en 3.7 "" "" {end=6.3} ; read on_and_on. 4.2 5.5 ; rest 8 -> end 6.32 + 3.7-6.32 on and on.

A loop in a full window that reaches the end of speech is decoded once more, though what is kept of it ends beyond.
  talk 2 ; rest 2.3 ; read hello. .5 1 ; rest 4
  talk 29.71 ; rest 36 ; ask en 0 {end=30} ; read on .5 .8 {looped=True} ->
  read on_and_on. 4.2 5.5 -> 3.7-30.03 on and on.

A loop settles nothing.
  talk 2 ; read and .5 .8
  talk 3 ; read and .5 .8 {looped=True} ->
  talk 4 ; read and .5 .8 / so .9 1 -> |and so

A copy of the prompt is decoded without it.
  talk 2 ; read we .2 .4 / do .4 .6 / not .6 .8 / know .8 1 / that 1 1.2 / yet. 1.2 1.4 ; rest 8 ; read =
  rest 14 ; talk 16 ; rest 18 ; ask en 13.71 "" " we do not know that yet."
  read we 14 14.4 / do 14.4 14.6 / not 14.6 14.8 / know 14.8 15 / that 15 15.2 / yet. 15.2 15.4 ->
  ask en 13.71 "" "" ; read = -> 13.72-16.3 we do not know that yet.
"""

HOLES = """
Speech without words is decoded once more without what was said before, and then a gap.
  talk 2 ; read so .5 .8 / far. .8 1.2 ; rest 5 ; read = -> 0-2.32 so far.
  loud 9 ; rest 11 ; ask en 0 " so far." {last=True retry_s=0} ; read = ->
  ask en 4.72 "" "" {retry_s=2} ; read -> gap 4.72-9.32 unclear
  is final_awaited False

A second try that finds the words makes them final. [language=auto]
  talk 2 ; read eins .5 .8 / zwei. .8 1.2 {language=de}
  loud 6 ; rest 8 ; read = {language=de} -> 0-1.2 eins zwei. (de)
  ask de 1.2 ; read drei 2.2 2.7 / vier 3.2 4.2 / acht 4.3 5.6 {language=de} -> 1.2-6.32 drei vier acht (de)

Speech without words is decoded in the next likely language. [language=auto policy=alignatt]
  loud 5 ; rest 7 ; read {language=cy other_language=de} ->
  ask de 0 {chosen=False}
  read a .2 .8 / b 1.2 1.8 / c 2.2 2.8 / d 3.2 3.8 / e 4.2 4.8 {language=de} -> 0-5.32 a b c d e (de)

What was known stays if another try finds less. [language=auto policy=alignatt]
  loud 8 ; rest 10
  read ja .3 .8 / zwei 3.5 4 / drei 4.5 5 / vier 5.6 6.2 / acht 7 7.8 {language=de other_language=cy} -> 0-0.8 ja (de)
  read Unsinn 6.8 7.7 {language=de other_language=cy} ->
  read {language=cy other_language=fr} -> gap 0.8-3.5 unclear + 3.5-8.3 zwei drei vier acht (de)

Words behind speech without words wait until it is filled or a gap. [policy=alignatt]
  loud 4 ; read now .3 .8 / then 3 3.4 / more 3.4 3.6 -> now| then more
  loud 5 ; read = / said 4 4.5 -> 0-0.8 now
  loud 6 ; ask en 0.8 ; read then 3 3.4 / more 3.4 3.6 / said 4.6 4.8 -> |then more said
  loud 7 ; read = / here 5.6 6.2 -> gap 0.8-3 unclear + |then more said here
  loud 8 ; read then 3 3.4 / more 3.4 3.6 / said 4.6 4.8 -> then more said|

After long speech without a word, what begins the window is left out. [policy=alignatt]
  loud 2 ; ask en 0 ; read -> ; loud 4 ; ask en 0 ; read ->
  loud 5.8 ; ask en 0 ; read -> ; loud 6.4 ; ask en 0 ; read ->
  loud 8 ; ask en 4.4 ; read then 6.5 7 / more 7 7.5 -> |then more
  loud 9 ; read = / said 8 8.6 -> gap 0-6.5 unclear + |then more said
"""

LANGUAGES = """
Nothing is stable before the language is sure, nor shown before there is a second of speech.
  talk .8 ; read one .3 .6 / two. .6 .9 / three 1.2 1.4 {language=cy sure=False} ->
  talk 1.5 ; read = {language=cy sure=False} -> |one two. three
  talk 2.3 ; ask auto 0 "" "" ; read = {language=de} -> one two. three|
  talk 3 ; ask de 0 " one two. three" ""

A new utterance is decoded alone until its language is sure, and then with what was said before, also elsewhere.
  talk 3 ; read eins .5 1 {language=de} ; rest 3.3 ; read = {language=de} ; rest 6
  talk 7 ; ask auto 5.71 "" "" ; read zwei 6 6.2 {language=de sure=False} -> |zwei
  move ; talk 7.6 ; read = {language=de} -> ; is needed_from 0
  talk 8.2 ; ask de 0 " eins" "" ; read eins .5 1 / zwei 6 6.2 {language=de} -> zwei|

A short utterance is decoded once more with what was said before.
  talk 3 ; read eins .5 1 {language=de} ; rest 3.3 ; read = {language=de} ; rest 6
  talk 6.5 ; flush ; read zwei 6 6.2 {language=de sure=False} ->
  ask de 0 " eins" "" ; read eins .5 1 / zwei 6.2 6.4 {language=de} -> 5.72-6.53 zwei (de) + flushed 6.53

When the language is to be found in mid-speech, nothing is published twice. [language=en]
  talk 3 ; read eins .5 1 ; rest 3.3 ; read = ; rest 6
  talk 6.5 ; ask en 0 " eins" "" ; change policy=alignatt language=auto
  talk 8.5 ; ask auto 5.71 ; read zwei 6 6.5 {language=de} -> zwei|
  talk 9.5 ; ask de 5.71 " zwei" ""

Text in another language is no context.
  talk 3 ; read eins .5 1 {language=de} ; rest 3.3 ; read = {language=de} ; rest 6
  talk 8 ; read two 6 6.2 {language=en} -> two|
  talk 9 ; ask en 5.71 " two" "" {known_languages=('de','en')}

Where another language goes on, the next window begins behind what is stable.
  talk 3 ; read eins .5 1 {language=de}
  talk 4 ; read eins .5 1 / Zuluft 1.5 2 {language=de sure=False} -> eins| Zuluft
  talk 5 ; read = {language=de sure=False} -> 0-1 eins (de)
  talk 6 ; ask auto 1 "" "" ; read two 1.5 2 {language=en} -> two|

The end of speech is decoded once more where it is in another language.
  talk 3 ; read eins .5 1 {language=de} ; talk 3.5 ; flush
  read eins .5 1 / Zuluft 1.5 2 {language=de sure=False} -> 0-1 eins (de)
  ask auto 1 "" "" ; read two 1.5 2 {language=en} -> 1-3.52 two + flushed 3.52

Speech in a language that the session does not allow is a gap, also behind words, and is not joined to them.
  talk 3 ; read so .5 1 ; rest 3.3 ; read = ; rest 6
  loud 9 ; read {language=fr sure=False language_outside=de} ->
  rest 11 ; ask auto 5.71 ; read {language=fr sure=False language_outside=de} -> gap 5.72-9.32 unclear
  rest 12 ; loud 14 ; ask auto 11.7 ; read on 12.5 13 -> on|

When a language goes on that the session does not allow, that is a gap behind what is stable.
  loud 3 ; read so .5 1 / far 1.2 1.6 ; loud 4 ; read = ->
  loud 5 ; ask en 0 ; read so .5 1 / far 1.2 1.6 {sure=False language_outside=de} -> 0-1.6 so far
  loud 8 ; rest 10 ; ask auto 1.6 ; read {sure=False language_outside=de} -> gap 1.6-8.3 unclear

A language that was set stays. [language=fr]
  talk 3 ; ask fr {chosen=False}
"""


@pytest.mark.parametrize(("settings", "steps"), scenes(LOOPS + HOLES))
def test_scene(settings: str, steps: list[str]) -> None:
    play(settings, steps)


@pytest.mark.parametrize(("settings", "steps"), scenes(LANGUAGES))
def test_scene_of_languages(settings: str, steps: list[str]) -> None:
    play(f"policy=alignatt {settings or 'language=auto'}", steps)


@pytest.mark.parametrize("start_s", [0.5, 0.7, 0.9, 1.1])  # within a mel frame, and at its edge
def test_a_decoder_that_does_nothing_but_loop_is_not_asked_for_ever(start_s: float) -> None:
    words = words_at(*(start_s + 0.5 * i for i in range(4)))
    conversation = Conversation(SETTINGS, words, seed=1, manners=Manners(loop=1.0))
    conversation.speak_until(3.0)
    conversation.finish()
    assert len(conversation.windows) < 10


def test_a_window_on_its_way_with_words_that_led_into_a_loop_is_replaced() -> None:
    scene = Scene()
    for step in ("talk 2", "rest 2.3", "read hello. .5 1", "rest 4", "talk 6", "ask en 0", "talk 6.6"):
        scene.act(*step.split(" ", 1))
    waiting = scene.session.next_span(0.0)
    assert waiting is not None
    assert waiting.start == 0
    scene.read("on .5 .8", looped=True)
    assert scene.session.task(waiting) is None
    again = scene.ask().span
    assert (again.start > 3 * 16_000, again.end) == (True, waiting.end)


@pytest.mark.parametrize("speaking_on_s", [0, 30])
def test_a_loop_that_stays_ends_with_what_was_known(speaking_on_s: int) -> None:
    """Its window begins within the open segment, whose words before the window are its prompt."""
    scene = Scene(trim_after_s=60.0, window_s=8.0, policy="alignatt")
    for i in range(20):
        scene.talk(0.5 * i + 1.0)
        if scene.session.due:
            first = round(scene.ask().span.start / 8_000)
            scene.read(" / ".join(f"w{j} {0.5 * j + 0.1} {0.5 * j + 0.5}" for j in range(first, i + 1)))
    scene.talk(11.7 + speaking_on_s)
    assert scene.ask().request.prompt
    events = scene.tell(scene.session.finish(scene.session.now.received))
    for _ in range(20):
        if not scene.session.now.finished:
            events += scene.read("on .5 .8", looped=True)
    assert scene.session.now.finished, "it is decoded again and again"
    assert any(final.text.endswith("w19") for final in scene.promises.finals)
