"""Settings: config.yaml <-> typed, validated values.

Each section is a frozen dataclass; each field carries its range or choices. Values come, later ones winning, from the
defaults here, the configuration file, environment variables (`STREAMER_SECTION_KEY`) and command-line flags. A value
that is refused is refused with one line: where it stands, what was found, what is expected, and the nearest valid name.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from streamer.errors import ConfigError

ENVIRONMENT_PREFIX = "STREAMER_"
CONFIG_VARIABLE = "STREAMER_CONFIG"  # names the configuration file
CACHE_VARIABLE = (
    "STREAMER_CACHE_DIR"  # read by the part that compiles models; here only known, so that it is let through
)
MAX_FILE_BYTES = 1 << 20  # a configuration file is a few kilobytes; beyond a mebibyte it is something else


def setting(
    default: Any,  # noqa: ANN401 - any type of setting
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
    pattern: str | None = None,
    example: str = "",
) -> Any:  # noqa: ANN401 - as dataclasses.field
    """Declare a setting with its default and what it may be: a range (inclusive), choices, or a pattern.

    Text may be one of the choices or fit the pattern, and so must each item of a list; `example` fits it. A setting
    whose type allows None is `none` in the file, in the environment and in a flag.
    """
    return field(
        default=default,
        metadata={"low": low, "high": high, "choices": choices, "pattern": pattern, "example": example},
    )


def device_setting(default: str) -> Any:  # noqa: ANN401 - as dataclasses.field
    """Declare a setting that is an inference device; empty where it may be left to another setting."""
    choices = ("AUTO", "NPU", "GPU", "CPU") if default else ("AUTO", "NPU", "GPU", "CPU", "")
    return setting(default, choices=choices, pattern=r"(NPU|GPU|CPU)(\.[0-9]+)+", example="GPU.1")


def properties_setting() -> Any:  # noqa: ANN401 - as dataclasses.field
    """Declare a setting that is a list of OpenVINO properties."""
    return setting((), pattern=r"\w+=.*", example="NPU_TURBO=YES")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """Where audio comes from."""

    source: str = setting("mic")  # `mic`, `none`, `-` (standard input) or a path
    fallback: str = setting("")  # file played where there is no microphone; empty: that is an error
    microphone: str = setting("")  # name or number of the microphone; empty: the system's default
    speed: float = setting(1.0, low=0.0, high=1000.0)  # pace of a file; 0: as fast as it can
    exit_at_end: bool = setting(False)  # leave when a file or standard input ends
    buffer_s: float = setting(90.0, low=60.0, high=3600.0)  # seconds of audio kept in the ring buffer
    stdin_format: str = setting("s16le", choices=("s16le", "f32le"))
    stdin_sample_rate: int = setting(16_000, low=4_000, high=384_000)
    stdin_channels: int = setting(1, low=1, high=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which Whisper, on which device."""

    name: str = setting("nano.en")  # a model that is here, a path, or a name on the Hub
    tokenizer: str = setting("")  # a tokenizer file, for checkpoints that carry none; empty: the model's own
    device: str = device_setting("AUTO")
    encoder_device: str = device_setting("")  # of one stage; empty: as `device`
    cross_kv_device: str = device_setting("")
    decoder_device: str = device_setting("")
    properties: tuple[str, ...] = properties_setting()  # OpenVINO's, KEY=VALUE, for all stages
    encoder_properties: tuple[str, ...] = properties_setting()  # more for one stage, which win
    cross_kv_properties: tuple[str, ...] = properties_setting()
    decoder_properties: tuple[str, ...] = properties_setting()
    windows_s: tuple[int, ...] = setting((), low=2, high=30)  # seconds; 30 is always one; empty: the model's own
    npu_through_cpu: bool = setting(False)  # run NPU graphs through the NPU plugin's CPU path (a test of the path)
    cache_dir: str = setting("")  # compiled blobs; empty: the user's cache directory


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingSettings:
    """How tokens become text. Names and defaults are openai-whisper's where it has the option; docs/decoding.md."""

    language: str = setting("auto")  # a code such as `en`, or `auto`
    task: str = setting("transcribe", choices=("transcribe", "translate", "both"))
    beam_size: int | None = setting(None, low=1, high=16)  # beams at temperature 0; none: greedy, live: the model's
    patience: float | None = setting(None, low=0.1, high=10.0)  # factor on the texts that end a search; none: 1
    length_penalty: float | None = setting(None, low=0.0, high=1.0)  # alpha; none: the mean log-probability
    sample_len: int | None = setting(None, low=1, high=448)  # most tokens a window; none: half of the context
    without_timestamps: bool = setting(False)
    max_initial_timestamp: float | None = setting(1.0, low=0.0, high=30.0)  # seconds

    temperature: float = setting(0.0, low=0.0, high=1.0)
    temperature_increment_on_fallback: float | None = setting(0.2, low=0.01, high=1.0)  # none: no fallback
    best_of: int | None = setting(None, low=1, high=100)  # texts sampled above temperature 0; none: one
    compression_ratio_threshold: float | None = setting(2.4, low=1.0, high=100.0)
    logprob_threshold: float | None = setting(-1.0, low=-100.0, high=0.0)
    no_speech_threshold: float | None = setting(0.6, low=0.0, high=1.0)
    entropy_threshold: float | None = setting(None, low=0.0, high=10.0)  # nats
    seed: int = setting(0, low=0, high=2**32 - 1)

    # The last finals go into the next window's prompt; auto: where the model was trained for it.
    condition_on_previous_text: str = setting("auto", choices=("auto", "always", "never"))
    initial_prompt: str = setting("")  # empty: none
    carry_initial_prompt: bool = setting(False)  # in each window's prompt, not just in the first one's
    prefix: str = setting("")  # text that each window is taken to begin with
    hotwords: tuple[str, ...] = setting(())
    hotwords_boost: float = setting(3.0, low=0.0, high=20.0)  # logits for a whole phrase

    suppress_tokens: str = setting("-1")  # numbers; -1: the model's own list
    suppress_blank: bool = setting(True)
    suppress_regex: str = setting("")  # empty: nothing
    grammar: str = setting("")  # a GBNF file; empty: any text
    grammar_rule: str = setting("root")
    grammar_penalty: float = setting(100.0, low=0.0, high=1000.0)  # logits

    clip_timestamps: str = setting("0")  # start,end,start,end,... in seconds
    word_timestamps: bool = setting(False)  # let words decide where segments end and where to go on
    prepend_punctuations: str = setting("\"'“¿([{-")
    append_punctuations: str = setting("\"'.。,，!！?？:：”)]}、")
    hallucination_silence_threshold: float | None = setting(None, low=0.0, high=3600.0)  # seconds

    max_len: int = setting(0, low=0, high=100_000)  # characters a segment; 0: no limit
    split_on_word: bool = setting(False)  # cut by max_len before spaces only
    token_probabilities: bool = setting(False)  # in json and jsonl
    diarize: bool = setting(False)  # which of two channels speaks


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """How subtitles are laid out."""

    # Of the first three none is two lines of 42 characters; where one is given, no limit, as 0 is.
    max_line_width: int | None = setting(None, low=0, high=100_000)  # characters
    max_line_count: int | None = setting(None, low=0, high=100_000)  # lines a cue
    max_words_per_line: int | None = setting(None, low=0, high=100_000)  # words a cue
    highlight_words: bool = setting(False)  # underline each word while it is spoken
    karaoke: bool = setting(False)  # tag each word with its time


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSettings:
    """When somebody is speaking."""

    threshold: float = setting(0.5, low=0.01, high=0.99)  # probability at which speech starts
    min_speech_s: float = setting(0.1, low=0.0, high=10.0)  # shorter bursts are not speech
    min_silence_s: float = setting(0.6, low=0.1, high=10.0)  # silence that ends speech
    pad_s: float = setting(0.3, low=0.0, high=2.0)  # audio kept before speech starts and after it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """When to transcribe and when a word is settled."""

    pace_s: float = setting(0.25, low=0.1, high=10.0)  # least new audio from one pass to the next
    max_pace_s: float = setting(2.0, low=0.1, high=60.0)  # pace at which captions still count as live
    max_delay_s: float = setting(30.0, low=5.0, high=3600.0)  # wait after which live audio is given up
    policy: str = setting("alignatt", choices=("agreement", "alignatt"))  # what settles a word
    agreement: int = setting(2, low=1, high=5)  # hypotheses in a row that must agree on a word
    attention_margin_s: float = setting(0.2, low=0.0, high=5.0)  # alignatt: no word is sure so near to the end
    commit_probability: float = setting(0.4, low=0.0, high=1.0)  # alignatt: least probability of a sure word
    show_probability: float = setting(0.5, low=0.0, high=1.0)  # of an unsettled word that is shown
    trim_after_s: float = setting(8.0, low=5.0, high=28.0)  # window length from which any settled text is made final


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The WebSocket and HTTP front."""

    host: str = setting("127.0.0.1")
    port: int = setting(8765, low=0, high=65_535)  # 0 picks a free port
    token: str = setting("")  # required from clients where not empty; needed to listen beyond loopback
    origins: tuple[str, ...] = setting(())  # web origins besides our own page that may connect
    max_streams: int = setting(64, low=0, high=1000)  # clients that send their own audio at once
    max_subscribers: int = setting(100, low=1, high=100_000)  # clients that read captions at once
    queue_events: int = setting(256, low=8, high=100_000)  # undelivered events after which a subscriber is closed
    history_events: int = setting(10_000, low=100, high=1_000_000)  # events kept for replay with ?after=SEQ
    resume_s: float = setting(30.0, low=0.0, high=3600.0)  # time a stream is kept for a client that was cut off


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """The chatbot that final text is sent to."""

    url: str = setting("")  # base address of an OpenAI-compatible API, up to and including /v1
    model: str = setting("default")
    system: str = setting("")  # system message; empty: none
    api_key: str = setting("")
    timeout_s: float = setting(60.0, low=1.0, high=3600.0)  # silence from the endpoint after which a reply is given up
    history_turns: int = setting(20, low=0, high=1000)  # question-and-answer pairs kept in the conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged."""

    level: str = setting("info", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of them."""

    input: InputSettings = field(default_factory=InputSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    speech: SpeechSettings = field(default_factory=SpeechSettings)
    stream: StreamSettings = field(default_factory=StreamSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    chat: ChatSettings = field(default_factory=ChatSettings)
    log: LogSettings = field(default_factory=LogSettings)


def load_settings(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object],
    *,
    flags: Mapping[str, str] = types.MappingProxyType({}),
) -> Settings:
    """Read the settings: overrides win over the environment, over the file, over the defaults.

    The file is `path`; where that is None, the one that STREAMER_CONFIG names; where that is not set either,
    config.yaml in the user's configuration directory, if there is one. `overrides` maps dotted names such as
    `server.port` to values, or to text that is read as an environment variable is; `flags` says for each which
    flag it came from, so that an error can name it.

    Raises ConfigError for a file that is missing or cannot be read, a name that is unknown, and a value of the wrong
    type or out of range.
    """
    values = {
        **_from_file(path, environ),
        **_from_environment(environ),
        **_from_overrides(overrides, flags),
    }
    sections: dict[str, Any] = {}
    for section in dataclasses.fields(Settings):
        cls = _class_of(section)
        names = {key.name: f"{section.name}.{key.name}" for key in dataclasses.fields(cls)}
        sections[section.name] = cls(**{key: values[name] for key, name in names.items() if name in values})
    return Settings(**sections)


def all_settings() -> dict[str, "dataclasses.Field[Any]"]:
    """Return every setting by its dotted name, in the order of the configuration file."""
    return dict(_SETTINGS)


def default_config_path() -> Path:
    """Return where the configuration file is looked for when none is named."""
    return platformdirs.user_config_path("streamer", appauthor=False) / "config.yaml"


def _from_file(path: Path | None, environ: Mapping[str, str]) -> dict[str, object]:
    if path is not None:
        return _parse(path, _read(path, ""))
    if environ.get(CONFIG_VARIABLE):
        path = Path(environ[CONFIG_VARIABLE])
        return _parse(path, _read(path, f" ({CONFIG_VARIABLE} names it)"))
    path = default_config_path()
    try:
        there = path.exists()
    except OSError:  # a home directory that is not this user's
        there = False
    return _parse(path, _read(path, "")) if there else {}


def _read(path: Path, named: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"configuration file {path} does not exist{named}: expected a YAML file; correct the name, or leave it out"
            " to use the defaults"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"configuration file {path} cannot be read{named} ({reason}): expected a YAML file that this user may read"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"configuration file {path} is larger than {MAX_FILE_BYTES} bytes{named}: expected a few kilobytes of YAML"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"configuration file {path} is not UTF-8 at byte {error.start}{named}: save it with the encoding UTF-8"
        ) from None


def _parse(path: Path, text: str) -> dict[str, object]:
    # Nodes rather than values: they know their line, and nothing is expanded, so that aliases cannot make a small
    # file large.
    try:
        root = yaml.SafeLoader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        place = f"{path}:{error.problem_mark.line + 1}" if error.problem_mark else f"{path}"
        raise ConfigError(
            f"{place}: this is not YAML ({error.problem}): expected sections such as `server:` with indented"
            " `key: value` lines below"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: this is not YAML ({' '.join(str(error).split())}): expected plain text") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply: expected sections with `key: value` lines below") from None
    if root is None or _is_null(root):
        return {}
    values: dict[str, object] = {}
    for section, section_line, block in _entries(path, root, "sections such as `server:`"):
        if section not in _SECTIONS:
            raise ConfigError(
                f"{path}:{section_line}: there is no section {section!r:.80}: {_nearest_section(section)}"
            )
        if _is_null(block):
            continue  # a section whose keys are all commented out
        for key, line, node in _entries(path, block, f"`key: value` lines below `{section}:`"):
            name = f"{section}.{key}"
            if name not in _SETTINGS:
                raise ConfigError(f"{path}:{line}: there is no setting {name!r:.80}: {_nearest_setting(name)}")
            values[name] = _checked(name, _node_value(node), f"{path}:{line}: {name}")
    return values


def _entries(path: Path, node: yaml.Node, expected: str) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield key, line and value of a mapping, whose keys must be text and different."""
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise ConfigError(f"{path}:{line}: found {_described(_node_value(node))}: expected {expected}")
    seen: dict[str, int] = {}
    for key_node, value in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{path}:{line}: found a key that is not plain text: expected {expected}")
        name = str(key_node.value)
        if name in seen:
            raise ConfigError(f"{path}:{line}: {name!r:.80} is set in line {seen[name]} already: delete one of the two")
        seen[name] = line
        yield name, line, value


def _node_value(node: yaml.Node) -> object:
    """Return what a node says: a plain value, a list of such, or an empty mapping for anything deeper."""
    if isinstance(node, yaml.ScalarNode):
        if node.style is None and _EXPONENT.fullmatch(node.value):
            return float(node.value)
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, OverflowError, yaml.YAMLError):  # 2026-13-45, a number of 5000 digits, !!int "x"
            return str(node.value)
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [_node_value(item) for item in node.value]
    return {}


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in (CONFIG_VARIABLE, CACHE_VARIABLE):
            continue
        if variable not in _VARIABLES:
            nearest = difflib.get_close_matches(variable, [*_VARIABLES, CONFIG_VARIABLE, CACHE_VARIABLE], 1, 0.0)
            raise ConfigError(
                f"environment variable {variable:.80} is no setting: the nearest is {nearest[0]}; correct or unset it"
            )
        name = _VARIABLES[variable]
        values[name] = _checked(name, _from_text(name, text), f"environment variable {variable}")
    return values


def _from_overrides(overrides: Mapping[str, object], flags: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in overrides.items():
        if name not in _SETTINGS:
            raise ConfigError(
                f"{flags.get(name, 'command line')}: there is no setting {name!r}: {_nearest_setting(name)}"
            )
        value = _from_text(name, value) if isinstance(value, str) else value
        values[name] = _checked(name, value, flags.get(name, f"{name} on the command line"))
    return values


def _from_text(name: str, text: str) -> object:
    """Read a value as environment variables and flags give it; text that does not fit the type stays text."""
    expected = _type_of(_SETTINGS[name])
    if expected is bool:
        return _BOOLEANS.get(text.strip().lower(), text)
    if expected is int or expected is float:
        try:
            return expected(text)
        except ValueError:
            return text
    if expected in (tuple[str, ...], tuple[int, ...]):
        items = [item for item in (part.strip() for part in text.split(",")) if item]
        return [_from_item(item) for item in items] if expected == tuple[int, ...] else items
    return text


def _from_item(text: str) -> int | str:
    """Read a whole number; text that is none, or has more digits than any setting's, stays text."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else text


def _checked(name: str, value: object, where: str) -> object:
    """Return a value as its setting's type, or refuse it; `where` says where it stands."""
    key = _SETTINGS[name]
    expected = _type_of(key)
    if _may_be_none(key) and isinstance(value, str) and value.strip().lower() == _NONE:
        return None
    typed: object = None
    if expected is bool and isinstance(value, bool):
        typed = value
    elif expected is int and isinstance(value, int) and not isinstance(value, bool):
        typed = value if _in_range(key, value) else None
    elif expected is float and isinstance(value, int | float) and not isinstance(value, bool):
        typed = float(value) if _in_range(key, value) else None
    elif expected is str and isinstance(value, str):
        typed = value if _fits(key, value) else None
    elif expected == tuple[str, ...] and isinstance(value, list | tuple):
        typed = tuple(value) if all(isinstance(item, str) and _fits(key, item) for item in value) else None
    elif expected == tuple[int, ...] and isinstance(value, list | tuple):
        typed = tuple(value) if all(_is_item(key, item) for item in value) else None
    if typed is None:
        items = value if isinstance(value, list | tuple) else ()
        wrong = [item for item in items if isinstance(item, str) and not _fits(key, item)]
        if expected == tuple[int, ...]:
            wrong = [item for item in items if not _is_item(key, item)]
        found = f"a {type(value).__name__}" if name in _SECRETS else _described(wrong[0] if wrong else value)
        verb = "has" if wrong else "is"
        raise ConfigError(f"{where} {verb} {found}: expected {_expected(key)}{_remedy(key, value)}")
    return typed


def _is_item(key: "dataclasses.Field[Any]", item: object) -> bool:
    """Return whether a list of whole numbers may have this in it."""
    return isinstance(item, int) and not isinstance(item, bool) and _in_range(key, item)


def _type_of(key: "dataclasses.Field[Any]") -> Any:  # noqa: ANN401 - any type
    """Return the type of a setting's values other than None."""
    return (
        next(kind for kind in typing.get_args(key.type) if kind is not types.NoneType)
        if _may_be_none(key)
        else key.type
    )


def _may_be_none(key: "dataclasses.Field[Any]") -> bool:
    return types.NoneType in typing.get_args(key.type)


def _in_range(key: "dataclasses.Field[Any]", value: float) -> bool:
    low, high = key.metadata["low"], key.metadata["high"]
    # Compared before it is converted: an integer may be too large for a float.
    return (low is None or value >= low) and (high is None or value <= high) and not _is_nan(value)


def _fits(key: "dataclasses.Field[Any]", text: str) -> bool:
    """Return whether text is one of a setting's choices or fits its pattern; any does where it has neither."""
    choices, pattern = key.metadata["choices"], key.metadata["pattern"]
    if choices is None and pattern is None:
        return True
    return text in (choices or ()) or (pattern is not None and re.fullmatch(pattern, text) is not None)


def _is_nan(value: float) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _described(value: object) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "true (yes or no)" if value else "false (yes or no)"
        case str():
            return f"{value!r:.60} (text)"
        case int() if abs(value) >= 10**18:
            return "a huge number"  # more digits than fit a line, or than int -> str converts
        case int() | float():
            return f"{value} (a number)"
        case list() | tuple():
            return "a list" if all(isinstance(item, str) for item in value) else "a list with other things than text"
        case dict():
            return "a mapping"
    return f"{value!s:.60} (a {type(value).__name__})"


def _expected(key: "dataclasses.Field[Any]") -> str:
    low, high, choices = key.metadata["low"], key.metadata["high"], key.metadata["choices"]
    example = key.metadata["example"]
    if choices is not None:
        full_name = f", or a full name such as {example}" if example else ""
        return f"one of {', '.join(choice for choice in choices if choice)}{full_name}"
    expected = _type_of(key)
    what = _TYPE_NAMES.get(expected, f"a list of text such as {example}" if example else "a list of text")
    what = f"{what} from {low:g} to {high:g}" if low is not None and high is not None else what
    if expected == tuple[int, ...]:
        what = f"a list of whole numbers from {low:g} to {high:g}"
    return f"{what}, or {_NONE}" if _may_be_none(key) else what


def _remedy(key: "dataclasses.Field[Any]", value: object) -> str:
    choices: Sequence[str] | None = key.metadata["choices"]
    expected = _type_of(key)
    if value is None:
        return "; delete the line to use the default"
    if choices is not None and isinstance(value, str):
        folded = {choice.lower(): choice for choice in choices}
        nearest = difflib.get_close_matches(value.lower(), folded, 1)
        return f"; the nearest is {folded[nearest[0]]}" if nearest else ""
    if expected is str and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if expected in (bool, int, float) and isinstance(value, str) and value != "" and _fits_unquoted(key, value):
        return "; take the quotes away"
    if expected == tuple[str, ...] and isinstance(value, str):
        return f"; write [{value!r:.60}]"
    if expected == tuple[int, ...] and isinstance(value, int) and _is_item(key, value):
        return f"; write [{value}]"
    return ""


def _fits_unquoted(key: "dataclasses.Field[Any]", text: str) -> bool:
    try:
        return text.lower() in _BOOLEANS if _type_of(key) is bool else math.isfinite(float(text))
    except ValueError:
        return False


def _nearest_section(section: str) -> str:
    homes = [name for name in _SETTINGS if name.partition(".")[2] == section]
    if homes:
        return f"expected {section!r} below `{homes[0].partition('.')[0]}:`"
    nearest = difflib.get_close_matches(section, _SECTIONS, 1)
    return f"the nearest is {nearest[0]!r}" if nearest else f"expected one of {', '.join(_SECTIONS)}"


def _nearest_setting(name: str) -> str:
    section, _, key = name.partition(".")
    same_section = [other.partition(".")[2] for other in _SETTINGS if other.startswith(f"{section}.")]
    nearest = difflib.get_close_matches(key, same_section, 1)
    if nearest:
        return f"the nearest is '{section}.{nearest[0]}'"
    same_key = [other for other in _SETTINGS if other.partition(".")[2] == key]
    anywhere = same_key or difflib.get_close_matches(name, _SETTINGS, 1, 0.7)
    if anywhere:
        return f"the nearest is {anywhere[0]!r}"
    return f"expected one of {', '.join(same_section or _SECTIONS)}"


def _class_of(section: "dataclasses.Field[Any]") -> type[Any]:
    assert isinstance(section.type, type), section.name
    return section.type


# Section names, in the order of the file.
_SECTIONS = [section.name for section in dataclasses.fields(Settings)]

# Every setting by its dotted name.
_SETTINGS = {
    f"{section.name}.{key.name}": key
    for section in dataclasses.fields(Settings)
    for key in dataclasses.fields(_class_of(section))
}

# Dotted name by environment variable.
_VARIABLES = {ENVIRONMENT_PREFIX + name.replace(".", "_").upper(): name for name in _SETTINGS}

# What to call a setting's type.
_TYPE_NAMES: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}

# What a setting that may be None is set to then.
_NONE = "none"

# Settings whose value no message repeats.
_SECRETS = ("server.token", "chat.api_key")

# Numbers such as 1e3, which YAML 1.2 reads as numbers and YAML 1.1, which PyYAML speaks, as text.
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]{1,3}")

# What environment variables and flags may say for true and false.
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
