"""What the settings of decoding come to with a model. Source: openai-whisper's `transcribe.py`, its command line."""

import dataclasses
import itertools
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamer.constants import TOKENS_PER_SECOND
from streamer.errors import ConfigError
from streamer.extras import requires
from streamer.settings.table import DecodingSettings, SpeechSettings
from streamer.whisper.decode.filters import LogitFilter
from streamer.whisper.decode.hotwords import HotWords, check_hotwords, hotwords_prompt
from streamer.whisper.decode.options import DecodeOptions
from streamer.whisper.decode.suppression import (
    matching_tokens,
    parse_suppress_tokens,
    suppressed_tokens,
)
from streamer.whisper.decode.window import FILE_BEAMS, FILE_BEST_OF
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.model import WhisperModel
from streamer.whisper.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from streamer.whisper.decode.grammar import Grammar

logger = logging.getLogger(__name__)

# Temperatures go up to this.
HOTTEST = 1.0

# Shortest speech in a file: noise and laughter had bursts of 0.1 to 0.19 s.
FILE_SPEECH_S = 0.2
# Shortest silence that is cut out of a file, and what is kept of it at each end; faster-whisper's.
FILE_SILENCE_S = 2.0
FILE_PAD_S = 0.4


def decode_options(
    decoding: DecodingSettings,
    model: WhisperModel,
    speech: SpeechSettings | None = None,
    *,
    words: bool = True,
    live: bool = False,
) -> DecodeOptions:
    """Return what the settings come to with a model. Raises ConfigError for an invalid pattern or grammar.

    words : whether the caller needs the words of the text
    live : whether windows are those of live captions
    """
    ladder = temperatures(decoding)
    if live:
        # The first attempt is at 0. The entropy of the last 32 tokens says nothing about a short window.
        climbs = decoding.temperature_increment_on_fallback is not None
        ladder = (0.0, *(temperature for temperature in ladder if climbs and temperature > 0))
        decoding = msgspec.structs.replace(decoding, prefix="", entropy_threshold=None, keep_failed="best")
    prefix = text_tokens(decoding.prefix, model.tokenizer)
    if decoding.sample_len is not None:
        prefix = prefix[-max(0, model.dims.n_text_ctx // 2 - decoding.sample_len) :]
    only_speech = not live and (decoding.vad_filter or decoding.batch_size > 1)
    return DecodeOptions(
        settings=decoding,
        generation=_generation(decoding, model),
        live=live,
        n_beams=decoding.beam_size or min(FILE_BEAMS, model.n_beams),
        best_of=decoding.best_of or (1 if live else FILE_BEST_OF),
        temperatures=ladder,
        filters=filters(decoding, model),
        initial_prompt=prompt_tokens(decoding.initial_prompt, check_hotwords(decoding.hotwords), model),
        prefix=tuple(prefix),
        conditioned=is_conditioned(decoding, model),
        speech=_speech_in_files(speech or SpeechSettings()) if only_speech else None,
        words=words or decoding.word_timestamps,
    )


def _speech_in_files(speech: SpeechSettings) -> SpeechSettings:
    """Return what counts as speech in files: pauses stay, since Whisper uses them, and padding clips no word."""
    return SpeechSettings(
        threshold=speech.threshold,
        min_speech_s=max(speech.min_speech_s, FILE_SPEECH_S),
        min_silence_s=max(speech.min_silence_s, FILE_SILENCE_S),
        pad_s=max(speech.pad_s, FILE_PAD_S),
    )


def _generation(decoding: DecodingSettings, model: WhisperModel) -> GenerationConfig:
    """Return a model's settings with what ours say otherwise. Raises ConfigError for an unknown token."""
    tokenizer, config = model.tokenizer, model.generation
    listed = parse_suppress_tokens(decoding.suppress_tokens)
    if decoding.suppress_regex:
        listed += matching_tokens(decoding.suppress_regex, tokenizer.spelled)
    suppressed = suppressed_tokens(listed, config.suppress_tokens, tokenizer.n_vocab)
    if listed:
        # As in openai-whisper, control tokens are forbidden with a list, and come with an empty one.
        suppressed = (*suppressed, *tokenizer.special.controls)
    latest_s = decoding.max_initial_timestamp
    return dataclasses.replace(
        config,
        suppress_tokens=tuple(sorted(set(suppressed))),
        begin_suppress_tokens=config.begin_suppress_tokens if decoding.suppress_blank else (),
        max_initial_timestamp_index=round(latest_s * TOKENS_PER_SECOND) if latest_s else None,
    )


def is_conditioned(decoding: DecodingSettings, model: WhisperModel) -> bool:
    """Return whether the model sees what was said last."""
    wanted = decoding.condition_on_previous_text
    return model.generation.prompted if wanted == "auto" else wanted == "always"


def text_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a prompt or a prefix; none if it is blank."""
    return tokenizer.encode(f" {text.strip()}") if text.strip() else []


def clip_seconds(text: str) -> tuple[float, ...]:
    """Read `start,end,start,end,...` in seconds; the last end may be missing, and is that of the file then.

    Raises ConfigError if it is something else, negative, or not in order.
    """
    try:
        times = tuple(float(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        times = (math.nan,)
    if not all(math.isfinite(time) and time >= 0 for time in times):
        raise ConfigError(
            f"clip_timestamps is {text!r:.60}: expected start,end,start,end,... in seconds from 0 on, such as 0,12.5,60"
        )
    for i, (before, time) in enumerate(itertools.pairwise(times)):
        # A clip has a length; the next may begin where it ends.
        if time < before or (time == before and i % 2 == 0):
            raise ConfigError(
                f"clip_timestamps is {text!r:.60}, and {time:g} comes after {before:g}: expected rising times, each"
                " clip's end after its start"
            )
    return times


def temperatures(decoding: DecodingSettings) -> tuple[float, ...]:
    """Return the temperatures that a window is decoded at, one after another until its text can be trusted."""
    first, increment = decoding.temperature, decoding.temperature_increment_on_fallback
    if increment is None:
        return (first,)
    n_more = math.floor((HOTTEST - first) / increment + 1e-6)
    return tuple(round(first + i * increment, 6) for i in range(n_more + 1))


def prompt_tokens(prompt: str, hotwords: tuple[str, ...], model: WhisperModel) -> tuple[int, ...]:
    """Return the text before the first window: a prompt, behind hot words for a model that was trained with prompts.

    Of one that is too long the decoder sees the end: half of its context is for what was said before.
    """
    words = hotwords_prompt(hotwords) if model.generation.prompted else ""
    tokens = text_tokens(f"{words} {prompt.strip()}", model.tokenizer)
    most = model.dims.n_text_ctx // 2 - 1
    if len(tokens) > most:
        logger.info("initial prompt: the model sees the last %d of its %d tokens", most, len(tokens))
    return tuple(tokens)


def filters(decoding: DecodingSettings, model: WhisperModel) -> tuple[LogitFilter | HotWords, ...]:
    """Return further rules on the next token. Raises ConfigError for an invalid hot word or grammar."""
    found: list[LogitFilter | HotWords] = []
    if decoding.hotwords:
        phrases = check_hotwords(decoding.hotwords)
        found.append(HotWords(model.tokenizer, phrases, decoding.hotwords_boost))
    if decoding.grammar:
        grammar = read_grammar(decoding)
        from streamer.whisper.decode.grammar import GrammarFilter

        found.append(GrammarFilter(grammar, model.tokenizer, decoding.grammar_penalty))
    return tuple(found)


def read_grammar(decoding: DecodingSettings) -> "Grammar":
    """Return the grammar that the settings name. Raises ConfigError."""
    requires("llguidance", extra="grammar", purpose="--grammar")
    from streamer.whisper.decode.grammar import Grammar

    return Grammar.read(Path(decoding.grammar), decoding.grammar_rule)
