"""The events of the wire protocol, version 1 (docs/protocol.md), as JSON and back.

Inside the engine positions are sample counts; here, and only here, they have become seconds of the session's
audio. An event is made without `seq` and `session`; the event log stamps both when it takes the event in.

A new event is a subclass of `Event` here, its sample in tests/test_events.py and its example in docs/protocol.md.
"""

from typing import Annotated, Literal, Self

import msgspec

from streamer.audio.constants import SAMPLE_RATE
from streamer.errors import ProtocolError, UnknownEventError

PROTOCOL_VERSION = 1

# A time, probability or logarithm; none comes near the limits.
Number = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]

SpeechState = Literal["start", "end"]
GapReason = Literal["overrun", "overload", "device", "paused", "cleared"]


def seconds(position_samples: int) -> float:
    """Turn a sample position into seconds, to the millisecond."""
    return round(position_samples / SAMPLE_RATE, 3)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """One of the model's tokens."""

    id: int

    # What it spells; a part of a character shows as a replacement character.
    text: str

    # 0 to 1.
    probability: Number


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One word of a partial or final text."""

    # The word as Whisper writes it: with its leading space, its punctuation and its case.
    word: str

    # Where it begins and ends, in seconds of the session's audio.
    start: Number
    end: Number

    # Arithmetic mean of its tokens' probabilities, 0 to 1.
    probability: Number

    # Whether it can still change.
    stable: bool

    # Only if they were asked for and there are some.
    tokens: tuple[Token, ...] = ()

    # The speaker, `S1`, `S2`, ... or a name that was enrolled; not written if unknown, or not asked for.
    speaker: str | None = None


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between a revision and its final: characters of the final's text, and what they became."""

    start: int
    end: int
    text: str


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """What all events share. The name of a class, in lower case, is the event's `type`."""

    # Number within the session: 1, 2, 3, ... (0: not stamped yet).
    seq: int = 0

    # Name of the session, unique to one run of the daemon or one client stream.
    session: str = ""

    @property
    def type(self) -> str:
        """The event's name on the wire."""
        return str(self.__struct_config__.tag)

    def stamped(self, seq: int, session: str) -> Self:
        """Return this event with its place in a session."""
        return msgspec.structs.replace(self, seq=seq, session=session)

    def to_json(self) -> str:
        """Return the event as one line of JSON."""
        return msgspec.json.encode(self).decode("utf-8")


class Ready(Event, frozen=True, kw_only=True):
    """The session is open; always its first event."""

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


class Resumed(Event, frozen=True, kw_only=True):
    """A client is back in its stream; the first event of the new connection.

    It is sent to that client alone and is no event of the session: its `seq` is the number that the client said it
    had last, so that the numbers of what follows have no hole.
    """

    # Samples (of all channels together one), at the client's own rate, that the daemon has: audio goes on behind them.
    heard_samples: int


class Speech(Event, frozen=True, kw_only=True):
    """Speech began or ended at `time`."""

    state: SpeechState
    time: Number


class Partial(Event, frozen=True, kw_only=True):
    """What a segment reads so far; the first `stable` characters of `text` will never change."""

    segment: int
    start: Number
    end: Number
    text: str
    stable: int
    words: tuple[Word, ...]


class Final(Event, frozen=True, kw_only=True, omit_defaults=True):
    """What a segment reads; never changed, never taken back. The text is empty if no word was recognized."""

    segment: int
    start: Number
    end: Number
    text: str
    words: tuple[Word, ...]
    language: str

    # Probability of "no speech here" that the model gave, 0 to 1.
    no_speech_prob: Number

    # Mean log-probability of the tokens, 0 at best.
    avg_logprob: Number

    # Whose sound of `mic+system` was louder, "mic" or "system"; not written for other audio.
    speaker: str = ""

    # `translate` if the text is a translation beside the transcript; not written otherwise.
    task: str = ""


class Revision(Event, frozen=True, kw_only=True):
    """A final as it reads better; the final itself stays. Of several revisions of one final the newest holds."""

    # Number of the final.
    of: int

    # What found it: `glossary`, `second_pass`, `language_model`, `speakers`; several with commas between.
    by: str

    # The whole text, with its words; if only the speakers changed, the text is the final's.
    text: str
    words: tuple[Word, ...]

    # From the final's text to this one, in order.
    edits: tuple[Edit, ...]


class Speakers(Event, frozen=True, kw_only=True):
    """Labels that are one person: `("S3", "S1")` says that who was called S3 is S1, here and before."""

    same: tuple[str, str]


class Translation(Event, frozen=True, kw_only=True):
    """A final in another language."""

    # Number of the final.
    of: int
    text: str
    language: str


class Gap(Event, frozen=True, kw_only=True):
    """Audio from `start` to `end` that was not transcribed."""

    start: Number
    end: Number

    # A GapReason, or one that a later daemon has.
    reason: str


class Flushed(Event, frozen=True, kw_only=True):
    """All audio before `time`, the position of a `flush` in it, is covered by finals and gaps that were published."""

    time: Number


class Error(Event, frozen=True, kw_only=True):
    """Something went wrong; if `fatal`, no more audio is processed: what was said becomes final, then `end` follows."""

    code: str
    message: str
    fatal: bool

    # With the code `stopping`: samples that the daemon has, counted as in `Resumed`. Not written otherwise.
    heard_samples: int | msgspec.UnsetType = msgspec.UNSET


class End(Event, frozen=True, kw_only=True):
    """Nothing follows."""


EVENT_TYPES: dict[str, type[Event]] = {cls.__name__.lower(): cls for cls in Event.__subclasses__()}


class _Typed(msgspec.Struct):
    """What every event of every version has."""

    type: str


def from_json(text: str | bytes) -> Event:
    """Read one event.

    Fields that this version does not know are ignored, so that a later server can add some.

    Raises ProtocolError if the text is not JSON, or a field is missing or of the wrong type; UnknownEventError
    if the type is not known.
    """
    try:
        name = msgspec.json.decode(text, type=_Typed).type
        if name in EVENT_TYPES:
            return msgspec.json.decode(text, type=EVENT_TYPES[name])
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested thousands deep
        raise ProtocolError(
            f"message is no event ({str(error)!r:.200}): expected one as `streamer docs protocol` says"
        ) from None
    raise UnknownEventError(f"event type {name!r:.60} is unknown: expected one of {', '.join(EVENT_TYPES)}")
