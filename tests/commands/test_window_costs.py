"""What `streamer models verify` says of windows shorter than 30 s."""

import io

import pytest
from rich.console import Console

from streamer.commands.verify import verify
from streamer.commands.window_costs import PAD_S, Sentence, passages, window_checks
from streamer.settings.table import ModelSettings
from streamer.whisper.check import Check
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import load_model
from tests.whisper.support import NANO

SENTENCES = [Sentence("one", 0.5, 3.0), Sentence("two", 3.5, 6.0), Sentence("three", 7.0, 15.0), Sentence("4", 16, 17)]


@pytest.fixture(scope="module")
def found() -> list[Check]:
    return list(window_checks(load_model(str(NANO), DeviceSettings("CPU"), windows_s=[2, 8])))


@pytest.mark.parametrize(
    ("window_s", "expected"),
    [
        (1.4, []),
        (1.5, ["4"]),
        (3.0, ["one", "two", "4"]),
        (5.9, ["one", "two", "4"]),
        (6.0, ["one two", "4"]),  # what is left out does not join what stands around it
        (8.5, ["one two", "three", "4"]),
        (10.5, ["one two", "three 4"]),
        (30.0, ["one two three 4"]),
    ],
)
def test_sentences_are_joined_as_long_as_they_fit(window_s: float, expected: list[str]) -> None:
    found = passages(SENTENCES, window_s)
    assert [passage.text for passage in found] == expected
    assert all(passage.end - passage.start + 2 * PAD_S <= window_s for passage in found)


def test_words_and_times_of_each_short_window_are_told(found: list[Check]) -> None:
    checks = {check.name: check for check in found}
    assert list(checks) == [
        "window of 2 s: wrong words",
        "window of 2 s: time",
        "window of 8 s: wrong words",
        "window of 8 s: time",
    ]
    assert all(check.passed for check in checks.values())
    # The one sentence of the sample that is so short has three words.
    assert " of 3, " in checks["window of 2 s: wrong words"].found
    share, _, rest = checks["window of 8 s: wrong words"].found.partition("% of ")
    # nano.en gets about one word in six of the sample wrong.
    assert 0 < float(share) < 40
    assert int(rest.split(",")[0]) > 80
    encode, step = (
        float(part.rpartition(" ")[2]) for part in checks["window of 8 s: time"].found.split(", a decoder call")
    )
    # A quarter of the audio; with room for a machine that does other things too.
    assert 0 < encode < 0.9
    assert step > 0


def test_the_costs_stand_below_the_checks(found: list[Check], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.commands.verify.window_checks", lambda model: found)
    console = Console(file=io.StringIO(), width=200)
    settings = ModelSettings(name=str(NANO), device="CPU", windows_s=(2, 8))
    assert verify(settings, console) == 0
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    rows = [line for line in lines if "window of " in line]
    assert len(rows) == 4
    assert lines[-5:-1] == rows
    assert not any("window of " in line for line in lines[:-5])
