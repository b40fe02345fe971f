"""Turns of live sessions: a model judges pauses in a thread of its own. Without it silence alone ends speech."""

from collections.abc import Callable
from functools import partial

from streamer.after.correct.pipeline import ReadAudio
from streamer.after.turn_model import WINDOW_SAMPLES, TurnModel
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.events import Error
from streamer.health import Health
from streamer.outside import one_line
from streamer.packed_models import TURNS
from streamer.whisper.device.devices import the_core
from streamer.worker import WorkQueue

MAX_WAITING = 64  # pauses of all sessions; beyond it older ones of a session are dropped


class Turns:
    """The turn model, which is loaded when it is first needed, and its thread: shared by all sessions."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self.worker = WorkQueue("turns", limit=MAX_WAITING)
        self._model: TurnModel | None = None

    def probability(self, samples: Float32Array | None) -> float | None:
        """Return the probability that the speaker has finished; None without samples, or if the model fails.

        A failure is reported, and the model loaded again after a while: it may have been fetched.
        """
        if self.health.waits("turns"):
            return None
        try:
            model = self._model = self._model or TurnModel(TURNS.find(), the_core())
            probability = None if samples is None else model.probability(samples)
        except Exception as error:  # noqa: BLE001 - reported there
            self._model = None
            self.health.failed("turns", error)
            return None
        self.health.works("turns")
        return probability


class TurnsOfSession:
    """The turns of one session."""

    def __init__(
        self, turns: Turns, log: EventLog, audio: ReadAudio, answer: Callable[[int, float | None], object]
    ) -> None:
        """`answer` is called with the end of a turn that was judged, and how probably the speaker has finished."""
        self._turns, self._log, self._audio, self._answer = turns, log, audio, answer
        self._failed = False

    def load(self) -> None:
        """Have the model loaded, so that the first pause need not wait for it."""
        self._turns.worker.put(self, partial(self._turns.probability, None))

    def ask(self, start: int, end: int) -> bool:
        """Have a turn judged. Returns False if that fails for now. It waits for nothing."""
        health = self._turns.health
        why = health.why.get("turns")
        if why is not None and health.waits("turns"):
            if not self._failed:
                self._failed = True
                self._log.append(Error(code="turns", message=one_line(why), fatal=False))
            return False
        self._turns.worker.put(self, partial(self._judge, start, end))
        return True

    def _judge(self, start: int, end: int) -> None:
        if self._log.closed:  # the client has left
            return
        probability = None
        try:
            start = max(start, end - WINDOW_SAMPLES)
            probability = self._turns.probability(self._audio(start / SAMPLE_RATE, end / SAMPLE_RATE))
        finally:
            self._answer(end, probability)
