"""Settings: config.yaml <-> typed, validated values.

Each section is a frozen dataclass; each field carries its range or choices. Values come, later ones winning, from the
defaults here, the configuration file, environment variables (`STREAMER_SECTION_KEY`) and command-line flags.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def setting(
    default: Any,  # noqa: ANN401 - any type of setting
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:  # noqa: ANN401 - as dataclasses.field
    """Declare a setting with its default and what it may be: a range (inclusive) or choices."""
    return field(default=default, metadata={"low": low, "high": high, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """Where audio comes from."""

    source: str = setting("mic")  # `mic`, `none`, `-` (standard input) or a path
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

    name: str = setting("nano.en")  # a name below models/, or a directory
    device: str = setting("AUTO", choices=("AUTO", "NPU", "GPU", "CPU"))
    npu_through_cpu: bool = setting(False)  # run NPU graphs through the NPU plugin's CPU path (a test of the path)
    cache_dir: str = setting("")  # compiled blobs; empty: the user's cache directory


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingSettings:
    """How tokens become text."""

    language: str = setting("auto")  # a code such as `en`, or `auto`
    task: str = setting("transcribe", choices=("transcribe", "translate"))
    condition_on_previous_text: bool = setting(True)  # the last finals go into the next window's prompt
    no_speech_threshold: float = setting(0.6, low=0.0, high=1.0)
    logprob_threshold: float = setting(-1.0, low=-100.0, high=0.0)
    compression_ratio_threshold: float = setting(2.4, low=1.0, high=100.0)


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

    pace_s: float = setting(0.5, low=0.1, high=10.0)  # least new audio from one pass to the next
    agreement: int = setting(2, low=1, high=5)  # hypotheses in a row that must agree on a word
    trim_after_s: float = setting(12.0, low=5.0, high=28.0)  # window length from which stable text is made final


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The WebSocket and HTTP front."""

    host: str = setting("127.0.0.1")
    port: int = setting(8765, low=0, high=65_535)  # 0 picks a free port
    token: str = setting("")  # required from clients where not empty; needed to listen beyond loopback
    origins: tuple[str, ...] = setting(())  # web origins besides our own page that may connect
    max_streams: int = setting(4, low=0, high=1000)  # clients that send their own audio at once
    max_subscribers: int = setting(100, low=1, high=100_000)  # clients that read captions at once
    queue_events: int = setting(256, low=8, high=100_000)  # undelivered events after which a subscriber is closed
    history_events: int = setting(10_000, low=100, high=1_000_000)  # events kept for replay with ?after=SEQ


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
    speech: SpeechSettings = field(default_factory=SpeechSettings)
    stream: StreamSettings = field(default_factory=StreamSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    chat: ChatSettings = field(default_factory=ChatSettings)
    log: LogSettings = field(default_factory=LogSettings)
