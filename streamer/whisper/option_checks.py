"""Which settings of decoding are refused. Source: openai-whisper's command line, and its `_verify_options`."""

import msgspec

from streamer.errors import ConfigError
from streamer.languages import LANGUAGE_NAMES, nearest
from streamer.settings.table import AUTO, DecodingSettings, Settings
from streamer.whisper.decode.hotwords import check_hotwords
from streamer.whisper.decode.suppression import check_suppress_regex, parse_suppress_tokens
from streamer.whisper.locate import is_published
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import clip_seconds, read_grammar, temperatures, text_tokens

# Largest context of any Whisper's decoder.
MAX_TEXT_CTX = 448

# Before a transcript: its start, the language, the task, and whether there are timestamps.
START_TOKENS = 4


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
        read_grammar(decoding)
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
