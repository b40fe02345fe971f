"""Whisper as the streaming engine's encoder and decoder."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import N_SAMPLES, SAMPLE_RATE
from streamer.config import DecodingSettings, Settings
from streamer.errors import ConfigError, InferenceError
from streamer.events import Ready
from streamer.options import text_tokens, transcribe_options
from streamer.server.messages import SessionOptions
from streamer.stream.eventlog import EventLog
from streamer.stream.gate import GateSettings
from streamer.stream.session import Request, SessionSettings
from streamer.stream.worker import MAX_PACE_S, Engine, LiveSession
from streamer.whisper.decoding.window import WindowOptions, decode_window, detect_language, max_tokens_for
from streamer.whisper.decoding.words import to_hypothesis
from streamer.whisper.model import WhisperModel
from streamer.whisper.result import Hypothesis
from streamer.whisper.runtime import EncodedWindow, Runtime

# The options of a client that has none.
NO_OPTIONS = SessionOptions()

# Audio put into a session's buffer at a time by a source that can wait for room.
MAX_WRITE_SAMPLES = SAMPLE_RATE // 2


class WhisperDecoder:
    """Decodes encoded windows without timestamps, from the settled words on; word times come from the attention."""

    def __init__(self, model: WhisperModel, decoding: DecodingSettings) -> None:
        """Raise ConfigError where the model cannot do what the settings ask for."""
        self._model = model
        chosen = transcribe_options(decoding, model)
        self._config = chosen.generation(model.generation, model.tokenizer)
        # Text that somebody wants the model to see first, and whether it sees it before every window.
        self._initial = tuple(text_tokens(chosen.initial_prompt, model.tokenizer))
        self._carried = chosen.carry_initial_prompt
        # The same for all windows.
        self._options = WindowOptions(
            language="en",
            n_beams=chosen.beam_size or 1,
            patience=chosen.patience or 1.0,
            length_penalty=chosen.length_penalty,
            filters=chosen.filters,
            stop_at_loop=True,
        )

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
        n_calls_before = decoder.n_calls
        decoder.use(encoded)
        language = request.language
        if language == "auto":
            language = detect_language(decoder, tokenizer)[0]
        options = dataclasses.replace(
            self._options,
            language=language,
            task=request.task,
            prompt=self._prompt(request),
            begins_with=request.prefix,
            # A guess that has to be checked token by token saves nothing.
            draft=request.draft if decoder.block_tokens > 1 else (),
            max_tokens=max_tokens_for(request.n_samples),
        )
        window = decode_window(decoder, tokenizer, self._config, options)
        hypothesis = to_hypothesis(window, tokenizer, language, request.n_samples)
        return dataclasses.replace(hypothesis, n_calls=decoder.n_calls - n_calls_before)

    def _prompt(self, request: Request) -> tuple[int, ...]:
        """Return what the model sees before a window: what it was told to see first, and what was said."""
        said = tuple(self._model.tokenizer.encode(request.prompt)) if request.prompt else ()
        if self._carried:
            # Decoding keeps the newest part of a prompt that is too long.
            room = self._model.runtime.decoder.capacity // 2 - 1 - len(self._initial)
            return (*self._initial, *said[max(0, len(said) - room) :])
        return (*self._initial, *said) if said or request.first else ()


class WhisperEncoder:
    """Encodes windows into the buffers of the model's runtime."""

    def __init__(self, model: WhisperModel) -> None:
        self._model = model

    def encode(self, mel: NDArray[np.float32], buffer: int, n_samples: int = N_SAMPLES) -> EncodedWindow:
        """Encode a mel spectrogram, shape (n_mels, 3000), in the shortest window that holds its audio.

        n_samples : length of the audio, behind which there is silence

        Raises InferenceError where the device fails, and no other is left.
        """
        runtime = self._model.runtime
        n_frames = runtime.frames_for(n_samples)
        try:
            return runtime.encode(mel[:, :n_frames], buffer)
        except InferenceError as error:
            self._model.revive(runtime, error)
            return self._model.runtime.encode(mel[:, :n_frames], buffer)


def make_engine(
    model: WhisperModel, decoding: DecodingSettings, *, max_pace_s: float = MAX_PACE_S
) -> Engine[EncodedWindow]:
    """Return an engine that transcribes with this model; it is not started yet. See `Engine` for `max_pace_s`.

    Raises ConfigError where the model cannot do what the settings ask for.
    """
    return Engine(WhisperEncoder(model), WhisperDecoder(model, decoding), max_pace_s=max_pace_s)


def open_session(
    settings: Settings,
    model: WhisperModel,
    log: EventLog,
    *,
    patient: bool,
    can_wait: bool = True,
    reserved: bool = False,
    on_finished: Callable[[], None],
    options: SessionOptions = NO_OPTIONS,
) -> LiveSession:
    """Return a session that publishes to a log, `ready` first; `Engine.add` sets it to work.

    `options` are a client's own. See `LiveSession` for the rest.
    Raises ConfigError where the model cannot do what is asked for.
    """
    chosen = session_settings(settings, model, options)
    live = LiveSession(
        chosen,
        capacity_samples=round(settings.input.buffer_s * SAMPLE_RATE),
        n_mels=model.dims.n_mels,
        patient=patient,
        max_delay_s=settings.stream.max_delay_s,
        can_wait=can_wait,
        reserved=reserved,
        on_event=log.append,
        on_finished=on_finished,
    )
    log.append(ready_event(model, chosen.language))
    return live


def ready_event(model: WhisperModel, language: str) -> Ready:
    """Return the event that opens a session."""
    return Ready(model=model.name, device=dict(model.runtime.devices), sample_rate=SAMPLE_RATE, language=language)


def session_settings(settings: Settings, model: WhisperModel, options: SessionOptions = NO_OPTIONS) -> SessionSettings:
    """Return a session's settings, with what a client chose where it chose something.

    Raises ConfigError where the model does not know a language, cannot translate, or follows fewer beams.
    """
    task = options.task or settings.decoding.task
    chosen = SessionSettings(
        gate=GateSettings(
            threshold=settings.speech.threshold,
            min_speech_s=settings.speech.min_speech_s,
            min_silence_s=settings.speech.min_silence_s,
            pad_s=settings.speech.pad_s,
        ),
        pace_s=settings.stream.pace_s,
        policy=settings.stream.policy,
        n_agreeing=settings.stream.agreement,
        attention_margin_s=settings.stream.attention_margin_s,
        commit_probability=settings.stream.commit_probability,
        show_probability=settings.stream.show_probability,
        trim_after_s=settings.stream.trim_after_s,
        condition_on_previous_text=(
            model.generation.prompted
            if settings.decoding.condition_on_previous_text == "auto"
            else settings.decoding.condition_on_previous_text == "always"
        ),
        no_speech_threshold=_or(settings.decoding.no_speech_threshold, math.inf),
        logprob_threshold=_or(settings.decoding.logprob_threshold, -math.inf),
        compression_ratio_threshold=_or(settings.decoding.compression_ratio_threshold, math.inf),
        language=model.tokenizer.choose_language(options.language or settings.decoding.language, task),
        task=task,
    )
    return _with_options(chosen, model, options)


def _with_options(chosen: SessionSettings, model: WhisperModel, options: SessionOptions) -> SessionSettings:
    """Return settings with the options that a client named, but for language and task."""
    for language in options.languages or ():
        model.tokenizer.choose_language(language, chosen.task)
    beams = model.runtime.decoder.beams if options.beam_size else None
    most = beams.n_beams if beams is not None else 1
    if (options.beam_size or 1) > most:
        raise ConfigError(
            f"beam_size is {options.beam_size}: expected at most {most}, which this daemon was started for;"
            " raise decoding.beam_size in its settings"
        )
    decoding = _named(initial_prompt=options.initial_prompt, hotwords=options.hotwords, beam_size=options.beam_size)
    gate = _named(threshold=options.vad_threshold, min_silence_s=options.min_silence_s)
    return dataclasses.replace(
        chosen,
        **_named(
            languages=options.languages,
            words=options.words,
            pace_s=options.pace_s,
            options=dataclasses.replace(chosen.options, **decoding) if decoding else None,
            gate=dataclasses.replace(chosen.gate, **gate) if gate else None,
        ),
    )


def _named(**options: object) -> dict[str, Any]:
    """Return the options that are not None."""
    return {key: value for key, value in options.items() if value is not None}


def write_all(live: LiveSession, samples: NDArray[np.float32], cancelled: Callable[[], bool] = lambda: False) -> None:
    """Write to a session's buffer, waiting for room; what is left when the session is over or cancelled is dropped."""
    for first in range(0, len(samples), MAX_WRITE_SAMPLES):
        piece = samples[first : first + MAX_WRITE_SAMPLES]
        while not live.ring.wait_for_room(len(piece), 0.5):
            if live.over or cancelled():
                return
        live.ring.write(piece)


def _or(threshold: float | None, never: float) -> float:
    """Return a threshold, or where there is none, one that nothing passes."""
    return never if threshold is None else threshold
