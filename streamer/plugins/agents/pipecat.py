"""A speech-to-text service for Pipecat, `StreamerSTTService`, which takes the place of a cloud's in a pipeline."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from typing import Any

from streamer.client.connection import STREAM_PATH, parse_address
from streamer.errors import MissingExtraError, StreamerError
from streamer.events import Error, Event, Final, Partial, Ready, Speech
from streamer.outside import one_line
from streamer.plugins.agents.live import LiveStream

try:
    from pipecat.frames import frames
    from pipecat.processors.frame_processor import FrameDirection
    from pipecat.services.settings import STTSettings
    from pipecat.services.stt_service import STTService
    from pipecat.transcriptions.language import Language
    from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
    from pipecat.utils.time import time_now_iso8601
    from pipecat.utils.tracing.service_decorators import traced_stt
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "pipecat", "pipecat", "streamer.plugins.agents.pipecat") from error

# From the end of speech to its last words, of 99 in 100, in seconds: base on two cores, as Pipecat measures it, with
# the end of speech found after 0.2 s.
TTFS_P99_S = 1.12

STOP_S = 1.0  # for a pipeline to end a turn
FINISH_S = 10.0  # for the text of the last words at the end of a pipeline


class StreamerSTTService(STTService):
    """Speech to text by a daemon, with interim text and the user's turns.

    A daemon that is away is waited for, and gets what was said meanwhile.
    """

    Settings = STTSettings
    _settings: STTSettings

    def __init__(
        self,
        address: str = "localhost",
        *,
        token: str = "",
        fingerprint: str = "",
        turn_detection: bool = True,
        settings: STTSettings | None = None,
        **kwargs: Any,  # noqa: ANN401 - of STTService
    ) -> None:
        """Prepare; the pipeline's start connects. Raises UsageError for an invalid address.

        address, token, fingerprint : see `streamer.listen`
        turn_detection : whether the daemon finds the user's turns; otherwise Pipecat's strategies do
        kwargs : such as ttfs_p99_latency=0.57, that of tiny.en (docs/clients/libraries.md)
        settings : the language, and as `extra` other options of docs/protocol.md, such as {"hotwords": ["Pipecat"]}
        """
        chosen = STTSettings(model=None, language=None)
        if settings is not None:
            chosen.apply_update(settings)
        super().__init__(settings=chosen, **{"ttfs_p99_latency": TTFS_P99_S, **kwargs})
        self._turn_detection = turn_detection
        self._format = (0, 0)
        self._live = LiveStream(
            parse_address(address, token, fingerprint, path=STREAM_PATH),
            {**self._settings.extra, "language": self._settings.language},
            wait_s=math.inf,
            on_lost=lambda notice: self.create_task(self._call_event_handler("on_connection_error", notice)),
        )
        # Reads what the daemon publishes.
        self._reading: asyncio.Task[None] | None = None
        # Set if the pipeline knows that the last turn is over; by when that is to be expected.
        self._stopped = asyncio.Event()
        self._stop_due_s = 0.0

    def can_generate_metrics(self) -> bool:
        return True

    @property
    def supports_ttfs(self) -> bool:
        """Whether the end of a turn is followed by a wait for its text."""
        return not self._turn_detection

    def service_metadata_frame(self) -> frames.STTMetadataFrame:
        frame = super().service_metadata_frame()
        if self._turn_detection:
            frame.user_turn_strategies = ExternalUserTurnStrategies()
        return frame

    async def start(self, frame: frames.StartFrame) -> None:
        await super().start(frame)
        self._read_on()

    async def stop(self, frame: frames.EndFrame) -> None:
        """Wait for the text of the last words, and disconnect."""
        self._live.finish()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=FINISH_S)
        await self._disconnect()
        await super().stop(frame)

    async def cancel(self, frame: frames.CancelFrame) -> None:
        await self._disconnect()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        await self._disconnect()
        await super().cleanup()

    async def process_audio_frame(self, frame: frames.InputAudioRawFrame, direction: FrameDirection) -> None:
        self._format = (frame.sample_rate, frame.num_channels)
        await super().process_audio_frame(frame, direction)

    async def run_stt(self, audio: bytes) -> AsyncGenerator[frames.Frame | None, None]:
        self._live.audio(audio, *self._format)
        self._read_on()
        yield None

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        """Process a frame. If Pipecat finds the turns, the end of speech makes the text final."""
        await super().process_frame(frame, direction)
        if isinstance(frame, frames.VADUserStoppedSpeakingFrame) and not self._turn_detection:
            self._live.flush()
        if isinstance(frame, frames.UserStoppedSpeakingFrame):
            self._stopped.set()

    async def _update_settings(self, delta: STTSettings) -> dict[str, Any]:
        changed: dict[str, Any] = await super()._update_settings(delta)
        self._warn_unhandled_updated_settings(changed.keys() & {"model"})
        given = self._settings.given_fields()
        self._live.change({name: given[name] for name in changed if name != "model"})
        return changed

    def _read_on(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = self.create_task(self._read())

    async def _disconnect(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            await self.cancel_task(reading)
            await self._call_event_handler("on_disconnected")

    async def _read(self) -> None:
        try:
            async with contextlib.aclosing(self._live.events()) as batches:
                async for batch in batches:
                    for event in batch:
                        await self._publish(event, is_last=isinstance(batch[-1], Speech))
        except StreamerError as error:
            await self._call_event_handler("on_connection_error", str(error))
            await self.push_error(str(error), force_treat_as_permanent=True)

    async def _publish(self, event: Event, *, is_last: bool) -> None:
        match event:
            case Ready(model=model):
                self._settings.model = model
                self._sync_model_name_to_metrics()
                await self._call_event_handler("on_connected")
            case Speech(state="start") if self._turn_detection:
                # This frame overtakes the end of the turn before, if that is still on its way: both may come at once.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._stop_due_s):
                        await self._stopped.wait()
                await self.broadcast_frame(frames.ProposedUserStartedSpeakingFrame)
            case Speech() if self._turn_detection:
                self._stopped.clear()
                self._stop_due_s = asyncio.get_running_loop().time() + STOP_S
                await self.broadcast_frame(frames.ProposedUserStoppedSpeakingFrame)
            case Partial():
                text = (one_line(event.text), self._user_id, time_now_iso8601())
                await self.push_frame(frames.InterimTranscriptionFrame(*text, result=event))
            case Final():
                text = (one_line(event.text), self._user_id, time_now_iso8601())
                spoken = next((language for language in Language if language == event.language), None)
                await self.emit_stt_usage_metrics()
                await self.push_frame(frames.TranscriptionFrame(*text, spoken, result=event, finalized=is_last))
                await self._handle_transcription(text[0], True, spoken)
            case Error(message=message, fatal=False):
                await self.push_error(one_line(message))

    @traced_stt
    async def _handle_transcription(self, transcript: str, is_final: bool, language: Language | None = None) -> None:
        """Do nothing: the decorator traces the arguments, by their names."""
