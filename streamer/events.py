"""The events of the wire protocol, version 1 (docs/protocol.md), as JSON and back.

Inside the engine positions are sample counts; here, and only here, they have become seconds of the session's
audio. An event is made without `seq` and `session`; the event log stamps both when it takes the event in.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

from streamer.audio.constants import SAMPLE_RATE
from streamer.errors import ProtocolError, UnknownEventError

PROTOCOL_VERSION = 1

# No time, probability or logarithm comes near it; an integer beyond the range of floats would not convert.
MAX_NUMBER = 1e15

SpeechState = Literal["start", "end"]
GapReason = Literal["overrun", "overload", "device", "paused", "cleared"]


def seconds(position_samples: int) -> float:
    """Turn a sample position into seconds, to the millisecond."""
    return round(position_samples / SAMPLE_RATE, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One of the model's tokens."""

    id: int

    # What it spells; a part of a character shows as a replacement character.
    text: str

    # 0 to 1.
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a partial or final text."""

    # The word as Whisper writes it: with its leading space, its punctuation and its case.
    word: str

    # Where it begins and ends, in seconds of the session's audio.
    start: float
    end: float

    # Arithmetic mean of its tokens' probabilities, 0 to 1.
    probability: float

    # Whether it can still change.
    stable: bool

    # Where they were asked for; not written where there are none.
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events share."""

    type: ClassVar[str]

    # Number within the session: 1, 2, 3, ... (0: not stamped yet).
    seq: int = 0

    # Name of the session, unique to one run of the daemon or one client stream.
    session: str = ""

    def stamped(self, seq: int, session: str) -> Self:
        """Return this event with its place in a session."""
        return dataclasses.replace(self, seq=seq, session=session)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain JSON values, `type` first."""
        data = {"type": self.type, **dataclasses.asdict(self)}
        for word in data.get("words", ()):
            if not word["tokens"]:
                del word["tokens"]
        return data

    def to_json(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Event):
    """The session is open; always its first event."""

    type: ClassVar[str] = "ready"

    # Name of the model.
    model: str

    # Device of each stage: `encoder`, `cross_kv`, `decoder`.
    device: dict[str, str]

    # Rate of the session's audio after resampling, samples a second.
    sample_rate: int

    # Language code such as `en`, or `auto` while it is not known.
    language: str

    # Version of the protocol.
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """A client is back in its stream; the first event of the new connection.

    It is sent to that client alone and is no event of the session: its `seq` is the number that the client said it
    had last, so that the numbers of what follows have no hole.
    """

    type: ClassVar[str] = "resumed"

    # Samples (of all channels together one), at the client's own rate, that the daemon has: audio goes on behind them.
    heard_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech(Event):
    """Speech began or ended at `time`."""

    type: ClassVar[str] = "speech"
    state: SpeechState
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial(Event):
    """What a segment reads so far; the first `stable` characters of `text` will never change."""

    type: ClassVar[str] = "partial"
    segment: int
    start: float
    end: float
    text: str
    stable: int
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Final(Event):
    """What a segment reads; never changed, never taken back. The text is empty where no word was heard."""

    type: ClassVar[str] = "final"
    segment: int
    start: float
    end: float
    text: str
    words: tuple[Word, ...]
    language: str

    # Probability of "no speech here" that the model gave, 0 to 1.
    no_speech_prob: float

    # Mean log-probability of the tokens, 0 at best.
    avg_logprob: float

    # Which channel of a recording speaks, "0" or "1", "?" where it cannot be told; not written where it was not asked.
    speaker: str = ""

    # `translate` where the text is a translation beside the transcript; not written otherwise.
    task: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain JSON values, `type` first."""
        data = Event.to_dict(self)
        return {key: value for key, value in data.items() if key not in ("speaker", "task") or value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Event):
    """Audio from `start` to `end` that was not transcribed."""

    type: ClassVar[str] = "gap"
    start: float
    end: float
    reason: GapReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(Event):
    """Something went wrong; where `fatal`, no more audio is heard: what was said becomes final, then comes `end`."""

    type: ClassVar[str] = "error"
    code: str
    message: str
    fatal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Event):
    """Nothing follows."""

    type: ClassVar[str] = "end"


EVENT_TYPES: dict[str, type[Event]] = {
    cls.type: cls for cls in (Ready, Resumed, Speech, Partial, Final, Gap, Error, End)
}


def from_json(text: str | bytes) -> Event:
    """Read one event.

    Fields that this version does not know are ignored, so that a later server can add some.

    Raises ProtocolError where the text is not JSON, or a field is missing or of the wrong type; UnknownEventError
    where the type is not known.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested thousands deep
        raise ProtocolError(f"event is not JSON ({error}): expected one object a message") from None
    if not isinstance(data, dict):
        raise ProtocolError(f"event is a JSON {type(data).__name__}: expected an object")
    name = data.get("type")
    if not isinstance(name, str):
        raise ProtocolError(f"event has type {name!r:.60}: expected one of {', '.join(EVENT_TYPES)}")
    cls = EVENT_TYPES.get(name)
    if cls is None:
        raise UnknownEventError(f"event type {name!r:.60} is unknown: expected one of {', '.join(EVENT_TYPES)}")
    return cls(**_fields(cls, data, cls.type))


def _fields(cls: type[Any], data: Mapping[str, Any], where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name in data:
            values[field.name] = _value(field.type, data[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING:
            raise ProtocolError(f"{where} event lacks {field.name!r}")
    return values


def _value(expected: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - JSON is untyped
    if expected is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) < MAX_NUMBER:  # false for NaN and infinity too
            return float(value)
    elif expected is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    elif expected in (str, bool) and isinstance(value, expected):
        return value
    elif value in get_args(expected) and isinstance(value, str):
        return value
    elif expected == dict[str, str] and isinstance(value, dict):
        return {str(key): _value(str, item, f"{where}.{key}") for key, item in value.items()}
    elif expected in (tuple[Word, ...], tuple[Token, ...]) and isinstance(value, list):
        item_type = get_args(expected)[0]
        return tuple(
            item_type(**_fields(item_type, item, f"{where}[{i}]"))
            for i, item in enumerate(value)
            if isinstance(item, dict) or _refuse(dict, item, f"{where}[{i}]")
        )
    return _refuse(expected, value, where)


def _refuse(expected: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - never returns
    raise ProtocolError(f"{where} is {value!r:.80}: expected {getattr(expected, '__name__', expected)}")
