"""A stage: sends its microphone to the room of its name, until Ctrl-C ends the talk.

    python stage.py ROOM ADDRESS [RECORDING]

The environment variable STREAMER_TOKEN has the room's token. A recording, in place of the microphone, is played at the
speed of speech.
"""

import contextlib
import math
import os
import queue
import signal
import sys
import time
from collections.abc import Iterator

import numpy as np

from streamer import stream
from streamer.audio.sources.file import read_audio
from streamer.errors import StreamerError

RATE = 16_000
PIECE = RATE // 10
MAX_WAITING = 6000  # pieces: ten minutes without a connection

pieces: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)


def put(data: bytes | None) -> None:
    try:
        pieces.put_nowait(data)
    except queue.Full:
        print("the box has been away for ten minutes: sound is lost", file=sys.stderr)


@contextlib.contextmanager
def microphone() -> Iterator[None]:
    import sounddevice

    with sounddevice.RawInputStream(RATE, PIECE, channels=1, dtype="int16", callback=lambda data, *_: put(bytes(data))):
        yield


def played(path: str) -> Iterator[np.ndarray]:
    """Yield a recording's audio when it would have been heard."""
    begin_s, n_samples = time.monotonic(), 0
    for block in read_audio(path):
        n_samples += len(block)
        time.sleep(max(0.0, begin_s + n_samples / RATE - time.monotonic()))
        yield block
        if not pieces.empty():  # Ctrl-C
            return


def end(*_: object) -> None:
    """End the talk; a second Ctrl-C does not wait for its text."""
    put(None)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main(room: str, address: str, recording: str = "") -> None:
    signal.signal(signal.SIGINT, end)
    audio = played(recording) if recording else iter(pieces.get, None)
    token = os.environ.get("STREAMER_TOKEN", "")
    with contextlib.nullcontext() if recording else microphone():
        for event in stream(audio, address, token=token, wait_s=math.inf, room=room, keep=True):
            if event.type == "final":
                print(event.text, flush=True)


try:
    main(*sys.argv[1:])
except KeyboardInterrupt:
    sys.exit(130)
except StreamerError as error:
    sys.exit(f"stage.py: {error}")
