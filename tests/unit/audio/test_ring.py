"""The ring buffer, against a plain list, and with threads."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamer.audio.ring import Overrun, RingBuffer
from tests.waiting import WAIT_S


def numbered(start: int, n_samples: int) -> NDArray[np.float32]:
    """Samples whose value is their position."""
    return np.arange(start, start + n_samples, dtype=np.float32)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 40)),
        st.tuples(st.just("release"), st.integers(0, 300)),
        st.tuples(st.just("read"), st.integers(0, 40)),
    ),
    max_size=60,
)


@given(capacity=st.integers(1, 17), steps=operations)
def test_it_behaves_like_a_list_that_remembers_its_end(capacity: int, steps: list[tuple[str, int]]) -> None:
    ring = RingBuffer(capacity)
    written: list[float] = []
    released = 0
    for kind, number in steps:
        if kind == "write":
            written += [float(value) for value in numbered(len(written), number)]
            ring.write(np.array(written[len(written) - number :], dtype=np.float32))
        elif kind == "release":
            released = max(released, min(number, len(written)))
            ring.release(number)
        else:
            start = max(0, len(written) - number)
            if start < len(written) - capacity:
                with pytest.raises(Overrun) as caught:
                    ring.read(start, len(written))
                assert caught.value.oldest == len(written) - capacity
            else:
                assert ring.read(start, len(written)).tolist() == written[start:]
        oldest = max(0, len(written) - capacity)
        assert ring.head == len(written)
        assert ring.oldest == oldest
        assert ring.read(oldest, len(written)).tolist() == written[oldest:]
        assert ring.free == capacity - (len(written) - max(released, oldest))


def test_a_reader_that_is_lapped_while_it_copies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = RingBuffer(10)
    ring.write(numbered(0, 10))
    empty = np.empty

    def write_meanwhile(n_samples: int, dtype: type[np.float32]) -> NDArray[np.float32]:
        monkeypatch.setattr(np, "empty", empty)
        ring.write(numbered(10, 4))
        return empty(n_samples, dtype=dtype)

    monkeypatch.setattr(np, "empty", write_meanwhile)
    with pytest.raises(Overrun) as caught:
        ring.read(0, 10)
    assert caught.value.oldest == 4
    assert "sample 4" in str(caught.value)


def test_a_reader_never_sees_torn_audio_while_a_thread_writes() -> None:
    ring = RingBuffer(1_000)
    n_written = 300_000
    torn: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            end = ring.head
            start = max(0, end - 990)
            try:
                samples = ring.read(start, end)
            except Overrun:
                continue
            if samples.tolist() != numbered(start, end - start).tolist():
                torn.append(start)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, n_written, 50):
        ring.write(numbered(start, 50))
    done.set()
    for reader in readers:
        reader.join()
    assert ring.head == n_written
    assert torn == []


def test_nothing_is_lost_while_the_writer_waits_for_room() -> None:
    ring = RingBuffer(100)
    read: list[float] = []
    news = threading.Event()

    def consume() -> None:
        position = 0
        while position < 5_000:
            assert news.wait(WAIT_S)
            news.clear()
            end = ring.head
            read.extend(ring.read(position, end).tolist())
            position = end
            ring.release(position)

    consumer = threading.Thread(target=consume)
    consumer.start()
    for start in range(0, 5_000, 40):
        assert ring.wait_for_room(40, WAIT_S)
        ring.write(numbered(start, 40))
        news.set()
    consumer.join()
    assert read == numbered(0, 5_000).tolist()


def test_a_wait_ends_when_its_time_is_over() -> None:
    ring = RingBuffer(10)
    ring.write(numbered(0, 10))
    assert not ring.wait_for_room(1, 0.01)
    ring.release(4)
    assert ring.wait_for_room(4, 0.0)


def test_wake_ends_a_wait() -> None:
    ring = RingBuffer(10)
    ring.write(numbered(0, 10))
    results: list[bool] = []
    waiter = threading.Thread(target=lambda: results.append(ring.wait_for_room(1, 10 * WAIT_S)), daemon=True)
    waiter.start()
    for _ in range(int(WAIT_S / 0.01)):
        ring.wake()
        waiter.join(0.01)
        if results:
            break
    assert results == [False]


def test_the_writer_hears_of_each_time_that_there_is_room() -> None:
    ring = RingBuffer(10)
    free: list[int] = []
    ring.on_room = lambda: free.append(ring.free)
    ring.write(numbered(0, 10))
    ring.release(4)
    ring.release(4)
    ring.release(3)
    ring.release(99)
    assert free == [4, 10]
