"""What gateways and workers send each other, and what is stored of a session, as MessagePack (docs/cluster.md).

All subjects stand under one prefix:

| Subject | Carries | From | To |
| --- | --- | --- | --- |
| `alive.worker.ID`, `alive.gateway.ID` | `WorkerAlive`, `GatewayAlive` | each, every BEAT_S | all |
| `worker.ID` | `OpenSession` (a request), `AudioBlock`, `SessionCommand`, `Leave` | gateways | that worker |
| `gateway.ID` | `SessionUpdate` | workers | that gateway |
| `events.VERSION-SESSION` | `Record`, in the stream `SESSIONS` | the worker that owns the session | its log |

Positions are absolute samples of a session's audio, at 16 kHz. A session's *epoch* rises with each worker that
owns it.
"""

import functools
from typing import TypeVar, cast

import msgspec
import numpy as np

from streamer.arrays import Float32Array
from streamer.errors import ClusterMessageError
from streamer.protocols.native import StreamStart
from streamer.session.state import SessionState
from streamer.settings.options import SessionOptions

# Of all messages and of what is stored. Machines with another leave each other alone.
VERSION = 3

PREFIX = "streamer"
ALIVE_WORKERS = f"{PREFIX}.alive.worker"
ALIVE_GATEWAYS = f"{PREFIX}.alive.gateway"
WORKERS = f"{PREFIX}.worker"
GATEWAYS = f"{PREFIX}.gateway"
EVENTS = f"{PREFIX}.events"

BEAT_S = 0.5  # from one sign of life to the next
LOST_S = 1.6  # without one, a machine counts as lost

# Of a message of audio: as 32-bit floats, well below NATS' limit of 1 MB.
MAX_BLOCK_SAMPLES = 80_000


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower, tag_field="type"):
    """What all messages share: the name of the class, in lower case, is their type."""


class WorkerAlive(Message, frozen=True, kw_only=True):
    """A worker's sign of life."""

    worker: str
    version: int
    model: str  # its name, and a hash of its vocabulary: a session's tokens are those of one model
    load: float  # share of the machine's time that its sessions take
    capacity: int  # sessions that it keeps in real time; 0: not known yet
    sessions: int  # that are open
    room: bool  # for another
    draining: bool = False
    failing: str = ""  # what keeps it from transcribing, in a few words; empty while all is well
    recordings: int = 0  # at work
    max_recordings: int = 0
    counters: dict[str, float] = {}  # since its start, by name (plugins/cluster/metrics.py)


class GatewayAlive(Message, frozen=True, kw_only=True):
    """A gateway's sign of life."""

    gateway: str
    sessions: int = 0  # that are open
    draining: bool = False
    counters: dict[str, float] = {}


class SessionCheckpoint(Message, frozen=True, kw_only=True):
    """All that another worker needs to go on with a session, except its audio from `state.needed_from` on."""

    model: str
    start: StreamStart  # how the client's audio came, and what it has chosen by now
    tenant: str = ""  # name of the token that it was opened with, empty without one; no other resumes it
    seq: int  # number of the newest event in it
    command: int  # number of the newest of the client's commands (`SessionCommand`) that took effect
    state: SessionState


class Record(Message, frozen=True, kw_only=True):
    """An entry of a session's log. The worker that wrote the last one owns the session."""

    epoch: int  # 1 for the first owner, and one more for each that follows
    worker: str
    gateway: str  # that had it opened at this worker

    # As JSON lines; none if the owner only says that it is the owner, or renews what would expire.
    events: tuple[str, ...]
    checkpoint: SessionCheckpoint

    # Sequence of the record before (0: this is the first); `SessionLog.store` fills it in.
    previous: int = 0


class OpenSession(Message, frozen=True, kw_only=True):
    """Request: transcribe a session, from its beginning or from a checkpoint. Answer: Opened, Refused."""

    session: str
    gateway: str
    checkpoint: SessionCheckpoint  # the newest that is known of it; of a new session, with an empty state

    # Of its owner; 0: a new session. If the log has a higher one, the request is old, and refused.
    epoch: int = 0

    seen: int  # events that follow have numbers above this: clients may have seen partials up to it
    head: int  # end of the audio that the gateway has by now: up to there it is not live
    must: bool = False  # take it without room, too: it was going on elsewhere, and no other worker has room


class Opened(Message, frozen=True, kw_only=True):
    """The worker owns the session: it wants audio from `checkpoint.state.needed_from` on, commands behind `command`."""

    epoch: int
    checkpoint: SessionCheckpoint
    previous: int  # sequence of the newest record of the session's log before the one that says so
    sequence: int  # of that one


class Refused(Message, frozen=True, kw_only=True):
    """The worker does not do it."""

    code: str  # of the error: `busy`, `config`, ...
    message: str


class AudioBlock(Message, frozen=True, kw_only=True):
    """A piece of a session's audio."""

    session: str
    epoch: int
    position: int  # of its first sample
    command: int  # number of the newest command before it
    data: bytes  # little-endian
    wide: bool  # 32-bit floats, else 16-bit integers


class SessionCommand(Message, frozen=True, kw_only=True):
    """A command at its place in a session's audio."""

    session: str
    epoch: int
    position: int
    command: int  # 1, 2, 3, ...

    # `flush`, `pause`, `resume`, `clear`, `set`, `report` (an `error` event) or `end` (no more audio comes).
    what: str
    options: SessionOptions | None = None
    code: str = ""
    message: str = ""
    fatal: bool = False


class Leave(Message, frozen=True, kw_only=True):
    """No client wants the session any longer: it is not transcribed further, and its log ends."""

    session: str
    epoch: int
    moves: bool = False  # another worker is asked to take it over: let go of it, and leave its log


class SessionUpdate(Message, frozen=True, kw_only=True):
    """Progress of a session: a record that was stored, a partial, or only positions."""

    session: str
    worker: str
    epoch: int
    previous: int  # sequence of the newest record that was stored before this update
    sequence: int  # of the newest one now: if it is another, it holds the events
    events: tuple[str, ...]
    checkpoint: SessionCheckpoint
    head: int  # position behind the audio that has come
    command: int  # number of the newest command that has come
    missing: bool = False  # whether some is missing behind these
    move: str = ""  # why another worker is to take it: `drain`, `load`, `failing`; empty: none is


_M = TypeVar("_M", bound=Message)

ToWorker = OpenSession | AudioBlock | SessionCommand | Leave

_encoder = msgspec.msgpack.Encoder()
_decoder = functools.cache(msgspec.msgpack.Decoder)


def encoded(message: Message) -> bytes:
    """Return a message as MessagePack."""
    return _encoder.encode(message)


def decoded(data: bytes, kind: type[_M]) -> _M:
    """Read a message of a type, or of a union of types. Raises ClusterMessageError if it is malformed."""
    try:
        return cast(_M, _decoder(kind).decode(data))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ClusterMessageError(
            f"unknown or malformed message ({len(data)} bytes): {str(error)!r:.200}; expected message version"
            f" {VERSION}, run the same version of streamer on all machines"
        ) from None


def pack_samples(samples: Float32Array, *, wide: bool) -> bytes:
    """Return samples, shape (n,), as bytes; exact if `wide`, or if they came from 16-bit integers."""
    return samples.astype("<f4").tobytes() if wide else np.rint(samples * 32768).astype("<i2").tobytes()


def unpack_samples(data: bytes, *, wide: bool) -> Float32Array:
    """Return samples, shape (n,). Raises ClusterMessageError if the bytes are no whole number of finite samples."""
    if len(data) % (4 if wide else 2) or len(data) > MAX_BLOCK_SAMPLES * 4:
        raise ClusterMessageError(
            f"malformed audio ({len(data)} bytes): expected a whole number of samples, at most 5 s"
        )
    if not wide:
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
    samples = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(samples).all():
        raise ClusterMessageError("malformed audio: expected finite numbers, not NaN or infinity")
    return samples
