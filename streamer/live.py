"""Whisper as the streaming engine's encoder and decoder."""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import N_SAMPLES, SAMPLE_RATE
from streamer.config import DecodingSettings, Settings
from streamer.events import Ready
from streamer.options import (
    check_decode_options,
    decode_options,
    initial_prompt,
    temperatures,
    text_tokens,
    transcribe_options,
)
from streamer.server.messages import SessionOptions
from streamer.stream.engine import MAX_PACE_S, Engine
from streamer.stream.eventlog import EventLog
from streamer.stream.gate import GateSettings
from streamer.stream.runner import AudioKind, SessionRunner
from streamer.stream.settings import SessionSettings
from streamer.stream.window import Request
from streamer.whisper.decoding.fallback import at_temperature, has_failed
from streamer.whisper.decoding.filters import LogitFilter
from streamer.whisper.decoding.hotwords import HotWords
from streamer.whisper.decoding.options import DecodeOptions
from streamer.whisper.decoding.search import Draw, drawer
from streamer.whisper.decoding.window import WindowOptions, decode_window, detect_language, max_tokens_for
from streamer.whisper.decoding.words import to_hypothesis
from streamer.whisper.model import WhisperModel
from streamer.whisper.result import Hypothesis
from streamer.whisper.runtime import DecoderRuntime, EncodedWindow

# A window is decoded in another language than the known one where the other is likelier than all the rest together, and
# this many times as likely as the known one. Speakers mostly go on in one language, and where only two may be spoken
# one of them is always likelier than even, whatever a short word such as "no" sounds like.
SURE_PROBABILITY = 0.5
SURE_ODDS = 3.0

# Sessions' options whose prompts and hot words are kept ready; a thousand hot words take about 10 MB.
MAX_PREPARED = 32

# The options of a client that has none.
NO_OPTIONS = SessionOptions()

# Audio put into a session's buffer at a time by a source that can wait for room.
MAX_WRITE_SAMPLES = SAMPLE_RATE // 2


class WhisperDecoder:
    """Decodes encoded windows without timestamps, from the settled words on; word times come from the attention."""

    def __init__(
        self, model: WhisperModel, decoding: DecodingSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raise ConfigError where the model cannot do what the settings ask for.

        clock : in seconds, for the time that further attempts may take
        """
        self._model = model
        self._decoding = decoding
        self._clock = clock
        # Hot words are each session's own.
        chosen = transcribe_options(dataclasses.replace(decoding, hotwords=()), model)
        self._config = chosen.generation(model.generation, model.tokenizer)
        # Of sessions that chose nothing.
        self._own = check_decode_options(decode_options(decoding, model), model)
        # Whether the model sees the initial prompt before every window.
        self._carried = chosen.carry_initial_prompt
        # When a text is not to be trusted. The last 32 tokens of a short window would tell nothing by their entropy.
        self._fallback = dataclasses.replace(chosen.fallback(), entropy_threshold=None)
        # Temperatures of further attempts; the first is at 0.
        self._ladder: tuple[float, ...] = ()
        if decoding.temperature_increment_on_fallback is not None:
            self._ladder = tuple(temperature for temperature in temperatures(decoding) if temperature > 0)
        # The same for all windows.
        self._options = WindowOptions(
            language="en",
            best_of=chosen.best_of or 1,
            patience=chosen.patience or 1.0,
            length_penalty=chosen.length_penalty,
            filters=chosen.filters,
            stop_at_loop=True,
        )
        # By options and language. To build the tree of many hot words takes as long as a pass.
        self._prepared = lru_cache(MAX_PREPARED)(self._prepare)

    def decode(self, encoded: EncodedWindow, request: Request) -> Hypothesis:
        """Decode a window as asked for. Raises InferenceError where the device fails, and no other is left."""
        return self._model.run(lambda runtime: self._decode(runtime.decoder_of(encoded), request))

    def _decode(self, decoder: DecoderRuntime, request: Request) -> Hypothesis:
        n_calls_before = decoder.n_calls
        language, probability = self._language(decoder, request)
        prepared = self._prepared(request.options or self._own, language)
        options = dataclasses.replace(
            self._options,
            language=language,
            task=request.task,
            prompt=self._prompt(request, prepared.initial),
            begins_with=request.prefix,
            # A guess that has to be checked token by token saves nothing.
            draft=request.draft if decoder.block_tokens > 1 else (),
            max_tokens=max_tokens_for(request.n_samples),
            n_beams=prepared.n_beams,
            filters=prepared.filters,
        )
        hypothesis = self._attempt(decoder, options, request)
        if hypothesis.failed and request.retry_s > 0:
            hypothesis = self._retry(decoder, options, request, hypothesis)
        n_calls = decoder.n_calls - n_calls_before
        return dataclasses.replace(hypothesis, language_probability=probability, n_calls=n_calls)

    def _language(self, decoder: DecoderRuntime, request: Request) -> tuple[str, float]:
        """Return the language to decode in, and how probable it is among those that it may be."""
        if request.language != "auto":
            return request.language, 1.0
        among = request.languages or tuple(self._model.tokenizer.languages)
        if len(among) == 1:
            return among[0], 1.0
        found, probabilities = detect_language(decoder, self._model.tokenizer, among)
        known = request.known_language
        if known in probabilities:
            least = max(SURE_PROBABILITY, SURE_ODDS * probabilities[known])
            if probabilities[found] < least:
                found = known
        return found, probabilities[found]

    def _attempt(
        self,
        decoder: DecoderRuntime,
        options: WindowOptions,
        request: Request,
        cancelled: Callable[[], bool] = lambda: False,
        draw: Draw | None = None,
    ) -> Hypothesis:
        tokenizer = self._model.tokenizer
        window = decode_window(decoder, tokenizer, self._config, options, cancelled, draw)
        hypothesis = to_hypothesis(window, tokenizer, options.language, request.n_samples)
        failed = has_failed(window, hypothesis.compression_ratio, self._fallback)
        return dataclasses.replace(hypothesis, failed=failed)

    def _retry(
        self, decoder: DecoderRuntime, options: WindowOptions, request: Request, failed: Hypothesis
    ) -> Hypothesis:
        """Try higher temperatures until a text is trusted or the time is up; return the best, the first included."""
        until_s = self._clock() + request.retry_s
        best = failed
        # The same draws for each window, whatever was drawn for others.
        draw = drawer(self._decoding.seed)
        for temperature in self._ladder:
            attempt = self._attempt(
                decoder, at_temperature(options, temperature), request, lambda: self._clock() >= until_s, draw
            )
            if self._clock() >= until_s:
                break  # it was cut off
            best = max(best, attempt, key=lambda hypothesis: (not hypothesis.failed, hypothesis.avg_logprob))
            if not best.failed:
                break
        return best

    def _prepare(self, options: DecodeOptions, language: str) -> "_Prepared":
        tokenizer = self._model.tokenizer
        filters = self._options.filters
        if options.hotwords:
            filters = (HotWords(tokenizer, options.hotwords, language, self._decoding.hotwords_boost), *filters)
        initial = tuple(text_tokens(initial_prompt(options, self._model), tokenizer))
        return _Prepared(initial, filters, options.beam_size)

    def _prompt(self, request: Request, initial: tuple[int, ...]) -> tuple[int, ...]:
        """Return what the model sees before a window: what it was told to see first, and what was said."""
        said = tuple(self._model.tokenizer.encode(request.prompt)) if request.prompt else ()
        if self._carried:
            # Decoding keeps the newest part of a prompt that is too long.
            room = self._model.runtime.decoder.capacity // 2 - 1 - len(initial)
            return (*initial, *said[max(0, len(said) - room) :])
        return (*initial, *said) if said or request.first else ()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a session's options come to."""

    # Tokens that the model sees first.
    initial: tuple[int, ...]

    # Further rules on what may come next.
    filters: tuple[LogitFilter, ...]
    n_beams: int


class WhisperEncoder:
    """Encodes windows into the buffers of the model's runtime."""

    def __init__(self, model: WhisperModel) -> None:
        self._model = model

    def encode(self, mel: NDArray[np.float32], buffer: int, n_samples: int = N_SAMPLES) -> EncodedWindow:
        """Encode a mel spectrogram, shape (n_mels, 3000), in the shortest window that holds its audio.

        n_samples : length of the audio, behind which there is silence

        Raises InferenceError where the device fails, and no other is left.
        """
        n_frames = self._model.runtime.frames_for(n_samples)
        return self._model.run(lambda runtime: runtime.encode(mel[:, :n_frames], buffer))


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
    kind: AudioKind,
    reserved: bool = False,
    on_finished: Callable[[], None],
    options: SessionOptions = NO_OPTIONS,
) -> SessionRunner:
    """Return a session that publishes to a log, `ready` first; `Engine.add` sets it to work.

    `options` are a client's own. See `SessionRunner` for the rest.
    Raises ConfigError where the model cannot do what is asked for.
    """
    chosen = session_settings(settings, model, options)
    runner = SessionRunner(
        chosen,
        kind=kind,
        capacity_samples=round(settings.input.buffer_s * SAMPLE_RATE),
        n_mels=model.dims.n_mels,
        max_delay_s=settings.stream.max_delay_s,
        reserved=reserved,
        on_event=log.append,
        on_finished=on_finished,
    )
    log.append(ready_event(model, chosen.language))
    return runner


def ready_event(model: WhisperModel, language: str) -> Ready:
    """Return the event that opens a session."""
    return Ready(model=model.name, device=dict(model.runtime.devices), sample_rate=SAMPLE_RATE, language=language)


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
        language=model.tokenizer.choose_language(language, task),
        task=task,
    )
    return _with_options(chosen, settings, model, options)


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
            gate=dataclasses.replace(chosen.gate, **gate) if gate else None,
        ),
    )


def _named(**options: object) -> dict[str, Any]:
    """Return the options that are not None."""
    return {key: value for key, value in options.items() if value is not None}


def write_all(
    runner: SessionRunner, samples: NDArray[np.float32], cancelled: Callable[[], bool] = lambda: False
) -> None:
    """Write to a session's buffer, waiting for room; what is left when the session is over or cancelled is dropped."""
    for first in range(0, len(samples), MAX_WRITE_SAMPLES):
        piece = samples[first : first + MAX_WRITE_SAMPLES]
        while not runner.ring.wait_for_room(len(piece), 0.5):
            if runner.over or cancelled():
                return
        runner.write(piece)


def _or(threshold: float | None, never: float) -> float:
    """Return a threshold, or where there is none, one that nothing passes."""
    return never if threshold is None else threshold
