"""What a client may choose for its session: the same types as the settings have, each of them optional."""

from typing import Annotated, TypeVar

import msgspec

from streamer.languages import code_of, codes_of
from streamer.outside import one_line
from streamer.settings.table import Beams, DecodingSettings, Pace, Settings, Silence, Task, Threshold

T = TypeVar("T")

MAX_LANGUAGE_CHARS = 32
MAX_PROMPT_CHARS = 10_000  # of a prompt's end: many more than a model sees of it
MAX_ITEMS = 100  # of a list: as many as Whisper knows languages
MAX_HOTWORD_CHARS = 100


def line(description: str, most: int | None = None, least: int = 0) -> msgspec.Meta:
    """Limit text to one line, without half a surrogate pair, which nothing could write as UTF-8."""
    pattern = r"\A[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\Z"
    return msgspec.Meta(min_length=least, max_length=most, pattern=pattern, description=description)


def _list_of(item: str) -> msgspec.Meta:
    return msgspec.Meta(max_length=MAX_ITEMS, description=f"a list of at most {MAX_ITEMS}, each {item}")


_A_LANGUAGE = "a language's name or code such as 'en'"
_A_HOTWORD = f"one line of 1 to {MAX_HOTWORD_CHARS} characters"
Line = Annotated[str, line("one line")]
Language = Annotated[str, line(_A_LANGUAGE, MAX_LANGUAGE_CHARS)]
Languages = Annotated[tuple[Language, ...], _list_of(_A_LANGUAGE)]
Hotwords = Annotated[tuple[Annotated[str, line(_A_HOTWORD, MAX_HOTWORD_CHARS, 1)], ...], _list_of(_A_HOTWORD)]


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client chooses for its session, and changes in mid-stream. None: what the daemon is set to.

    Raises ConfigError for an unknown language.
    """

    # By code, name or tag, or `auto`: kept as Whisper's code.
    language: Language | None = None
    task: Task | None = None
    beam_size: Beams | None = None
    initial_prompt: Line | None = None
    hotwords: Hotwords | None = None

    vad_threshold: Threshold | None = None
    min_silence_s: Silence | None = None
    turns: bool | None = None
    turn_threshold: Threshold | None = None
    turn_silence_s: Silence | None = None

    pace_s: Pace | None = None

    # Languages that `auto` may find; empty: all.
    languages: Languages | None = None

    # Whether partials and finals carry their words one by one.
    words: bool | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "language", code_of(self.language) if self.language else None)
        msgspec.structs.force_setattr(self, "languages", self.languages and codes_of(self.languages))
        msgspec.structs.force_setattr(self, "initial_prompt", prompt(self.initial_prompt))


def prompt(text: str | None) -> str | None:
    """Return the end of a prompt, in one line: what a model sees of it, and more."""
    return text and one_line(text[-MAX_PROMPT_CHARS:])


# The options of a client that has none.
NO_OPTIONS = SessionOptions()


def with_options(settings: Settings, options: SessionOptions) -> Settings:
    """Return the daemon's settings with what a client chose instead."""
    speech, stream = settings.speech, settings.stream
    return msgspec.structs.replace(
        settings,
        decoding=decoding_with(settings.decoding, options),
        speech=msgspec.structs.replace(
            speech,
            threshold=_chosen(options.vad_threshold, speech.threshold),
            min_silence_s=_chosen(options.min_silence_s, speech.min_silence_s),
            turns=_chosen(options.turns, speech.turns),
            turn_threshold=_chosen(options.turn_threshold, speech.turn_threshold),
            turn_silence_s=_chosen(options.turn_silence_s, speech.turn_silence_s),
        ),
        stream=msgspec.structs.replace(stream, pace_s=_chosen(options.pace_s, stream.pace_s)),
    )


def decoding_with(decoding: DecodingSettings, options: SessionOptions) -> DecodingSettings:
    """Return the daemon's settings of decoding with what a client chose instead."""
    return msgspec.structs.replace(
        decoding,
        language=_chosen(options.language, decoding.language),
        task=_chosen(options.task, decoding.task),
        beam_size=_chosen(options.beam_size, decoding.beam_size),
        initial_prompt=_chosen(options.initial_prompt, decoding.initial_prompt),
        hotwords=_chosen(options.hotwords, decoding.hotwords),
    )


def _chosen(option: T | None, setting: T) -> T:
    return setting if option is None else option
