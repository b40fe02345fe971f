"""A machine of known speed: the engine on a clock that passes only make go on, while its sessions' audio comes."""

import dataclasses
import itertools
import math
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.engine.engine import Engine
from streamer.engine.publisher import Output
from streamer.engine.runner import AudioKind, Input, SessionRunner
from streamer.engine.window import Request
from streamer.events import Event, Final, Gap
from streamer.whisper.result import Hypothesis
from tests.fakes import (
    LOUDNESS_STEP,
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
from tests.unit.engine.test_session import SETTINGS

# Audio comes in pieces of this length.
PIECE_S = 0.25
PIECE_SAMPLES = round(PIECE_S * SAMPLE_RATE)

CAPACITY_SAMPLES = 90 * SAMPLE_RATE


@dataclass
class Talker:
    """A session, what is said in it, and what became of that."""

    voice: int
    words: list[SpokenWord]
    live: SessionRunner = field(init=False)
    # What the session says, and how much of it was held against the promises.
    events: list[Event] = field(default_factory=list)
    promises: Promises = field(default_factory=Promises)
    n_held: int = 0
    finals: list[Final] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    # Clock times at which a pass of its was done, and how long the oldest speech without text had waited then.
    passes: list[tuple[float, float]] = field(default_factory=list)
    # Whether its audio is complete.
    ended: bool = False
    # Audio that is sent ahead of the clock.
    ahead_s: float = 0.0
    # The first word that does not end before the audio sent so far.
    _next: int = 0

    def take(self, event: Event) -> None:
        """Take an event of the session."""
        self.events.append(event)
        if isinstance(event, Final):
            self.finals.append(event)
        if isinstance(event, Gap):
            self.gaps.append(event)

    def hold_promises(self) -> None:
        """Hold what was said since the last call against the promises: in `take` the session would catch what fails."""
        events, self.n_held = self.events[self.n_held :], len(self.events)
        self.promises.take(events)

    def send_until(self, time_s: float) -> None:
        """Send what has been said by a time, as far as there is room where it can wait."""
        ring = self.live.ring
        while ring.head + PIECE_SAMPLES <= round((time_s + self.ahead_s) * SAMPLE_RATE):
            if self.live.input.kind is not AudioKind.LIVE and ring.free < PIECE_SAMPLES:
                return
            self.live.write(self.piece(ring.head))

    def piece(self, start: int) -> NDArray[np.float32]:
        """Return the piece of what is said that begins at a sample; pieces are asked for in order."""
        piece = np.zeros(PIECE_SAMPLES, dtype=np.float32)
        while self._next < len(self.words) and self.words[self._next].end <= start:
            self._next += 1
        for word in self.words[self._next :]:
            if word.start >= start + PIECE_SAMPLES:
                break
            piece[max(0, word.start - start) : max(0, word.end - start)] = (self.voice + 1) * LOUDNESS_STEP
        return piece


@dataclass
class CallingDecoder(FakeDecoder):
    """One that tells its calls: one for 16 tokens that are given or guessed rightly, and one for each more.

    `on_calls` is told how many there were.
    """

    on_calls: Callable[[int], None] = lambda n_calls: None

    def decode(self, encoded: FakeEncoded, request: Request) -> Hypothesis:
        """See engine.Decoder."""
        hypothesis = super().decode(encoded, request)
        n_begins_with = len(request.prefix)
        found = [token for word in hypothesis.words for token in word.tokens][n_begins_with:]
        n_sampled = len(found) + 1
        n_guessed = sum(itertools.takewhile(bool, map(operator.eq, found, request.draft)))
        n_calls = math.ceil((1 + n_begins_with + len(request.draft)) / 16) + n_sampled - n_guessed
        self.on_calls(n_calls)
        return dataclasses.replace(
            hypothesis, n_calls=n_calls, n_sampled=n_sampled, n_given=1 + n_begins_with, n_begins_with=n_begins_with
        )


class Machine:
    """An engine that encodes and decodes one window after the other, each in a known time.

    With `call_s` decoding takes so much longer for each call of the decoder.
    """

    def __init__(self, *, encode_s: float, decode_s: float, call_s: float = 0.0, max_pace_s: float = 2.0) -> None:
        self.clock = Clock()
        self.encoder = FakeEncoder()
        self.decoder = FakeDecoder(self.encoder, [])
        if call_s:
            self.decoder = CallingDecoder(self.encoder, [], on_calls=lambda n: self.pass_time(n * call_s))
        self.encoder.before = lambda encoded: self.pass_time(encode_s)
        self.decoder.before = lambda encoded: self.pass_time(decode_s * self.slowness.get(encoded.voice, 1.0))
        # How much longer the decoder takes for a voice.
        self.slowness: dict[int, float] = {}
        self.engine: Engine[FakeEncoded] = Engine(self.encoder, self.decoder, max_pace_s=max_pace_s, clock=self.clock)
        self.talkers: list[Talker] = []

    def talker(
        self,
        duration_s: float,
        *,
        pause: float = 0.05,
        max_delay_s: float = 30.0,
        kind: AudioKind = AudioKind.LIVE,
        reserved: bool = False,
    ) -> Talker:
        """Open a session in which somebody begins to speak at the start of the clock."""
        voice = len(self.talkers)
        words = spoken(random.Random(voice), duration_s, pause=pause) if duration_s > 0 else []
        talker = Talker(voice, words)
        talker.live = SessionRunner(
            SETTINGS,
            Input(kind=kind, capacity_samples=CAPACITY_SAMPLES, max_delay_s=max_delay_s, reserved=reserved),
            Output(on_event=talker.take),
            mel=FakeMel(),
            new_detector=FakeDetector,
        )
        self.decoder.speakers.append(Speaker(words, seed=voice))
        self.engine.add(talker.live)
        self.talkers.append(talker)
        return talker

    def run_until(self, time_s: float) -> None:
        """Let the clock go on, and the engine do what is to be done."""
        while self.clock.now_s < time_s:
            if not self._turn():
                self.pass_time(PIECE_S)
        for talker in self.talkers:
            talker.hold_promises()

    def finish(self) -> None:
        """End the audio of all sessions, and hold what was told against the promises."""
        for talker in self.talkers:
            talker.live.end()
            talker.ended = True
        while self.engine.n_sessions:
            assert self._turn() or not self.engine.n_sessions, "it stands still"
        for talker in self.talkers:
            talker.hold_promises()
            talker.promises.check_all_told()

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
            waited_s = self.clock.now_s - state.read / SAMPLE_RATE if state.schedule.utterances else 0.0
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
