"""Where audio and commands come into a session: any thread may leave them there, and the engine fetches them."""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.ring import RingBuffer
from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import SAMPLE_RATE
from streamer.engine.arrivals import Arrivals
from streamer.engine.host import Host
from streamer.engine.journal import KeepAudio, no_audio
from streamer.events import Event, GapReason
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.session.state import SessionState

logger = logging.getLogger(__name__)

HELD_BACK_SAMPLES = 5 * SAMPLE_RATE  # with less room than this in the buffer a client has to wait
SILENCE_SAMPLES = SAMPLE_RATE  # written at a time in place of audio that was lost
ARRIVALS_KEPT_S = 60.0  # how long it is known when audio came, if no audio waits for too long

# Commands that wait one by one: a client has this many only if it floods the session.
MAX_WAITING = 100


class AudioKind(Enum):
    """Whether audio waits until it is transcribed."""

    # Live audio does not: some is lost on a machine that is too slow for it.
    LIVE = auto()

    # Recorded audio does: it is processed only while no window is due or being transcribed, and nothing is lost.
    RECORDED = auto()

    # The sender can wait. Audio that comes faster than it can be spoken counts as recorded, the rest as live.
    EITHER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a session's audio is like."""

    kind: AudioKind
    capacity_samples: int  # kept in the buffer
    max_delay_s: float = math.inf  # live audio that has waited for this long when its turn comes is given up
    reserved: bool = False  # whether it counts as unbroken speech when room for another session is computed
    live_from: int = 0  # audio before this is sent again, as fast as possible
    keep: KeepAudio = no_audio  # called with all audio but that of pauses and behind the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a session is to do when the audio before a position has been processed."""

    what: Literal["flush", "pause", "resume", "clear", "end", "change", "mark", "miss"]
    position: int
    number: int | None = None  # the caller's, see `Session.mark`
    settings: SessionSettings | None = None  # of `change`
    events: tuple[Event, ...] = ()  # of `mark`
    reason: GapReason = "device"  # of `miss`, whose audio ends at `until`
    until: int = 0

    def apply(self, session: Session) -> Sequence[Event]:
        """Carry it out; return what to publish."""
        if self.number is not None:
            session.mark = self.number
        match self.what:
            case "flush" | "pause" | "resume" | "clear":
                events: Sequence[Event] = getattr(session, self.what)()
                return events
            case "end":
                return () if session.now.ended else session.finish(session.now.received)
            case "miss":
                return session.miss(self.until, self.reason)
            case "change" if self.settings is not None:
                session.change(self.settings)
        return self.events


class Commands:
    """Commands in the order in which they were given. Any thread may put one in; one thread takes them out."""

    def __init__(self) -> None:
        self._commands: OrderedDict[Hashable, Command] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._commands)

    def put(self, command: Command) -> None:
        """Add a command.

        If MAX_WAITING are waiting, it replaces one of its kind that came after these in the same chunk, so that a flood
        of them takes no memory. Those that say what is lost, or have events, replace none.
        """
        own = command.what == "miss" or bool(command.events)
        with self._lock:
            full = not own and len(self._commands) >= MAX_WAITING
            key = (command.what, command.position // CHUNK_SAMPLES) if full else object()
            self._commands[key] = command
            self._commands.move_to_end(key)

    @property
    def next_position(self) -> int | None:
        with self._lock:
            return next((command.position for command in self._commands.values()), None)

    def take(self, position: int) -> Command | None:
        """Remove and return the next command if it is due at `position`."""
        with self._lock:
            if not self._commands or next(iter(self._commands.values())).position > position:
                return None
            return self._commands.popitem(last=False)[1]

    def clear(self) -> None:
        with self._lock:
            self._commands.clear()


class Inlet:
    """Takes audio and commands, for the session that is derived from it. Any thread may call its methods."""

    def __init__(self, name: str, settings: SessionSettings, input: Input, state: SessionState) -> None:
        self.logger = logging.LoggerAdapter(logger, {"session": name})
        self.input = input
        # The engine that serves the session, and whether it does.
        self.host, self._serving = Host(), False
        self.ring = RingBuffer(input.capacity_samples, start=state.needed_from)
        self.commands = Commands()
        self.arrivals = Arrivals(input.max_delay_s if math.isfinite(input.max_delay_s) else ARRIVALS_KEPT_S)
        # Whether the client paused last.
        self.paused = state.paused_from is not None

        # When to check the clock again; until when a client that sends nothing is waited for: its audio may be late.
        self.tick_at_s = self.excused_until_s = -math.inf
        # Whether nothing is published any more: the session is finished or closed.
        self.over = False
        # What others may know of the session, as of its last decision: its settings, the end of the audio that was
        # processed, the message of the current failure, empty if nothing fails.
        self.settings, self.position, self.failing = settings, state.received, ""

    def start(self, host: Host) -> None:
        """Be served by an engine from now on."""
        self.host = host
        self.arrivals.note(self.ring.head, host.clock(), again=True)
        self._serving = True

    def stop(self) -> None:
        """Take nothing more: the session is over."""
        self.over, self._serving = True, False
        self.commands.clear()
        self.ring.wake()
        self.host.remove(self)

    def write(self, samples: Float32Array) -> None:
        """Take audio, 16 kHz mono float32, shape (n,). Only one thread at a time may write."""
        self.host.stats.audio_s["own" if self.input.reserved else "client"] += len(samples) / SAMPLE_RATE
        if not (self.paused or self.over):
            try:
                self.input.keep(self.ring.head, samples)
            except Exception:
                self.logger.exception("audio of the session is no longer kept")
                self.input = replace(self.input, keep=no_audio)
        self._write(samples)

    def write_gap(self, n_samples: int, reason: GapReason) -> None:
        """Note that `n_samples` of audio are lost here. Only the thread that writes may call it."""
        for first in range(0, n_samples, SILENCE_SAMPLES):
            n_silent, head = min(SILENCE_SAMPLES, n_samples - first), self.ring.head
            self._put(Command(what="miss", position=head, until=head + n_silent, reason=reason))
            self._write(np.zeros(n_silent, dtype=np.float32))

    def end(self, number: int | None = None) -> None:
        """The audio is complete: the log ends when everything is final. Harmless the second time."""
        self._put(Command(what="end", position=self.ring.head, number=number))

    def do(self, what: Literal["flush", "pause", "resume", "clear"], number: int | None = None) -> None:
        """Execute a command at the end of the audio so far."""
        if what in ("pause", "resume"):
            self.paused = what == "pause"
        self._put(Command(what=what, position=self.ring.head, number=number))

    def change(self, settings: SessionSettings, number: int | None = None) -> None:
        self._put(Command(what="change", position=self.ring.head, number=number, settings=settings))

    def mark(self, number: int, events: Sequence[Event] = ()) -> None:
        """Publish events, and set `number` in the session's state."""
        self._put(Command(what="mark", position=self.ring.head, number=number, events=tuple(events)))

    def has_news(self, now_s: float) -> bool:
        """Return whether there is audio or a command to process, or it is time to check the clock."""
        return not self.over and (
            self.ring.head - self.position >= CHUNK_SAMPLES or len(self.commands) > 0 or now_s >= self.tick_at_s
        )

    @property
    def recorded(self) -> bool:
        """Whether the audio waits to be transcribed, and is not live."""
        if self.input.kind is AudioKind.EITHER:
            return self.arrivals.recorded(self.position)
        return self.input.kind is AudioKind.RECORDED

    @property
    def restored(self) -> bool:
        """Whether the audio that another machine had processed has been written again."""
        return self.ring.head >= self.position

    def age_s(self, time_s: float) -> float | None:
        """Return how long ago the audio at a time of the session came; None if it is recorded or that is unknown."""
        came_s = None if self.recorded else self.arrivals.time_at(round(time_s * SAMPLE_RATE))
        return None if came_s is None else self.host.clock() - came_s

    def _put(self, command: Command) -> None:
        if not self.over:
            self.commands.put(command)
            self.host.news.set()

    def _write(self, samples: Float32Array) -> None:
        """Add audio to the buffer, and note when it came."""
        self.ring.write(samples)
        if not self._serving:
            return
        head, held_back = self.ring.head, self.ring.free < HELD_BACK_SAMPLES
        self.arrivals.note(head, self.host.clock(), held_back=held_back, again=head <= self.input.live_from)
        if head - self.position >= CHUNK_SAMPLES:
            self.host.news.set()
