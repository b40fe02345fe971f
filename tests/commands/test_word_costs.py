"""What `streamer models verify` says of windows shorter than 30 s and of weights of 8 bits, and what it keeps."""

import io
import json
from collections.abc import Generator
from pathlib import Path

import pytest
from rich.console import Console

from streamer.bench.text import plain
from streamer.commands import word_costs as module
from streamer.commands.verify import verify
from streamer.commands.word_costs import PAD_S, Word, passages, sample_words, word_costs
from streamer.settings.table import ModelSettings, Settings
from streamer.whisper import cache
from streamer.whisper.check import Check
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.measured import Measured
from streamer.whisper.model import WhisperModel, load_model
from tests.whisper.support import NANO

WORDS = [Word("one", 0.5, 3.0), Word("two", 3.0, 6.0), Word("three", 7.0, 15.0), Word("4", 16, 17)]


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    return load_model(str(NANO), DeviceSettings("CPU"), windows_s=[10])


@pytest.fixture(scope="module")
def found(model: WhisperModel) -> tuple[list[Check], Measured | None]:
    """What is found of nano.en, its own graphs in the place of those with weights of 8 bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FILLS", (1.0,))
        patch.setattr(module, "N_RUNS", 1)
        return collected(word_costs(model, lambda: model))


def collected(costs: Generator[Check, None, Measured | None]) -> tuple[list[Check], Measured | None]:
    """Return what comes of it, and what it returns."""
    checks: list[Check] = []
    while True:
        try:
            checks.append(next(costs))
        except StopIteration as end:
            return checks, end.value


@pytest.mark.parametrize(
    ("window_s", "expected"),
    [
        (1.4, []),
        (1.5, ["4"]),
        (3.0, ["one", "4"]),  # the second has sound before it, and so no silence of its own
        (3.3, ["one", "two", "4"]),
        (6.0, ["one two", "4"]),
        (8.5, ["one two", "three", "4"]),
        (10.5, ["one two", "three 4"]),
        (30.0, ["one two three 4"]),
    ],
)
def test_words_are_joined_as_long_as_they_fit(
    window_s: float, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILLS", (1.0,))
    found = passages(WORDS, window_s)
    assert [passage.text for passage in found] == expected
    assert all(passage.end - passage.start <= window_s for passage in found)


def test_passages_of_several_lengths_reach_into_silence_and_into_no_other_word() -> None:
    words = sample_words(json.loads((NANO / "sample.json").read_text(encoding="utf-8")))
    found = passages(words, 5)
    text = " ".join(word.text for word in words)
    assert " ".join(passage.text for passage in found) == f"{text} {text}"
    bounds = {edge for word in words for edge in (word.start, word.end, word.start - PAD_S, word.end + PAD_S)}
    assert all({passage.start, passage.end} <= bounds for passage in found)


def test_words_and_times_of_each_short_window_are_told(found: tuple[list[Check], Measured | None]) -> None:
    checks = {check.name: check for check in found[0]}
    assert list(checks) == [
        "window of 10 s: wrong words",
        "window of 10 s: time",
        "weights of 8 bits: wrong words",
    ]
    assert all(check.passed for check in checks.values())
    share, _, rest = checks["window of 10 s: wrong words"].found.partition("% of ")
    # nano.en gets about one word in six of the sample wrong.
    assert 0 < float(share) < 40
    assert int(rest.split(",")[0]) > 100
    encode, step = (
        float(part.rpartition(" ")[2]) for part in checks["window of 10 s: time"].found.split(", a decoder call")
    )
    # A third of the audio; with room for a machine that does other things too.
    assert 0 < encode < 0.9
    assert step > 0


def test_the_same_graphs_hear_the_same_words(found: tuple[list[Check], Measured | None]) -> None:
    assert found[0][-1].found.endswith("+0.0 points, 0 words differ")
    assert found[1] is not None
    assert found[1].int8


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({3: 0, 5: 0, 10: 0}, (3, 5, 10)),
        ({3: 0, 5: 1, 10: 0}, (3, 5, 10)),  # one word in two hundred is chance
        ({3: 0, 5: 2, 10: 0}, (10,)),  # windows below one that costs words do not count
        ({3: 0, 5: 0, 10: 2}, ()),
    ],
)
def test_a_window_is_kept_that_gets_no_more_words_wrong_than_30_s(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, wrong: dict[int, int], expected: tuple[int, ...]
) -> None:
    def hear(self: object, passage: Word, window_s: int = 30) -> list[str]:
        heard = plain(passage.text).split()
        if passage is first[window_s]:
            heard[: wrong.get(window_s, 0)] = ["wrong"] * wrong.get(window_s, 0)
        return heard

    first: dict[int, Word | None] = {30: None}

    def told(words: list[Word], window_s: int) -> list[Word]:
        found = passages(words, window_s)
        first[window_s] = found[0]
        return found

    monkeypatch.setattr(module, "passages", told)
    monkeypatch.setattr(module.Listener, "hear", hear)
    monkeypatch.setattr(module, "_times", lambda *_: dict.fromkeys((3, 5, 10, 30), (1.0, 1.0)))
    monkeypatch.setattr(model.runtime, "windows_s", (3, 5, 10, 30))
    assert collected(word_costs(model, None))[1] == Measured(expected, False)


def test_the_costs_stand_below_the_checks_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(model: WhisperModel, with_int8: object) -> Generator[Check, None, Measured]:
        yield Check("window of 8 s: wrong words", "10 %", "")
        return Measured((8,), False)

    monkeypatch.setattr("streamer.commands.verify.word_costs", told)
    console = Console(file=io.StringIO(), width=200)
    settings = ModelSettings(name=str(NANO), device="CPU", windows_s=(8,), cache_dir=str(tmp_path))
    assert verify(Settings(model=settings), console) == 0
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert "window of 8 s" in lines[-2]
    assert not any("window of " in line for line in lines[:-2])
    (entry,) = tmp_path.glob(f"{cache.WORDS}-*")
    assert json.loads((entry / "words.json").read_text(encoding="utf-8")) == {"windows_s": [8], "int8": False}
