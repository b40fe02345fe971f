"""Settings that contradict each other, cannot be, or do not fit a model.

Source: openai-whisper's `decoding.py` (`_verify_options`).
"""

import dataclasses
from pathlib import Path

from streamer.audio.constants import CHUNK_LENGTH_S
from streamer.correct.glossary import read_terms
from streamer.engine.settings import DecodeOptions
from streamer.errors import ConfigError
from streamer.settings.apply import clip_seconds, decode_options, initial_prompt, temperatures, text_tokens
from streamer.settings.table import AUTO, DecodingSettings, Settings
from streamer.speakers.enrolled import enrolled_folder, read_enrolled
from streamer.speakers.models import find_model
from streamer.whisper.decode.grammar import Grammar
from streamer.whisper.decode.hotwords import check_hotwords
from streamer.whisper.decode.suppression import check_suppress_regex, parse_suppress_tokens
from streamer.whisper.hub.published import SHORT_NAMES
from streamer.whisper.model import WhisperModel
from streamer.whisper.shipped import shipped
from streamer.whisper.tokens.special import LANGUAGES

# Largest context of any Whisper's decoder.
MAX_TEXT_CTX = 448

# Characters of an initial prompt. Ten times as many as fit a context; to count the tokens of a million takes seconds.
MAX_PROMPT_LENGTH = 10_000

# Before a transcript: its start, the language, the task, and whether there are timestamps.
START_TOKENS = 4


def check_options(settings: Settings, *, streaming: bool) -> None:
    """Refuse options that contradict each other or cannot be, as far as no model is needed to see that.

    streaming : whether they are for live captions, which begin at temperature 0 whatever is set

    Raises ConfigError.
    """
    decoding = settings.decoding
    if streaming:
        _check_delay(settings)
    if settings.speakers.enabled:
        find_model()
        read_enrolled(enrolled_folder(settings.speakers.enrolled))
    _check_language(settings)
    _check_search(decoding, streaming=streaming)
    for name, text in (("initial_prompt", decoding.initial_prompt), ("prefix", decoding.prefix)):
        # A token never goes on behind a space, so that a text has at least as many tokens as words.
        _check_length(name, len(text.split()), MAX_TEXT_CTX // 2 - 1, "words")
    parse_suppress_tokens(decoding.suppress_tokens)
    check_suppress_regex(decoding.suppress_regex)
    if decoding.grammar:
        Grammar.read(Path(decoding.grammar), decoding.grammar_rule)
    check_hotwords(decoding.hotwords)
    if settings.correction.glossary:
        read_terms(Path(settings.correction.glossary))
    if settings.correction.to:
        from streamer.outputs.completions import completions_url  # it takes 0.1 s, which others need not wait

        completions_url(settings.correction.to)
    clip_seconds(decoding.clip_timestamps)
    if decoding.hallucination_silence_threshold is not None and not decoding.word_timestamps:
        raise ConfigError(
            f"hallucination_silence_threshold is {decoding.hallucination_silence_threshold:g} without word_timestamps:"
            " the silence is found between words; set word_timestamps as well"
        )
    if decoding.hallucination_silence_threshold is not None and decoding.batch_size > 1:
        raise ConfigError(
            f"hallucination_silence_threshold is {decoding.hallucination_silence_threshold:g} and batch_size"
            f" {decoding.batch_size}, with which nobody hears silence: leave out one of the two"
        )
    lines = settings.output
    if lines.max_words_per_line and lines.max_line_width and lines.max_line_count:
        raise ConfigError(
            f"max_words_per_line is {lines.max_words_per_line} beside max_line_width and max_line_count, which alone"
            " decide then: leave it or one of them out"
        )


def check_options_of_model(decoding: DecodingSettings, model: WhisperModel) -> None:
    """Refuse what does not fit a model: its languages, its tasks, the length of its context.

    Raises ConfigError.
    """
    tokenizer, n_text_ctx = model.tokenizer, model.dims.n_text_ctx
    model.choose_language(decoding.language, decoding.task)
    check_decode_options(decode_options(decoding, model), model)
    room = n_text_ctx // 2 - max(decoding.sample_len or 0, START_TOKENS + 1)
    if decoding.prefix and room <= 0:
        raise ConfigError(
            f"sample_len is {decoding.sample_len} and leaves no room for prefix {decoding.prefix!r:.60}: expected less"
            f" than {n_text_ctx // 2}, half of the model's context"
        )
    _check_length("prefix", len(text_tokens(decoding.prefix, tokenizer)), room, "tokens")


def check_decode_options(options: DecodeOptions, model: WhisperModel) -> DecodeOptions:
    """Return what a session chose, its hot words without needless space. Raises ConfigError where it cannot be."""
    if not 1 <= options.beam_size <= model.n_beams:
        raise ConfigError(
            f"beam_size is {options.beam_size}: expected 1{f' to {model.n_beams}' if model.n_beams > 1 else ''}, what"
            " the model was loaded for; to have more, start the program with a larger --beam-size"
        )
    options = dataclasses.replace(options, hotwords=check_hotwords(options.hotwords))
    _check_length("initial_prompt", len(options.initial_prompt), MAX_PROMPT_LENGTH, "characters")
    prompt = text_tokens(initial_prompt(options, model), model.tokenizer)
    name = "initial_prompt, with the hot words before it," if options.hotwords else "initial_prompt"
    # Half of the context is for what was said before, behind a token that says so.
    _check_length(name, len(prompt), model.dims.n_text_ctx // 2 - 1, "tokens")
    return options


def _check_delay(settings: Settings) -> None:
    """Hold the stream's times against each other."""
    stream, most = settings.stream, settings.input.buffer_s - CHUNK_LENGTH_S
    if stream.max_delay_s > most:
        raise ConfigError(
            f"stream.max_delay_s is {stream.max_delay_s:g} with input.buffer_s {settings.input.buffer_s:g}: expected at"
            f" most {most:g}, as a window of {CHUNK_LENGTH_S} s has to be in the buffer, too; raise input.buffer_s"
        )
    if stream.max_pace_s < stream.pace_s:
        raise ConfigError(
            f"stream.max_pace_s is {stream.max_pace_s:g}: expected at least stream.pace_s, which is {stream.pace_s:g}"
        )


def _check_language(settings: Settings) -> None:
    language, task, name = settings.decoding.language, settings.decoding.task, settings.model.name
    # What other models hear, their tokenizers say.
    if name != AUTO and (name not in (*shipped(), *SHORT_NAMES) or Path(name).exists()):
        return
    if language not in ("auto", *LANGUAGES):
        raise ConfigError(f"language is {language!r:.60}: expected auto, or one of {', '.join(LANGUAGES)}")
    if name.endswith(".en"):
        if language not in ("auto", "en"):
            raise ConfigError(f"language is {language}, and {name} hears English only: choose a multilingual model")
        if task != "transcribe":
            raise ConfigError(f"task is {task}, and {name} hears English only: choose a multilingual model")


def _check_search(decoding: DecodingSettings, *, streaming: bool) -> None:
    beam_size, best_of = decoding.beam_size, decoding.best_of
    if streaming:
        return
    if temperatures(decoding) == (0.0,) and best_of is not None:
        if beam_size is not None:
            raise ConfigError(
                f"beam_size is {beam_size} and best_of {best_of}, and only temperature 0 is tried: best_of needs one"
                " above; leave out one of the two, or set temperature_increment_on_fallback"
            )
        raise ConfigError(
            f"best_of is {best_of}, and only temperature 0 is tried, where all texts are the same: set temperature or"
            " temperature_increment_on_fallback"
        )
    if beam_size is not None and decoding.temperature > 0:
        raise ConfigError(
            f"beam_size is {beam_size} and temperature {decoding.temperature:g}: beams are for temperature 0; leave out"
            " one of the two"
        )


def _check_length(name: str, length: int, most: int, unit: str) -> None:
    if length > most:
        raise ConfigError(
            f"{name} has {length} {unit}: expected at most {most}, what the context has room for; shorten it"
        )
