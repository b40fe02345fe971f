"""A machine that transcribes for people who talk: the engine on a clock moved by hand, or with its own threads."""

import itertools
import random
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec
import numpy as np

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.inlet import AudioKind, Input
from streamer.engine.live_session import LiveSession
from streamer.errors import InferenceError
from streamer.events import End, Error, Event, Final, Gap
from streamer.session.settings import SessionSettings
from streamer.session.task import Request
from streamer.settings.table import SpeechSettings
from streamer.whisper.result import Hypothesis
from tests.fakes import (
    LOUDNESS,
    Clock,
    FakeDecoder,
    FakeDetector,
    FakeEncoded,
    FakeEncoder,
    FakeMel,
    Speaker,
    SpokenWord,
    spoken,
)
from tests.promises import Promises
from tests.waiting import WAIT_S

AnyEvent = TypeVar("AnyEvent", bound=Event)
AnyTalker = TypeVar("AnyTalker", bound="Talker")

# Audio comes in pieces of this length.
PIECE_S = 0.25
PIECE_SAMPLES = round(PIECE_S * SAMPLE_RATE)

CAPACITY_SAMPLES = 90 * SAMPLE_RATE


GATE = SpeechSettings(threshold=0.5, min_speech_s=0.1, min_silence_s=0.6, pad_s=0.3)

SETTINGS = SessionSettings(
    gate=GATE,
    pace_s=0.5,
    policy="agreement",
    agreement=2,
    final_silence_s=0.6,
    attention_margin_s=0.3,
    commit_probability=0.0,
    second_look_s=1.5,
    show_probability=0.0,
    trim_after_s=8.0,
    condition_on_previous_text=True,
    no_speech_threshold=0.6,
    logprob_threshold=-1.0,
    compression_ratio_threshold=2.4,
    language="en",
    task="transcribe",
)


def settings_of(**changes: object) -> SessionSettings:
    return msgspec.structs.replace(SETTINGS, **changes)


def fails(*args: object, **options: object) -> Any:  # noqa: ANN401 - it stands for any function
    raise RuntimeError("can't start new thread")


def broken(window: FakeEncoded, request: Request) -> Hypothesis:
    raise InferenceError("the device is gone")


class Talker:
    """A session, what is said in it, and its events."""

    def __init__(
        self,
        voice: int,
        words: list[SpokenWord],
        *,
        settings: SessionSettings = SETTINGS,
        new_detector: Callable[[], FakeDetector] = FakeDetector,
        followers: Sequence[Follower] = (),
        **audio: Any,  # noqa: ANN401 - fields of `Input`
    ) -> None:
        self.voice, self.words = voice, words
        self.machine: Machine
        self.events: list[Event] = []
        self.promises = Promises()
        self.finished = threading.Event()
        self.n_finished = 0
        # Clock times at which a pass of its was done, and how long the oldest speech without text had waited then.
        self.passes: list[tuple[float, float]] = []
        # Whether its audio is complete; seconds of audio that are sent ahead of the clock.
        self.ended, self.ahead_s = False, 0.0
        self._n_checked = 0
        fields = {"kind": AudioKind.LIVE, "capacity_samples": CAPACITY_SAMPLES, "max_delay_s": 30.0, **audio}
        self.log = EventLog(f"voice {voice}", 1000)
        self.log.subscribe(self.take)
        self.live = LiveSession(settings, Input(**fields), self.log, mel=FakeMel(voice), new_detector=new_detector)
        self.live.followers = followers

    @property
    def finals(self) -> list[Final]:
        return self.of(Final)

    @property
    def gaps(self) -> list[Gap]:
        return self.of(Gap)

    @property
    def errors(self) -> list[Error]:
        return self.of(Error)

    @property
    def texts(self) -> list[str]:
        return [final.text for final in self.finals]

    @property
    def text(self) -> str:
        return " ".join(filter(None, self.texts))

    @property
    def said(self) -> str:
        """What a perfect transcript says."""
        return "".join(word.text for word in self.words).strip()

    def of(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        return [event for event in self.events if isinstance(event, kind)]

    def take(self, event: Event) -> None:
        """Take an event of the session."""
        if isinstance(event, End):
            self.n_finished += 1
            self.finished.set()
        else:
            self.events.append(event.stamped(0, ""))

    def check(self, *, all_told: bool = True) -> None:
        """Check the events since the last call against the promises: in `take` the session would catch a failure."""
        events, self._n_checked = self.events[self._n_checked :], len(self.events)
        self.promises.take(events)
        if all_told:
            head = self.live.ring.head
            spans = [(word.start, min(word.end, head)) for word in self.words if word.start < head]
            self.promises.detected = [(start / SAMPLE_RATE, end / SAMPLE_RATE) for start, end in spans]
            self.promises.check_all_told()

    def audio(self, n_samples: int) -> Float32Array:
        """Return the audio that is to be sent next, shape (n_samples,)."""
        start = self.live.ring.head
        samples = np.zeros(n_samples, dtype=np.float32)
        for i in range(bisect_right(self.words, start, key=lambda word: word.end), len(self.words)):
            word = self.words[i]
            if word.start >= start + n_samples:
                break
            samples[max(0, word.start - start) : word.end - start] = LOUDNESS
        return samples

    def write(self, n_samples: int) -> None:
        """Send the next samples at once."""
        self.live.write(self.audio(n_samples))

    def write_until(self, time_s: float) -> None:
        """Send audio up to a second of it at once."""
        self.write(round(time_s * SAMPLE_RATE) - self.live.ring.head)

    def send_until(self, time_s: float) -> None:
        """Send what has been said by a time, piece by piece, as far as there is room for it."""
        ring = self.live.ring
        while ring.head + PIECE_SAMPLES <= round((time_s + self.ahead_s) * SAMPLE_RATE):
            if self.live.input.kind is not AudioKind.LIVE and ring.free < PIECE_SAMPLES:
                return
            self.write(PIECE_SAMPLES)

    def speak_until(self, time_s: float) -> None:
        """Move the clock on and send audio as it is spoken, up to a second of it."""
        while self.live.ring.head < time_s * SAMPLE_RATE:
            self.machine.clock.advance(0.1)
            self.write(SAMPLE_RATE // 10)
            self.machine.work()

    def finish(self, end_s: float = 0.0) -> None:
        """Speak up to a second, end the audio, and check the events against all promises."""
        self.speak_until(end_s)
        self.live.end()
        self.machine.work()
        assert self.live.over
        assert self.n_finished == 1
        self.check()

    def end(self, until_s: float) -> None:
        """Send the rest of the audio at once, and wait until threads have finished the session."""
        self.write_until(until_s)
        self.live.end()
        assert self.finished.wait(WAIT_S)


class Machine:
    """An engine that encodes and decodes one window after the other, each in a known time.

    `clock` replaces the one that is moved by hand, for an engine with threads.
    """

    def __init__(
        self,
        *,
        encode_s: float = 0.0,
        decode_s: float = 0.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.clock = Clock()
        self.encoder = FakeEncoder()
        self.decoder = FakeDecoder(self.encoder, [])
        self.encoder.before = lambda encoded: self.pass_time(encode_s)
        self.decoder.before = lambda encoded: self.pass_time(decode_s * self.slowness.get(encoded.voice, 1.0))
        # How much longer the decoder takes for a voice.
        self.slowness: dict[int, float] = {}
        # Called before each window.
        self.prepare: Callable[[], object] = lambda: None
        self.loading = False
        self.engine: Engine[FakeEncoded] = Engine(
            self.encoder,
            self.decoder,
            clock=clock or self.clock,
            prepare=lambda: self.prepare(),
            loading=lambda: self.loading,
        )
        self.talkers: list[Talker] = []

    def talker(self, duration_s: float, *, pause: float = 0.05, **options: Any) -> Talker:  # noqa: ANN401 - see Talker
        """Open a session in which someone talks from the start of the clock on."""
        words = spoken(random.Random(len(self.talkers)), duration_s, pause=pause) if duration_s > 0 else []
        return self.add(Talker(len(self.talkers), words, **options))

    def add(self, talker: AnyTalker) -> AnyTalker:
        """Serve a session whose voice is the number of those before it."""
        talker.machine = self
        self.decoder.speakers.append(Speaker(talker.words, seed=talker.voice))
        self.engine.add(talker.live)
        self.talkers.append(talker)
        return talker

    def run_until(self, time_s: float) -> None:
        """Let the clock go on, and the engine do what is to be done."""
        while self.clock.now_s < time_s:
            if not self._turn():
                self.pass_time(PIECE_S)
        for talker in self.talkers:
            talker.check(all_told=False)

    def finish(self) -> None:
        """End the audio of all sessions, and check their events against the promises."""
        for talker in self.talkers:
            talker.live.end()
            talker.ended = True
        while self.engine.n_sessions:
            assert self._turn() or not self.engine.n_sessions, "it stands still"
        for talker in self.talkers:
            talker.check()

    def work(self) -> None:
        """Let the engine do all that is to be done now, a step of each kind in turn."""
        for _ in range(1000):
            # Not `any` of a generator: each takes its turn.
            if not any([self.engine.listen(), self.engine.encode(), self.engine.decode()]):
                return
        raise AssertionError("there is no end of work")

    def wait(self, duration_s: float, step_s: float = 0.5) -> None:
        """Let time pass in which no audio comes."""
        end_s = self.clock.now_s + duration_s
        while self.clock.now_s < end_s:
            self.clock.now_s = min(end_s, self.clock.now_s + step_s)
            self.work()

    def _turn(self) -> bool:
        busy = False
        while self.engine.listen():  # its thread has time for that during a pass
            busy = True
        busy |= self.engine.encode()
        n_decodes = self.engine.stats.decodes
        busy |= self.engine.decode()
        if self.engine.stats.decodes > n_decodes:
            talker = self.talkers[self.decoder.decoded[-1].voice]
            _, state = talker.live.snapshot(lambda: None)
            waited_s = self.clock.now_s - state.read / SAMPLE_RATE if state.speech.utterances else 0.0
            talker.passes.append((self.clock.now_s, waited_s))
        return busy

    def pass_time(self, duration_s: float) -> None:
        """Let time pass while audio comes."""
        end_s = self.clock.now_s + duration_s
        while self.clock.now_s < end_s:
            self.clock.now_s = min(self.clock.now_s + PIECE_S, end_s)
            for talker in self.talkers:
                if not talker.live.over and not talker.ended:
                    talker.send_until(self.clock.now_s)


def n_items(value: object, seen: set[int] | None = None) -> int:
    """Count what a session holds: characters, and items of containers at any depth."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, str | int | float | Enum | itertools.count | None):
        return len(value) if isinstance(value, str) else 1
    if isinstance(value, list | tuple | set | frozenset | deque):
        return 1 + sum(n_items(item, seen) for item in value)
    if isinstance(value, dict):
        return 1 + sum(n_items(item, seen) for item in value.items())
    kind = type(value)
    names = getattr(kind, "__struct_fields__", ()) or getattr(kind, "__slots__", ()) or getattr(value, "__dict__", ())
    return 1 + sum(n_items(getattr(value, name), seen) for name in names)
