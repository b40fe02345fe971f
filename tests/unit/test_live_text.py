"""`streamer.LiveText`: audio is written, and text and events are read, in one process.

Readers are outside of the block of the text, which ends them, so that a test that fails does not wait for them.
"""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import soxr

from streamer import LiveText, live_text, load_model
from streamer.audio.sources.base import SourceCallbacks
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.errors import AudioDeviceError, AudioFileError, UsageError
from streamer.events import End, Error, Event, Final, Gap, Partial
from streamer.live_text import LiveEvents
from streamer.setup.loading import load_chosen
from streamer.whisper.model import WhisperModel
from streamer.whisper.result import N_BUFFERS
from tests.builders import final, partial, ready
from tests.daemon import recording
from tests.promises import check_promises
from tests.waiting import WAIT_S, until, wait_until

# The first sentence of the sample.
SPEECH = recording(end_s=5.0)


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    return load_model("nano.en", device="CPU", live=True)


class FakeSource:
    """A microphone, spoken into by the test."""

    name = "microphone 'Fake'"
    realtime = True
    failure = ""

    def __init__(self) -> None:
        self.n_stopped = 0

    def start(self, callbacks: SourceCallbacks) -> None:
        self.callbacks = callbacks

    def stop(self) -> None:
        self.n_stopped += 1


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name in {"listen", "encode", "decode"}}


def test_what_is_said_is_a_draft_and_then_final(model: WhisperModel) -> None:
    before = engine_threads()
    with ThreadPoolExecutor(3) as pool, LiveText(model) as live:
        readers = [pool.submit(list, live.events()) for _ in range(3)]
        for piece in np.split(SPEECH, range(1600, len(SPEECH), 1600)):
            live.write(piece)
        wait_until(lambda: bool(live.draft or live.text))
        live.end()
        read = [reader.result(WAIT_S) for reader in readers]
        late = list(live.events())
    assert (live.text.startswith("The Commission regards"), live.draft) == (True, "")
    for events in read:
        check_promises(events, duration_s=5.0)
        assert any(isinstance(event, Partial) for event in events)
        assert " ".join(event.text for event in events if isinstance(event, Final)) == live.text
    assert late == [event for event in read[0] if not isinstance(event, Partial)], "what counts is kept"
    assert list(live.events()) == late, "also behind the block"
    assert engine_threads() == before


def test_other_rates_types_and_channels_are_taken_and_anything_else_is_refused(model: WhisperModel) -> None:
    mono = soxr.resample(SPEECH, SAMPLE_RATE, 48_000)
    first, second = np.array_split(np.stack([mono, mono], axis=1), 2)
    with LiveText(model, sample_rate=48_000, language="english", hotwords=["Commission"]) as live:
        live.write((first * 32767).astype(np.int16))
        live.write(second.astype(np.float64))
        for samples in (mono, np.zeros(3, dtype=np.int64), np.zeros((3, 2, 2)), b"pcm"):
            with pytest.raises(AudioFileError):
                live.write(samples)  # type: ignore[arg-type]
        live.write(np.full((4800, 2), np.nan))
        live.end()
        assert "bad_samples" in [event.code for event in live.events() if isinstance(event, Error)]
    assert live.text.startswith("The Commission regards")


@pytest.mark.slow
def test_a_writer_that_is_too_fast_waits_and_loses_nothing(model: WhisperModel) -> None:
    with LiveText(model) as live:
        live.write(np.concatenate([np.zeros(100 * SAMPLE_RATE, dtype=np.float32), SPEECH]))
        live.end()
        assert live.text.startswith("The Commission regards")
        assert not [event for event in live.events() if isinstance(event, Gap)]


def test_leaving_the_block_early_ends_everything_at_once(model: WhisperModel) -> None:
    before = engine_threads()
    with ThreadPoolExecutor(3) as pool:
        with pytest.raises(ZeroDivisionError), LiveText(model) as live:  # noqa: PT012
            reader = pool.submit(list, live.events())
            writer = pool.submit(live.write, np.tile(SPEECH, 30))
            wait_until(lambda: bool(live.draft or live.text))
            ender = pool.submit(live.end)  # it waits for the writer
            assert live._session is not None
            left = weakref.ref(live._session)
            raise ZeroDivisionError
        assert isinstance(reader.result(WAIT_S)[-1], End)
        assert (writer.result(WAIT_S), ender.result(WAIT_S)) == (None, None)
    assert engine_threads() == before
    gc.collect()
    assert left() is None
    with pytest.raises(UsageError):
        live.write(SPEECH)


def test_a_model_that_was_loaded_for_one_live_text_leaves_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[Any, WhisperModel]] = []

    def load(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        loaded.append(load_chosen(*arguments, **options))
        return loaded[-1]

    monkeypatch.setattr(live_text, "load_chosen", load)
    with LiveText("nano.en", device="CPU", beam_size=2):
        ((_, model),) = loaded
        assert (model.loaded, model.n_beams) == (True, 2)
    assert not model.loaded


def test_audio_is_taken_within_the_block_and_before_the_end_only(model: WhisperModel) -> None:
    live = LiveText(model)
    calls = [live.listen, lambda: live.write(np.zeros(1600))]

    def refused(calls: Iterable[Callable[[], object]]) -> None:
        for call in calls:
            with pytest.raises(UsageError):
                call()

    refused([live.end, *calls])
    with live:
        live.end()
        live.end()
        refused(calls)
        assert [event.type for event in live.events()] == ["ready", "end"]
    refused([live.__enter__])


def test_a_microphone_is_listened_to_until_the_end(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FakeSource()
    monkeypatch.setattr(live_text, "Microphone", {"USB": source}.get)
    with LiveText(model) as live:
        live.listen("USB")
        source.callbacks.on_audio(SPEECH)
        source.callbacks.on_gap(SAMPLE_RATE, "device")
        source.callbacks.on_error(AudioDeviceError("it went away"))
        with pytest.raises(UsageError):
            live.write(SPEECH)
        live.end()
        assert source.n_stopped == 1
        events = list(live.events())
    assert live.text.startswith("The Commission")
    (gap,) = (event for event in events if isinstance(event, Gap))
    assert (gap.start, gap.end, gap.reason) == (5.0, 6.0, "device")
    assert [event.message for event in events if isinstance(event, Error)] == ["it went away"]


def test_a_source_that_ends_by_itself_ends_the_text(model: WhisperModel) -> None:
    source = FakeSource()
    source.realtime = False
    with LiveText(model) as live:
        live.listen(source)
        source.callbacks.on_audio(SPEECH)
        source.callbacks.on_end(AudioDeviceError("it is broken"))
        *_, error, last = [event for event in live.events() if isinstance(event, Error | Final)]
    assert isinstance(last, Final)
    assert isinstance(error, Error)
    assert error.fatal


async def test_it_is_used_in_an_asynchronous_program(model: WhisperModel) -> None:
    async def read() -> list[Event]:
        return [event async for event in live.events()]

    async with LiveText(model) as live, asyncio.TaskGroup() as group:
        readers = [group.create_task(read()) for _ in range(2)]
        await asyncio.to_thread(live.write, SPEECH)
        await asyncio.to_thread(live.end)
    for reader in readers:
        check_promises(reader.result(), duration_s=5.0)
    assert live.text.startswith("The Commission regards")


async def test_a_load_that_is_no_longer_wanted_leaves_nothing(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, loading, released = engine_threads(), threading.Event(), threading.Event()
    fork = model.fork(n_buffers=N_BUFFERS)

    def load(settings: Any, **_: object) -> Any:  # noqa: ANN401
        loading.set()
        assert released.wait(WAIT_S)
        return settings, fork

    monkeypatch.setattr(live_text, "load_chosen", load)
    task = asyncio.create_task(LiveText("nano.en").__aenter__())
    await until(loading.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    released.set()
    await until(lambda: not fork.loaded)
    assert engine_threads() == before


@pytest.mark.parametrize("read", [iter, lambda events: _in_a_loop(events)], ids=["for", "async for"])
def test_a_slow_loop_misses_only_partials_that_have_newer_ones(read: Callable[[LiveEvents], Any]) -> None:
    log = EventLog("abc", 100)
    log.append(ready())
    events = read(LiveEvents(log))
    assert next(events).type == "ready"
    for event in (partial("a"), partial("a b"), final("a b c"), partial("d", segment=1), partial("d e", segment=1)):
        log.append(event)
    log.close()
    assert [getattr(event, "text", event.type) for event in events] == ["a b", "a b c", "d e", "end"]


def _in_a_loop(events: LiveEvents) -> Any:  # noqa: ANN401 - a generator
    with asyncio.Runner() as runner:
        asynchronous = aiter(events)
        while (event := runner.run(anext(asynchronous, None))) is not None:
            yield event
