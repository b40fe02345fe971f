"""The terminal and the outputs of `--to`, with a bounded queue and a thread each, so that none delays captions."""

import functools
import itertools
import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streamer import entry_points
from streamer.errors import ConfigError, RefusalError, StreamerError
from streamer.events import Event, Final, Partial, Speech
from streamer.outputs.base import Sink
from streamer.outputs.files import FORMATS, GrowingFile
from streamer.outputs.subtitles import subtitle_options
from streamer.outputs.target import Target
from streamer.outside import one_line, printable
from streamer.settings.table import Settings

logger = logging.getLogger(__name__)

# Entry points of plug-ins' outputs: functions that make a sink of a `Target`.
GROUP = "streamer.outputs"

MAX_WAITING = 1000  # events in a queue; then the oldest is dropped
MAX_WAITING_LIVE = 100  # some minutes; older captions are useless for live viewers
FIRST_DELAY_S = 0.5  # before an event is retried; doubled after each failure
MAX_DELAY_S = 30.0
TICK_S = 1.0
MAX_REFUSALS = 5  # attempts with one event that the other side refuses
CLOSE_TIMEOUT_S = 5.0  # at the end, for queued events
CLOCK_EVENTS = 64  # newest events that relate the audio to the clock


class Outputs:
    """All outputs of the daemon's own input."""

    def __init__(self, settings: Settings) -> None:
        """Prepare what the settings name; nothing is sent. Raises ConfigError."""
        # Unix time of the audio's start according to each of the newest events, and to the earliest of these. It
        # changes, since the audio does not include time in which the computer slept.
        self._beginnings: deque[float] = deque(maxlen=CLOCK_EVENTS)
        self._began = time.time()

        self.all: list[Output] = []
        counts: Counter[str] = Counter()
        for text in settings.outputs.to:
            kind, argument = parse_target(text)
            name = printable(Path(argument).name) if kind == "file" else kind
            counts[name] += 1
            name += f" ({counts[name]})" if counts[name] > 1 else ""
            sink = self._make_sink(kind, argument, settings)
            limit = MAX_WAITING_LIVE if getattr(sink, "live", False) else MAX_WAITING
            self.all.append(Output(name, sink, limit=limit))

    def draw(self, terminal: Sink, *, limit: int) -> None:
        """Show captions in a terminal, too, which misses no event before `limit` of them wait."""
        self.all.append(Output("terminal", terminal, limit=limit, partials=True))

    def handle(self, event: Event) -> None:
        """Pass the next event to all outputs. Never blocks, so that an event log may call it."""
        if isinstance(event, Partial | Final | Speech):
            self._beginnings.append(time.time() - (event.time if isinstance(event, Speech) else event.end))
            self._began = min(self._beginnings)
        for output in self.all:
            output.handle(event)

    def said_at(self, position_s: float) -> float:
        """Return the Unix time at which a second of the session's live audio was recorded, to some 0.2 s."""
        return self._began + position_s

    def close(self) -> None:
        """Send queued events, for `CLOSE_TIMEOUT_S` at most."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        with ThreadPoolExecutor(len(self.all) or 1) as pool:
            list(pool.map(lambda output: output.close(deadline), self.all))

    def _make_sink(self, kind: str, argument: str, settings: Settings) -> Sink:
        lines = subtitle_options(settings)
        if kind == "file":
            return GrowingFile(Path(argument), lines)
        make: Callable[[Target], Sink] | None = entry_points.load(GROUP, kind, callable)
        if make is None:
            raise ConfigError(f"--to {kind} cannot be used: its plug-in is broken; the warning above says why")
        return make(Target(argument=argument, settings=settings, lines=lines, said_at=self.said_at))


class Output:
    """A sink behind a queue.

    A thread passes it one event after another. If the sink raises StreamerError or OSError, the event is retried until
    the sink accepts it, has refused it `MAX_REFUSALS` times (RefusalError), or more than `limit` events wait. A failure
    is logged once, until the output accepts a final.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        *,
        limit: int = MAX_WAITING,
        partials: bool = False,
        first_delay_s: float = FIRST_DELAY_S,
    ) -> None:
        """Start the thread.

        name : the output's name in log and metrics
        partials : whether the sink gets partials, too, except those that are outdated when its turn comes
        """
        self.name = name
        self._sink = sink
        self._limit = limit
        self._partials = partials
        self._first_delay_s = first_delay_s
        # Accepted finals, dropped finals, failed attempts.
        self.n_sent = self.n_dropped = self.n_failures = 0
        # Queued events, oldest first; finals dropped since the last accepted one. Guarded by the condition.
        self._waiting: deque[Event] = deque()
        self._n_lost = 0
        self._changed = threading.Condition()
        # Whether the last attempt failed; whether the last event was dropped because it was refused.
        self._failing = False
        self._refusing = False
        # Set by close(), with the time (monotonic) until which queued events are tried.
        self._ending = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._work, name=f"output {name}", daemon=True)
        self._thread.start()

    def handle(self, event: Event) -> None:
        """Queue an event. Never blocks; if the queue is full, the oldest event is dropped."""
        if isinstance(event, Partial) and not self._partials:
            return
        with self._changed:
            if self._ending.is_set():
                return
            if self._partials and isinstance(event, Partial | Final):
                outdated = (other for other in self._waiting if isinstance(other, Partial))
                if (partial := next(outdated, None)) is not None and partial.segment <= event.segment:
                    self._waiting.remove(partial)
            self._waiting.append(event)
            if len(self._waiting) > self._limit:
                self._drop(self._waiting.popleft())
            self._changed.notify()

    def close(self, deadline: float) -> None:
        """Wait until all is sent, at most until `deadline` (monotonic) plus 0.5 s, and log the rest."""
        with self._changed:
            self._deadline = deadline
            self._ending.set()
            self._changed.notify()
        self._thread.join(max(0.0, deadline - time.monotonic()) + 0.5)
        with self._changed:
            while self._waiting:
                self._drop(self._waiting.popleft())
        if self._thread.is_alive():
            logger.warning("output %s does not answer; its last event may be missing there", self.name)
        if self._n_lost:
            logger.warning("output %s: the last %d finals were not sent", self.name, self._n_lost)

    def _work(self) -> None:
        """Thread: deliver queued events, one after another."""
        tick: Callable[[], None] | None = getattr(self._sink, "tick", None)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending.is_set(), TICK_S if tick else None)
                event = self._waiting.popleft() if self._waiting else None
            if event is not None:
                self._deliver(event)
            elif self._ending.is_set():
                break
            elif tick:
                self._attempt(tick)
        try:
            self._sink.close()
        except Exception as error:  # noqa: BLE001 - the other outputs must be closed, too
            logger.warning("output %s: %s", self.name, one_line(error))

    def _deliver(self, event: Event) -> None:
        """Try an event until the sink accepts it or it has to be dropped."""
        delay_s = self._first_delay_s
        for n_attempts in itertools.count(1):
            error = self._attempt(functools.partial(self._sink.handle, event))
            if error is None:
                self._accepted(event)
                return
            if isinstance(error, RefusalError) and n_attempts == MAX_REFUSALS:
                self._refusing = True  # the following events are tried once each, so that refused ones do not pile up
            may_succeed = isinstance(error, StreamerError | OSError)  # others are bugs
            if not may_succeed or (self._refusing and isinstance(error, RefusalError)) or not self._wait(delay_s):
                break
            delay_s = min(2 * delay_s, MAX_DELAY_S)
        with self._changed:
            self._drop(event)

    def _attempt(self, step: Callable[[], None]) -> Exception | None:
        """Return the error of a step, which is logged unless the one before failed, too."""
        try:
            step()
        except Exception as error:
            self.n_failures += 1
            if not self._failing and isinstance(error, StreamerError | OSError):
                logger.warning("output %s: %.300s; captions go on, and it is tried again", self.name, one_line(error))
            elif not self._failing:
                logger.exception("output %s failed", self.name)
            self._failing = True
            return error
        return None

    def _wait(self, delay_s: float) -> bool:
        """Wait before another attempt; return False if there is no time for one."""
        # Jitter, so that clients of one server do not all reconnect at the same moment.
        wait_s = delay_s * random.uniform(0.5, 1.0)  # noqa: S311
        if self._ending.wait(wait_s):
            left_s = self._deadline - time.monotonic()
            time.sleep(max(0.0, min(wait_s, left_s)))
            return left_s > 0
        return True

    def _accepted(self, event: Event) -> None:
        if not _has_text(event):
            return  # many sinks leave it out, which shows nothing
        self._refusing = False
        with self._changed:
            n_lost, self._n_lost = self._n_lost, 0
        if self._failing or n_lost:
            self._failing = False
            missing = f"; {n_lost} finals are missing there" if n_lost else ""
            logger.warning("output %s works %s%s", self.name, "again" if self.n_sent else "now", missing)
        self.n_sent += 1

    def _drop(self, event: Event) -> None:
        """Count a dropped event, and log the first. The condition is held."""
        if not _has_text(event):
            return
        self.n_dropped += 1
        self._n_lost += 1
        if self._n_lost == 1 and not self._ending.is_set():
            logger.warning(
                "output %s: finals are dropped (it refuses them, or more than %d wait)", self.name, self._limit
            )


def _has_text(event: Event) -> bool:
    return isinstance(event, Final) and bool(event.text.strip())


def parse_target(text: str) -> tuple[str, str]:
    """Read the kind and the argument of `--to`. Raises ConfigError, which repeats no argument: it may be a secret."""
    kind, _, argument = text.partition(":")
    if kind == "file" or kind in entry_points.names(GROUP):
        return kind, argument
    if text.lower().endswith(tuple(FORMATS)) and "://" not in text:
        return "file", text
    kinds = ", ".join((*entry_points.names(GROUP), f"or a file ending in {', '.join(FORMATS)}"))
    raise ConfigError(f"unknown output --to {kind!r:.60}: expected {kinds}")
