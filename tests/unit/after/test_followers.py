"""What all followers do that have a model at work: the same for each, whatever the model finds."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import pytest

from streamer.after import queues
from streamer.after.correct.corrector import Draft
from streamer.after.correct.pipeline import CorrectionFollower, Corrections
from streamer.after.passages import Passage
from streamer.after.queues import LATE
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
from tests.builders import final, words
from tests.fakes import Clock
from tests.unit.after.live import Live
from tests.unit.after.speakers.voices import voice
from tests.waiting import WAIT_S, wait_until


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
        self.meanwhile: Callable[[], object] = lambda: None  # called by the model before it answers

    def compute(self) -> None:
        self.n_computed += 1
        self.meanwhile()

    def follow(self, live: Live) -> None:
        raise NotImplementedError

    def say(self, live: Live) -> None:
        """Publish what the model has work with."""
        live.write(2.0, 0.1)
        live.publish(final("so ist", end=2.0, words=words("so ist", step=1.0), language="de"))
        live.publish(Gap(start=2.0, end=2.0, reason="overload"))  # a second pass waits for the end of a passage

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

    def correct(self, draft: Draft, left_s: float) -> list[Word]:
        self.compute()
        return [msgspec.structs.replace(word, word=" other") for word in draft.words]

    def follow(self, live: Live) -> None:
        live.follow(CorrectionFollower(self.corrections, live.session, live.log))


class Reader(Corrector):
    name = "second_pass"

    def __init__(self) -> None:
        super().__init__()
        self.corrections = Corrections([], deadline_s=WAIT_S, health=self.health, reader=self)  # type: ignore[arg-type]

    def read(self, passage: Passage, samples: Float32Array, session: object, until_s: float) -> tuple[Word, ...]:
        self.compute()
        return words("ganz anders", passage.start_s)


class Translator(Kind):
    name = late_as = "translation"
    adds = Translation
    end_s = END_PATIENCE_S

    def __init__(self) -> None:
        super().__init__()
        model = SimpleNamespace(generation=SimpleNamespace(prompted=True))
        self.translations = Translations(Settings(), model, lambda *_: True, self.health)  # type: ignore[arg-type]
        self.translations._decode = self.decode  # type: ignore[method-assign]

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
        self.corrections = Corrections([], deadline_s=WAIT_S, health=self.health)

    def vector_of(self, samples: Float32Array) -> Float32Array:
        self.compute()
        return voice(1)

    def follow(self, live: Live) -> None:
        diarization = Diarization({})
        corrections = CorrectionFollower(self.corrections, live.session, live.log, diarization)
        live.follow(SpeakerFollower(self.model, live.session, live.log, diarization, corrections), corrections)

    def say(self, live: Live) -> None:
        start_s = live.ring.head / SAMPLE_RATE
        live.write(4.0, 0.1)
        live.publish(Speech(state="start", time=start_s), Speech(state="end", time=start_s + 2.0))
        live.publish(final("so ist", start=start_s, end=start_s + 2.0))

    def found(self, event: Event) -> bool:
        return isinstance(event, Final | Revision) and any(word.speaker for word in event.words)


class Judge(Kind):
    name = "turns"

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns(self.health)
        self.turns.load = lambda: self  # type: ignore[assignment,method-assign,return-value]

    def probability(self, samples: Float32Array) -> float:
        self.compute()
        return 0.5

    def follow(self, live: Live) -> None:
        live.follow(TurnFollower(self.turns, live.session, live.log))

    def say(self, live: Live) -> None:
        live.write(2.0)
        assert any(follower.judge(0, live.ring.head) for follower in live.followers)


# Those for whose last results the end of a session waits; all.
AWAITED = [Corrector, Reader, Translator, Recognizer]
KINDS = [*AWAITED, Judge]


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param()
    return made


awaited = pytest.mark.parametrize("kind", AWAITED, indirect=True)
each = pytest.mark.parametrize("kind", KINDS, indirect=True)


@contextmanager
def held(kind: Kind, live: Live) -> Iterator[None]:
    """Let the model wait at a session's first work while the block runs."""
    begun, let_go = threading.Event(), threading.Event()
    kind.meanwhile = lambda: (begun.set(), let_go.wait(WAIT_S))
    kind.say(live)
    assert begun.wait(WAIT_S)
    yield
    let_go.set()


@awaited
def test_what_is_found_is_published_before_the_end_and_a_failure_reported_until_it_works(kind: Kind) -> None:
    def fail() -> None:
        raise StreamerError("lost")

    for meanwhile, why in ((lambda: None, {}), (fail, {kind.name: "lost"}), (lambda: None, {})):
        live = Live()
        kind.follow(live)
        kind.meanwhile = meanwhile
        kind.clock.advance(LONGEST_PAUSE_S)
        kind.say(live)
        assert any(map(kind.found, live.finish())) == (not why)
        assert kind.health.why == why


@each
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


@awaited
def test_work_that_hangs_keeps_no_session_from_its_end(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    patience_s: list[float] = []

    def soon(then: Work, within_s: float, late: Work) -> Callable[[], None]:
        patience_s.append(within_s)
        return once(then, 0.01, late)

    monkeypatch.setattr(queues, "once", soon)
    live = Live()
    kind.follow(live)
    with held(kind, live):
        assert not any(map(kind.found, live.finish()))
        assert kind.health.why == ({kind.late_as: str(LATE)} if kind.late_as else {})
    assert patience_s[0] == pytest.approx(kind.end_s, abs=1.0)
