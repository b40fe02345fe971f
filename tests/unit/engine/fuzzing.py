"""Sessions that go through anything: random audio, decoders, failures and commands, held against all promises.

In simulated time the engine's three turns are called by hand: all there is follows from a seed. With real threads a
seed gives the same script only, and what the threads make of it differs.
"""

import dataclasses
import faulthandler
import itertools
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal
from unittest.mock import patch

import msgspec

from streamer.constants import SAMPLE_RATE
from streamer.engine import workers
from streamer.engine.engine import Engine
from streamer.engine.follower import Follower
from streamer.engine.inlet import AudioKind
from streamer.errors import InferenceError
from streamer.events import Error, Final, Gap, GapReason
from streamer.session.language import choose_language
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.session.task import Request
from streamer.session.text import PROMPT_CHARACTERS
from streamer.settings.table import SpeechSettings
from streamer.whisper.result import Hypothesis, TimedWord
from tests.fakes import (
    BAD,
    FAITHFUL,
    GARBAGE,
    NEVER_AGREES,
    Clock,
    FakeDetector,
    FakeEncoded,
    FakeEncoder,
    Manners,
    Speaker,
    index_of,
    spoken,
)
from tests.promises import Promises
from tests.unit.engine.simulation import SETTINGS, Talker, n_items
from tests.waiting import WAIT_S

# How much faster than the real one the clock of threads is: retries wait for seconds.
CLOCK_RATE = 40.0

# Virtual seconds within which a session is finished when its audio is complete, whatever fails.
MOST_LEFT_S = 3600.0

# What a session may hold: characters, and items of containers at any depth.
MOST_ITEMS = PROMPT_CHARACTERS + 12_000

# A word this near to something that cuts the audio may be lost: less than half of it was heard, or nothing but its end.
CUT_MARGIN_S = 0.65

# Tokens that no decoder has room for beside a text.
MOST_PREFIX_TOKENS = 446


# What a client may do at a time.
What = Literal["flush", "pause", "resume", "clear", "change"]
COMMANDS: tuple[What, ...] = ("flush", "pause", "resume", "resume", "clear", "change")
COMMANDS_WITHOUT_LOSS: tuple[What, ...] = ("flush", "change")


class Injected(Exception):  # noqa: N818 - it stands for any
    """A bug that was put in."""


@dataclass(slots=True)
class Totals:
    """What was tried, and what came of it."""

    sessions: int = 0
    audio_s: float = 0.0
    finals: int = 0
    gaps: int = 0
    commands: int = 0
    failures: int = 0
    # Promises that were broken: the seeds, and what was wrong.
    broken: list[tuple[int, str]] = field(default_factory=list)

    def __str__(self) -> str:
        """Return it as one line."""
        return (
            f"{self.sessions} sessions, {self.audio_s:.0f} s of audio, {self.finals} finals, {self.gaps} gaps, "
            f"{self.commands} commands, {self.failures} failures, {len(self.broken)} broken promises"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """How probable what goes wrong is."""

    # Of each pass, in the encoder and the decoder; of each chunk, in the detector; of each step of a session's logic.
    device: float = 0.0
    detector: float = 0.0
    logic: float = 0.0

    # How many more fail after one that did, mean; infinity for all.
    in_a_row: float = 0.0

    # Of each thing that a client does.
    command: float = 0.0
    hole: float = 0.0
    stop: float = 0.0
    suspend: float = 0.0

    # Of a hypothesis that is improbable, that loops through its window, and that detects another language.
    improbable: float = 0.0
    chatter: float = 0.0
    foreign: float = 0.0


def random_chances(rng: random.Random, *, faithful: bool) -> Chances:
    """Return how often what goes wrong; where the decoder is good only what loses no word."""

    def some(*values: float) -> float:
        return rng.choice(values) if rng.random() < 0.5 else 0.0

    chances = Chances(command=some(0.02, 0.2), stop=some(0.01), suspend=some(0.001))
    if faithful:
        return chances
    return dataclasses.replace(
        chances,
        device=some(0.02, 0.3),
        detector=some(0.001, 0.02),
        logic=some(0.01, 0.1),
        in_a_row=rng.choice((0.0, 0.0, 3.0, math.inf)),
        hole=some(0.01, 0.1),
        improbable=some(0.2, 0.9),
        chatter=some(0.05, 0.5),
        foreign=some(0.05, 0.5),
    )


def random_manners(rng: random.Random) -> Manners:
    """Return how badly a decoder hears."""
    return rng.choice((FAITHFUL, BAD, BAD, NEVER_AGREES, Manners(nothing=0.8), Manners(garbage=0.9, silence=0.3)))


def random_settings(rng: random.Random) -> SessionSettings:
    """Return settings that a client might ask for."""
    return msgspec.structs.replace(
        SETTINGS,
        gate=SpeechSettings(
            threshold=rng.choice((0.3, 0.5, 0.8)),
            min_speech_s=rng.choice((0.05, 0.1, 0.2)),
            min_silence_s=rng.choice((0.1, 0.6, 0.6, 2.0, 10.0)),
            pad_s=rng.choice((0.0, 0.1, 0.3, 0.5)),
            turns=rng.random() < 0.5,
            turn_silence_s=rng.choice((0.1, 2.0, 8.0)),
        ),
        pace_s=rng.choice((0.1, 0.5, 0.5, 2.0, 10.0)),
        policy=rng.choice(("agreement", "alignatt")),
        agreement=rng.randint(1, 4),
        commit_probability=rng.choice((0.0, 0.4)),
        second_look_s=rng.choice((0.5, 1.5, 3.0)),
        show_probability=rng.choice((0.0, 0.5)),
        trim_after_s=rng.choice((5.0, 8.0, 15.0, 28.0)),
        condition_on_previous_text=rng.random() < 0.5,
        language=rng.choice(("en", "auto")),
        words=rng.random() < 0.8,
    )


class Trouble:
    """Decides what fails."""

    def __init__(self, rng: random.Random, chances: Chances) -> None:
        self._rng, self._chances = rng, chances
        # How many more fail, by what fails.
        self._left: dict[str, float] = {}
        self.n_failures = 0

    def maybe(self, what: str, chance: float) -> None:
        """Fail, perhaps."""
        left = self._left.get(what, 0.0)
        if left < 1 and self._rng.random() >= chance:
            return
        in_a_row = self._chances.in_a_row
        more = self._rng.expovariate(1 / in_a_row) if 0 < in_a_row < math.inf else in_a_row
        self._left[what] = left - 1 if left >= 1 else more
        self.n_failures += 1
        raise self._rng.choice((InferenceError(f"Injected into the {what}"), Injected(what)))


class Decoder:
    """Knows what each voice says, and makes worse of it."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def decode(self, encoded: FakeEncoded, request: Request, others_wait: Callable[[], bool]) -> Hypothesis:
        """See engine.WindowDecoder."""
        world, client = self._world, self._world.clients[encoded.voice]
        rng, chances = client.decoder_rng, world.chances
        assert request.n_samples == encoded.end - encoded.start
        assert len(request.prefix) <= MOST_PREFIX_TOKENS, f"{len(request.prefix)} tokens of prefix"
        world.spend(world.decode_s)
        world.trouble.maybe("decoder", chances.device)
        hypothesis = client.speaker.hypothesis(encoded.start, encoded.end, request.prefix)
        if request.language == "auto":
            probabilities = {language: rng.random() for language in ("en", "de", "cy")}
            language, sure = choose_language(probabilities, request.n_samples, request.known_languages)
            hypothesis = dataclasses.replace(hypothesis, language=language, language_sure=sure)
        elif request.chosen and rng.random() < chances.foreign:
            hypothesis = dataclasses.replace(hypothesis, language_sure=False)
        if rng.random() < chances.chatter:
            hypothesis = client.chatter(hypothesis, encoded.end - encoded.start, len(request.prefix))
        if rng.random() < chances.improbable:
            words = tuple(
                dataclasses.replace(word, log_prob=-2.0 * len(word.tokens)) if rng.random() < 0.5 else word
                for word in hypothesis.words
            )
            hypothesis = dataclasses.replace(
                hypothesis, words=words, avg_logprob=-1.5, failed=True, no_speech_prob=rng.random()
            )
        assert world.encoder.buffers[encoded.buffer] == encoded.serial, "the encoding was overwritten"
        return hypothesis


class Client(Talker):
    """Somebody who sends audio and commands to a session, at moments of the clock, until the audio is over."""

    def __init__(self, world: "World", voice: int, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.world = world
        self.decoder_rng = random.Random(seed + 1)
        self.duration_s = rng.choice((0.0, 0.3, 3.0, 10.0, 10.0, 20.0, 20.0, 40.0, 75.0))
        words = spoken(
            rng, self.duration_s * rng.uniform(0.8, 1.0), pause=rng.choice((0.0, 0.1, 0.3, 0.8)), start_s=0.3
        )
        manners = FAITHFUL if world.faithful else random_manners(rng)
        self.speaker = Speaker(words, seed=seed, manners=manners)
        self.settings = random_settings(rng)
        kind = rng.choice(tuple(AudioKind))
        live = kind is AudioKind.LIVE
        # Too small a buffer, where something may be lost.
        capacity_s = rng.choice((4.0, 40.0)) if live and not world.faithful else 90.0
        super().__init__(
            voice,
            words,
            settings=self.settings,
            followers=[Judge(self)],
            kind=kind,
            capacity_samples=round(capacity_s * SAMPLE_RATE),
            max_delay_s=math.inf if kind is AudioKind.RECORDED or world.faithful else rng.choice((5.0, 30.0)),
            reserved=rng.random() < 0.2,
        )
        # What it sends at a time, and how fast: 1 is as it is spoken.
        self._piece_s = rng.choice((0.02, 0.1, 0.25, 1.0))
        self._rate = 1.0 if live else rng.choice((1.0, 1.0, 4.0, 100.0))
        # When it does something again, on the virtual clock; infinity when it has left.
        self.next_s = rng.uniform(0.0, 5.0)
        # How it leaves: by the end of its audio, or otherwise before it.
        self._way_out = "end" if world.faithful else rng.choice(("end",) * 8 + ("close", "cut short"))
        self._leave_s = self.duration_s * (1.0 if rng.random() < 0.5 else rng.random())
        # Where commands and holes cut the audio, in samples; and how often something was commanded.
        self.cuts: list[int] = []
        self.n_commands = 0
        self.most_items = 0
        # End of the turn that is to be judged; whether that is done at all.
        self._turn: int | None = None
        self.judges = False
        # Whether it has left before its end, and how much had been said by then.
        self.left_early = False
        self.n_events_then = 0

    def ask(self, start: int, end: int) -> bool:
        """Have a turn judged later, or not at all; see `Follower.judge`."""
        assert 0 <= start < end
        self._turn = end if self.judges and self.decoder_rng.random() < 0.8 else None
        return self._turn is not None

    def judge(self) -> None:
        """Judge the turn that may be over, now or later."""
        rng = self.decoder_rng
        if self._turn is not None and rng.random() < 0.3:
            end, self._turn = self._turn, None
            self.live.judge(end, rng.choice((None, 0.1, 0.9, 0.9)))

    @property
    def left(self) -> bool:
        """Whether it does nothing any more."""
        return self.next_s == math.inf

    def act(self) -> float:
        """Do something; return seconds of audio that it is worth."""
        rng, chances, live = self.rng, self.world.chances, self.live
        if rng.random() < 0.02:
            self.most_items = max(self.most_items, n_items(live.snapshot(lambda: None)[1]))
        if live.over or live.ring.head >= self._leave_s * SAMPLE_RATE:
            self._leave()
            if rng.random() < 0.3 and not self.world.faithful:
                # Somebody who does not know that it is over.
                self._command()
                self._leave()
            self.next_s = math.inf
            return 0.0
        if rng.random() < chances.command:
            for _ in range(rng.choice((1, 1, 1, 2, 5))):
                self._command()
            return 0.0
        if rng.random() < chances.hole:
            return self._hole()
        if rng.random() < chances.stop:
            return rng.choice((0.5, 3.0, 40.0, 3600.0))
        n_samples = round(self._piece_s * rng.uniform(0.2, 1.8) * SAMPLE_RATE)
        if live.input.kind is not AudioKind.LIVE and live.ring.free < n_samples:
            return 0.3
        self.write(n_samples)
        return n_samples / SAMPLE_RATE / self._rate

    def check_all(self) -> None:
        """Hold what was said against all promises."""
        live, head_s = self.live, self.live.ring.head / SAMPLE_RATE
        assert live.over, "it is not over"
        assert self.n_finished == (not self.left_early), f"finished {self.n_finished} times"
        assert not self.left_early or len(self.events) == self.n_events_then, "it went on when it had been left"
        promises = self.promises = Promises(wordless=True)
        promises.take(self.events)
        for error in self.events:
            assert not isinstance(error, Error) or "Injected" in error.message, error
        if self._way_out == "end" and not promises.failed:
            assert live.position == live.ring.head, "the end came somewhere else"
        assert promises.told_until <= head_s + 0.001
        if not self.left_early or self._way_out != "close":
            promises.check_all_told()
        n_told = len(promises.finals) + len(promises.gaps) + len(promises.speech)
        assert n_told <= 20 + 8 * head_s + 4 * self.n_commands + 3 * self.world.trouble.n_failures, f"{n_told} events"
        assert promises.partials <= 20 + 12 * head_s + 4 * self.n_commands, f"{promises.partials} partials"
        assert self.most_items <= MOST_ITEMS, f"it holds {self.most_items} items"
        self._check_words(promises, head_s)

    def _check_words(self, promises: Promises, head_s: float) -> None:
        heard = [index_of(word.word.split("'")[0]) for final in promises.finals for word in final.words]
        indices = [index for index in heard if index is not None]
        cuts_s = [position / SAMPLE_RATE for position in self.cuts]
        if self.world.chances.stop or self.world.chances.suspend:
            # Where no audio comes for a while speech ends, in the middle of a word or not.
            cuts_s += [end_s for _, end_s in promises.speech if end_s is not None]
        cuts_s += [moment for gap in promises.gaps for moment in (gap.start, gap.end)]

        def is_cut(index: int, margin_s: float) -> bool:
            word = self.words[index]
            begin_s, end_s = word.start / SAMPLE_RATE - margin_s, word.end / SAMPLE_RATE + margin_s
            return (
                end_s >= head_s
                or any(begin_s <= cut_s <= end_s for cut_s in cuts_s)
                or any(gap.start < end_s and begin_s < gap.end for gap in promises.gaps)
            )

        for a, b in itertools.pairwise(indices):
            # Of a word that was cut in two either half may be told; where the decoder chatters a window may cut it.
            cut_in_two = is_cut(a, 0.02) or self.world.chances.chatter > 0
            assert a < b or (a == b and cut_in_two), f"word {b} after word {a}"
        if self.world.faithful and not promises.failed and self.settings.words:
            missing = set(range(len(self.words))) - set(indices)
            lost = [index for index in sorted(missing) if not is_cut(index, CUT_MARGIN_S)]
            assert not lost, f"words {lost} are not told"

    def chatter(self, hypothesis: Hypothesis, length: int, n_prefix: int) -> Hypothesis:
        """Return a hypothesis that goes on with as many tokens as the decoder has room for."""
        rng = self.decoder_rng
        words = list(hypothesis.words)
        n_tokens = sum(len(word.tokens) for word in words)
        position = words[-1].end_samples if words else 0
        for _ in range(rng.choice((3, 30, 220))):
            if n_tokens + 2 > MOST_PREFIX_TOKENS:
                break
            n_tokens += 2
            end = min(position + rng.randint(0, SAMPLE_RATE // 8), length)
            token = GARBAGE * 2 + rng.randrange(GARBAGE // 2) * 2
            words.append(TimedWord(f" g{token}", (token, token + 1), position, end, rng.choice((0.02, 0.9))))
            position = end
        return dataclasses.replace(hypothesis, words=tuple(words), compression_ratio=rng.choice((1.2, 3.0)))

    def _leave(self) -> None:
        match self._way_out:
            case "end":
                self.live.end()
                return
            case "close":
                self.live.close()
            case _:
                self.live.cut_short("overload")
        self.left_early = not self.n_finished
        self.n_events_then = len(self.events)

    def _command(self) -> None:
        self.n_commands += 1
        live, rng = self.live, self.rng
        self.cuts.append(live.ring.head)
        what = rng.choice(COMMANDS_WITHOUT_LOSS if self.world.faithful else COMMANDS)
        if what == "change":
            self._change()
        else:
            live.do(what)

    def _change(self) -> None:
        settings = random_settings(self.rng)
        if self.world.faithful:
            settings = msgspec.structs.replace(settings, words=self.settings.words)
        self.live.change(settings)

    def _hole(self) -> float:
        """Tell of audio that is lost, in one piece or in many."""
        rng = self.rng
        reason: GapReason = rng.choice(("overrun", "device"))
        n_pieces = rng.choice((1, 1, 2, 10))
        total_s = 0.0
        for _ in range(n_pieces):
            length_s = rng.choice((0.001, 0.01, 0.2, 1.7, 12.0)) * rng.random() * 2 / n_pieces
            n_samples = round(length_s * SAMPLE_RATE)
            if self.live.input.kind is not AudioKind.LIVE and self.live.ring.free < n_samples:
                break
            self.live.write_gap(n_samples, reason)
            total_s += length_s
        return total_s


class Judge(Follower):
    """Judges the turns of a client's session."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def judge(self, start: int, end: int) -> bool:
        """See Follower."""
        return self._client.ask(start, end)


class World:
    """A machine and its clients, all by a seed."""

    def __init__(self, seed: int, *, clock: Callable[[], float], spend: Callable[[float], None]) -> None:
        rng = self.rng = random.Random(seed)
        # Whether the decoder is good and nothing fails: then every word is told once.
        self.faithful = rng.random() < 0.3
        self.chances = random_chances(rng, faithful=self.faithful)
        self.trouble = Trouble(random.Random(seed + 1), self.chances)
        self.spend = spend
        self.encode_s, self.decode_s = rng.choice(((0.0, 0.0), (0.05, 0.15), (0.05, 0.15), (1.0, 2.0), (9.0, 12.0)))
        self.encoder = FakeEncoder()
        self.encoder.before = self._before_encoding
        self.engine: Engine[FakeEncoded] = Engine(self.encoder, Decoder(self), clock=clock)
        n_clients = rng.choice((1, 1, 2, 4))
        self.clients = [Client(self, voice, rng.randrange(2**32)) for voice in range(n_clients)]

    def _before_encoding(self, encoded: FakeEncoded) -> None:
        self.spend(self.encode_s)
        self.trouble.maybe("encoder", self.chances.device)

    def check(self, totals: Totals) -> None:
        """Hold all sessions against the promises, and count them."""
        for client in self.clients:
            totals.sessions += 1
            totals.audio_s += client.live.ring.head / SAMPLE_RATE
            totals.finals += sum(isinstance(event, Final) for event in client.events)
            totals.gaps += sum(isinstance(event, Gap) for event in client.events)
            totals.commands += client.n_commands
        totals.failures += self.trouble.n_failures
        for client in self.clients:
            try:
                client.check_all()
            except AssertionError as error:
                raise AssertionError(f"session {client.voice} ({client.live.input.kind.name}): {error}") from error
        assert self.engine.n_sessions == 0
        assert self.engine.failing == ""


def run_in_simulated_time(seed: int, totals: Totals) -> None:
    """Let some sessions go through what a seed has in store; AssertionError where a promise is broken."""
    clock = Clock()

    def spend(duration_s: float) -> None:
        """Let time pass while clients act."""
        end_s = clock.now_s + duration_s * world.rng.uniform(0.5, 1.5)
        while (client := min(world.clients, key=lambda client: client.next_s)).next_s <= end_s:
            clock.now_s = max(clock.now_s, client.next_s)
            worth_s = client.act()
            if not client.left:
                client.next_s = max(client.next_s, clock.now_s) + worth_s
        clock.now_s = max(clock.now_s, end_s)

    world = World(seed, clock=clock, spend=spend)
    engine, rng = world.engine, world.rng
    for client in world.clients:
        engine.add(client.live)
        client.judges = True
    turns = (engine.listen, engine.encode, engine.decode)
    left_s: float | None = None
    with failing(world):
        while engine.n_sessions or not all(client.left for client in world.clients):
            # Threads come in any order.
            order = rng.sample(turns, 3) if rng.random() < 0.3 else turns
            if not sum(turn() for turn in order):
                # There is nothing to do until a client does something or somebody looks at the clock.
                idle_s = min(client.next_s for client in world.clients) - clock.now_s
                spend(min(max(idle_s, 0.01), 0.25) if idle_s < 30.0 else 5.0)
            for client in world.clients:
                client.judge()
            if rng.random() < world.chances.suspend:
                # The machine sleeps: its clients, too.
                asleep_s = rng.choice((10.0, 4 * 3600.0))
                clock.advance(asleep_s)
                for client in world.clients:
                    client.next_s += asleep_s
                left_s = None if left_s is None else left_s + asleep_s
            if left_s is None and all(client.left for client in world.clients):
                left_s = clock.now_s
            assert left_s is None or clock.now_s < left_s + MOST_LEFT_S + 100 * world.decode_s, "it stands still"
    world.check(totals)


def run_threads(seed: int, totals: Totals) -> None:
    """Do the same with the engine's threads, and clients with threads of their own."""
    begin_s = time.monotonic()

    def clock() -> float:
        return (time.monotonic() - begin_s) * CLOCK_RATE

    world = World(seed, clock=clock, spend=lambda duration_s: time.sleep(min(duration_s, 2.0) / CLOCK_RATE))

    def live(client: Client) -> None:
        rng = random.Random(seed + client.voice)
        world.engine.add(client.live)
        while not client.left:
            worth_s = client.act()
            # Now and then as fast as it can.
            if rng.random() < 0.8:
                time.sleep(min(worth_s, 4.0) / CLOCK_RATE)

    def command(client: Client) -> None:
        rng = random.Random(seed - client.voice)
        commands: tuple[Literal["flush", "resume"], ...] = ("flush",) if world.faithful else ("flush", "resume")
        while not client.live.over:
            time.sleep(rng.uniform(0.0, 0.02))
            client.n_commands += 1
            client.cuts.append(client.live.ring.head)
            client.live.do(rng.choice(commands))

    threads = [threading.Thread(target=live, args=(client,), daemon=True) for client in world.clients]
    if world.chances.command:
        threads += [threading.Thread(target=command, args=(client,), daemon=True) for client in world.clients]
    with failing(world), patch.object(workers, "IDLE_S", 0.02):
        world.engine.start()
        for thread in threads:
            thread.start()
        patience_s = begin_s + WAIT_S
        while any(thread.is_alive() for thread in threads) or world.engine.n_sessions:
            if time.monotonic() > patience_s:
                faulthandler.dump_traceback(file=sys.stderr)
                raise AssertionError("threads hang")
            time.sleep(0.005)
        world.engine.stop()
    world.check(totals)


@contextmanager
def failing(world: World) -> Iterator[None]:
    """Let detectors, and steps of the sessions' decisions, fail as often as a world has it: before they are taken."""
    detector, logic = world.chances.detector, world.chances.logic
    odds = {"hear": logic / 50, "next_span": logic, "task": logic, "take": logic}
    steps = [(FakeDetector, "process", detector), *((Session, name, chance) for name, chance in odds.items())]

    def perhaps(step: Callable[..., object], chance: float) -> Callable[..., object]:
        def fail_or(*values: object, **named: object) -> object:
            world.trouble.maybe(step.__name__, chance)
            return step(*values, **named)

        return fail_or

    with ExitStack() as patches:
        for owner, name, chance in steps:
            if chance:
                patches.enter_context(patch.object(owner, name, perhaps(getattr(owner, name), chance)))
        yield
