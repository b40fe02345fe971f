"""The service for Pipecat in Pipecat's own pipelines, with a daemon and nano.en."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from tests.cutting import cutting
from tests.daemon import REPOSITORY, SAMPLE, WAIT_S, Daemon, pause_after, pcm16, recording, sample_text, serving_with
from tests.waiting import until
from tests.wer import wer

pytest.importorskip("pipecat", reason="pip install 'streamer-captions[pipecat]'")

from pipecat.frames import frames
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.settings import STTSettings
from pipecat.workers.runner import WorkerRunner

from streamer.plugins.agents.pipecat import StreamerSTTService

# nano.en gets about one word in six wrong.
MAX_WER = 0.4
TOKEN = "a-token-of-the-tests"
SAID_S = pause_after(2)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving_with(TOKEN, {"STREAMER_SERVER_RESUME_S": "2"}) as daemon:
        yield daemon


class Seen(FrameProcessor):
    """Keeps what passes on its way to the language model."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Any] = []
        self.turns: list[str] = []

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        await self.push_frame(frame, direction)

    def of(self, kind: type[Any]) -> list[Any]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    def text(self) -> str:
        return " ".join(frame.text for frame in self.of(frames.TranscriptionFrame))

    def errors(self) -> list[str]:
        return [frame.error for frame in self.of(frames.ErrorFrame)]


@contextlib.asynccontextmanager
async def pipeline(stt: StreamerSTTService) -> AsyncIterator[tuple[Seen, PipelineWorker]]:
    """Run a pipeline as an agent's, without a model; it has ended when the block is left."""
    seen = Seen()
    user = LLMContextAggregatorPair(LLMContext()).user()

    @user.event_handler("on_user_turn_stopped")
    async def _(aggregator: object, strategy: object, message: Any) -> None:  # noqa: ANN401
        seen.turns.append(message.content)

    before = Seen()
    worker = PipelineWorker(Pipeline([before, stt, seen, user]), idle_timeout_secs=None)
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def _(worker: object, frame: object) -> None:
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    ending = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(WAIT_S):
            await started.wait()
            yield seen, worker
            await ending
    finally:
        await worker.cancel()
        await ending
    seen.frames += before.of(frames.ErrorFrame)


def audio(begin_s: float = 0.0, end_s: float = SAID_S, *, rate: int = SAMPLE_RATE, channels: int = 1) -> list[Any]:
    """Return a part of the sample recording and silence, in frames of 20 ms; the rate is a multiple of 16 kHz."""
    samples = np.append(recording(SAMPLE, begin_s, end_s), np.zeros(SAMPLE_RATE, np.float32))
    samples = np.repeat(samples, rate // SAMPLE_RATE * channels)
    size = rate // 50 * channels
    return [
        frames.InputAudioRawFrame(pcm16(samples[first : first + size]), rate, channels)
        for first in range(0, len(samples), size)
    ]


async def test_text_and_turns_reach_the_pipeline(daemon: Daemon) -> None:
    stt = StreamerSTTService(daemon.url, token=TOKEN, settings=STTSettings(language="en-US"))
    async with pipeline(stt) as (seen, worker):
        await worker.queue_frames(audio())
        await until(lambda: wer(sample_text(end_s=SAID_S), " ".join(seen.turns)) < MAX_WER)
        await worker.queue_frame(frames.EndFrame())
    assert wer(sample_text(end_s=SAID_S), seen.text()) < MAX_WER
    assert seen.of(frames.InterimTranscriptionFrame)
    assert " ".join(seen.turns) == seen.text()
    assert len(seen.turns) == len(seen.of(frames.ProposedUserStoppedSpeakingFrame))
    kinds = [type(frame) for frame in seen.frames]
    assert kinds.index(frames.ProposedUserStartedSpeakingFrame) < kinds.index(frames.InterimTranscriptionFrame)
    assert kinds.index(frames.TranscriptionFrame) < kinds.index(frames.ProposedUserStoppedSpeakingFrame)
    final = seen.of(frames.TranscriptionFrame)[-1]
    assert (final.finalized, final.language, final.result.type) == (True, "en", "final")
    assert (stt.settings.model, seen.errors()) == ("nano.en", [])


@pytest.mark.parametrize(("rate", "channels"), [(48_000, 2), (32_000, 1)])
async def test_frames_may_have_any_format(daemon: Daemon, rate: int, channels: int) -> None:
    async with pipeline(StreamerSTTService(daemon.url, token=TOKEN)) as (seen, worker):
        await worker.queue_frames([*audio(rate=rate, channels=channels), frames.EndFrame()])
    assert wer(sample_text(end_s=SAID_S), seen.text()) < MAX_WER


async def test_pipecats_turns_make_text_final(daemon: Daemon) -> None:
    stt = StreamerSTTService(daemon.url, token=TOKEN, turn_detection=False)
    assert stt.service_metadata_frame().user_turn_strategies is None
    said = audio()
    async with pipeline(stt) as (seen, worker):
        await worker.queue_frames([frames.VADUserStartedSpeakingFrame(), *said[:150]])
        await until(lambda: len(seen.of(frames.InputAudioRawFrame)) == 150)
        await worker.queue_frames([frames.VADUserStoppedSpeakingFrame(), *said[150:], frames.EndFrame()])
    final = seen.of(frames.TranscriptionFrame)[0]
    assert (final.finalized, final.result.end) == (True, pytest.approx(3.0, abs=0.3))
    assert not seen.of(frames.ProposedUserStoppedSpeakingFrame)


async def test_a_connection_that_breaks_loses_nothing(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.client.machine.FIRST_DELAY_S", 0.01)
    lost: list[str] = []
    async with cutting(int(daemon.url.rstrip("/").rpartition(":")[2])) as proxy:
        stt = StreamerSTTService(f"127.0.0.1:{proxy.port}", token=TOKEN)

        @stt.event_handler("on_connection_error")
        async def _(stt: object, notice: str) -> None:
            lost.append(notice)

        async with pipeline(stt) as (seen, worker):
            said = audio()
            await worker.queue_frames(said[:100])
            await until(lambda: bool(seen.of(frames.ProposedUserStartedSpeakingFrame)))
            proxy.cut()
            await worker.queue_frames([*said[100:], frames.EndFrame()])
    assert wer(sample_text(end_s=SAID_S), seen.text()) < MAX_WER
    assert ["went away" in notice for notice in lost] == [True]


async def test_a_wrong_token_is_one_line_and_ends_the_service_only(daemon: Daemon) -> None:
    stt = StreamerSTTService(daemon.url, token="wrong")
    async with pipeline(stt) as (seen, worker):
        await until(lambda: not stt.is_usable)
        await worker.queue_frames([*audio(), frames.EndFrame()])
    assert len(seen.errors()) == 1
    assert "answered HTTP status 401" in seen.errors()[0]
    assert "\n" not in seen.errors()[0]


async def test_settings_change_while_it_runs(daemon: Daemon) -> None:
    stt = StreamerSTTService(daemon.url, token=TOKEN)
    async with pipeline(stt) as (seen, worker):
        said = audio()
        await worker.queue_frames(said[:100])
        await until(lambda: bool(seen.of(frames.ProposedUserStartedSpeakingFrame)))
        # nano.en knows English only: the daemon's answer shows what it was asked.
        await worker.queue_frame(frames.STTUpdateSettingsFrame(delta=STTSettings(language="de-AT")))
        await until(lambda: stt.settings.language == "de-AT")
        await worker.queue_frames([*said[100:], frames.EndFrame()])
    assert len(seen.errors()) == 1
    assert "'de'" in seen.errors()[0]
    assert wer(sample_text(end_s=SAID_S), seen.text()) < MAX_WER


async def test_an_agent_that_is_cancelled_in_mid_turn_gives_its_session_up(daemon: Daemon) -> None:
    async with pipeline(StreamerSTTService(daemon.url, token=TOKEN)) as (seen, worker):
        await worker.queue_frames(audio()[:150])
        await until(lambda: bool(seen.of(frames.ProposedUserStartedSpeakingFrame)))
        assert daemon.metric("streamer_sessions", TOKEN) == 1
        await worker.cancel()
    await until(lambda: daemon.metric("streamer_sessions", TOKEN) == 0)


async def test_an_agent_that_is_killed_in_mid_turn_is_forgotten(daemon: Daemon) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        REPOSITORY / "examples" / "pipecat_agent.py",
        SAMPLE,
        daemon.url,
        TOKEN,
        stdout=PIPE,
        stderr=PIPE,
    )
    assert agent.stdout is not None
    async with asyncio.timeout(WAIT_S):
        while b"interim" not in await agent.stdout.readline():
            pass
        assert daemon.metric("streamer_sessions", TOKEN) == 1
        agent.kill()
        await agent.communicate()
    await until(lambda: daemon.metric("streamer_sessions", TOKEN) == 0)


async def test_the_example_prints_text_and_turns(daemon: Daemon, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "said.wav", recording(SAMPLE, 0.0, SAID_S), SAMPLE_RATE)
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        REPOSITORY / "examples" / "pipecat_agent.py",
        tmp_path / "said.wav",
        daemon.url,
        TOKEN,
        stdout=PIPE,
    )
    out, _ = await asyncio.wait_for(agent.communicate(), WAIT_S)
    lines = [line.split(maxsplit=2) for line in out.decode().splitlines()]
    assert {kind for _, kind, _ in lines} == {"interim", "final", "turn"}
    assert wer(sample_text(end_s=SAID_S), " ".join(text for _, kind, text in lines if kind == "turn")) < MAX_WER
