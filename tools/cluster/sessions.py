"""What is said in sessions, and clients that say it as it is spoken and note what they see."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from streamer.client.stream import stream
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from streamer.events import Event

RECORDINGS = Path(__file__).resolve().parents[2].parent / "shared" / "audio"
BLOCK = SAMPLE_RATE // 10
PAUSE_S = 0.8  # longest between two sentences
TAIL_S = 1.0
OVER_S = 90.0  # from the end of the audio to the last event
NAMES = ("awb", "slt", "rms", "noisy", "breathless", "pauses")

Samples = NDArray[np.int16]


@dataclass
class Received:
    """What one client saw, with seconds since the first sample of its audio was spoken."""

    events: list[tuple[float, Event]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    failure: str = ""
    begin_s: float = 0.0

    @property
    def session(self) -> str:
        return self.events[-1][1].session if self.events else ""


def speeches(n: int, speech_s: float) -> list[Samples]:
    """Return n excerpts of the recordings, each with about `speech_s` seconds of speech, all different."""
    recordings = {name: _sentences(name) for name in NAMES}
    found = []
    for i in range(n):
        pieces, said_s = [], 0.0
        for step in range(100):
            name = NAMES[(i + step // 4) % len(NAMES)]
            sentences = recordings[name]
            piece, length_s = sentences[(2 * (i // len(NAMES)) + step % 4) % len(sentences)]
            pieces.append(piece)
            said_s += length_s
            if said_s >= speech_s:
                break
        found.append(np.concatenate([*pieces, np.zeros(int(TAIL_S * SAMPLE_RATE), np.int16)]))
    return found


def _sentences(name: str) -> list[tuple[Samples, float]]:
    """Return a recording's sentences, each with half of the pauses around it, and how long is spoken in it."""
    samples, rate = soundfile.read(RECORDINGS / f"{name}.flac", dtype="int16")
    assert rate == SAMPLE_RATE
    times = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    ends = [0.0, *(sentence["end"] for sentence in times)]
    starts = [*(sentence["start"] for sentence in times), len(samples) / rate]
    found = []
    for i, sentence in enumerate(times):
        first = sentence["start"] - min(PAUSE_S, starts[i] - ends[i]) / 2
        last = sentence["end"] + min(PAUSE_S, starts[i + 1] - ends[i + 1]) / 2
        piece = samples[int(first * rate) : int(last * rate)]
        found.append((piece, sentence["end"] - sentence["start"]))
    return found


async def say(samples: Samples, address: str, received: Received) -> None:
    """Speak through a daemon or gateway, in real time; fill `received`."""

    async def spoken() -> AsyncIterator[bytes]:
        received.begin_s = time.monotonic()
        for first in range(0, len(samples), BLOCK):
            block = samples[first : first + BLOCK]
            await asyncio.sleep(received.begin_s + (first + len(block)) / SAMPLE_RATE - time.monotonic())
            yield block.tobytes()

    try:
        async with asyncio.timeout(len(samples) / SAMPLE_RATE + OVER_S):
            async for event in stream(spoken(), address, on_notice=received.notices.append):
                received.events.append((time.monotonic() - received.begin_s, event))
    except TimeoutError:
        received.failure = f"it had not ended {OVER_S:.0f} s after its audio"
    except StreamerError as error:
        received.failure = f"{type(error).__name__}: {error}"


async def say_all(all_samples: Sequence[Samples], address: str, received: Sequence[Received]) -> None:
    """Have several sessions speak at once, begun a little apart."""

    async def later(i: int) -> None:
        await asyncio.sleep(0.15 * i)
        await say(all_samples[i], address, received[i])

    await asyncio.gather(*(later(i) for i in range(len(all_samples))))
