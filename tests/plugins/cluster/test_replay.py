"""What a gateway keeps of a session until no other worker could need it."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamer.arrays import Float32Array
from streamer.plugins.cluster.messages import MAX_BLOCK_SAMPLES, AudioBlock, SessionCommand, unpack_samples
from streamer.plugins.cluster.replay import MAX_COMMANDS, WAITING_SAMPLES, ReplayBuffer, first_frame
from streamer.protocols.native import StreamStart

FLUSH = SessionCommand(session="s", epoch=0, position=0, command=0, what="flush")


def samples(n: int, first: int = 0) -> Float32Array:
    """Return samples from which it shows where they stood, exact as 16-bit integers."""
    return (np.arange(first, first + n) % 30_000).astype(np.float32) / np.float32(32_768)


class Replay(RuleBasedStateMachine):
    """A client that speaks, messages that get lost, and workers that take over: each gets all of it, in order."""

    @initialize(wide=st.booleans(), position=st.integers(0, 5000), command=st.integers(0, 9))
    def begin(self, wide: bool, position: int, command: int) -> None:
        self.kept = ReplayBuffer("s", wide=wide, position=position, command=command)
        self.rooms: list[int] = []
        self.kept.on_room = lambda: self.rooms.append(self.kept.free)
        # What the worker has, and what a checkpoint has; what was processed.
        self.head, self.command = self.needed, self.done = position, command
        self.processed = position

    @rule(n=st.integers(1, 2 * MAX_BLOCK_SAMPLES + 7))
    def write(self, n: int) -> None:
        self.kept.write(samples(n, self.kept.head))

    @rule()
    def put(self) -> None:
        self.kept.put(FLUSH)

    @rule(lost=st.lists(st.booleans(), max_size=6), epoch=st.integers(1, 9))
    def deliver(self, lost: list[bool], epoch: int = 1) -> None:
        """Let the worker take what follows what it has."""
        while (item := self.kept.take(epoch)) is not None:
            assert (item.epoch, item.session) == (epoch, "s")
            if (lost and lost.pop()) or item.position > self.head:
                continue
            if isinstance(item, SessionCommand):
                assert item.position == self.head or item.command <= self.command
                self.command = max(self.command, item.command) if item.command <= self.command + 1 else self.command
            elif item.command <= self.command:
                said = unpack_samples(item.data, wide=item.wide)
                assert len(said) <= MAX_BLOCK_SAMPLES
                assert np.array_equal(said, samples(len(said), item.position))
                self.head = max(self.head, item.position + len(said))
        assert self.kept.sent == (self.kept.head, self.kept.command)

    @rule(back=st.integers(0, 100_000))
    def release(self, back: int) -> None:
        self.needed, self.done = max(self.needed, self.head - back), self.command
        self.processed = max(self.processed, self.head)
        self.kept.release(self.needed, self.head, self.command)
        assert self.rooms[-1] == self.kept.free
        assert self.kept.first == self.needed

    @rule()
    def send_again(self) -> None:
        self.kept.rewind(self.head, self.command)

    @rule()
    def take_over(self) -> None:
        """Another worker continues from the checkpoint."""
        self.head, self.command = self.needed, self.done
        self.kept.rewind(self.head, self.command)

    @invariant()
    def is_held_back(self) -> None:
        if hasattr(self, "kept"):
            assert self.kept.free == max(0, WAITING_SAMPLES - (self.kept.head - self.processed))

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            self.send_again()
            self.deliver(lost=[], epoch=1)
            assert (self.head, self.command) == (self.kept.head, self.kept.command)


test_whatever_happens_a_worker_ends_up_with_all_of_it_in_order = Replay.TestCase


def test_a_worker_may_want_to_go_on_behind_what_has_come() -> None:
    kept = ReplayBuffer("s", wide=False)
    kept.write(samples(100))
    kept.rewind(160, 0)
    assert kept.take(1) is None
    kept.put(FLUSH)
    kept.write(samples(100, 100))
    command, audio = kept.take(1), kept.take(1)
    assert (command.position, audio.position) == (100, 160)  # type: ignore[union-attr]
    assert isinstance(audio, AudioBlock)
    assert np.array_equal(unpack_samples(audio.data, wide=False), samples(40, 160))


def test_a_flood_of_commands_is_held_back() -> None:
    kept = ReplayBuffer("s", wide=False)
    for _ in range(MAX_COMMANDS):
        assert kept.free > 0
        kept.put(FLUSH)
    assert kept.free < 0
    kept.release(0, 0, command=1)
    assert kept.free > 0


def test_audio_comes_again_from_where_it_is_needed_on_the_grid_of_its_rate_or_from_the_beginning() -> None:
    assert first_frame(12_345, StreamStart(channels=2)) == (12_345, 12_345)
    assert first_frame(3000, StreamStart(sample_rate=48_000)) == (0, 0)
    for rate in (8000, 11_025, 44_100, 48_000, 44_101):
        frame, begin = first_frame(150_001, StreamStart(sample_rate=rate))
        assert begin <= 150_001 - 4000
        assert frame * 16_000 == begin * rate
