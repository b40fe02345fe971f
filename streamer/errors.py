"""The errors of streamer, one tree: what each class is.

    StreamerError                 it failed while running (exit code 1)
    +-- UsageError                wrong usage or configuration (exit code 2)
    |   +-- ConfigError           a setting: unknown, of the wrong type, out of range
    |   |   +-- MissingExtraError     an option whose package is not installed
    |   +-- AudioFileError        an audio file that is missing, empty or not audio
    |   +-- ModelError            a model directory with a missing or mismatched part
    |   |   +-- UnknownModelError   a model that is not here, or that requests may not name
    |   +-- UploadError           the body of a request that cannot be accepted
    |   +-- ProtocolError         a message that breaks the wire protocol
    |   |   +-- UnknownEventError   an event of a type that this version does not know
    |   +-- UnknownSessionError     a session that is not kept, or never existed
    |   +-- PortInUseError        the address to listen on is taken
    +-- AudioDeviceError          no PortAudio, no microphone, or a microphone that went away
    +-- TruncatedAudioError       an audio file that ends before its header says, or that cannot be read on
    +-- InferenceError            a device failed while it computed
    +-- BusyError                 no room for another session
    +-- IdleError                 a client that sends nothing
    +-- RoomTakenError            another stream has begun in the client's room
    +-- StoppingError             the daemon is about to stop
    +-- HistoryError              the history cannot be read, or deleted from
    +-- SessionStateError         a session's state that cannot be resumed
    +-- PeerError                 another program (a daemon, a chat endpoint) cannot be reached or misbehaves
        +-- RefusalError              it rejects what it was sent
        +-- ClusterError              NATS: it cannot be reached, is too old, or refuses
            +-- ClusterMessageError       a malformed message of another machine
            +-- FencedError               another machine owns the session

Each message is one line: the fact, what was expected, and what to do about it.
"""

from typing import ClassVar


class StreamerError(Exception):
    """Anything that streamer reports in one line instead of with a traceback."""

    # Exit code of the command that ends with this error.
    exit_code: ClassVar[int] = 1

    # Short machine-readable name, used as `code` of an `error` event.
    code: ClassVar[str] = "failed"

    # How a request is answered that fails with it, and how a WebSocket is closed (RFC 9110, 15; RFC 6455, 7.4).
    status: int = 500
    close_code: ClassVar[int] = 1011


class UsageError(StreamerError):
    """Wrong usage or configuration."""

    exit_code: ClassVar[int] = 2
    code: ClassVar[str] = "usage"
    status = 400
    close_code: ClassVar[int] = 1008


class ConfigError(UsageError):
    code: ClassVar[str] = "config"


class MissingExtraError(ConfigError):
    """An option whose package is not installed, since it belongs to an extra (pyproject.toml)."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        """Take the package, an extra that brings it, and what needs it, such as `--grammar`."""
        super().__init__(package, extra, purpose)
        self.package = package
        self.extra = extra
        self.purpose = purpose

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        # In double quotes, which mean the same to every shell, Windows' among them.
        return f'pip install "streamer-captions[{self.extra}]"'

    def __str__(self) -> str:
        return f"{self.package} is not installed: expected for {self.purpose}; {self.remedy}"


class AudioFileError(UsageError):
    code: ClassVar[str] = "audio_file"


class ModelError(UsageError):
    code: ClassVar[str] = "model"
    status = 500


class UnknownModelError(ModelError):
    code: ClassVar[str] = "model_not_found"
    status = 404


class UploadError(UsageError):
    code: ClassVar[str] = "upload"

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class ProtocolError(UsageError):
    code: ClassVar[str] = "bad_message"


class UnknownEventError(ProtocolError):
    """An event of a type that this version does not know; a later server may send some."""


class UnknownSessionError(UsageError):
    code: ClassVar[str] = "unknown_session"


class PortInUseError(UsageError):
    code: ClassVar[str] = "port_in_use"

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.host = host
        self.port = port

    def __str__(self) -> str:
        return (
            f"port {self.port} on {self.host} is already in use: stop the program that holds it,"
            " or choose another port with --port N (0 picks a free one)"
        )


class AudioDeviceError(StreamerError):
    code: ClassVar[str] = "audio_device"


class TruncatedAudioError(StreamerError):
    code: ClassVar[str] = "truncated"

    def __init__(self, path: str, found_s: float, expected_s: float | None = None, reason: str = "") -> None:
        super().__init__(path, found_s, expected_s, reason)
        self.path = path
        self.found_s = found_s

        # What the header announces, or else why the rest cannot be read.
        self.expected_s = expected_s
        self.reason = reason

    def __str__(self) -> str:
        if self.expected_s is None:
            return (
                f"{self.path} cannot be read behind {self.found_s:.2f} s ({self.reason}): expected audio up to its end;"
                " what comes before was transcribed, copy or convert it again for the rest"
            )
        return (
            f"{self.path} ends after {self.found_s:.2f} s, its header announces {self.expected_s:.2f} s:"
            " the file is truncated; what it holds was transcribed, copy it again for the rest"
        )


class InferenceError(StreamerError):
    code: ClassVar[str] = "device"

    def __init__(self, message: str, stage: str = "decoder", *, hopeless: bool = False) -> None:
        super().__init__(message)

        # Stage whose device it was.
        self.stage = stage

        # Whether the device is not to be tried again: it gave no answer, or computes nonsense.
        self.hopeless = hopeless


class LostDeviceError(InferenceError):
    """A device failed while it computed, or gave no answer: none of its stages can go on there."""


class BusyError(StreamerError):
    code: ClassVar[str] = "busy"
    status = 429
    close_code: ClassVar[int] = 1013


class IdleError(StreamerError):
    code: ClassVar[str] = "idle"
    close_code: ClassVar[int] = 1008


class RoomTakenError(StreamerError):
    code: ClassVar[str] = "room_taken"
    close_code: ClassVar[int] = 1008


class StoppingError(StreamerError):
    code: ClassVar[str] = "stopping"
    status = 503
    close_code: ClassVar[int] = 1001


class HistoryError(StreamerError):
    code: ClassVar[str] = "history"


class PeerError(StreamerError):
    code: ClassVar[str] = "peer"


class RefusalError(PeerError):
    """Another program rejects what it was sent."""


class SessionStateError(StreamerError):
    """A session's state, as another machine left it, cannot be resumed."""

    code: ClassVar[str] = "session_state"


class ClusterError(PeerError):
    """NATS cannot be reached, is too old, or refuses; or a machine of the cluster misbehaves."""

    code: ClassVar[str] = "cluster"


class ClusterMessageError(ClusterError):
    """A message of another machine of the cluster is malformed or unknown."""


class FencedError(ClusterError):
    """Another machine owns the session by now."""
