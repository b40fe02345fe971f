"""What a program gives to a stream: audio and commands, which become messages."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from streamer.client.options import Options
from streamer.client.sent import FINISH, Message
from streamer.errors import TruncatedAudioError, UsageError

Command = Literal["flush", "pause", "resume", "clear"]

# Audio or a piece of it, shape (n,) or (n, channels): int16 or floats from -1 to 1; or bytes of `format`, cut anywhere.
Audio = bytes | bytearray | memoryview | NDArray[np.int16] | NDArray[np.floating[Any]]

# What may stand in a stream: audio, a command, or options that hold from there on.
Item = Audio | Command | Options
Source = Audio | str | Path | Iterable[Item] | AsyncIterable[Item]

MESSAGE_BYTES = 1 << 16
BLOCK = 1 << 15  # samples, or bytes, into which a whole recording is cut


def frame_bytes(format: str, channels: int) -> int:
    """Return the length of a frame, a sample of each channel."""
    return (2 if format == "s16le" else 4) * channels


async def messages_of(
    audio: Source, format: str, channels: int, on_notice: Callable[[str], None]
) -> AsyncGenerator[Message, None]:
    """Yield the messages that a source becomes, audio in whole frames. Raises UsageError for what it must not yield."""
    n_bytes = frame_bytes(format, channels)
    carried = b""  # beginning of an incomplete frame
    async for item in _items(audio, on_notice):
        match item:
            case str() if item in get_args(Command):
                yield {"type": item}
                continue
            case Mapping():
                yield {**item, "type": "set"}
                continue
            case np.ndarray():
                carried += _encoded(item, format, channels)
            case bytes() | bytearray() | memoryview():
                carried += item
            case _:
                raise UsageError(
                    f"a stream was given {item!r:.40}: expected samples, bytes, options, or one of"
                    f" {', '.join(get_args(Command))}"
                )
        whole, step = len(carried) // n_bytes * n_bytes, MESSAGE_BYTES // n_bytes * n_bytes
        for first in range(0, whole, step):
            yield carried[first : min(whole, first + step)]
        carried = carried[whole:]
    yield FINISH


def _encoded(samples: NDArray[Any], format: str, channels: int) -> bytes:
    n_channels = samples.shape[1] if samples.ndim == 2 else 1
    is_float = np.issubdtype(samples.dtype, np.floating)
    if samples.ndim not in (1, 2) or n_channels != channels or not (is_float or samples.dtype == np.int16):
        raise UsageError(
            f"samples are {samples.dtype} of shape {samples.shape}: expected int16, or floats from -1 to 1, of"
            f" shape (n,) or (n, channels), with {channels} channels"
        )
    if format == "f32le":
        return (samples.astype("<f4") if is_float else samples.astype("<f4") / 32768).astype("<f4").tobytes()
    if is_float:
        samples = np.nan_to_num(samples * 32768).clip(-32768, 32767).round()
    return samples.astype("<i2").tobytes()


async def _items(audio: Source, on_notice: Callable[[str], None]) -> AsyncGenerator[object, None]:
    """Yield the items of a source; a whole recording in blocks."""
    pieces: Iterable[object]
    match audio:
        case str() | Path():
            pieces = _file(audio, on_notice)
        case bytes() | bytearray() | memoryview() | np.ndarray():
            pieces = (audio[first : first + BLOCK] for first in range(0, len(audio), BLOCK))
        case AsyncIterable():
            async for given in audio:
                yield given
            return
        case Iterable():
            pieces = audio
        case _:
            raise UsageError(f"audio is {audio!r:.40}: expected a path, samples, bytes, or an iterable of these")
    async with contextlib.aclosing(_pulled(iter(pieces))) as pulled:
        async for item in pulled:
            yield item


def _file(path: str | Path, on_notice: Callable[[str], None]) -> Iterator[object]:
    """Yield a file's audio, 16 kHz mono; of a truncated file, what can be read."""
    # Late, as few need it.
    from streamer.audio.sources.file import read_audio

    try:
        yield from read_audio(path)
    except TruncatedAudioError as error:
        on_notice(str(error))


async def _pulled(pieces: Iterator[object]) -> AsyncGenerator[object, None]:
    """Yield the items of an iterator that may block: a thread reads it, and is not joined at the end."""
    wanted: queue.SimpleQueue[Future[object] | None] = queue.SimpleQueue()
    over = object()

    def work() -> None:
        while (answer := wanted.get()) is not None and answer.set_running_or_notify_cancel():
            try:
                answer.set_result(next(pieces, over))
            except Exception as error:  # noqa: BLE001 - raised by who waits
                answer.set_exception(error)

    threading.Thread(target=work, name="streamer-audio", daemon=True).start()
    try:
        while True:
            answer: Future[object] = Future()
            wanted.put(answer)
            found = await asyncio.wrap_future(answer)
            if found is over:
                return
            yield found
    finally:
        wanted.put(None)
