"""What a gateway keeps of a session until no other worker could need it."""

import random

import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder
from streamer.plugins.cluster.messages import MAX_BLOCK_SAMPLES, AudioBlock, SessionCommand, unpack_samples
from streamer.plugins.cluster.replay import MAX_COMMANDS, WAITING_SAMPLES, ReplayBuffer, first_frame
from streamer.protocols.native import StreamStart


def samples(n: int, first: int = 0) -> Float32Array:
    """Return samples from which it shows where they stood, exact as 16-bit integers."""
    return (np.arange(first, first + n) % 30_000).astype(np.float32) / np.float32(32_768)


def do(what: str = "flush") -> SessionCommand:
    return SessionCommand(session="s", epoch=0, position=0, command=0, what=what)


def taken(kept: ReplayBuffer, epoch: int = 1) -> list[AudioBlock | SessionCommand]:
    found = []
    while (item := kept.take(epoch)) is not None:
        found.append(item)
    return found


def placed(items: list[AudioBlock | SessionCommand]) -> list[tuple[str, int, int]]:
    return [("audio" if isinstance(item, AudioBlock) else item.what, item.position, item.command) for item in items]


def audio_of(items: list[AudioBlock | SessionCommand]) -> Float32Array:
    return np.concatenate([unpack_samples(item.data, wide=item.wide) for item in items if isinstance(item, AudioBlock)])


@pytest.mark.parametrize("wide", [False, True])
def test_what_was_put_in_is_sent_in_order_with_its_place(wide: bool) -> None:
    kept = ReplayBuffer("s", wide=wide)
    kept.write(samples(100))
    kept.put(do())
    kept.put(do("pause"))
    kept.write(samples(50, 100))
    items = taken(kept, epoch=3)
    assert placed(items) == [("audio", 0, 0), ("flush", 100, 1), ("pause", 100, 2), ("audio", 100, 2)]
    assert np.array_equal(audio_of(items), samples(150))
    assert {item.epoch for item in items} == {3}
    assert kept.sent == (150, 2)


def test_a_piece_of_audio_is_no_longer_than_a_message_may_be() -> None:
    kept = ReplayBuffer("s", wide=True)
    kept.write(samples(2 * MAX_BLOCK_SAMPLES + 7))
    assert [len(item.data) for item in taken(kept) if isinstance(item, AudioBlock)] == [
        4 * MAX_BLOCK_SAMPLES,
        4 * MAX_BLOCK_SAMPLES,
        28,
    ]


def test_a_new_owner_gets_what_the_checkpoint_does_not_have() -> None:
    kept = ReplayBuffer("s", wide=False)
    kept.write(samples(1000))
    kept.put(do("set"))
    kept.write(samples(1000, 1000))
    kept.put(do())
    taken(kept)
    kept.release(needed_from=600, processed=1500, command=1)
    kept.rewind(600, 1)
    items = taken(kept, epoch=2)
    assert placed(items) == [("audio", 600, 1), ("flush", 2000, 2)]
    assert np.array_equal(audio_of(items), samples(1400, 600))


def test_a_worker_that_misses_some_gets_it_again_from_its_head() -> None:
    kept = ReplayBuffer("s", wide=False)
    kept.write(samples(300))
    kept.put(do())
    kept.write(samples(300, 300))
    taken(kept)
    kept.rewind(120, 0)
    assert placed(taken(kept)) == [("audio", 120, 0), ("flush", 300, 1), ("audio", 300, 1)]
    kept.rewind(300, 1)
    assert placed(taken(kept)) == [("audio", 300, 1)]


def test_what_is_forgotten_is_not_asked_for_again() -> None:
    kept = ReplayBuffer("s", wide=False)
    kept.write(samples(300))
    kept.put(do())
    kept.release(needed_from=200, processed=250, command=1)
    assert placed(taken(kept)) == [("audio", 200, 1)]
    kept.rewind(0, 0)
    assert placed(taken(kept)) == [("audio", 200, 1)]


def test_a_worker_may_want_to_go_on_behind_what_has_come() -> None:
    kept = ReplayBuffer("s", wide=False)
    kept.write(samples(100))
    kept.rewind(160, 0)
    assert taken(kept) == []
    kept.put(do())
    kept.write(samples(100, 100))
    items = taken(kept)
    assert placed(items) == [("flush", 100, 1), ("audio", 160, 1)]
    assert np.array_equal(audio_of(items), samples(40, 160))


def test_the_client_is_held_back_while_30_s_wait_and_no_longer() -> None:
    kept = ReplayBuffer("s", wide=False)
    calls: list[int] = []
    kept.on_room = lambda: calls.append(kept.free)
    kept.write(samples(WAITING_SAMPLES))
    assert kept.free == 0
    kept.release(needed_from=0, processed=1600, command=0)
    assert calls == [1600]
    assert kept.first == 0


def test_a_flood_of_commands_is_held_back_too() -> None:
    kept = ReplayBuffer("s", wide=False)
    for _ in range(MAX_COMMANDS):
        kept.put(do())
    assert kept.free < 0
    kept.release(0, 0, command=1)
    assert kept.free > 0


def test_a_session_that_another_gateway_had_goes_on_with_its_numbers() -> None:
    kept = ReplayBuffer("s", wide=False, position=4800, command=7)
    kept.write(samples(10))
    kept.put(do())
    assert placed(taken(kept)) == [("audio", 4800, 7), ("flush", 4810, 8)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_a_worker_ends_up_with_all_of_it_in_order(seed: int) -> None:
    chance = random.Random(seed)
    kept, head, command = ReplayBuffer("s", wide=False), 0, 0
    received = np.empty(0, np.float32)

    def deliver(loss: float) -> None:
        """Let the worker take what follows what it has; some is lost on the way."""
        nonlocal head, command, received
        for item in taken(kept):
            if chance.random() < loss:
                continue
            if isinstance(item, SessionCommand):
                if item.position <= head and item.command == command + 1:
                    command = item.command
            elif item.position <= head and item.command <= command:
                new = unpack_samples(item.data, wide=item.wide)[head - item.position :]
                received, head = np.concatenate([received, new]), head + len(new)

    for _ in range(30):
        if chance.random() < 0.7:
            kept.write(samples(chance.randrange(1, 400), kept.head))
        else:
            kept.put(do())
        deliver(loss=0.3)
        if chance.random() < 0.4:
            kept.release(head - min(head, chance.randrange(500)), head, command)
        kept.rewind(head, command)
    deliver(loss=0.0)
    assert np.array_equal(received, samples(kept.head))
    assert command == kept.command


def test_at_16_khz_audio_comes_again_from_where_it_is_needed() -> None:
    assert first_frame(12_345, StreamStart(channels=2)) == (12_345, 12_345)


def test_at_its_beginning_audio_comes_again_from_there() -> None:
    assert first_frame(3000, StreamStart(sample_rate=48_000)) == (0, 0)


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 44_100, 48_000, 96_000, 44_101])
def test_a_resampler_that_begins_on_the_grid_yields_the_same(rate: int) -> None:
    noise = np.random.default_rng(2).normal(0, 0.2, 12 * rate).astype("<f4")
    whole = PcmDecoder("f32le", rate, 1)
    expected = np.concatenate([whole.decode(noise.tobytes()), whole.finish()])
    position = 150_001
    frame, begin = first_frame(position, StreamStart(format="f32le", sample_rate=rate))
    assert begin <= position - 4000 or begin == 0
    assert frame * 16_000 == begin * rate
    again = PcmDecoder("f32le", rate, 1)
    found = np.concatenate([again.decode(noise[frame:].tobytes()), again.finish()])[position - begin :]
    assert abs(len(found) - len(expected[position:])) <= 1
    n = min(len(found), len(expected) - position) - 400  # the very end is flushed
    assert np.allclose(found[:n], expected[position : position + n], atol=1e-5)
