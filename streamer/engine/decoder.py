"""Whisper as the streaming engine's encoder and decoder."""

import dataclasses
import time
from collections.abc import Callable
from functools import lru_cache

import msgspec

from streamer.arrays import Float32Array
from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.engine.engine import MAX_PACE_S, Engine
from streamer.engine.workers import note_progress
from streamer.session.language import choose_language, is_doubtful, language_outside, next_likely, only_among
from streamer.session.task import Request
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode.fallback import decode_with_fallback
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.decode.search import drawer
from streamer.whisper.decode.timing import to_hypothesis
from streamer.whisper.decode.window import WindowOptions, detect_language, max_tokens_for
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import (
    check_decode_options,
    prompt_tokens,
    resolve_decoding,
    temperatures,
)
from streamer.whisper.result import Hypothesis

# How many sessions' options are kept ready for decoding; a thousand hot words take about 10 MB.
MAX_PREPARED = 32


class WhisperDecoder:
    """Decodes encoded windows without timestamps, after the stable words; word times come from the attention."""

    def __init__(
        self, model: WhisperModel, decoding: DecodingSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raise ConfigError if the model cannot do what the settings ask for.

        clock : in seconds, for the time that further attempts may take
        """
        self._model = model
        self._decoding = decoding
        self._clock = clock
        # Hot words are each session's own.
        chosen = resolve_decoding(msgspec.structs.replace(decoding, hotwords=()), model)
        self._config = chosen.generation
        # Options of sessions that chose none.
        self._own = check_decode_options(decoding, model)
        # Whether the model sees the initial prompt before every window.
        self._carried = decoding.carry_initial_prompt
        # Temperatures of further attempts; the first is at 0.
        ladder = temperatures(decoding) if decoding.temperature_increment_on_fallback is not None else ()
        # The entropy of the last 32 tokens says nothing about a short window.
        self._fallback = dataclasses.replace(
            chosen.fallback,
            temperatures=(0.0, *(temperature for temperature in ladder if temperature > 0)),
            entropy_threshold=None,
            keep_last=False,
        )
        self._once = dataclasses.replace(self._fallback, temperatures=(0.0,))
        # The same for all windows.
        self._options = WindowOptions(
            language="en",
            best_of=decoding.best_of or 1,
            patience=chosen.window.patience,
            length_penalty=chosen.window.length_penalty,
            filters=chosen.window.filters,
            stop_at_loop=True,
        )
        # By options: building the tree of many hot words takes as long as decoding a window.
        self._prepared = lru_cache(MAX_PREPARED)(self._prepare)

    def decode(
        self, encoded: EncodedWindow, request: Request, others_wait: Callable[[], bool] = lambda: False
    ) -> Hypothesis:
        """Decode a window. Raises InferenceError if the device fails, and no other is left.

        others_wait : returns whether another session waits for the decoder: attempts at a better text end then
        """
        return self._model.run(lambda runtime: self._decode(runtime.decoder_of(encoded), request, others_wait))

    def _decode(self, decoder: Decoder, request: Request, others_wait: Callable[[], bool]) -> Hypothesis:
        n_calls_before = decoder.n_calls
        language, sure, outside, other = self._language(decoder, request)
        if outside:  # in any other language its words are nonsense: it becomes a gap
            n_calls = decoder.n_calls - n_calls_before
            return Hypothesis((), language, 0.0, 0.0, language_sure=False, language_outside=outside, n_calls=n_calls)
        own = request.options or self._own
        initial, options = self._prepared(own.initial_prompt, own.hotwords, own.beam_size or 1)
        options = dataclasses.replace(
            options,
            language=language,
            task=request.task,
            prompt=self._prompt(request, initial, decoder.capacity),
            begins_with=request.prefix,
            # A guess that has to be checked token by token saves nothing.
            draft=request.draft if decoder.block_tokens > 1 else (),
            max_tokens=max_tokens_for(request.n_samples),
        )
        tokenizer, config = self._model.tokenizer, self._config
        window = decode_with_fallback(decoder, tokenizer, config, options, self._once)
        cut_short = False
        if window.failed and request.retry_s > 0:
            until_s = self._clock() + request.retry_s

            def cancelled() -> bool:
                nonlocal cut_short
                cut_short = cut_short or others_wait()
                return cut_short or self._clock() >= until_s

            window = decode_with_fallback(
                decoder,
                tokenizer,
                config,
                options,
                self._fallback,
                cancelled=cancelled,
                # The same draws for each window, whatever was drawn for others.
                draw=drawer(self._decoding.seed),
                first=window,
            )
        hypothesis = to_hypothesis(window, tokenizer, language, request.n_samples)
        n_calls = decoder.n_calls - n_calls_before
        return dataclasses.replace(
            hypothesis,
            language_sure=sure,
            other_language=other,
            cut_short=cut_short,
            n_calls=n_calls,
        )

    def _language(self, decoder: Decoder, request: Request) -> tuple[str, bool, str, str]:
        """Return the language to decode in, whether it is sure, a spoken one that is not allowed, and the next likely.

        The last two may be empty.
        """
        allowed = request.languages or tuple(self._model.tokenizer.languages)
        if request.language == "auto" and len(allowed) == 1:
            return allowed[0], True, "", ""
        if request.language != "auto" and not request.chosen:
            return request.language, True, "", ""
        _, probabilities = detect_language(decoder, self._model.tokenizer)
        outside = language_outside(probabilities, request.n_samples, allowed)
        probabilities = only_among(probabilities, allowed)
        if request.language == "auto":
            language, sure = choose_language(probabilities, request.n_samples, request.known_languages)
        else:
            language = request.language
            sure = not is_doubtful(probabilities.get(language, 0.0), request.n_samples)
        return language, sure, outside, next_likely(probabilities, language)

    def _prepare(self, prompt: str, hotwords: tuple[str, ...], n_beams: int) -> tuple[tuple[int, ...], WindowOptions]:
        """Return the tokens of the initial prompt, and how to decode the windows of a session."""
        tokenizer = self._model.tokenizer
        filters = self._options.filters
        if hotwords:
            filters = (HotWords(tokenizer, hotwords, self._decoding.hotwords_boost), *filters)
        options = dataclasses.replace(self._options, filters=filters, n_beams=n_beams)
        return prompt_tokens(prompt, hotwords, self._model), options

    def _prompt(self, request: Request, initial: tuple[int, ...], capacity: int) -> tuple[int, ...]:
        """Return the prompt of a window: the initial prompt, and what was said."""
        said = tuple(self._model.tokenizer.encode(request.prompt)) if request.prompt else ()
        if self._carried:
            # Decoding keeps the newest part of a prompt that is too long.
            room = capacity // 2 - 1 - len(initial)
            return (*initial, *said[max(0, len(said) - room) :])
        return (*initial, *said) if said or request.first else ()


class WhisperEncoder:
    """Encodes windows into the buffers of the model's runtime."""

    def __init__(self, model: WhisperModel) -> None:
        self._model = model

    def encode(self, mel: Float32Array, buffer: int, n_samples: int = N_SAMPLES) -> EncodedWindow:
        """Encode a mel spectrogram, shape (n_mels, 3000), in the shortest window that holds its audio.

        n_samples : length of the audio, behind which there is silence

        Raises InferenceError if the device fails, and no other is left.
        """
        n_needed = n_samples + round(self._model.silence_s * SAMPLE_RATE)
        return self._model.run(lambda runtime: runtime.encode(mel[:, : runtime.frames_for(n_needed)], buffer))


def make_engine(
    model: WhisperModel, decoding: DecodingSettings, *, max_pace_s: float = MAX_PACE_S
) -> Engine[EncodedWindow]:
    """Return an engine that transcribes with this model; it is not started yet. See `Engine` for `max_pace_s`.

    Raises ConfigError if the model cannot do what the settings ask for.
    """
    encoder, decoder = WhisperEncoder(model), WhisperDecoder(model, decoding)
    engine = Engine(encoder, decoder, max_pace_s=max_pace_s, prepare=model.wake, loading=lambda: model.recovering)
    model.call_before(note_progress)
    return engine
