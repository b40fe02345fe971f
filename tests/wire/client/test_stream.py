"""The client of streams: what audio may be, what is sent again, and how it ends."""

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamer.client import sent
from streamer.client import stream as module
from streamer.client.audio import Item
from streamer.client.sent import Sent
from streamer.client.stream import shifted, stream
from streamer.errors import (
    BusyError,
    ConfigError,
    PeerError,
    ProtocolError,
    StreamerError,
    UnknownSessionError,
    UsageError,
)
from streamer.events import Event, Final
from tests.builders import final
from tests.cutting import cutting
from tests.daemon import free_port
from tests.waiting import WAIT_S, until
from tests.wire.harness import RecordingStream, Running, serving, within

NOISE = np.random.default_rng(0).integers(-3000, 3000, 48_000, dtype=np.int16)  # three seconds
BLOCKS = [NOISE[first : first + 1600] for first in range(0, len(NOISE), 1600)]


def host(running: Running) -> str:
    return f"127.0.0.1:{running.port}"


async def collected(events: Any) -> list[Event]:  # noqa: ANN401 - Events
    async with asyncio.timeout(WAIT_S):
        return [event async for event in events]


async def async_blocks() -> AsyncIterator[Item]:
    for block in BLOCKS:
        yield block


@pytest.mark.parametrize(
    ("audio", "arguments"),
    [
        *((NOISE, {}), (BLOCKS, {}), (async_blocks(), {}), (iter(BLOCKS), {}), (NOISE.tobytes(), {})),
        *((NOISE[:, None], {}), (bytearray(NOISE.tobytes()), {}), (NOISE / np.float32(32768), {})),
        ([NOISE.tobytes()[:1001], memoryview(NOISE.tobytes())[1001:]], {}),
        *((NOISE, {"format": "f32le"}), (NOISE.astype(np.float64) / 32768, {"format": "f32le"})),
    ],
)
async def test_what_audio_may_be(audio: Any, arguments: Any) -> None:  # noqa: ANN401
    async with serving() as running:
        events = await collected(stream(audio, host(running), language="de", **arguments))
        heard = running.streams.opened[0]
    samples = np.frombuffer(bytes(heard.audio), "<f4" if arguments else "<i2")
    np.testing.assert_array_equal(samples * (32768 if arguments else 1), NOISE)
    assert (heard.start.language, heard.start.sample_rate) == ("de", 16_000)
    assert [event.type for event in events] == ["ready", "final", "end"]


async def test_floats_that_no_sample_can_be_are_clipped() -> None:
    async with serving() as running:
        await collected(stream(np.array([2.0, -2.0, np.nan, 0.9]), host(running)))
        heard = running.streams.opened[0]
    assert np.frombuffer(bytes(heard.audio), "<i2").tolist() == [32767, -32768, 0, 29491]


async def test_channels_and_a_file(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", NOISE, 16_000)
    stereo = np.stack([NOISE, NOISE], axis=1)
    async with serving() as running:
        await collected(stream(stereo, host(running), sample_rate=48_000))
        await collected(stream(tmp_path / "a.wav", host(running), channels=2))
        two, file = running.streams.opened
    assert (two.start.channels, two.start.sample_rate, bytes(two.audio)) == (2, 48_000, stereo.tobytes())
    assert (file.start.channels, file.start.sample_rate, bytes(file.audio)) == (1, 16_000, NOISE.tobytes())


@pytest.mark.parametrize("item", [3, NOISE.astype(np.int32), NOISE.reshape(2, 2, -1), NOISE.reshape(-1, 3), "stop"])
async def test_invalid_audio_is_refused(item: Any) -> None:  # noqa: ANN401
    async with serving() as running:
        with pytest.raises(UsageError):
            await collected(stream([NOISE, item], host(running)))
        await within(running.streams.opened[0].abandoned.wait())


async def test_what_the_audio_raises_is_raised() -> None:
    def broken() -> Iterator[Item]:
        yield NOISE
        raise ZeroDivisionError

    async with serving() as running:
        with pytest.raises(ZeroDivisionError):
            await collected(stream(broken(), host(running)))
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(list, stream(broken(), host(running)))


@pytest.mark.parametrize("wrong", [{"format": "mp3"}, {"sample_rate": 0}, {"channels": 0}])
def test_wrong_formats_are_refused_at_once(wrong: Any) -> None:  # noqa: ANN401
    with pytest.raises(ProtocolError):
        stream(b"", **wrong)


COMMANDS: list[Any] = [
    *(*BLOCKS[:3], "flush", BLOCKS[3], "pause", BLOCKS[4], {"language": "de"}, "resume", *BLOCKS[5:], "clear"),
]
COMMANDS_AT = [("flush", 9600), ("pause", 12800), ("set", 16000), ("resume", 16000), ("clear", 96000)]


@pytest.mark.parametrize("seed", range(3))
async def test_cut_connections_lose_nothing_and_double_nothing(seed: int) -> None:
    def prepare(opened: RecordingStream) -> None:
        for number in range(1, 4):
            opened.log.append(final(f"text {number}", segment=number, start=float(number)))

    budgets = [int(n) for n in np.random.default_rng(seed).integers(600, 40_000, 8)]
    notices: list[str] = []
    async with serving() as running:
        running.streams.prepare = prepare
        async with cutting(running.port, *budgets) as proxy:
            events = await collected(stream(COMMANDS, f"127.0.0.1:{proxy.port}", on_notice=notices.append))
        # One that breaks before its name was received cannot be resumed: it has not been heard of, either.
        heard = running.streams.opened[-1]
    assert heard.audio == NOISE.tobytes()
    assert list(dict.fromkeys(heard.commands)) == COMMANDS_AT
    assert [e.text for e in events if isinstance(e, Final)] == ["text 1", "text 2", "text 3", "96000 bytes"]
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert notices


async def test_a_daemon_that_is_full_holds_the_audio_back() -> None:
    n_given, left = 0, asyncio.Event()

    async def endless() -> AsyncIterator[Item]:
        nonlocal n_given
        try:
            while True:
                n_given += 1
                yield bytes(32_000)
        finally:
            left.set()

    async with serving() as running:
        running.streams.prepare = lambda opened: opened.room.clear()
        events = aiter(stream(endless(), host(running)))
        await within(anext(events))
        before = -1
        while n_given > before:  # until no more is asked for
            before = n_given
            await asyncio.sleep(0.1)
        # What may be under way: as much as the client allows, and some that are at hand.
        assert n_given <= 2 * module.PING_S + 10
        running.streams.opened[0].room.set()
        await within(events.aclose())
        await within(left.wait())
        await within(running.streams.opened[0].abandoned.wait())


@pytest.mark.parametrize(
    "refusal",
    [BusyError("4 streams"), ConfigError("no such language\nat all"), UnknownSessionError("what?"), PeerError("x")],
)
async def test_a_refusal_is_raised_in_the_daemons_words(refusal: StreamerError) -> None:
    async with serving() as running:
        running.streams.refusal = refusal
        for read in (collected, lambda events: asyncio.to_thread(list, events)):
            with pytest.raises(type(refusal)) as caught:
                await read(stream(NOISE, host(running)))
            assert str(caught.value) == " ".join(str(refusal).split())


async def test_options_that_no_daemon_knows_are_refused_in_its_words() -> None:
    async with serving() as running:
        with pytest.raises(ProtocolError):
            await collected(stream(NOISE, host(running), colour="red"))  # type: ignore[call-arg]


async def test_a_daemon_that_is_not_there_or_full_is_waited_for() -> None:
    notices: list[str] = []
    port = free_port()
    events = asyncio.create_task(collected(stream(NOISE, f"127.0.0.1:{port}", wait_s=60, on_notice=notices.append)))
    await until(lambda: len(notices) == 1)
    async with serving(port=port) as running:
        running.streams.refusal = BusyError("4 streams are open")
        await until(lambda: len(running.streams.tenants) > 2)
        running.streams.refusal = None
        assert [event.type for event in await events] == ["ready", "final", "end"]
        assert running.streams.opened[0].audio == NOISE.tobytes()
    assert [notice.partition(" (")[0].rpartition(" is ")[2] for notice in notices] == ["not there", "back"]


@pytest.mark.parametrize(("arguments", "n_notices"), [({}, 0), ({"wait_s": 0.02}, 1)])
async def test_the_wait_for_a_daemon_ends(arguments: Any, n_notices: int) -> None:  # noqa: ANN401
    notices: list[str] = []
    with pytest.raises(PeerError):
        await collected(stream(NOISE, f"127.0.0.1:{free_port()}", on_notice=notices.append, **arguments))
    assert len(notices) == n_notices


async def test_the_same_object_is_read_without_asyncio_and_left_early() -> None:
    async with serving() as running:
        events = stream(NOISE, host(running))
        for _ in range(2):
            found = await within(asyncio.to_thread(list, events))
            assert [event.type for event in found] == ["ready", "final", "end"]

        def leave() -> str:
            for event in stream(iter(queue.SimpleQueue[Any]().get, None), host(running)):
                return event.type
            return ""

        assert await within(asyncio.to_thread(leave)) == "ready"
        await within(running.streams.opened[-1].abandoned.wait())


def test_later_times_are_whole_milliseconds() -> None:
    event = shifted(final("two words", start=1.0), (1 / 3).__add__)
    assert (event.start, event.words[0].start) == (1.333, 1.333)


# --- What is kept to be sent again ------------------------------------------------------------------------------------

Unit = tuple[int, bytes | dict[str, Any]]
START = {"type": "start", "sample_rate": 1}
COMMAND = st.sampled_from([{"type": kind} for kind in ("flush", "pause", "resume", "clear")]) | st.builds(
    lambda language: {"type": "set", "language": language}, st.sampled_from(["de", "en", None])
)
LONGEST = 40


class Resumption(RuleBasedStateMachine):
    """Audio of 1 Hz, frame by frame, and commands: what `Sent` sends, against a list of all that was added."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = Sent(START, 2)
        self.units: list[Unit] = []
        self.n_sent = 0
        self.position = 0

    def unsent(self) -> int:
        return self.units[self.n_sent][0] if self.n_sent < len(self.units) else self.position

    @rule(n_frames=st.integers(1, LONGEST))
    def add_audio(self, n_frames: int) -> None:
        frames = [number.to_bytes(2, "little") for number in range(self.position, self.position + n_frames)]
        self.sent.add(b"".join(frames))
        self.units += [(self.position + i, frame) for i, frame in enumerate(frames)]
        self.position += n_frames

    @rule(command=COMMAND)
    def add_command(self, command: dict[str, Any]) -> None:
        self.sent.add(command)
        self.units.append((self.position, command))

    @rule()
    def send(self) -> None:
        item = self.sent.take()
        if item is None:
            assert self.n_sent == len(self.units), "all is sent"
            return
        n_units = len(item) // 2 if isinstance(item, bytes) else 1
        units = [unit for _, unit in self.units[self.n_sent : self.n_sent + n_units]]
        assert item == (b"".join(units) if isinstance(item, bytes) else units[0])  # type: ignore[arg-type]
        self.n_sent += n_units

    @rule()
    def send_all(self) -> None:
        while self.n_sent < len(self.units):
            self.send()

    @precondition(lambda self: self.sent.first < self.position or self.position == 0)
    @rule(share=st.floats(0, 1))
    def resume(self, share: float) -> None:
        earliest = self.sent.first + 1 if self.sent.first else 0
        position = earliest + round(share * (max(earliest, self.unsent()) - earliest))
        self.sent.rewind(position)
        self.n_sent = sum(start < position for start, _ in self.units)

    @invariant()
    def the_last_two_minutes_are_kept(self) -> None:
        assert self.sent.position == self.position
        assert self.sent.first <= max(0, self.position - sent.KEPT_S + LONGEST)
        unsent = self.unsent()
        assert self.sent.first <= unsent, "what is not sent is kept"
        assert self.sent.first >= min(unsent, self.position - sent.KEPT_S) - LONGEST, "no more than that is kept"

    @invariant()
    def another_session_opens_as_the_client_left_this_one(self) -> None:
        start, paused = START, False
        for _, unit in self.units[: self.n_sent]:
            if isinstance(unit, dict):
                start = {**start, **unit, "type": "start"} if unit["type"] == "set" else start
                paused = unit["type"] == "pause" or (paused and unit["type"] != "resume")
        assert self.sent.opening() == ([start, {"type": "pause"}] if paused else [start])


TestResumption = Resumption.TestCase
TestResumption.settings = settings(max_examples=40, stateful_step_count=30)


def test_commands_without_audio_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "MAX_KEPT_ITEMS", 500)
    kept = Sent(START, 2)
    for _ in range(600):
        kept.add({"type": "flush"})
        kept.take()
    kept.rewind(0)
    assert len(list(iter(kept.take, None))) == 500
