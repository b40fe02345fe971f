"""The ring buffer, against a plain list, and with threads."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.arrays import Float32Array
from streamer.audio.ring import Overrun, RingBuffer
from tests.waiting import WAIT_S


def numbered(start: int, n_samples: int) -> Float32Array:
    return np.arange(start, start + n_samples, dtype=np.float32)


def full(capacity: int) -> RingBuffer:
    ring = RingBuffer(capacity)
    ring.write(numbered(0, capacity))
    return ring


STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "read"]), st.integers(0, 40))
    | st.tuples(st.just("release"), st.integers(0, 300)),
    max_size=60,
)


@given(capacity=st.integers(1, 17), steps=STEPS)
def test_it_behaves_like_a_list_that_remembers_its_end(capacity: int, steps: list[tuple[str, int]]) -> None:
    ring, n_written, released = RingBuffer(capacity), 0, 0
    for kind, number in steps:
        if kind == "write":
            ring.write(numbered(n_written, number))
            n_written += number
        elif kind == "release":
            released = max(released, min(number, n_written))
            ring.release(number)
        elif number > capacity and n_written > capacity:
            with pytest.raises(Overrun) as caught:
                ring.read(max(0, n_written - number), n_written)
            assert caught.value.oldest == n_written - capacity
        oldest = max(0, n_written - capacity)
        start = max(oldest, n_written - number)
        np.testing.assert_array_equal(ring.read(start, n_written), numbered(start, n_written - start))
        np.testing.assert_array_equal(ring.read(oldest, n_written), numbered(oldest, n_written - oldest))
        assert (ring.head, ring.oldest) == (n_written, oldest)
        assert ring.free == capacity - (n_written - max(released, oldest))


def test_a_reader_that_is_lapped_while_it_copies_gets_an_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    ring, empty = full(10), np.empty

    def write_meanwhile(n_samples: int, dtype: type[np.float32]) -> Float32Array:
        monkeypatch.setattr(np, "empty", empty)
        ring.write(numbered(10, 4))
        return empty(n_samples, dtype=dtype)

    monkeypatch.setattr(np, "empty", write_meanwhile)
    with pytest.raises(Overrun) as caught:
        ring.read(0, 10)
    assert caught.value.oldest == 4


def test_nothing_is_lost_while_the_writer_waits_for_room() -> None:
    ring, news = RingBuffer(100), threading.Event()
    read: list[float] = []

    def consume() -> None:
        while len(read) < 5_000:
            assert news.wait(WAIT_S)
            news.clear()
            read.extend(ring.read(len(read), ring.head).tolist())
            ring.release(len(read))

    consumer = threading.Thread(target=consume)
    consumer.start()
    for start in range(0, 5_000, 40):
        assert ring.wait_for_room(40, WAIT_S)
        ring.write(numbered(start, 40))
        news.set()
    consumer.join()
    assert read == numbered(0, 5_000).tolist()


def test_wake_ends_a_wait() -> None:
    ring = full(10)
    results: list[bool] = []
    waiter = threading.Thread(target=lambda: results.append(ring.wait_for_room(1, 10 * WAIT_S)), daemon=True)
    waiter.start()
    for _ in range(int(WAIT_S / 0.01)):
        ring.wake()
        waiter.join(0.01)
        if results:
            break
    assert results == [False]


def test_the_writer_is_called_each_time_that_there_is_room() -> None:
    ring = full(10)
    free: list[int] = []
    ring.on_room = lambda: free.append(ring.free)
    assert not ring.wait_for_room(1, 0.01)
    for position in (4, 4, 3, 99):
        ring.release(position)
        assert ring.wait_for_room(4, 0.0)
    assert free == [4, 10]
