"""Sessions of a loaded model: their settings, how they are opened, and how audio is written to them."""

import dataclasses
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.mel import LogMelStream
from streamer.engine.eventlog import EventLog
from streamer.engine.publisher import Output
from streamer.engine.runner import AudioKind, Input, SessionRunner
from streamer.engine.settings import SessionSettings
from streamer.engine.state import SessionState
from streamer.errors import StreamerError
from streamer.events import Error, Event, Ready
from streamer.protocols.native import SessionOptions
from streamer.sessions.confidence import Confidence
from streamer.sessions.postprocessing import PostProcessing
from streamer.sessions.streams import MAX_WRITE_SAMPLES
from streamer.settings.apply import decode_options, gate_settings, is_conditioned, stability_policy, when_stable
from streamer.settings.check import check_decode_options
from streamer.settings.table import Settings
from streamer.whisper.model import SILENCE_S, WhisperModel

logger = logging.getLogger(__name__)

# The options of a client that has none.
NO_OPTIONS = SessionOptions()


def open_session(
    settings: Settings,
    model: WhisperModel,
    log: EventLog,
    *,
    kind: AudioKind,
    reserved: bool = False,
    on_finished: Callable[[], None],
    options: SessionOptions = NO_OPTIONS,
    label: Callable[[Event], Event] = lambda event: event,
    enrichment: PostProcessing | None = None,
    state: SessionState | None = None,
    live_from: int = 0,
) -> SessionRunner:
    """Return a session that publishes to a log, `ready` first; `Engine.add` sets it to work.

    With `state` it goes on where another was, and has been ready before.

    `options` are a client's own; `label` adds to an event what only the source knows, `enrichment` what else is to be
    known of it. See `SessionRunner` for the rest.
    Raises ConfigError where the model cannot do what is asked for.
    """
    chosen = session_settings(settings, model, options)
    runner = SessionRunner(
        chosen,
        Input(
            kind=kind,
            capacity_samples=round(settings.input.buffer_s * SAMPLE_RATE),
            max_delay_s=settings.stream.max_delay_s,
            reserved=reserved,
            live_from=live_from,
        ),
        Output(
            on_event=log.append,
            on_finished=lambda: log.call_behind(finish),
            label=lambda event: label(event if enriched is None else enriched.label(event)),
            name=log.session,
        ),
        mel=LogMelStream(model.dims.n_mels),
        state=state,
    )
    if chosen.task == "transcribe":  # translations are less probable by nature
        log.subscribe(Confidence(model, runner.logger.warning).take)
    enriched = enrichment.open(log, runner) if enrichment is not None else None
    finish = on_finished if enriched is None else partial(enriched.finish, on_finished)
    if state is None:
        log.append(ready_event(model, chosen.language))
    return runner


def ready_event(model: WhisperModel, language: str) -> Ready:
    """Return the event that opens a session."""
    return Ready(model=model.name, device=dict(model.runtime.devices), sample_rate=SAMPLE_RATE, language=language)


# Least length of captions' windows, whatever short ones the model is compiled for.
SHORTEST_WINDOW_S = 3.0


def session_settings(settings: Settings, model: WhisperModel, options: SessionOptions = NO_OPTIONS) -> SessionSettings:
    """Return a session's settings, with what a client chose where it chose something.

    Raises ConfigError where the model does not know a language, cannot translate, or cannot do what the options say.
    """
    task = options.task or settings.decoding.task
    language = options.language or settings.decoding.language
    for code in options.languages or ():
        model.tokenizer.start_sequence(code, task)
    if language == "auto" and len(set(options.languages or ())) == 1:
        (language,) = set(options.languages or ())
    margin_s, probability = when_stable(settings.stream)
    chosen = SessionSettings(
        gate=gate_settings(settings.speech),
        pace_s=settings.stream.pace_s,
        policy=stability_policy(settings.stream, model),
        n_agreeing=settings.stream.agreement,
        attention_margin_s=margin_s,
        commit_probability=probability,
        show_probability=settings.stream.show_probability,
        trim_after_s=settings.stream.trim_after_s,
        final_silence_s=max(settings.stream.final_silence_s, settings.speech.min_silence_s),
        window_s=settings.stream.window_s or _longest_window_s(model, whole=settings.stream.captions == "exact"),
        condition_on_previous_text=is_conditioned(settings.decoding, model),
        no_speech_threshold=_or(settings.decoding.no_speech_threshold, math.inf),
        logprob_threshold=_or(settings.decoding.logprob_threshold, -math.inf),
        compression_ratio_threshold=_or(settings.decoding.compression_ratio_threshold, math.inf),
        language=model.choose_language(language, task),
        task="transcribe" if task == "both" else task,
        translated=task == "both",
    )
    return _with_options(chosen, settings, model, options)


def _longest_window_s(model: WhisperModel, *, whole: bool) -> float:
    """Return the longest window of captions, behind which there is room for silence.

    whole : whether windows may be as long as the model's longest, and not only as its longest short one
    """
    *short, longest = model.runtime.windows_s
    if whole or not short:
        return longest - SILENCE_S
    return max(SHORTEST_WINDOW_S, short[-1] - (model.silence_s or SILENCE_S))


def _with_options(
    chosen: SessionSettings, settings: Settings, model: WhisperModel, options: SessionOptions
) -> SessionSettings:
    """Return settings with the options that a client named, but for language and task."""
    decoding = _named(initial_prompt=options.initial_prompt, hotwords=options.hotwords, beam_size=options.beam_size)
    gate = _named(threshold=options.vad_threshold, min_silence_s=options.min_silence_s)
    own = dataclasses.replace(decode_options(settings.decoding, model), **decoding)
    return dataclasses.replace(
        chosen,
        **_named(
            languages=options.languages,
            words=options.words,
            pace_s=options.pace_s,
            options=check_decode_options(own, model),
            final_silence_s=options.min_silence_s,
            gate=dataclasses.replace(chosen.gate, **gate) if gate else None,
        ),
    )


def _named(**options: object) -> dict[str, Any]:
    """Return the options that are not None."""
    return {key: value for key, value in options.items() if value is not None}


def write_all(runner: SessionRunner, samples: Float32Array, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Write to a session's buffer, waiting for room; what is left when the session is over or cancelled is dropped."""
    for first in range(0, len(samples), MAX_WRITE_SAMPLES):
        piece = samples[first : first + MAX_WRITE_SAMPLES]
        while not runner.ring.wait_for_room(len(piece), 0.5):
            if runner.over or cancelled():
                return
        runner.write(piece)


def tell_error(log: EventLog, error: StreamerError) -> None:
    """Log what is wrong with a session's audio, and publish it."""
    logger.warning("%s", error)
    log.append(Error(code=error.code, message=str(error), fatal=False))


def _or(threshold: float | None, never: float) -> float:
    """Return a threshold, or where there is none, one that nothing passes."""
    return never if threshold is None else threshold
