"""Messages of clients of OpenAI's Realtime transcription, and the configuration in them.

msgspec decodes both by the types below and ignores other fields. Its errors become an InvalidRequestError.
"""

import contextlib
import re
from typing import Annotated, Any, Literal, get_args

import msgspec

from streamer.constants import PcmEncoding
from streamer.errors import ConfigError, ProtocolError
from streamer.outside import one_line
from streamer.protocols.adapter import parted, plain
from streamer.settings.options import SessionOptions

MAX_AUDIO_BYTES = 15 * 2**20 // 4 * 3  # of one message: 15 MiB of base64
MAX_MESSAGE_CHARS = 100_000  # without audio: to decode millions of keys would delay all clients

# Seconds of silence that end a turn, and, as OpenAI has it, if a turn model finds that the speaker has not finished.
EAGERNESS_S = {"low": (1.5, 8.0), "medium": (0.8, 4.0), "auto": (0.8, 4.0), "high": (0.4, 2.0)}

LOGPROBS = "item.input_audio_transcription.logprobs"


class InvalidRequestError(ProtocolError):
    """An invalid message; the session continues."""

    def __init__(self, reason: str, message: str, param: str | None = None, event_id: str | None = None) -> None:
        super().__init__(message)

        # OpenAI's `code`.
        self.reason = reason

        # The invalid field.
        self.param = param

        # The client's id of the message.
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
FORMATS: dict[type, tuple[int, PcmEncoding]] = {Pcm: (24_000, "s16le"), MuLaw: (8_000, "mulaw"), ALaw: (8_000, "alaw")}

_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=100)]


class TranscriptionConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """Model, language and hints."""

    model: _Name | None = None
    language: _Name | None = None
    languages: _Names | None = None
    prompt: str | None = None
    keywords: _Names | None = None


class NoiseReduction(msgspec.Struct, frozen=True):
    """Returned to the client, without effect: Whisper is trained on noisy audio."""

    type: Literal["near_field", "far_field"] = "near_field"


class ServerVad(msgspec.Struct, frozen=True, tag="server_vad"):
    """Silence ends a turn. The padding is the daemon's own (speech.pad_s)."""

    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 300
    silence_duration_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 500


class SemanticVad(msgspec.Struct, frozen=True, tag="semantic_vad"):
    """Silence of EAGERNESS_S ends a turn."""

    eagerness: Literal["low", "medium", "high", "auto"] = "auto"


class InputConfig(msgspec.Struct, frozen=True):
    """The client's audio."""

    format: Pcm | MuLaw | ALaw = Pcm()
    transcription: TranscriptionConfig | None = TranscriptionConfig()
    noise_reduction: NoiseReduction | None = None
    turn_detection: ServerVad | SemanticVad | None = ServerVad()


class AudioConfig(msgspec.Struct, frozen=True):
    """A transcription session has no other audio than the input."""

    input: InputConfig = InputConfig()


class SessionConfig(msgspec.Struct, frozen=True):
    """The configuration of a session."""

    type: Literal["transcription"] = "transcription"
    audio: AudioConfig = AudioConfig()
    include: tuple[Literal["item.input_audio_transcription.logprobs"], ...] | None = ()

    def updated(self, patch: dict[str, Any]) -> "SessionConfig":
        """Return the configuration with a client's changes. Raises InvalidRequestError."""
        try:
            updated = msgspec.convert(_merge(msgspec.to_builtins(self), patch), SessionConfig)
            updated.options()
        except msgspec.ValidationError as error:
            raise _invalid(error, "session") from None
        except ConfigError as error:
            raise InvalidRequestError("invalid_value", str(error), "session.audio.input.transcription") from None
        return updated

    def options(self) -> SessionOptions:
        """Return the options of our session."""
        text = self.audio.input.transcription or TranscriptionConfig()
        turns = self.audio.input.turn_detection
        semantic = isinstance(turns, SemanticVad)
        threshold = silence_s = unfinished_s = None
        if isinstance(turns, ServerVad):
            threshold = min(max(turns.threshold, 0.01), 0.99)
            silence_s = min(max(turns.silence_duration_ms / 1000, 0.1), 10.0)
        elif isinstance(turns, SemanticVad):
            silence_s, unfinished_s = EAGERNESS_S[turns.eagerness]
        return SessionOptions(
            language=text.language,
            languages=text.languages,
            initial_prompt=text.prompt,
            hotwords=tuple(filter(None, map(one_line, text.keywords))) if text.keywords is not None else None,
            words=True,
            vad_threshold=threshold,
            min_silence_s=silence_s,
            turns=semantic,
            turn_silence_s=unfinished_s,
        )


def _merge(old: object, new: object) -> object:
    """Merge nested dictionaries; values of `new` win."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merge(old.get(key), value) for key, value in new.items()}}


# --- Messages ---------------------------------------------------------------------------------------------------------


class _WithId(msgspec.Struct, kw_only=True):
    # The client's id of the message, which errors repeat.
    event_id: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class _Envelope(_WithId):
    """The fields that can be read of any message."""

    type: str = ""


class Update(_WithId, tag="session.update"):
    """Change the configuration."""

    session: dict[str, Any]


class Append(_WithId, tag="input_audio_buffer.append"):
    """Audio in the session's `format`; in JSON it is base64."""

    audio: Annotated[bytes, msgspec.Meta(max_length=MAX_AUDIO_BYTES)]


class Commit(_WithId, tag="input_audio_buffer.commit"):
    """End the item here."""


class Clear(_WithId, tag="input_audio_buffer.clear"):
    """Discard the buffer."""


ClientMessage = Update | Append | Commit | Clear

_MESSAGES: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_ENVELOPES = msgspec.json.Decoder(_Envelope)
_TYPES = [str(message.__struct_config__.tag) for message in get_args(ClientMessage)]


def read_message(text: str | bytes) -> ClientMessage:
    """Decode a message. Raises InvalidRequestError."""
    try:
        if len(text) > MAX_MESSAGE_CHARS and (message := _ENVELOPES.decode(text)).type != "input_audio_buffer.append":
            what = f"The message has {len(text)} characters: expected at most {MAX_MESSAGE_CHARS} if it has no audio."
            raise InvalidRequestError("message_too_long", what, None, message.event_id)
        return _MESSAGES.decode(text)
    except msgspec.ValidationError as error:
        invalid = _invalid(error)
        with contextlib.suppress(ValueError):
            invalid.event_id = _ENVELOPES.decode(text).event_id
        raise invalid from None
    except (ValueError, RecursionError):  # the latter: brackets nested thousands deep
        what = "The message is not JSON: expected one JSON object in a text frame."
        raise InvalidRequestError("invalid_json", what) from None


def _invalid(error: msgspec.ValidationError, field: str = "") -> InvalidRequestError:
    """Parse an error of msgspec such as "Expected `int`, got `str` - at `$.audio`", in a field of a message."""
    what, place = parted(str(error))
    what = one_line(what[:200])  # it may contain text of the client
    missing = re.search(r"missing required field `(\w+)`", what)
    param = ".".join(filter(None, (field, place, missing and missing[1])))
    reason = "missing_required_parameter" if missing else "invalid_type" if ", got `" in what else "invalid_value"
    says = plain(error, field)
    if param == "type":
        fact = says.partition(":")[0].replace("is out of range", "is not a string")
        says = f"{fact}: expected one of {', '.join(_TYPES)}"
    return InvalidRequestError(reason, says, param[:100] or None)
