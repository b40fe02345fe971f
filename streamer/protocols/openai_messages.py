"""What clients of OpenAI's Realtime transcription say, and what they configure.

msgspec reads both by the types below, and passes over what they do not name. What it finds wrong becomes an
InvalidRequestError.
"""

import contextlib
import re
from typing import Annotated, Any, Literal

import msgspec

from streamer.audio.encodings import ALAW, LINEAR16, MULAW, Encoding
from streamer.errors import ProtocolError
from streamer.outside import one_line
from streamer.protocols.native import SessionOptions
from streamer.protocols.text import prompt

MAX_AUDIO_BYTES = 15 * 2**20 // 4 * 3  # of one message: 15 MiB of base64
MAX_MESSAGE_CHARS = 100_000  # without audio: millions of keys would hold up everybody

# Semantic turn detection looks at what was said. Here silence ends a turn: so many seconds for each eagerness.
EAGERNESS_S = {"low": 1.5, "medium": 0.8, "auto": 0.8, "high": 0.4}

LOGPROBS = "item.input_audio_transcription.logprobs"


class InvalidRequestError(ProtocolError):
    """A message that cannot be done; the session goes on."""

    def __init__(self, reason: str, message: str, param: str | None = None, event_id: str | None = None) -> None:
        super().__init__(message)

        # OpenAI's `code`.
        self.reason = reason

        # Which of its fields is wrong.
        self.param = param

        # The client's name for the message.
        self.event_id = event_id


# --- The configuration ------------------------------------------------------------------------------------------------


class Pcm(msgspec.Struct, frozen=True, tag="audio/pcm"):
    """16-bit integers, little-endian, mono."""

    rate: Literal[24_000] = 24_000


class MuLaw(msgspec.Struct, frozen=True, tag="audio/pcmu"):
    """G.711 at 8 kHz."""


class ALaw(msgspec.Struct, frozen=True, tag="audio/pcma"):
    """G.711 at 8 kHz."""


# Samples a second, and how they are written.
FORMATS: dict[type, tuple[int, Encoding]] = {Pcm: (24_000, LINEAR16), MuLaw: (8_000, MULAW), ALaw: (8_000, ALAW)}

_Text = Annotated[str, msgspec.Meta(max_length=20_000)]
_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=100)]


class Transcription(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the text is made."""

    model: _Name | None = None
    language: _Name | None = None
    languages: _Names | None = None
    prompt: _Text | None = None
    keywords: _Names | None = None


class NoiseReduction(msgspec.Struct, frozen=True):
    """Shown to the client again, and nothing else: Whisper knows noise."""

    type: Literal["near_field", "far_field"] = "near_field"


class ServerVad(msgspec.Struct, frozen=True, tag="server_vad"):
    """Silence ends a turn. The padding is the daemon's own (speech.pad_s)."""

    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 300
    silence_duration_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 500


class SemanticVad(msgspec.Struct, frozen=True, tag="semantic_vad"):
    """Silence ends a turn, see EAGERNESS_S."""

    eagerness: Literal["low", "medium", "high", "auto"] = "auto"


class Input(msgspec.Struct, frozen=True):
    """The only audio that a transcription session has."""

    format: Pcm | MuLaw | ALaw = Pcm()
    transcription: Transcription | None = Transcription()
    noise_reduction: NoiseReduction | None = None
    turn_detection: ServerVad | SemanticVad | None = ServerVad()


class Audio(msgspec.Struct, frozen=True):
    """One more level."""

    input: Input = Input()


class Session(msgspec.Struct, frozen=True):
    """All that can be configured."""

    type: Literal["transcription"] = "transcription"
    audio: Audio = Audio()
    include: tuple[Literal["item.input_audio_transcription.logprobs"], ...] | None = ()

    def updated(self, patch: dict[str, Any]) -> "Session":
        """Return it with what a client changes: what is left out stays. Raises InvalidRequestError."""
        try:
            return msgspec.convert({"session": _merge(msgspec.to_builtins(self), patch)}, _Whole).session
        except msgspec.ValidationError as error:
            raise _invalid(error) from None

    def flat(self) -> dict[str, Any]:
        """Return it in its older shape."""
        own = msgspec.to_builtins(self.audio.input)
        own["format"] = {new: old for old, new in _FLAT_FORMATS.items()}[own["format"]["type"]]
        return {**{old: own[new] for old, new in _FLAT.items()}, "include": self.include}

    def options(self) -> SessionOptions:
        text = self.audio.input.transcription or Transcription()
        turns = self.audio.input.turn_detection
        threshold = silence_s = None
        if isinstance(turns, ServerVad):
            threshold = min(max(turns.threshold, 0.01), 0.99)
            silence_s = min(max(turns.silence_duration_ms / 1000, 0.1), 10.0)
        elif isinstance(turns, SemanticVad):
            silence_s = EAGERNESS_S[turns.eagerness]
        return SessionOptions(
            language=text.language or None,
            languages=text.languages,
            initial_prompt=prompt(text.prompt),
            hotwords=tuple(filter(None, map(one_line, text.keywords))) if text.keywords is not None else None,
            words=True,
            vad_threshold=threshold,
            min_silence_s=silence_s,
        )


class _Whole(msgspec.Struct):
    """The configuration where a message has it, so that what is wrong with it is told by its place there."""

    session: Session


def _merge(old: object, new: object) -> object:
    """Put what is new over what is old, key by key."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merge(old.get(key), value) for key, value in new.items()}}


# In the older shape what lies in `audio.input` now, and the names of formats, were these.
_FLAT = {
    "input_audio_format": "format",
    "input_audio_transcription": "transcription",
    "input_audio_noise_reduction": "noise_reduction",
    "turn_detection": "turn_detection",
}
_FLAT_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}


def from_flat(flat: dict[str, Any]) -> dict[str, Any]:
    """Return a change of the configuration that was said in its older shape."""
    own = {new: flat[old] for old, new in _FLAT.items() if old in flat}
    if "format" in own:
        own["format"] = {"type": _FLAT_FORMATS.get(str(own["format"]), own["format"])}
    return {"audio": {"input": own}, **{key: flat[key] for key in ("include",) if key in flat}}


# --- Messages ---------------------------------------------------------------------------------------------------------


# A name that the client gives to a message, for errors.
_EventId = Annotated[str, msgspec.Meta(max_length=500)] | None


class _Head(msgspec.Struct):
    """What can be read of any message."""

    type: str = ""
    event_id: _EventId = None


class Message(msgspec.Struct, kw_only=True):
    """What all of them have."""

    event_id: _EventId = None


class Update(Message, tag="session.update"):
    """Change the configuration."""

    session: dict[str, Any]


class FlatUpdate(Message, tag="transcription_session.update"):
    """The same in its older shape."""

    session: dict[str, Any]


class Append(Message, tag="input_audio_buffer.append"):
    """Audio, as `format` says. In JSON it is base64."""

    audio: Annotated[bytes, msgspec.Meta(max_length=MAX_AUDIO_BYTES)]


class Commit(Message, tag="input_audio_buffer.commit"):
    """The item ends here."""


class Clear(Message, tag="input_audio_buffer.clear"):
    """Forget the buffer."""


_MESSAGES = msgspec.json.Decoder(Update | FlatUpdate | Append | Commit | Clear)
_HEADS = msgspec.json.Decoder(_Head)
_TYPES = [str(message.__struct_config__.tag) for message in (Update, FlatUpdate, Append, Commit, Clear)]


def read_message(text: str | bytes) -> Update | FlatUpdate | Append | Commit | Clear:
    """Read a message. Raises InvalidRequestError."""
    try:
        if len(text) > MAX_MESSAGE_CHARS and (head := _HEADS.decode(text)).type != "input_audio_buffer.append":
            what = f"The message has {len(text)} characters: expected at most {MAX_MESSAGE_CHARS}, but for audio."
            raise InvalidRequestError("message_too_long", what, None, head.event_id)
        message: Update | FlatUpdate | Append | Commit | Clear = _MESSAGES.decode(text)
    except msgspec.ValidationError as error:
        invalid = _invalid(error)
        with contextlib.suppress(ValueError):
            invalid.event_id = _HEADS.decode(text).event_id
        raise invalid from None
    except (ValueError, RecursionError):  # the latter: brackets nested thousands deep
        what = "The message cannot be read: expected one JSON object in a text frame."
        raise InvalidRequestError("invalid_json", what) from None
    return message


def _invalid(error: msgspec.ValidationError) -> InvalidRequestError:
    """Take apart what msgspec says: "Expected `int`, got `str` - at `$.session.audio`"."""
    what, at, place = str(error).rpartition(" - at `$")
    if not at:
        what, place = place, ""
    what = one_line(what[:200])  # it may repeat what the client sent
    missing = re.search(r"missing required field `(\w+)`", what)
    param = place.strip(".`") if missing is None else f"{place.strip('.`')}.{missing[1]}".strip(".")
    reason = "missing_required_parameter" if missing else "invalid_type" if ", got `" in what else "invalid_value"
    remedy = f": expected one of {', '.join(_TYPES)}" if param == "type" else ""
    return InvalidRequestError(reason, what + remedy, param[:100] or None)
