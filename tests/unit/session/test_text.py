"""Which words of hypotheses are shown, become stable, and become final."""

import pytest

from streamer.whisper.result import TimedWord
from tests.unit.session.scene import Scene, play, scenes, tokens_of, words_of

# In most of these, "so far away" is read once, then again at the same places, and then what is said behind it.
SCENES = """
Words settle when two hypotheses agree, and not where the audio cuts them off.
  talk 2 ; read so .5 .8 / far .9 1.5 -> |so far
  talk 3 ; read so .5 .8 / far .9 2.9 -> so| far
  talk 4 ; ask en 0 " so"

A sure decoder settles words at first sight, but none after an unstable one. [policy=alignatt commit_probability=.4]
  talk 2 ; read so .5 .8 / far .9 1.2 1.9 / away 1.2 1.4 -> so| far away
  talk 3 ; read so .5 .8 / far@.3 .9 1.2 / away 1.2 1.4 -> so far away|

What is read twice is said once, also where it is what the decoder was given. [policy=alignatt commit_probability=.4]
  talk 2 ; read so .5 .8 / far .9 1.2 / away 1.3 1.6 / so 1.6 1.6 .8 / far 1.6 1.6 1.2 / away 1.6 1.6 -> so far away|
  talk 2.6 ; read = ->
  talk 3.2 ; read so .5 .8 / far .9 1.2 / away 1.3 1.6 / we 1.7 1.8 / went 1.9 2.3 -> so far away we went|

What is read twice does not settle where passes agree on it, nor what follows.
  talk 2 ; read so .5 .8 / far .9 1.2 / so 1.2 1.2 .8 / far 1.2 1.2 / we 1.6 1.8 -> |so far
  talk 2.6 ; read = -> so far|

Where the decoder keeps reading again, the next window begins behind that. [policy=alignatt commit_probability=.4]
  talk 2.6 ; read so .5 .8 / far .9 1.2 / so 1.2 1.2 .8 / far 1.2 1.2 / we 1.6 1.8 -> so far|
  talk 3.2 ; read = ->
  talk 3.8 ; read = -> 0-1.2 so far
  talk 4.4 ; ask en 1.2 "" " so far"

In a pause, it does at once. [policy=alignatt commit_probability=.4]
  talk 1.8 ; read so .5 .8 / far .9 1.2
  talk 2.4 ; rest 2.7 ; read = / so 1.2 1.2 .8 / far 1.2 1.2 / we 1.6 1.8 -> 0-1.2 so far
  ask en 1.2 {last=False pause=True} ; read we 1.6 1.8 -> we|
  rest 4 -> end 2.7 + 1.2-2.7 we

At the end of speech, too. [policy=alignatt commit_probability=.4]
  talk 1.8 ; read so .5 .8 / far .9 1.2
  talk 2.4 ; rest 4 ; read = / so 1.2 1.2 .8 / far 1.2 1.2 / we 1.6 1.8 -> 0-1.2 so far
  ask en 1.2 {last=True} ; read we 1.6 1.8 -> 1.2-2.7 we

Words after one for which the attention leapt ahead, to the silence often, are not lost.
  talk 3.3 ; rest 3.6
  read so .5 .8 3.5 / far .9 1.2 / away 1.3 1.8 / we 2.2 2.4 / went. 2.5 2.9 -> |so far away we went.
  rest 5.5 -> end 3.63 + 0-3.63 so far away we went.

Nor are those after a stable one of the kind. [policy=alignatt commit_probability=.4]
  talk 3 ; read so .5 .8 2.5 -> so|
  talk 3.6 ; read so .5 .8 2.5 / far .9 1.2 / away 1.3 1.8 / we 2.2 2.4 / went 2.6 3 -> so far away we went|
  talk 4.2 ; read = ->
  rest 6 ; read = -> 0-4.52 so far away we went

A word that begins where the audio ends is not shown.
  talk 2 ; read so .5 .8 / far 1.8 2 / away 2.016 2.016 -> |so far

Words that will hardly stay are not shown; what is seen stays while it is said again. [show_probability=.5]
  talk 2 ; read so .5 .8 / far@.4 .9 1.2 / away 1.2 1.4 -> |so
  talk 3 ; read so@.2 .5 .8 / fur .9 1.4 / further 2 2.95 -> so| fur

Unlikely words where nobody speaks are no words.
  talk 2 ; read The@.4 .2 .5 {no_speech_prob=.9 avg_logprob=-.7} ->
  rest 4 ; read = {no_speech_prob=.9 avg_logprob=-.7} -> 0-2.32

A sound that is hardly speech has no words unless the first of them is likely. [silent=True]
  rest 3 ; loud 3.15 ; rest 5 ; read First@.1 3.1 3.3 / of@.9 3.3 3.4 -> 2.71-3.47
  loud 5.15 ; rest 12 ; read Yes.@.7 5 5.2 -> 4.72-5.45 Yes.
  loud 12.3 ; rest 14 ; read Hm.@.1 12 12.3 -> 11.7-12.62 Hm.

More words than can be spoken are no text.
  talk .6 ; read one_two_three_four_five_six_seven_eight_nine_ten_eleven_twelve_thirteen_fourteen_fifteen .1 .5
  rest 4 ; read = -> 0-0.91

Bare punctuation and notes are no words: nothing of them is shown, and the final covers the speech all the same.
  talk 2 ; read ... .5 1 ->
  talk 3 ; read [Music] .5 1 ->
  rest 5 ; read 🎵 .5 1 -> 0-3.31

What is said behind punctuation is shown with it.
  talk 2 ; read ... .5 .6 ->
  talk 3 ; read ... .5 .6 / and .7 1 / so 1.1 1.4 -> ...| and so

Punctuation at the end of the sound is neither shown nor stable before a word follows. [policy=alignatt]
  talk 1.7 ; rest 2 ; read one .5 1 / two 1.2 1.6 / . 1.6 1.7 -> one two|
  talk 3.5 ; ask en 0 " one two"
  read one .5 1 / two 1.2 1.6 / , 1.6 1.7 / three 2.6 3 -> one two, three|
  talk 5 ; read = / , 3 3.1 / fo@.99 4.8 4.9 -> one two, three,| fo

Punctuation that comes behind a final is left out.
  talk 1.7 ; rest 2 ; read one .5 1 ; rest 3 -> end 2.03 + 0-2.03 one
  talk 4.5 ; read one .5 1 / . 1 1.1 / Two 3.5 3.9 -> |Two

Long speech is cut behind a sentence, and the window goes on.
  talk 7 ; read one .5 1 / two 1 2 / three 2 3 / four. 3 4 / five 4.2 5 / six 5 6
  talk 8.2
  read = / se 6.1 6.9 -> 0-4.1 one two three four. + five six| se
  talk 9 ; ask en 0 " one two three four. five six" ""

Without the end of a sentence or a clause it is cut in its widest gap, when it is longer.
  talk 7.5 ; read one .5 1 / two 1 2 / three 3 4 / four 4 5 / five 5.1 6 / six 6 7
  talk 8.2 ; read = -> 0-2.5 one two + three four five six|

Speech becomes final behind a longer silence than ends it; until then it goes on. [final_silence_s=1.5]
  talk 1.7 ; rest 2 ; read one .5 1 ; rest 3 -> end 2.03
  talk 4 -> start 2.71
  talk 4.5 ; read one .5 1 / two 3.2 3.6 -> one| two
  rest 4.9 ; read = ; rest 7 -> end 4.81 + 0-4.81 one two

A sentence that probably ends is final as soon as speech ends. [final_silence_s=1.5]
  talk 1.7 ; rest 2 ; read one .5 1 / .@.9 1.25 1.3 ; rest 2.5 -> end 2.03 + 0-2.03 one.

One that hardly does is not. [final_silence_s=1.5]
  talk 1.7 ; rest 2 ; read one .5 1 / .@.3 1.25 1.3 ; rest 2.5 -> end 2.03

A hypothesis without its prefix takes nothing back.
  talk 2 ; read so .5 .8 ; talk 2.7 ; read =
  rest 3.1 ; ask en 0 " so" ; rest 4 ; read -> 0-3.02 so

A last text that fails its thresholds is decoded once more where there is time.
  talk 2 ; rest 2.3 ; ask {retry=1 retry_s=0} ; rest 4 ; read mumble .5 1 {avg_logprob=-2} ->
  ask {retry=1 retry_s=1} ; read hello .5 1 -> 0-2.32 hello

So is that of a pause when speech has ended.
  talk 2 ; rest 2.3 ; ask {retry=1} ; read mumble .5 1 {avg_logprob=-2} -> |mumble
  rest 4 -> end 2.32 ; ask {retry=1 retry_s=1} ; read hello .5 1 -> 0-2.32 hello
"""


@pytest.mark.parametrize(("settings", "steps"), scenes(SCENES))
def test_scene(settings: str, steps: list[str]) -> None:
    play(settings, steps)


def settled(words: str | list[TimedWord]) -> Scene:
    """Return a scene in which words are stable; another window is due."""
    scene = Scene()
    for until_s in (2.0, 2.7):
        scene.talk(until_s)
        scene.read(words)
    scene.talk(4.0)
    return scene


def president(probability: float) -> list[TimedWord]:
    return [
        *words_of("the .2 .4"),
        TimedWord(" President's", (*tokens_of(" President"), 999), 8000, 20000, probability),
    ]


def test_a_word_that_the_decoder_writes_on_at_stays_one_word() -> None:
    scene = settled("the .2 .4 / President .5 1")
    assert scene.read(president(0.5)) == ["the President|'s"]
    scene.talk(5.0)
    assert scene.read(president(0.5)) == ["the President's|"]
    assert scene.promises.partial is not None
    assert [word.word for word in scene.promises.partial.words] == [" the", " President's"]


def test_an_improbable_end_of_a_stable_word_is_left_out_of_the_final() -> None:
    scene = settled("the .2 .4 / President .5 1")
    scene.hear(6.0, 0.0)
    assert scene.read(president(0.1), avg_logprob=-2.0) == ["0-4.3 the President"]


@pytest.mark.parametrize(
    ("stable", "text", "expected"),
    [
        ("你 好", "你好吗", "你好吗"),  # words of a character each become one word
        ("你 好", "好吗", "你好吗"),
        (" Octo", " October", "October"),
    ],
)
def test_where_words_are_split_otherwise_nothing_new_is_lost(stable: str, text: str, expected: str) -> None:
    parts = stable.split(" ") if stable[0] != " " else [stable]
    known = [TimedWord(part, tokens_of(part), 3200 * i + 3200, 3200 * i + 6400, 0.5) for i, part in enumerate(parts)]
    scene = settled(known)
    overlap = next(text[:n] for n in range(len(text), 0, -1) if "".join(parts).endswith(text[:n]))
    before = "".join(parts).removesuffix(overlap)
    words = [TimedWord(part, tokens_of(part), 4000, 20000, 0.9) for part in (before, text) if part]
    assert scene.read(words)[0].replace("|", "") == expected
