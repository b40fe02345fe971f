"""What all followers do that have a model at work: the same for each, whatever the model finds."""

import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from streamer.after import queues
from streamer.after.correct.corrector import Draft
from streamer.after.correct.pipeline import CorrectionFollower, Corrections
from streamer.after.passages import Passage
from streamer.after.queues import LATE, ModelQueue, QueuedFollower
from streamer.after.speakers.diarization import Diarization
from streamer.after.speakers.live import END_S, SpeakerFollower, SpeakerModel
from streamer.after.translation import END_PATIENCE_S, TranslationFollower, Translations
from streamer.after.turns import TurnFollower, Turns
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from streamer.events import Event, Final, Gap, Revision, Speech, Translation, Word
from streamer.health import LONGEST_PAUSE_S, Health
from streamer.settings.table import Settings
from streamer.worker import Work, once
from tests import builders
from tests.fakes import Clock
from tests.unit.after.live import Live
from tests.unit.after.speakers.voices import voice
from tests.waiting import WAIT_S, wait_until


def final(text: str, segment: int) -> Final:
    start = 2.0 * segment
    spoken = builders.words(text, start, step=1.0)
    return builders.final(text, segment=segment, start=start, end=start + 2.0, words=spoken, language="de")


class Kind:
    """Followers of one kind, and a model of theirs that counts what it is given."""

    name: str  # of the model in Health
    late_as = ""  # name in Health of what is late
    end_s = WAIT_S  # how long the end of a session waits
    adds: type[Event] = Revision

    def __init__(self) -> None:
        self.clock = Clock()
        self.health = Health(self.clock)
        self.n_computed = 0
        # Called by the model before it answers.
        self.meanwhile: Callable[[], object] = lambda: None
        # Of the thread in which the model is at work.
        self.queue: ModelQueue

    def compute(self) -> None:
        self.n_computed += 1
        self.meanwhile()

    def follow(self, live: Live) -> None:
        raise NotImplementedError

    def say(self, live: Live, n: int = 1) -> None:
        """Publish what the model has work with."""
        for segment in range(n):
            live.write(2.0, 0.1)
            live.publish(final("so ist es.", segment))

    def found(self, event: Event) -> bool:
        """Return whether an event is what the model adds."""
        return isinstance(event, self.adds)


class Corrector(Kind):
    name = "language_model"
    late_as = "slow correction"
    slow = True

    def __init__(self) -> None:
        super().__init__()
        self.corrections = Corrections([self], deadline_s=WAIT_S, health=self.health)
        self.queue = self.corrections.slow_queue

    def correct(self, draft: Draft, left_s: float) -> list[Word]:
        self.compute()
        return [msgspec.structs.replace(word, word=" other") for word in draft.words]

    def follow(self, live: Live) -> None:
        live.follow(CorrectionFollower(self.corrections, live.session, live.log))


class QuickCorrector(Corrector):
    name = "glossary"
    slow = False

    def __init__(self) -> None:
        super().__init__()
        self.queue = self.corrections.queue


class Reader(Corrector):
    name = "second_pass"

    def __init__(self) -> None:
        super().__init__()
        self.corrections = Corrections([], deadline_s=WAIT_S, health=self.health, reader=self)  # type: ignore[arg-type]
        self.queue = self.corrections.slow_queue

    def read(self, passage: Passage, samples: Float32Array, session: object, until_s: float) -> tuple[Word, ...]:
        self.compute()
        return tuple(word for each in passage.finals for word in builders.words("ganz anders", each.start))

    def say(self, live: Live, n: int = 1) -> None:
        for segment in range(n):
            live.write(2.0)
            live.publish(final("so ist es.", segment), Gap(start=2.0 * segment, end=2.0 * segment, reason="overload"))


class Translator(Kind):
    name = "translation"
    late_as = "translation"
    adds = Translation
    end_s = END_PATIENCE_S

    def __init__(self) -> None:
        super().__init__()
        self.translations = Translations(
            Settings(), SimpleNamespace(generation=SimpleNamespace(prompted=True)), lambda *_: True, self.health  # type: ignore[arg-type]
        )  # fmt: skip
        self.translations._decode = self.decode  # type: ignore[method-assign]
        self.queue = self.translations.queue

    def decode(self, samples: Float32Array, request: object) -> str:
        self.compute()
        return "so"

    def follow(self, live: Live) -> None:
        live.follow(TranslationFollower(self.translations, live.session, live.log))


class Recognizer(Kind):
    name = "speakers"
    end_s = END_S

    def __init__(self) -> None:
        super().__init__()
        self.model = SpeakerModel(self.vector_of, {}, self.health)
        self.queue = self.model.queue
        self.corrections = Corrections([], deadline_s=WAIT_S, health=self.health)

    def vector_of(self, samples: Float32Array) -> Float32Array:
        self.compute()
        return voice(1)

    def follow(self, live: Live) -> None:
        diarization = Diarization({})
        corrections = CorrectionFollower(self.corrections, live.session, live.log, diarization)
        live.follow(SpeakerFollower(self.model, live.session, live.log, diarization, corrections), corrections)

    def say(self, live: Live, n: int = 1) -> None:
        start_s = live.ring.head / SAMPLE_RATE
        live.write(4.0, 0.1)
        live.publish(Speech(state="start", time=start_s), Speech(state="end", time=start_s + 2.0 * n))
        live.publish(builders.final("so ist", start=start_s, end=start_s + 2.0))

    def found(self, event: Event) -> bool:
        return isinstance(event, Final | Revision) and any(word.speaker for word in event.words)


class Judge(Kind):
    name = "turns"

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns(self.health)
        self.turns.load = lambda: self  # type: ignore[assignment,method-assign,return-value]
        self.queue = self.turns.queue

    def probability(self, samples: Float32Array) -> float:
        self.compute()
        return 0.5

    def follow(self, live: Live) -> None:
        live.follow(TurnFollower(self.turns, live.session, live.log))

    def say(self, live: Live, n: int = 1) -> None:
        for _ in range(n):
            live.write(2.0)
            assert any(follower.judge(0, live.ring.head) for follower in live.followers)


KINDS = [Corrector, QuickCorrector, Reader, Translator, Recognizer, Judge]
# Those for whose last results the end of a session waits.
AWAITED = [Corrector, QuickCorrector, Reader, Translator, Recognizer]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param()
    return made


@pytest.fixture(params=AWAITED, ids=lambda kind: kind.__name__)
def awaited(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param()
    return made


class Held:
    """A model that waits at its first work until it is let go."""

    def __init__(self, kind: Kind) -> None:
        self._begun, self._let_go = threading.Event(), threading.Event()
        kind.meanwhile = self._wait

    def _wait(self) -> None:
        self._begun.set()
        assert self._let_go.wait(WAIT_S)

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go.set()

    def begun(self) -> None:
        assert self._begun.wait(WAIT_S)


def test_what_is_found_is_published_before_the_end(awaited: Kind) -> None:
    live = Live()
    awaited.follow(live)
    awaited.say(live)
    assert any(map(awaited.found, live.finish()))
    assert awaited.health.why == {}


def test_a_model_that_fails_is_reported_until_it_works_again(awaited: Kind) -> None:
    def fail() -> None:
        raise StreamerError("the device is lost")

    for meanwhile, why in ((fail, {awaited.name: "the device is lost"}), (lambda: None, {})):
        live = Live()
        awaited.follow(live)
        awaited.meanwhile = meanwhile
        awaited.clock.advance(LONGEST_PAUSE_S)
        awaited.say(live)
        assert any(map(awaited.found, live.finish())) == (not why)
        assert awaited.health.why == why


def test_nothing_is_computed_for_a_client_that_has_left(kind: Kind) -> None:
    left, waiting, idle = Live(), Live(), Live()
    for live in (left, waiting, idle):
        kind.follow(live)
    with Held(kind) as held:
        kind.say(left)
        held.begun()
        kind.say(left)
        kind.say(waiting)
        left.log.close()
        waiting.log.close()
    left.finish()
    waiting.finish()
    follower, done = idle.followers[0], threading.Event()
    assert isinstance(follower, QueuedFollower)
    kind.queue.put(follower, done.set)
    assert done.wait(WAIT_S)
    assert (kind.n_computed, kind.health.why) == (1, {})


def test_a_session_that_is_over_is_freed_at_once(kind: Kind) -> None:
    gc.collect()
    gc.disable()
    try:
        live = Live()
        kind.follow(live)
        kind.say(live)
        wait_until(lambda: kind.n_computed > 0)
        left = [weakref.ref(part) for part in (*live.followers, live.ring, live.log)]
        live.log.close()
        live.followers.clear()  # as a session that is over does
        del live
        wait_until(lambda: not any(part() for part in left))  # the thread may be at its last step
    finally:
        gc.enable()


def test_work_that_hangs_keeps_no_session_from_its_end(awaited: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    patience_s: list[float] = []

    def soon(then: Work, within_s: float, late: Work) -> Callable[[], None]:
        patience_s.append(within_s)
        return once(then, 0.01, late)

    monkeypatch.setattr(queues, "once", soon)
    live = Live()
    awaited.follow(live)
    with Held(awaited) as held:
        awaited.say(live)
        held.begun()
        assert not any(map(awaited.found, live.finish()))
        assert awaited.health.why == ({awaited.late_as: str(LATE)} if awaited.late_as else {})
    assert patience_s[0] == pytest.approx(awaited.end_s, abs=1.0)
