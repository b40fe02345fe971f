"""What the settings of decoding mean for a model.

Source: openai-whisper's `transcribe.py` (what is taken from the command line) and `decoding.py`.
"""

import dataclasses
import functools
import itertools
import logging
import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from streamer.audio.constants import TOKENS_PER_SECOND
from streamer.engine.gate import GateSettings
from streamer.engine.settings import DecodeOptions
from streamer.errors import ConfigError
from streamer.settings.table import DecodingSettings, SpeechSettings, StreamSettings
from streamer.whisper.decode.fallback import FallbackOptions
from streamer.whisper.decode.filters import LogitFilter
from streamer.whisper.decode.grammar import Grammar, GrammarFilter
from streamer.whisper.decode.hotwords import HotWords, check_hotwords, hotwords_prompt
from streamer.whisper.decode.suppression import matching_tokens, parse_suppress_tokens, suppressed_tokens
from streamer.whisper.decode.window import FILE_BEAMS, FILE_BEST_OF, WindowOptions
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.model import WhisperModel
from streamer.whisper.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Temperatures go up to this.
HOTTEST = 1.0


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

    # What counts as speech, where speech alone is heard; None: all is.
    speech: GateSettings | None

    # Whether words are looked for in the texts, with their times.
    words: bool

    # Start, end, start, end, ... of what is transcribed, in seconds; the last may end with the recording.
    clips: tuple[float, ...]

    # Whether silence follows a recording in its last window, and not zeros in place of its spectrogram.
    pad_with_silence: bool


def resolve_decoding(
    decoding: DecodingSettings, model: WhisperModel, speech: SpeechSettings | None = None, *, words: bool = True
) -> ResolvedDecoding:
    """Return what the settings come to with a model. Raises ConfigError where a pattern or a grammar cannot be used.

    words : whether whoever reads the text wants to know its words
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
        initial_prompt=tuple(text_tokens(initial_prompt(decode_options(decoding, model), model), tokenizer)),
        condition_on_previous_text=is_conditioned(decoding, model),
        speech=_file_gate(speech or SpeechSettings()) if decoding.vad_filter or decoding.batch_size > 1 else None,
        words=words or decoding.word_timestamps,
        clips=clip_seconds(decoding.clip_timestamps),
        pad_with_silence=model.generation.silent_padding,
    )


def gate_settings(speech: SpeechSettings) -> GateSettings:
    return GateSettings(**msgspec.structs.asdict(speech))


def _file_gate(speech: SpeechSettings) -> GateSettings:
    """Return what counts as speech in files: pauses stay, since Whisper uses them, and padding clips no word."""
    return GateSettings(
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
    """Return a model's settings with what ours say otherwise. Raises ConfigError where it has no such token."""
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


# Attention margin in seconds and probability from which a word is stable (measured on people: docs/tuning.md).
CAPTIONS = {"early": (0.1, 0.3), "balanced": (0.4, 0.6), "exact": (0.4, 0.6)}


def when_stable(stream: StreamSettings) -> tuple[float, float]:
    """Return the attention margin in seconds and the probability that make a word stable at once."""
    margin_s, probability = CAPTIONS[stream.captions]
    return (
        margin_s if stream.attention_margin_s is None else stream.attention_margin_s,
        probability if stream.commit_probability is None else stream.commit_probability,
    )


def stability_policy(stream: StreamSettings, model: WhisperModel) -> str:
    """Return what makes words stable with a model: `agreement`, or `alignatt`, which needs heads that are known."""
    if stream.policy != "auto":
        return stream.policy
    if model.knows_heads:
        return "alignatt"
    _note_agreement(model.name)
    return "agreement"


@functools.cache  # said once, however many sessions ask for it
def _note_agreement(name: str) -> None:
    logger.info(
        "it is not known which attention heads of %s follow the audio: words become stable by agreement of passes"
        " (stream.policy: alignatt is the other way)",
        name,
    )


def is_conditioned(decoding: DecodingSettings, model: WhisperModel) -> bool:
    """Return whether the model sees what was said last."""
    wanted = decoding.condition_on_previous_text
    return model.generation.prompted if wanted == "auto" else wanted == "always"


def decode_options(decoding: DecodingSettings, model: WhisperModel) -> DecodeOptions:
    """Return what the settings say of what a session may choose. Raises ConfigError where a hot word cannot be.

    Where they say nothing of beams, there are as many as the model was loaded for.
    """
    return DecodeOptions(
        initial_prompt=decoding.initial_prompt,
        hotwords=check_hotwords(decoding.hotwords),
        beam_size=model.n_beams if decoding.beam_size is None else decoding.beam_size,
    )


def text_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a prompt or a prefix; none where it is blank."""
    return tokenizer.encode(f" {text.strip()}") if text.strip() else []


def clip_seconds(text: str) -> tuple[float, ...]:
    """Read `start,end,start,end,...` in seconds; the last end may be missing, and is that of the file then.

    Raises ConfigError where it is something else, negative, or not in order.
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
                f"clip_timestamps is {text!r:.60}, and {time:g} comes after {before:g}: expected times in order, each"
                " clip's end behind its start"
            )
    return times


def temperatures(decoding: DecodingSettings) -> tuple[float, ...]:
    """Return the temperatures that a window is decoded at, one after another until its text can be trusted."""
    first, increment = decoding.temperature, decoding.temperature_increment_on_fallback
    if increment is None:
        return (first,)
    n_more = math.floor((HOTTEST - first) / increment + 1e-6)
    return tuple(round(first + i * increment, 6) for i in range(n_more + 1))


def initial_prompt(options: DecodeOptions, model: WhisperModel) -> str:
    """Return the text that is shown to the model first, with the hot words where it was trained to heed it."""
    words = hotwords_prompt(options.hotwords) if model.generation.prompted else ""
    return " ".join(part for part in (words, options.initial_prompt.strip()) if part)


def filters(decoding: DecodingSettings, model: WhisperModel) -> tuple[LogitFilter | HotWords, ...]:
    """Return the rules on what may come next besides Whisper's own. Raises ConfigError where they cannot be."""
    found: list[LogitFilter | HotWords] = []
    if decoding.hotwords:
        phrases = check_hotwords(decoding.hotwords)
        found.append(HotWords(model.tokenizer, phrases, decoding.hotwords_boost))
    if decoding.grammar:
        grammar = Grammar.read(Path(decoding.grammar), decoding.grammar_rule)
        found.append(GrammarFilter(grammar, model.tokenizer, decoding.grammar_penalty))
    return tuple(found)
