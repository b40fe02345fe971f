"""The terminal and the outputs of `--to`, with a bounded queue and a thread each, so that none delays captions."""

import contextlib
import logging
import queue
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from streamer import entry_points
from streamer.errors import ConfigError
from streamer.events import Event, Final, Partial, Speech
from streamer.outputs.files import FORMATS, GrowingFile
from streamer.outputs.sink import Answer, Delivered, Later, Refused, Sink, Target
from streamer.outputs.subtitles import subtitle_options
from streamer.outside import one_line, printable
from streamer.settings.table import Settings

logger = logging.getLogger(__name__)

# Entry points of plug-ins' outputs: functions that make a sink of a `Target`.
GROUP = "streamer.outputs"

FIRST_DELAY_S = 0.5  # before an event is delivered again; doubled after each failure
MAX_DELAY_S = 30.0
MAX_REFUSALS = 5  # of one event
CLOSE_TIMEOUT_S = 5.0  # at the end, for queued events
GRACE_S = 0.5  # behind it, for an answer that is on its way
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
        self._names: Counter[str] = Counter()
        targets = [parse_target(text) for text in settings.outputs.to]
        for (kind, argument), sink in [(target, self._make_sink(*target, settings)) for target in targets]:
            self.add(printable(Path(argument).name) if kind == "file" else kind, sink)

    def add(self, name: str, sink: Sink) -> None:
        """Begin an output; names that are there already get a number."""
        self._names[name] += 1
        number = f" ({self._names[name]})" if self._names[name] > 1 else ""
        self.all.append(Output(name + number, sink))

    def put(self, event: Event) -> None:
        """Pass the next event to all outputs. Never blocks, so that an event log may call it."""
        if isinstance(event, Partial | Final | Speech):
            self._beginnings.append(time.time() - (event.time if isinstance(event, Speech) else event.end))
            self._began = min(self._beginnings)
        for output in self.all:
            output.put(event)

    def said_at(self, position_s: float) -> float:
        """Return the Unix time at which a second of the session's live audio was recorded, to some 0.2 s."""
        return self._began + position_s

    def close(self) -> None:
        """Send queued events, for `CLOSE_TIMEOUT_S` at most."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for output in self.all:
            output.end(deadline)
        for output in self.all:
            output.join()

    def _make_sink(self, kind: str, argument: str, settings: Settings) -> Sink:
        lines = subtitle_options(settings)
        if kind == "file":
            return GrowingFile(Path(argument), lines)
        make = entry_points.load(GROUP, kind, callable)
        if make is None:
            raise ConfigError(f"--to {kind} cannot be used: its plug-in is broken; the warning above says why")
        sink = make(Target(argument=argument, settings=settings, lines=lines, said_at=self.said_at))
        if not isinstance(sink, Sink):
            raise ConfigError(f"--to {kind} cannot be used: its plug-in made no Sink; update or uninstall it")
        return sink


class Output:
    """A sink with its queue and its thread, which delivers one event after another.

    What is wrong is logged once, until the sink accepts a final; so is what is dropped, with its number in the end.
    """

    def __init__(self, name: str, sink: Sink, *, first_delay_s: float = FIRST_DELAY_S) -> None:
        """Start the thread; `name` is the output's in log and metrics."""
        self.name = name
        # Accepted finals, dropped finals, failed attempts.
        self.n_sent = self.n_dropped = self.n_failures = 0
        self._sink = sink
        self._first_delay_s = first_delay_s
        # None is the end.
        self._queue = _Queue()
        # Finals that had been dropped when the last one was accepted. The lock guards the counting: the publisher drops
        # the oldest, the thread what is refused.
        self._n_known = 0
        self._dropping = threading.Lock()
        # What keeps the sink from accepting finals: `Refused` once one was dropped for it. None: nothing.
        self._trouble: Later | Refused | None = None
        # The time (monotonic) until which events are delivered, and whether it is set.
        self._deadline = float("inf")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"output {name}", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue an event. Never blocks; if the queue is full, the oldest event is dropped."""
        if self._ending.is_set() or (isinstance(event, Partial) and not self._sink.partials):
            return
        self._queue.put(event)
        if self._queue.qsize() > self._sink.max_waiting:
            with contextlib.suppress(queue.Empty):
                self._drop(self._queue.get_nowait())

    def end(self, deadline: float) -> None:
        """Take no further event, and deliver those that are queued until `deadline` (monotonic)."""
        self._deadline = deadline
        self._ending.set()
        self._queue.put(None)

    def join(self) -> None:
        """Wait for the end, and log what was not sent."""
        self._thread.join(max(0.0, self._deadline + GRACE_S - time.monotonic()))
        if self._thread.is_alive():
            logger.warning("output %s does not answer; its last event may be missing there", self.name)
        with contextlib.suppress(queue.Empty):
            while True:
                self._drop(self._queue.get_nowait())
        if n_lost := self.n_dropped - self._n_known:
            logger.warning("output %s: the last %d finals were not sent", self.name, n_lost)

    def _run(self) -> None:
        while True:
            try:
                event = self._queue.get(timeout=self._sink.tick_s)
            except queue.Empty:
                self._attempt(None)
                continue
            if event is None:
                break
            self._deliver(event)
        try:
            self._sink.close()
        except Exception as error:  # noqa: BLE001 - nothing follows that could fail
            logger.warning("output %s: %s", self.name, one_line(error))

    def _deliver(self, event: Event) -> None:
        """Deliver an event until the sink takes it, has refused it too often, or there is no time left."""
        delays_s = retry_delays(self._first_delay_s)
        # After a refusal the following events are tried once each, so that refused ones do not pile up.
        n_left = 1 if isinstance(self._trouble, Refused) else MAX_REFUSALS
        while time.monotonic() <= self._deadline:
            answer = self._attempt(event)
            if not isinstance(answer, Later | Refused):
                self._accepted(event)
                return
            if isinstance(answer, Refused):
                n_left -= 1
                if not n_left:
                    self._trouble = answer
                    break
            least_s = answer.delay_s if isinstance(answer, Later) else 0.0
            self._pause(max(least_s, next(delays_s)))
        self._drop(event)

    def _attempt(self, event: Event | None) -> Answer:
        """Deliver an event once; None: let the sink do what is due."""
        bug: Exception | None = None
        answer: Answer = Delivered()
        try:
            if event is None:
                self._sink.tick()
            else:
                answer = self._sink.deliver(event)
        except OSError as error:
            answer = Later(one_line(error))
        except Exception as error:  # noqa: BLE001 - a bug of one sink costs nothing else
            bug, answer = error, Refused(one_line(error) or type(error).__name__)
        if isinstance(answer, Later | Refused):
            self.n_failures += 1
            if self._trouble is None:
                text = "output %s: %.300s; captions go on, and it is tried again"
                logger.warning(text, self.name, answer.reason, exc_info=bug)
                self._trouble = Later(answer.reason)
        return answer

    def _pause(self, pause_s: float) -> None:
        """Wait before another attempt; at the end there is one at once."""
        if self._ending.is_set():
            time.sleep(max(0.0, min(pause_s, self._deadline - time.monotonic())))
        else:
            self._ending.wait(pause_s)

    def _accepted(self, event: Event) -> None:
        if not _has_text(event):
            return  # many sinks leave it out, which shows nothing
        n_dropped = self.n_dropped
        if self._trouble is not None or n_dropped > self._n_known:
            missing = f"; {n_dropped - self._n_known} finals are missing there" if n_dropped > self._n_known else ""
            logger.warning("output %s works %s%s", self.name, "again" if self.n_sent else "now", missing)
        self._trouble, self._n_known = None, n_dropped
        self.n_sent += 1

    def _drop(self, event: Event | None) -> None:
        """Count a dropped event, and log the first."""
        if event is None or not _has_text(event):
            return
        with self._dropping:
            self.n_dropped += 1
            is_first = self.n_dropped == self._n_known + 1
        if is_first and not self._ending.is_set():
            text = "output %s: finals are dropped (it refuses them, or more than %d wait)"
            logger.warning(text, self.name, self._sink.max_waiting)


class _Queue(queue.Queue[Event | None]):
    """Events that wait for a sink, of which a partial leaves when newer text comes."""

    def _put(self, item: Event | None) -> None:
        if isinstance(item, Partial | Final):
            partials = (other for other in self.queue if isinstance(other, Partial))
            if (partial := next(partials, None)) is not None and partial.segment <= item.segment:
                self.queue.remove(partial)
        self.queue.append(item)


def retry_delays(first_s: float) -> Iterator[float]:
    """Yield the seconds before further attempts, growing to MAX_DELAY_S.

    They are random, so that clients of one server do not all reconnect at the same moment.
    """
    delay_s = first_s
    while True:
        yield delay_s * random.uniform(0.5, 1.0)  # noqa: S311
        delay_s = min(2 * delay_s, MAX_DELAY_S)


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
