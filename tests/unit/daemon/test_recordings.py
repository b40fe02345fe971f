"""Recordings beside live sessions: one after another, within bounds, and no longer than somebody waits for them."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.daemon.recordings import Job, Recordings
from streamer.engine import yielding
from streamer.engine.yielding import WaitIdle
from streamer.errors import AudioFileError, BusyError, ConfigError, StoppingError, UnknownModelError
from streamer.offline import transcribe
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.settings.table import DecodingSettings, ModelSettings, Settings
from streamer.setup.models import Models
from streamer.whisper.decode import fallback
from streamer.whisper.decode.options import DecodeOptions
from streamer.whisper.decode.window import FILE_BEAMS, decode_window
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.loading import LoadOptions
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.options import decode_options
from tests.daemon import SAMPLE, pause_after, recording
from tests.fakes import Clock
from tests.waiting import WAIT_S

pytestmark = pytest.mark.slow

ENGLISH = RecordingOptions(language="en")


def refuse(name: str) -> WhisperModel:
    raise AssertionError(f"{name} was loaded")


@asynccontextmanager
async def working(
    model: WhisperModel, wait_idle: WaitIdle = lambda timeout_s, quiet_s: True
) -> AsyncIterator[Recordings]:
    settings = Settings()
    recordings = Recordings(settings, Models(settings.model, refuse))
    recordings.serve_with(model, wait_idle)
    try:
        yield recordings
    finally:
        recordings.stop()


async def collect(job: Job) -> list[RecordedSegment]:
    async with asyncio.timeout(WAIT_S):
        return [segment async for segment in job]


@pytest.fixture(scope="module")
def sentence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first sentence of the sample."""
    path = tmp_path_factory.mktemp("audio") / "sentence.wav"
    soundfile.write(path, recording(SAMPLE, 0, pause_after(1)), SAMPLE_RATE, subtype="FLOAT")
    return path


async def test_a_recording_becomes_what_transcribe_makes_of_it(model: WhisperModel, sentence: Path) -> None:
    async with working(model) as recordings:
        job = await recordings.open(sentence, ENGLISH, "whisper-1")
        segments = await collect(job)
    alone = model.fork(n_beams=FILE_BEAMS)
    decoding = decode_options(DecodingSettings(language="en"), alone)
    expected = list(transcribe(alone, recording(SAMPLE, 0, pause_after(1)), decoding))
    assert [segment.final for segment in segments] == expected
    assert expected
    assert (job.model, job.language) == ("nano.en", "en")
    assert job.duration_s == pytest.approx(pause_after(1), abs=0.01)
    assert segments[0].tokens
    assert segments[0].compression_ratio > 0
    assert 0 < job.work_s < 60
    # The live model is as it was: the recording had buffers of its own.
    assert model.runtime.windows_s[-1] == 30


async def test_a_recording_is_decoded_along_five_beams_whatever_captions_have(
    cache_dir: Path, sentence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(str(SAMPLE.parent), LoadOptions(DeviceSettings("CPU"), cache_dir=str(cache_dir)))
    seen: list[DecodeOptions] = []

    def decode(*args: Any) -> Any:  # noqa: ANN401 - as it is
        seen.append(args[2])
        return decode_window(*args)

    monkeypatch.setattr(fallback, "decode_window", decode)
    async with working(model) as recordings:
        for beam_size in (None, 1):
            assert await collect(await recordings.open(sentence, RecordingOptions(language="en", beam_size=beam_size)))
    assert [options.n_beams for options in seen] == [5, 1]
    assert model.n_beams == 1


async def test_what_goes_wrong_is_told_and_the_next_recording_comes(
    model: WhisperModel, sentence: Path, tmp_path: Path
) -> None:
    noise = tmp_path / "recording"
    noise.write_bytes(b"no audio")
    async with working(model) as recordings:
        with pytest.raises(AudioFileError):
            await collect(await recordings.open(noise, ENGLISH))
        with pytest.raises(ConfigError):
            await collect(await recordings.open(sentence, RecordingOptions(language="xx")))
        with pytest.raises(ConfigError):
            await collect(await recordings.open(sentence, RecordingOptions(beam_size=16)))
        with pytest.raises(ConfigError):
            await collect(await recordings.open(sentence, RecordingOptions(languages=("en", "de"))))
        assert await collect(await recordings.open(sentence, RecordingOptions(languages=("en",))))
        # The model sees as much of it as it can.
        assert await collect(await recordings.open(sentence, RecordingOptions(initial_prompt="word " * 1000)))


async def test_a_truncated_recording_is_transcribed_and_one_that_cannot_be_read_on_is_an_error(
    model: WhisperModel, sentence: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples, _ = soundfile.read(sentence)
    truncated, broken = tmp_path / "truncated", tmp_path / "broken"
    truncated.write_bytes(sentence.read_bytes()[:-20_000])
    soundfile.write(broken, samples, SAMPLE_RATE, format="FLAC")
    broken.write_bytes((flac := broken.read_bytes()) + flac[:42] + bytes(3_000))
    async with working(model) as recordings:
        assert await collect(await recordings.open(truncated, ENGLISH))
        assert [message.partition(" s, its")[0] for message in caplog.messages if "truncated" in message] == [
            f"the recording ends after {len(samples) / SAMPLE_RATE - 5_000 / SAMPLE_RATE:.2f}"
        ]
        with pytest.raises(AudioFileError):
            await collect(await recordings.open(broken, ENGLISH))


async def test_a_recording_that_is_closed_ends_at_once_and_is_forgotten_and_a_stop_ends_the_others(
    model: WhisperModel, sentence: Path
) -> None:
    # Live sessions are busy all the time.
    async with working(model, lambda timeout_s, quiet_s: Event().wait(timeout_s)) as recordings:
        first, waiting, other = [await recordings.open(sentence, ENGLISH) for _ in range(3)]
        waiting.close()
        assert await collect(waiting) == []
        left = weakref.ref(waiting)
        del waiting
        assert left() is None
        first.close()
        assert await collect(first) == []
        recordings.stop()
        with pytest.raises(StoppingError):
            await collect(other)
        with pytest.raises(StoppingError):
            await recordings.open(sentence, ENGLISH)


async def test_before_the_model_is_there_nothing_is_taken(sentence: Path) -> None:
    with pytest.raises(BusyError):
        await Recordings(Settings(), Models(ModelSettings(name="nano.en"), refuse)).open(sentence, ENGLISH)


async def test_live_sessions_go_first_but_not_for_ever(
    model: WhisperModel, sentence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    began_s = clock()
    monkeypatch.setattr(yielding, "time", SimpleNamespace(monotonic=clock))

    def wait_idle(timeout_s: float, quiet_s: float) -> bool:
        clock.advance(timeout_s)
        return False

    async with working(model, wait_idle) as recordings:
        assert await collect(await recordings.open(sentence, ENGLISH))
    # By this clock the work itself takes no time.
    assert clock() - began_s == pytest.approx(yielding.PATIENCE_S)


async def test_models_are_not_looked_for_on_the_event_loop(
    model: WhisperModel, sentence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Models.find

    def find(self: Models, name: str) -> object:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return found(self, name)

    monkeypatch.setattr(Models, "find", find)
    async with working(model) as recordings:
        (await recordings.open(sentence, ENGLISH)).close()
        with pytest.raises(UnknownModelError):
            await recordings.open(sentence, ENGLISH, "large-v9")
