"""Whisper as the streaming engine's encoder and decoder."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.config import Settings
from streamer.errors import InferenceError
from streamer.events import Ready
from streamer.stream.eventlog import EventLog
from streamer.stream.gate import GateSettings
from streamer.stream.session import Request, SessionSettings
from streamer.stream.worker import Engine, LiveSession
from streamer.whisper.decoding.window import WindowOptions, decode_window, detect_language, max_tokens_for
from streamer.whisper.decoding.words import to_hypothesis
from streamer.whisper.model import WhisperModel
from streamer.whisper.result import Hypothesis
from streamer.whisper.runtime import EncodedWindow, Runtime


class WhisperDecoder:
    """Decodes encoded windows without timestamps, from the settled words on; word times come from the attention."""

    def __init__(self, model: WhisperModel) -> None:
        self._model = model

    def decode(self, encoded: EncodedWindow, request: Request) -> Hypothesis:
        """Decode a window as asked for. Raises InferenceError where the device fails, and no other is left."""
        runtime = self._model.runtime
        try:
            return self._decode(runtime, encoded, request)
        except InferenceError as error:
            self._model.revive(runtime, error)
            return self._decode(self._model.runtime, encoded, request)

    def _decode(self, runtime: Runtime, encoded: EncodedWindow, request: Request) -> Hypothesis:
        model = self._model
        tokenizer = model.tokenizer
        decoder = runtime.decoder
        decoder.use(encoded)
        language = request.language
        if language == "auto":
            language = detect_language(decoder, tokenizer)[0]
        options = WindowOptions(
            language=language,
            task=request.task,
            prompt=tuple(tokenizer.encode(request.prompt)) if request.prompt else (),
            begins_with=request.prefix,
            max_tokens=max_tokens_for(request.n_samples),
            stop_at_loop=True,
        )
        window = decode_window(decoder, tokenizer, model.generation, options)
        return to_hypothesis(window, tokenizer, language, request.n_samples)


class WhisperEncoder:
    """Encodes windows into the buffers of the model's runtime."""

    def __init__(self, model: WhisperModel) -> None:
        self._model = model

    def encode(self, mel: NDArray[np.float32], buffer: int) -> EncodedWindow:
        """Encode a mel spectrogram, shape (n_mels, 3000).

        Raises InferenceError where the device fails, and no other is left.
        """
        runtime = self._model.runtime
        try:
            return runtime.encode(mel, buffer)
        except InferenceError as error:
            self._model.revive(runtime, error)
            return self._model.runtime.encode(mel, buffer)


def make_engine(model: WhisperModel) -> Engine[EncodedWindow]:
    """Return an engine that transcribes with this model; it is not started yet."""
    return Engine(WhisperEncoder(model), WhisperDecoder(model))


def open_session(
    settings: Settings,
    model: WhisperModel,
    log: EventLog,
    *,
    patient: bool,
    on_finished: Callable[[], None],
    language: str | None = None,
    task: str | None = None,
) -> LiveSession:
    """Return a session that publishes to a log, `ready` first; `Engine.add` sets it to work.

    `language` and `task` are a client's own, None for what is set. See `LiveSession` for `patient` and `on_finished`.
    Raises ConfigError where the model does not know the language, or cannot translate.
    """
    chosen = session_settings(settings, model, language=language, task=task)
    live = LiveSession(
        chosen,
        capacity_samples=round(settings.input.buffer_s * SAMPLE_RATE),
        n_mels=model.dims.n_mels,
        patient=patient,
        on_event=log.append,
        on_finished=on_finished,
    )
    log.append(ready_event(model, chosen.language))
    return live


def ready_event(model: WhisperModel, language: str) -> Ready:
    """Return the event that opens a session."""
    return Ready(model=model.name, device=dict(model.runtime.devices), sample_rate=SAMPLE_RATE, language=language)


def session_settings(
    settings: Settings, model: WhisperModel, *, language: str | None = None, task: str | None = None
) -> SessionSettings:
    """Return a session's settings, with a client's own language and task where it named them.

    Raises ConfigError where the model does not know the language, or cannot translate.
    """
    task = task or settings.decoding.task
    return SessionSettings(
        gate=GateSettings(
            threshold=settings.speech.threshold,
            min_speech_s=settings.speech.min_speech_s,
            min_silence_s=settings.speech.min_silence_s,
            pad_s=settings.speech.pad_s,
        ),
        pace_s=settings.stream.pace_s,
        n_agreeing=settings.stream.agreement,
        trim_after_s=settings.stream.trim_after_s,
        condition_on_previous_text=(
            model.generation.prompted
            if settings.decoding.condition_on_previous_text == "auto"
            else settings.decoding.condition_on_previous_text == "always"
        ),
        no_speech_threshold=settings.decoding.no_speech_threshold,
        logprob_threshold=settings.decoding.logprob_threshold,
        compression_ratio_threshold=settings.decoding.compression_ratio_threshold,
        language=model.tokenizer.choose_language(language or settings.decoding.language, task),
        task=task,
    )
