"""Which words of hypotheses are shown, become stable, and become final."""

import pytest

from streamer.whisper.result import TimedWord
from tests.unit.session.scene import Scene, tokens_of, words_of


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
