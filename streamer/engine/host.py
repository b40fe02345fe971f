"""What an engine offers to the sessions that it serves."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from streamer.events import GapReason


@dataclass(slots=True)
class EngineStats:
    """What the engine has done, for the metrics page."""

    encodes: int = 0
    decodes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    # Calls of the decoder; tokens found; tokens given before these, and those of them that are of stable words.
    decoder_calls: int = 0
    decoder_tokens: int = 0
    given_tokens: int = 0
    settled_tokens: int = 0
    windows_replaced: int = 0
    failures: int = 0
    # Seconds of audio published as gaps, by reason; that came in, lost or not, by source.
    gap_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(get_args(GapReason), 0.0))
    audio_s: dict[str, float] = field(default_factory=lambda: {"own": 0.0, "client": 0.0})
    # Called with the seconds that a pass took; with the event that first shows live audio, and its age.
    on_encode: Callable[[float], object] = lambda cost_s: None
    on_decode: Callable[[float], object] = lambda cost_s: None
    on_delay: Callable[[str, float], object] = lambda event_type, delay_s: None


@dataclass(frozen=True, slots=True)
class Host:
    """An engine, as its sessions see it. The defaults are for a session that none serves yet."""

    stats: EngineStats = field(default_factory=EngineStats)
    clock: Callable[[], float] = time.monotonic
    wake: Callable[[], object] = lambda: None  # there may be something to do
    remove: Callable[[Any], object] = lambda runner: None  # the session is over
    prepared_s: Callable[[], float] = lambda: -math.inf  # returns when the model was last loaded again
