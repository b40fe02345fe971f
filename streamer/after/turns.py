"""Turns of live sessions: a model judges pauses in a thread of its own. Without it silence alone ends speech."""

from functools import partial

from streamer.after.queues import ModelQueue, QueuedFollower, attempt
from streamer.after.turn_model import WINDOW_SAMPLES, TurnModel
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.engine.live_session import LiveSession
from streamer.events import Error
from streamer.health import Health
from streamer.outside import one_line
from streamer.packed_models import TURNS
from streamer.whisper.device.devices import the_core

NAME = "turns"
MAX_WAITING = 64  # pauses of all sessions; beyond it older ones of a session are dropped


class Turns:
    """The turn model, which is loaded when it is first needed, and its thread: shared by all sessions."""

    def __init__(self, health: Health) -> None:
        self.queue = ModelQueue(NAME, MAX_WAITING)
        self._health = health
        self._model: TurnModel | None = None

    @property
    def failure(self) -> str:
        """Why it is too soon to use the model; empty if it is not."""
        return one_line(self._health.why.get(NAME, "")) if self._health.waits(NAME) else ""

    def load(self) -> TurnModel | None:
        """Return the model. None if it fails, which is reported; it is tried again later: it may have been fetched."""
        if self._model is None and not self._health.waits(NAME):
            self._model = attempt(self._health, NAME, lambda: TurnModel(TURNS.find(), the_core()))
        return self._model

    def probability(self, samples: Float32Array) -> float | None:
        """Return the probability that the speaker has finished; None if the model fails, which is reported."""
        model = self.load()
        if model is None:
            return None
        probability = attempt(self._health, NAME, partial(model.probability, samples))
        if probability is None:
            self._model = None
        return probability


class TurnFollower(QueuedFollower):
    """Has the turns of one session judged."""

    def __init__(self, turns: Turns, live: LiveSession, log: EventLog) -> None:
        super().__init__(live, log)
        self._turns = turns
        self._reported = False  # whether the client knows that the model fails
        if live.settings.gate.turns:  # now, so that the first pause need not wait for it
            turns.queue.put(self, turns.load)

    def judge(self, start: int, end: int) -> bool:
        failure = self._turns.failure
        if not failure:
            self._turns.queue.put(self, partial(self._judge, start, end))
        elif not self._reported:
            self._reported = True
            self.log.append(Error(code="turns", message=failure, fatal=False))
        return not failure

    def _judge(self, start: int, end: int) -> None:
        probability = None
        try:
            samples = self.audio(max(start, end - WINDOW_SAMPLES) / SAMPLE_RATE, end / SAMPLE_RATE)
            probability = None if samples is None else self._turns.probability(samples)
        finally:
            self.live.judge(end, probability)
