"""A Pipecat pipeline that listens to a recording: python examples/pipecat_agent.py FILE [ADDRESS [TOKEN]]

Prints interim and final text, and each turn of the user, which a voice agent would send to its language model.
"""

import asyncio
import sys
import time

import numpy as np
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

from streamer.audio.sources.file import read_audio
from streamer.plugins.agents.pipecat import StreamerSTTService

FRAME_S = 0.02
SILENCE_S = 3.0


class Printer(FrameProcessor):
    """Prints what passes."""

    def __init__(self) -> None:
        super().__init__()
        self.begin_s = time.monotonic()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterimTranscriptionFrame | TranscriptionFrame):
            self.say("final" if isinstance(frame, TranscriptionFrame) else "interim", frame.text)
        elif isinstance(frame, ErrorFrame):
            self.say("error", frame.error)
        await self.push_frame(frame, direction)

    def say(self, kind: str, text: str) -> None:
        print(f"{time.monotonic() - self.begin_s:7.2f} {kind:8}{text}", flush=True)


async def main(path: str, address: str = "localhost", token: str = "") -> None:
    printer, started = Printer(), asyncio.Event()
    stt = StreamerSTTService(address, token=token, settings=StreamerSTTService.Settings(language="en"))
    user = LLMContextAggregatorPair(LLMContext()).user()

    @user.event_handler("on_user_turn_stopped")
    async def on_user_turn_stopped(aggregator: object, strategy: object, message: object) -> None:
        printer.say("turn", message.content)

    worker = PipelineWorker(Pipeline([stt, printer, user]), params=PipelineParams(audio_in_sample_rate=16_000))

    @worker.event_handler("on_pipeline_started")
    async def on_pipeline_started(worker: PipelineWorker, frame: Frame) -> None:
        started.set()

    async def speak() -> None:
        """Push the recording and some silence, as fast as a microphone does."""
        samples = np.concatenate([*read_audio(path), np.zeros(round(SILENCE_S * 16_000))])
        pcm = (samples * 32767).astype("<i2").tobytes()
        size = round(FRAME_S * 16_000) * 2
        await started.wait()
        printer.begin_s = time.monotonic()
        for number, first in enumerate(range(0, len(pcm), size), 1):
            await worker.queue_frame(InputAudioRawFrame(pcm[first : first + size], sample_rate=16_000, num_channels=1))
            await asyncio.sleep(printer.begin_s + number * FRAME_S - time.monotonic())
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), speak())


asyncio.run(main(*sys.argv[1:]))
