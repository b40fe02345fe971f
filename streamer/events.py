"""The events of the streaming protocol, version 1, as JSON and back.

The engine counts samples. Here, and only here, positions become seconds of the session's audio. An event is created
without `seq` and `session`; the event log sets both when it takes the event.

A new event is a subclass of `Event`, with a sample in tests/unit/test_events.py and an example in tools/documents.py.
`make documents` writes the section *Events* of docs/protocol.md from the docstrings and from the comments above the
fields, so both are written for authors of clients.
"""

from typing import Annotated, Literal, Self

import msgspec

from streamer.constants import SAMPLE_RATE
from streamer.errors import ProtocolError, UnknownEventError

PROTOCOL_VERSION = 1

# A time, probability or logarithm; real values stay far below the limits.
Number = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]

SpeechState = Literal["start", "end"]
GapReason = Literal["overrun", "overload", "device", "paused", "cleared", "unclear"]


def seconds(position_samples: int) -> float:
    """Turn a sample position into seconds, to the millisecond."""
    return round(position_samples / SAMPLE_RATE, 3)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """One of the model's tokens."""

    # Number in the model's vocabulary.
    id: int

    # Its text. Part of a character shows as U+FFFD.
    text: str

    # 0 to 1.
    probability: Number


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One word of a text, at its time."""

    # As Whisper writes it: with its leading space, punctuation and case. Joined, the words give the text.
    word: str

    # Seconds of the session's audio.
    start: Number
    end: Number

    # Mean of its tokens' probabilities, 0 to 1.
    probability: Number

    # Whether it belongs to the stable prefix, and so cannot change.
    stable: bool

    # Its tokens, with `token_probabilities` in files. Left out otherwise.
    tokens: tuple[Token, ...] = ()

    # Who says it: `S1`, `S2`, ... or an enrolled name. Left out if it is not known.
    speaker: str | None = None


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between a final and its revision: a range of the final's text and what replaces it."""

    # Characters of the final's text, the end excluded.
    start: int
    end: int

    # Replacement.
    text: str


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """What all events have in common. The lower-case name of the class is the event's `type`."""

    # Number within the session: 1, 2, 3, ...
    seq: int = 0

    # Name of the session, unique to one run of the daemon or to one client's stream.
    session: str = ""

    @property
    def type(self) -> str:
        """The event's name in the protocol."""
        return str(self.__struct_config__.tag)

    def stamped(self, seq: int, session: str) -> Self:
        """Return this event with its number and session."""
        return msgspec.structs.replace(self, seq=seq, session=session)

    def to_json(self) -> str:
        """Return the event as one line of JSON."""
        return msgspec.json.encode(self).decode("utf-8")


class Ready(Event, frozen=True, kw_only=True):
    """The session is open. Always its first event."""

    # Name of the model.
    model: str

    # Present device of each stage: `encoder`, `cross_kv`, `decoder`; it may change (`/healthz`).
    device: dict[str, str]

    # Samples per second after resampling, 16000.
    sample_rate: int

    # Language code such as `en`; `auto` until it is detected.
    language: str

    # Version of the protocol.
    protocol: int = PROTOCOL_VERSION

    # May be asked for: `languages`, `translation`, `turns`; is sent: `revisions`, `speakers`.
    capabilities: tuple[str, ...] = ()


class Resumed(Event, frozen=True, kw_only=True):
    """A client is connected to its stream again. The first event of such a connection, and of no other.

    It is sent to this client only and is not an event of the session. Its `seq` is the `after` of the client's message
    (0 if the session has no such number), so that numbering continues from there.
    """

    # Samples received, at the client's rate, one for all channels. Audio goes on behind them.
    heard_samples: int


class Speech(Event, frozen=True, kw_only=True):
    """Speech was detected to begin or end."""

    # Which of the two.
    state: SpeechState

    # Position in the audio, in seconds.
    time: Number


class Turn(Event, frozen=True, kw_only=True):
    """A pause of 0.3 s, judged by a model. Only with `turns`.

    If the speaker has not finished, speech ends after `turn_silence_s` instead of `min_silence_s`.
    """

    # End of the audio that was judged, in seconds.
    time: Number

    # How probably the speaker has finished, 0 to 1.
    probability: Number

    # Whether that is at least `turn_threshold`.
    finished: bool


class Partial(Event, frozen=True, kw_only=True):
    """The current text of the open segment.

    The first `stable` characters (Unicode code points) of `text` never change; the rest may. `stable` never shrinks
    within a segment.
    """

    # Number of the segment, from 1.
    segment: int

    # Seconds of the session's audio.
    start: Number
    end: Number

    # All of the segment's text so far.
    text: str

    # Length of the prefix that is final already, in characters.
    stable: int

    # The words of the text; empty if the client chose `"words": false`.
    words: tuple[Word, ...]


class Final(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The text of a segment, which is never changed or withdrawn.

    It starts with the segment's last stable prefix. Finals are in order and do not overlap. The text is empty if
    speech was detected and no word was recognized.
    """

    # Number of the segment.
    segment: int

    # Seconds of the session's audio.
    start: Number
    end: Number

    # Complete text.
    text: str

    # The words of the text; empty if the client chose `"words": false`.
    words: tuple[Word, ...]

    # Language code of the text.
    language: str

    # The model's probability of "no speech here", 0 to 1.
    no_speech_prob: Number

    # Mean log-probability of the tokens, 0 at best.
    avg_logprob: Number

    # With `--input mic+system` or `mic+app:NAME`: the louder, `mic`, `system` or `app`. Left out otherwise.
    speaker: str = ""

    # `translate` if the text is a file's translation beside its transcript. Left out otherwise.
    task: str = ""


class Revision(Event, frozen=True, kw_only=True):
    """A better text for an earlier final. The final itself does not change; show this text in its place.

    Of several revisions of one final the newest counts. Revisions come only if corrections or speakers are switched
    on, and always before `end`.
    """

    # `seq` of the final.
    of: int

    # Source: `glossary`, `second_pass`, `language_model`, `speakers`; several are separated by commas.
    by: str

    # Complete new text; the final's own if only the speakers changed.
    text: str

    # The words of the new text.
    words: tuple[Word, ...]

    # The differences from the final's text, in order.
    edits: tuple[Edit, ...]


class Speakers(Event, frozen=True, kw_only=True):
    """Two speaker labels are the same person: replace the first by the second, in earlier events too."""

    # Old label, valid label.
    same: tuple[str, str]


class Translation(Event, frozen=True, kw_only=True):
    """The English translation of a sentence, if `task` is `both`.

    It comes after its final and before `end`. English speech has none, and neither has speech for which time was short.
    """

    # `seq` of the final; if a sentence has several finals, of the last.
    of: int

    # Translation.
    text: str

    # Its language code.
    language: str


class Gap(Event, frozen=True, kw_only=True):
    """Audio that was not transcribed. Every moment of speech is in a final or in a gap.

    A gap is published once, when it is over and all text before it is final. It never overlaps a final.
    """

    # Seconds of the session's audio.
    start: Number
    end: Number

    # Why; see *Reasons of gaps*. A later daemon may have more reasons.
    reason: str


class Flushed(Event, frozen=True, kw_only=True):
    """Answer to `flush`: every moment of speech before `time` is now in a final or in a gap.

    It comes for each `flush`, also if nothing was said. If 100 wait for their answers, those behind them have one.
    """

    # Position of the `flush` in the audio, in seconds.
    time: Number


class Error(Event, frozen=True, kw_only=True):
    """Something went wrong. What fails repeatedly is reported once, until it works again.

    After a fatal error the daemon ignores further audio. Finals of earlier speech may follow, then `end`.
    """

    # For programs; see *Error codes*.
    code: str

    # For people: what happened, what was expected, what to do. The wording may change.
    message: str

    # Whether the session ends.
    fatal: bool

    # With the code `stopping`: samples received, counted as in `resumed`. Left out otherwise.
    heard_samples: int | msgspec.UnsetType = msgspec.UNSET


class End(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The session is over. Nothing follows."""

    # Length of a recording as a whole, in seconds. Left out for live audio.
    time: Number = 0.0


EVENT_TYPES: dict[str, type[Event]] = {cls.__name__.lower(): cls for cls in Event.__subclasses__()}


class _Typed(msgspec.Struct):
    """What every event of every version has."""

    type: str


def from_json(text: str | bytes) -> Event:
    """Read one event. Unknown fields are ignored, so that later versions can add some.

    Raises ProtocolError if the text is not JSON, or a field is missing or of the wrong type; UnknownEventError if the
    type is unknown.
    """
    try:
        name = msgspec.json.decode(text, type=_Typed).type
        if name in EVENT_TYPES:
            return msgspec.json.decode(text, type=EVENT_TYPES[name])
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested thousands deep
        raise ProtocolError(
            f"message is not an event ({str(error)!r:.200}): expected one that `streamer docs protocol` describes"
        ) from None
    raise UnknownEventError(f"event type {name!r:.60} is unknown: expected one of {', '.join(EVENT_TYPES)}")
