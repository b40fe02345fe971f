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
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.search import drawer
from streamer.whisper.decode.timing import to_hypothesis
from streamer.whisper.decode.window import detect_language, max_tokens_for
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.option_checks import check_decode_options
from streamer.whisper.options import decode_options, prompt_tokens
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
        self._clock = clock
        # Hot words are each session's own.
        self._options = decode_options(msgspec.structs.replace(decoding, hotwords=()), model, live=True)
        # Options of sessions that chose none.
        self._own = check_decode_options(decoding, model)
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
        options = self._prepared(own.initial_prompt, own.hotwords, own.beam_size or 1)
        task = WindowTask(
            language=language,
            task=request.task,
            prompt=self._prompt(request, options.initial_prompt, decoder.capacity),
            begins_with=request.prefix,
            # A guess that has to be checked token by token saves nothing.
            draft=request.draft if decoder.block_tokens > 1 else (),
            max_tokens=max_tokens_for(request.n_samples),
        )
        tokenizer = self._model.tokenizer
        once = dataclasses.replace(options, temperatures=options.temperatures[:1])
        window = decode_with_fallback(decoder, tokenizer, once, task)
        cut_short = False
        if window.failed and request.retry_s > 0:
            until_s = self._clock() + request.retry_s

            def cancelled() -> bool:
                nonlocal cut_short
                cut_short = cut_short or others_wait()
                return cut_short or self._clock() >= until_s

            # The same draws for each window, whatever was drawn for others.
            draw = drawer(options.settings.seed)
            window = decode_with_fallback(decoder, tokenizer, options, task, cancelled, draw, first=window)
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

    def _prepare(self, prompt: str, hotwords: tuple[str, ...], n_beams: int) -> DecodeOptions:
        """Return how the windows of a session are decoded that chose these."""
        filters = self._options.filters
        if hotwords:
            boost = self._options.settings.hotwords_boost
            filters = (HotWords(self._model.tokenizer, hotwords, boost), *filters)
        initial_prompt = prompt_tokens(prompt, hotwords, self._model)
        return dataclasses.replace(self._options, filters=filters, n_beams=n_beams, initial_prompt=initial_prompt)

    def _prompt(self, request: Request, initial: tuple[int, ...], capacity: int) -> tuple[int, ...]:
        """Return the prompt of a window: the initial prompt, and what was said."""
        said = tuple(self._model.tokenizer.encode(request.prompt)) if request.prompt else ()
        if self._options.settings.carry_initial_prompt:
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
