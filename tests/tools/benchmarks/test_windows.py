"""A driver's process, and the other end of it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tools.benchmarks import windows
from tools.benchmarks.windows import Driver, DriverError, Task, peak_rss_mb

MODULE = "tests.tools.benchmarks.scripted_driver"


@pytest.fixture
def audio(tmp_path: Path) -> str:
    np.save(tmp_path / "audio.npy", np.arange(5, dtype=np.float32))
    return str(tmp_path / "audio.npy")


def test_a_window_is_transcribed_once_for_each_question(audio: str) -> None:
    driver = Driver(sys.executable, MODULE, Task("well", audio, n_tokens=7))
    try:
        first, second = driver.transcribe(), driver.transcribe()
    finally:
        driver.close()
    assert driver.version == "1.0"
    assert first.n_tokens == second.n_tokens == 7
    # What the driver told, which is the sum of the audio, and what was measured around it.
    assert first.encode_s == 10.0
    assert first.decode_s is None
    assert 0 < first.total_s < 600
    assert first.cpu_s >= 0
    assert first.peak_rss_mb <= second.peak_rss_mb
    assert (first.peak_rss_mb > 1) == (sys.platform == "linux")


def test_what_a_library_prints_is_no_answer(audio: str) -> None:
    driver = Driver(sys.executable, MODULE, Task("talks", audio))
    try:
        assert driver.transcribe().n_tokens == 100
    finally:
        driver.close()


@pytest.mark.parametrize(
    ("model", "reason"),
    [("no such model", "it ended: ValueError: no such model"), ("mute", "it ended: without a word")],
)
def test_a_driver_that_does_not_start_says_why(audio: str, model: str, reason: str) -> None:
    with pytest.raises(DriverError) as caught:
        Driver(sys.executable, MODULE, Task(model, audio))
    assert str(caught.value) == reason


def test_a_driver_that_ends_on_the_way_says_why(audio: str) -> None:
    driver = Driver(sys.executable, MODULE, Task("breaks", audio))
    try:
        with pytest.raises(DriverError, match="it ended: RuntimeError: out of memory"):
            driver.transcribe()
        with pytest.raises(DriverError, match="it ended"):
            driver.transcribe()
    finally:
        driver.close()


def test_a_driver_that_hangs_is_ended(audio: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(sys.executable, MODULE, Task("hangs", audio))
    monkeypatch.setattr(windows, "TIMEOUT_S", 0.1)
    try:
        with pytest.raises(DriverError, match="it ended: without a word"):
            driver.transcribe()
    finally:
        driver.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_memory_that_was_given_back_still_counts() -> None:
    before = peak_rss_mb()
    block = np.ones(200 * 2**17)  # 200 MB
    del block
    assert peak_rss_mb() > min(before + 1, 200)
