"""What the evaluation counts, with a model that hears what it is told to."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import load_model
from streamer.whisper.result import Hypothesis, TimedWord
from tests.whisper.support import NANO
from tools.train_nano import evaluate, sounds
from tools.train_nano.evaluate import Listener, Row, Samples, means
from tools.train_nano.speech import Speech, SynthesisError

# No numbers: the normaliser would make one word of several.
SENTENCES = ["Apple river table window.", "Garden silver candle mountain.", "Paper winter bottle street."]


class Metronome:
    """A voice that speaks a word each half second, at the level of the word's length."""

    def say(self, text: str, rate: float = 1.0, pitch: float = 1.0) -> Speech:
        if "unspeakable" in text:
            raise SynthesisError("no")
        words = text.split()
        samples = np.repeat([1000 + 100 * len(word) for word in words], 8000).astype(np.int16)
        return Speech(samples, [(i / 2, (i + 1) / 2) for i in range(len(words))], [])


def hypothesis(text: str, no_speech: float = 0.0, avg_logprob: float = -0.1) -> Hypothesis:
    words = tuple(
        TimedWord(f" {word}", (1,), 8000 * i + 160, 8000 * (i + 1), 0.9) for i, word in enumerate(text.split())
    )
    return Hypothesis(words, "en", no_speech, avg_logprob)


def listener(hears: Callable[[Samples], Hypothesis], monkeypatch: pytest.MonkeyPatch) -> Listener:
    runtime = SimpleNamespace(encode=lambda mel, buffer: mel)
    monkeypatch.setattr("tools.train_nano.evaluate.WhisperDecoder", lambda model, decoding: None)
    made = Listener(cast(Any, SimpleNamespace(runtime=runtime, dims=SimpleNamespace(n_mels=80))))
    monkeypatch.setattr(made, "hear", lambda samples, prompt="": [hears(samples)])
    return made


@pytest.fixture(scope="module")
def shipped() -> Listener:
    return Listener(load_model(str(NANO), DeviceSettings("CPU"), n_beams=None))


def test_a_row_counts_what_is_substituted_left_out_and_put_in() -> None:
    row = Row("all")
    row.add("the cat sat there", ["the cat sat there", "the bat sat"])
    row.add("one more, please!", ["one more sneeze", "One more oh please"])
    assert str(row) == "| all | 7 | 14.3 | 42.9 | 14.3 | 14.3 | 14.3 |"
    captions = Row("as captions alone")
    captions.add("the cat sat there", ["the cat sat"])
    assert str(captions) == "| as captions alone | 4 | - | 25.0 | 0.0 | 25.0 | 0.0 |"
    assert means([row, captions]) == "**14.3** | **33.9**"


def test_spelling_case_and_punctuation_do_not_count() -> None:
    row = Row("all")
    row.add("Mr. Jones's colour, twenty-one!", ["mister jones's color 21"])
    assert row.wers == [0.0]


@pytest.mark.parametrize(
    ("no_speech", "avg_logprob", "text"), [(0.9, -2.0, ""), (0.9, -0.5, " word"), (0.3, -2.0, " word")]
)
def test_nothing_is_heard_where_the_default_thresholds_say_so(
    monkeypatch: pytest.MonkeyPatch, no_speech: float, avg_logprob: float, text: str
) -> None:
    deaf = listener(lambda samples: hypothesis("word", no_speech, avg_logprob), monkeypatch)
    assert deaf.texts(np.zeros(160, dtype=np.float32)) == [text]


def test_the_reference_of_speech_that_is_cut_off_is_what_was_said_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Apple river table window garden silver candle mountain."
    heard: list[int] = []

    def hear(samples: Samples) -> Hypothesis:
        heard.append(len(samples))
        return hypothesis(" ".join(said.split()[: len(samples) // 8000]))

    row = evaluate.cut_off(listener(hear, monkeypatch), [said] * 20, [Metronome()])
    assert row.wers == [0.0]
    assert len(set(heard)) > 5
    assert min(heard) >= 0.3 * 8 * 8000
    assert max(heard) <= 8 * 8000
    greedy = listener(lambda samples: hypothesis(said), monkeypatch)
    assert evaluate.cut_off(greedy, [said] * 20, [Metronome()]).measures[0].insertions > 0


def test_words_that_are_invented_are_counted_by_the_kind_of_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "NOISE_WINDOWS", 2)
    babbling = listener(lambda samples: hypothesis("so it goes"), monkeypatch)
    assert evaluate.invented(babbling) == {"digital silence": [3]} | {kind: [6] for kind in sounds.KINDS}


@pytest.mark.parametrize("kind", ["keyboard", "clicks", "knocks", "beeps", "hum", "music"])
def test_the_model_that_is_shipped_invents_no_word(shipped: Listener, kind: str) -> None:
    rng = np.random.default_rng(5)
    for level in (0.01, 0.3, 2.0):
        sound = sounds.noise(kind, 30 * SAMPLE_RATE, rng) * np.float32(level)
        assert shipped.texts(sound) == ["", ""]


def test_words_are_measured_where_all_of_them_were_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter((SENTENCES[0], "something else"))
    hears = listener(lambda samples: hypothesis(next(told)), monkeypatch)
    # Every third sentence: the first, heard 10 ms late in every word, and the fourth, misheard.
    errors = evaluate.word_errors(hears, [*SENTENCES, "Left right."], [Metronome()])
    np.testing.assert_allclose(errors, [0.01] * 4)


def test_every_condition_leaves_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    x = (np.sin(np.arange(16_000) / 5) / 4).astype(np.float32)
    for spoil in evaluate.conditions().values():
        spoilt: NDArray[np.float32] = spoil(x, np.random.default_rng(0))
        assert spoilt.shape == x.shape
        assert not np.array_equal(spoilt, x)


def test_what_cannot_be_spoken_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    hears = listener(lambda samples: hypothesis(SENTENCES[0]), monkeypatch)
    (row,) = evaluate.voice_rows(hears, ["unspeakable", SENTENCES[0]], {"flite:slt": Metronome()})
    assert (row.words, row.wers) == (4, [0.0])


def test_people_are_read_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "a.flac", np.zeros(16_000), 16_000)
    (tmp_path / "a.txt").write_text(SENTENCES[0], encoding="utf-8")
    hears = listener(lambda samples: hypothesis("apple river"), monkeypatch)
    assert evaluate.people(hears, tmp_path).wers == [50.0]


def test_without_sentences_the_program_says_which_file_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["evaluate", "--text", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"heldout\.txt is missing"):
        evaluate.main()
