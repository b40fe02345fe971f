"""What the settings of decoding mean for a model, and which of them are refused.

Source: openai-whisper's `transcribe.py` (what is taken from the command line) and `decoding.py` (`_verify_options`).
"""

import dataclasses
import itertools
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamer.constants import TOKENS_PER_SECOND
from streamer.errors import ConfigError
from streamer.extras import requires
from streamer.languages import LANGUAGE_NAMES, nearest
from streamer.settings.table import AUTO, DecodingSettings, Settings, SpeechSettings
from streamer.whisper.decode.fallback import FallbackOptions
from streamer.whisper.decode.filters import LogitFilter
from streamer.whisper.decode.hotwords import HotWords, check_hotwords, hotwords_prompt
from streamer.whisper.decode.suppression import (
    check_suppress_regex,
    matching_tokens,
    parse_suppress_tokens,
    suppressed_tokens,
)
from streamer.whisper.decode.window import FILE_BEAMS, FILE_BEST_OF, WindowOptions
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.locate import is_published
from streamer.whisper.model import WhisperModel
from streamer.whisper.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from streamer.whisper.decode.grammar import Grammar

logger = logging.getLogger(__name__)

# Temperatures go up to this.
HOTTEST = 1.0

# Largest context of any Whisper's decoder.
MAX_TEXT_CTX = 448

# Before a transcript: its start, the language, the task, and whether there are timestamps.
START_TOKENS = 4


# Shortest speech in a file: noise and laughter had bursts of 0.1 to 0.19 s.
FILE_SPEECH_S = 0.2
# Shortest silence that is cut out of a file, and what is kept of it at each end; faster-whisper's.
FILE_SILENCE_S = 2.0
FILE_PAD_S = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedDecoding:
    """The settings of decoding, and what they come to with a model."""

    settings: DecodingSettings

    # When a window is tried again, and at which temperatures.
    fallback: FallbackOptions

    # How a window is decoded that has no prompt; its language may still be `auto`.
    window: WindowOptions

    # The model's own, with what the settings say otherwise.
    generation: GenerationConfig

    # Tokens that the model sees first, and whether it sees what was said last.
    initial_prompt: tuple[int, ...]
    condition_on_previous_text: bool

    # What counts as speech, if only speech is transcribed; None: all audio is.
    speech: SpeechSettings | None

    # Whether words are looked for in the texts, with their times.
    words: bool

    # Start, end, start, end, ... of what is transcribed, in seconds; the last may end with the recording.
    clips: tuple[float, ...]

    # Whether silence follows a recording in its last window, and not zeros in place of its spectrogram.
    pad_with_silence: bool


def resolve_decoding(
    decoding: DecodingSettings, model: WhisperModel, speech: SpeechSettings | None = None, *, words: bool = True
) -> ResolvedDecoding:
    """Return what the settings come to with a model. Raises ConfigError for an invalid pattern or grammar.

    words : whether the caller needs the words of the text
    """
    tokenizer = model.tokenizer
    half = model.dims.n_text_ctx // 2
    prefix = text_tokens(decoding.prefix, tokenizer)
    if decoding.sample_len is not None:
        prefix = prefix[-max(0, half - decoding.sample_len) :]
    return ResolvedDecoding(
        settings=decoding,
        fallback=fallback_options(decoding),
        window=WindowOptions(
            language=decoding.language,
            timestamps=not decoding.without_timestamps,
            prefix=tuple(prefix),
            max_tokens=decoding.sample_len or half,
            best_of=decoding.best_of or FILE_BEST_OF,
            n_beams=decoding.beam_size or min(FILE_BEAMS, model.n_beams),
            patience=decoding.patience or 1.0,
            length_penalty=decoding.length_penalty,
            filters=filters(decoding, model),
            text_only=False,
            keep_attention=False,
        ),
        generation=_generation(decoding, model),
        initial_prompt=prompt_tokens(decoding.initial_prompt, check_hotwords(decoding.hotwords), model),
        condition_on_previous_text=is_conditioned(decoding, model),
        speech=_speech_in_files(speech or SpeechSettings()) if decoding.vad_filter or decoding.batch_size > 1 else None,
        words=words or decoding.word_timestamps,
        clips=clip_seconds(decoding.clip_timestamps),
        pad_with_silence=model.generation.silent_padding,
    )


def _speech_in_files(speech: SpeechSettings) -> SpeechSettings:
    """Return what counts as speech in files: pauses stay, since Whisper uses them, and padding clips no word."""
    return SpeechSettings(
        threshold=speech.threshold,
        min_speech_s=max(speech.min_speech_s, FILE_SPEECH_S),
        min_silence_s=max(speech.min_silence_s, FILE_SILENCE_S),
        pad_s=max(speech.pad_s, FILE_PAD_S),
    )


def fallback_options(decoding: DecodingSettings) -> FallbackOptions:
    return FallbackOptions(
        temperatures=temperatures(decoding),
        compression_ratio_threshold=decoding.compression_ratio_threshold,
        logprob_threshold=decoding.logprob_threshold,
        no_speech_threshold=decoding.no_speech_threshold,
        entropy_threshold=decoding.entropy_threshold,
        keep_last=decoding.keep_failed == "last",
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
        grammar = _read_grammar(decoding)
        from streamer.whisper.decode.grammar import GrammarFilter

        found.append(GrammarFilter(grammar, model.tokenizer, decoding.grammar_penalty))
    return tuple(found)


def _read_grammar(decoding: DecodingSettings) -> "Grammar":
    """Return the grammar that the settings name. Raises ConfigError."""
    requires("llguidance", extra="grammar", purpose="--grammar")
    from streamer.whisper.decode.grammar import Grammar

    return Grammar.read(Path(decoding.grammar), decoding.grammar_rule)


def check_decoding(settings: Settings, *, streaming: bool) -> None:
    """Refuse options of decoding that contradict each other or are invalid, as far as no model is needed to see that.

    streaming : whether they are for live captions, which begin at temperature 0 whatever is set

    Raises ConfigError.
    """
    decoding = settings.decoding
    _check_language(settings)
    if not streaming:
        _check_search(decoding)
    # A token never goes on behind a space, so that a text has at least as many tokens as words.
    _check_length("prefix", len(decoding.prefix.split()), MAX_TEXT_CTX // 2 - 1, "words")
    parse_suppress_tokens(decoding.suppress_tokens)
    check_suppress_regex(decoding.suppress_regex)
    if decoding.grammar:
        _read_grammar(decoding)
    check_hotwords(decoding.hotwords)
    clip_seconds(decoding.clip_timestamps)
    if decoding.hallucination_silence_threshold is None:
        return
    threshold = f"hallucination_silence_threshold is {decoding.hallucination_silence_threshold:g}"
    if not decoding.word_timestamps:
        raise ConfigError(
            f"{threshold} without word_timestamps: silence is measured between words; set word_timestamps as well"
        )
    if decoding.batch_size > 1:
        raise ConfigError(
            f"{threshold} and batch_size {decoding.batch_size}, but batches hold no silence: leave out one of the two"
        )


def check_options_of_model(decoding: DecodingSettings, model: WhisperModel) -> None:
    """Refuse what does not fit a model: its languages, its tasks, the length of its context.

    Raises ConfigError.
    """
    tokenizer, n_text_ctx = model.tokenizer, model.dims.n_text_ctx
    model.choose_language(decoding.language, decoding.task)
    check_decode_options(decoding, model)
    room = n_text_ctx // 2 - max(decoding.sample_len or 0, START_TOKENS + 1)
    if decoding.prefix and room <= 0:
        raise ConfigError(
            f"sample_len is {decoding.sample_len} and leaves no room for prefix {decoding.prefix!r:.60}: expected less"
            f" than {n_text_ctx // 2}, half of the model's context"
        )
    _check_length("prefix", len(text_tokens(decoding.prefix, tokenizer)), room, "tokens")


def check_decode_options(options: DecodingSettings, model: WhisperModel) -> DecodingSettings:
    """Return the settings of a session with its hot words and beams: none are as many as the model was loaded for.

    Raises ConfigError if the model cannot follow them.
    """
    n_beams = model.n_beams if options.beam_size is None else options.beam_size
    if not 1 <= n_beams <= model.n_beams:
        raise ConfigError(
            f"beam_size is {n_beams}: expected 1{f' to {model.n_beams}' if model.n_beams > 1 else ''}, what"
            " the model was loaded for; for more, start the program with a larger --beam-size"
        )
    return msgspec.structs.replace(options, hotwords=check_hotwords(options.hotwords), beam_size=n_beams)


def _check_language(settings: Settings) -> None:
    language, task, name = settings.decoding.language, settings.decoding.task, settings.model.name
    # The tokenizers of other models know their languages.
    if name != AUTO and not is_published(name):
        return
    if language not in ("auto", *LANGUAGE_NAMES):
        raise ConfigError(
            f"language is {language!r}: expected auto, or the name or code of a language that Whisper supports, such as"
            f" german or de{nearest(language)}"
        )
    if name.endswith(".en"):
        if language not in ("auto", "en"):
            raise ConfigError(f"language is {language}, and {name} knows English only: choose a multilingual model")
        if task != "transcribe":
            raise ConfigError(f"task is {task}, and {name} knows English only: choose a multilingual model")


def _check_search(decoding: DecodingSettings) -> None:
    beam_size, best_of = decoding.beam_size, decoding.best_of
    if temperatures(decoding) == (0.0,) and best_of is not None:
        if beam_size is not None:
            raise ConfigError(
                f"beam_size is {beam_size} and best_of {best_of}, but only temperature 0 is used: best_of needs a"
                " higher one; leave out one of the two, or set temperature_increment_on_fallback"
            )
        raise ConfigError(
            f"best_of is {best_of}, but only temperature 0 is used, which always gives the same text: set temperature"
            " or temperature_increment_on_fallback"
        )
    if beam_size is not None and decoding.temperature > 0:
        raise ConfigError(
            f"beam_size is {beam_size} and temperature {decoding.temperature:g}: beam search needs temperature 0; leave"
            " out one of the two"
        )


def _check_length(name: str, length: int, most: int, unit: str) -> None:
    if length > most:
        raise ConfigError(
            f"{name} has {length} {unit}: expected at most {most}, which is the room in the model's context; shorten it"
        )
