"""Two sources as one, with sources that deliver what the test wants."""

from collections.abc import Iterator

import numpy as np
import pytest

from streamer.audio.sources.base import SourceCallbacks
from streamer.audio.sources.mixed import PATIENCE_SAMPLES, Mixed
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioDeviceError
from streamer.events import Final, Speech, seconds
from tests.builders import final
from tests.unit.audio.support import Recorder

BLOCK = 160


class FakeSource:
    """A source that delivers when the test calls it."""

    callbacks: SourceCallbacks

    def __init__(self, name: str) -> None:
        self.name, self.failure = name, ""
        self.running = False
        self.refusal: AudioDeviceError | None = None

    def check(self) -> None:
        if self.refusal:
            raise self.refusal

    def start(self, callbacks: SourceCallbacks) -> None:
        self.check()
        self.callbacks, self.running = callbacks, True

    def stop(self) -> None:
        self.running = False

    def deliver(self, value: float, n_samples: int = BLOCK) -> None:
        self.callbacks.on_audio(np.full(n_samples, value, dtype=np.float32))

    def lose(self, n_samples: int = BLOCK) -> None:
        self.callbacks.on_gap(n_samples, "device")


def deliver(mic: FakeSource, system: FakeSource, n_samples: int = BLOCK) -> None:
    mic.deliver(0.25, n_samples)
    system.deliver(0.5, n_samples)


Both = tuple[Mixed, FakeSource, FakeSource, Recorder]


@pytest.fixture
def both() -> Iterator[Both]:
    mic, system, recorder = FakeSource("microphone 'Desk'"), FakeSource("system sound"), Recorder()
    mixed = Mixed({"mic": mic, "system": system})  # type: ignore[dict-item]
    mixed.start(recorder.callbacks)
    yield mixed, mic, system, recorder
    mixed.stop()
    assert not mic.running
    assert not system.running


def speaker_of(mixed: Mixed, start_samples: int, end_samples: int) -> str | None:
    event = mixed.labelled(final("Yes.", start=seconds(start_samples), end=seconds(end_samples)))
    assert isinstance(event, Final)
    return event.speaker


def test_what_both_deliver_is_added(both: Both) -> None:
    mixed, mic, system, recorder = both
    assert mixed.name == "microphone 'Desk' and system sound"
    mic.deliver(0.25)
    assert not recorder.blocks
    system.deliver(0.5, 2 * BLOCK)
    mic.deliver(0.75)
    assert recorder.audio.tolist() == [0.75] * BLOCK + [1.0] * BLOCK
    deliver(mic, system, 1)
    assert recorder.audio[-1] == 0.75
    assert recorder.order == ["audio"]


def test_a_final_names_the_source_that_was_louder(both: Both) -> None:
    mixed, mic, system, _ = both
    for i in range(300):
        system.deliver(0.5 if 100 <= i < 200 else 0.0)
        mic.deliver(0.1)
    starts = (0, SAMPLE_RATE, 2 * SAMPLE_RATE)
    assert [speaker_of(mixed, start, start + SAMPLE_RATE) for start in starts] == ["mic", "system", "mic"]
    for event in (final(""), Speech(state="start", time=0.0)):
        assert mixed.labelled(event) is event


@pytest.mark.parametrize("slow", [0, 1])
def test_clocks_that_differ_cost_neither_audio_nor_time(both: Both, slow: int) -> None:
    _, *sources, recorder = both
    for _ in range(2_500):
        sources[1 - slow].deliver(0.25, BLOCK + 1)
        sources[slow].deliver(0.5, BLOCK)
    # What waits is what differed since the last levelling, about 10 s ago.
    n_fast = 2_500 * (BLOCK + 1)
    assert n_fast - 20 * BLOCK <= len(recorder.audio) <= n_fast
    assert np.count_nonzero(recorder.audio >= 0.5) == 2_500 * BLOCK
    assert not recorder.gaps


def test_what_was_late_for_longer_does_not_stay_late(both: Both) -> None:
    _, mic, system, recorder = both
    deliver(system, mic, 3 * PATIENCE_SAMPLES // 2)
    for _ in range(2_100):
        deliver(mic, system)
    n_delivered = 2_100 * BLOCK + 3 * PATIENCE_SAMPLES // 2
    assert len(recorder.audio) == pytest.approx(n_delivered + PATIENCE_SAMPLES // 2, abs=BLOCK)
    # Each is there as a whole.
    assert recorder.audio.sum() == pytest.approx(0.75 * n_delivered, abs=BLOCK)


@pytest.mark.parametrize("away", [0, 1])
def test_while_one_is_away_the_other_goes_on_at_once(both: Both, away: int) -> None:
    mixed, *sources, recorder = both
    gone, other = sources[away], sources[1 - away]
    deliver(gone, other)
    # It is not known to be away yet.
    other.deliver(0.5, PATIENCE_SAMPLES + BLOCK)
    assert len(recorder.audio) == 2 * BLOCK
    gone.failure = "went away"
    gone.callbacks.on_error(AudioDeviceError("it went away"))
    gone.lose(PATIENCE_SAMPLES + BLOCK)
    for n in range(10):
        assert len(recorder.audio) == (2 + n) * BLOCK + PATIENCE_SAMPLES
        gone.lose()
        other.deliver(0.5)
    assert mixed.failure == f"{gone.name}: went away"
    # And back.
    gone.failure = ""
    deliver(gone, other)
    assert recorder.audio[-1] == 0.75
    assert (len(recorder.errors), recorder.gaps, mixed.failure) == (1, [], "")


def test_what_both_lost_is_a_gap_by_the_clock_of_which_a_speaker_is_known(both: Both) -> None:
    mixed, mic, system, recorder = both
    deliver(mic, system)
    mic.lose(3 * SAMPLE_RATE)
    assert not recorder.gaps
    for _ in range(30):
        system.lose(SAMPLE_RATE // 10)
    assert recorder.gaps == [(3 * SAMPLE_RATE, "device")]
    deliver(mic, system, SAMPLE_RATE)
    assert len(recorder.audio) == 4 * SAMPLE_RATE + BLOCK
    assert speaker_of(mixed, 3 * SAMPLE_RATE + BLOCK, 4 * SAMPLE_RATE) == "system"


def test_if_one_cannot_start_none_does(both: Both) -> None:
    mixed, mic, system, recorder = both
    mixed.stop()
    system.refusal = AudioDeviceError("none")
    for attempt in (mixed.check, lambda: mixed.start(recorder.callbacks)):
        with pytest.raises(AudioDeviceError):
            attempt()
    assert not mic.running
