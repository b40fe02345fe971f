"""What the computer plays, through SoundCard: the monitor of PulseAudio or PipeWire, or Windows' loopback (WASAPI).

PortAudio has no way to it. It is captured in another process, since SoundCard connects to a sound server once, when it
is imported, and a server that is started again is never found again; and a driver that hangs or crashes stays there.
"""

import itertools
import json
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

from streamer.audio.sources.base import STOP_TIMEOUT_S
from streamer.audio.sources.microphone import CaptureStream, Microphone, MicrophoneInfo
from streamer.errors import AudioDeviceError
from streamer.extras import requires
from streamer.outside import one_line

SAMPLE_RATE = 48_000
CHANNELS = 2
BLOCK_FRAMES = 960  # 20 ms
BLOCK_BYTES = BLOCK_FRAMES * CHANNELS * 4

# The other process imports libraries first, on a busy machine; a sound server answers at once or never.
OPEN_TIMEOUT_S = 15.0

# What the other process writes first, on one line: this and the output's name, or why it cannot capture.
CAPTURES = "captures "
MAX_ANSWER = 300

LOOK_BLOCKS = 50  # between two looks at which output is the default: a second

# Nothing is known of a converter's clock, nor of what was lost.
_NO_STAMPS, _NO_FLAGS = SimpleNamespace(inputBufferAdcTime=0.0), SimpleNamespace(input_overflow=False)

_CHILD = (
    "import json, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = json.loads(sys.argv[1])\n"
    "from streamer.audio.sources.system import capture\n"
    "capture(sys.stdout.buffer)"
)


class SystemSound(Microphone):
    """What the computer plays on its default output, also if that changes; it goes away and comes back as one."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "system sound"

    def check(self) -> None:
        """Raise StreamerError if it cannot be captured; else `name` says which output is captured."""
        self._open()
        self._close()

    def _open(self) -> None:
        if sys.platform == "darwin":
            raise AudioDeviceError(
                "macOS does not let programs capture what it plays: expected a virtual device such as BlackHole"
                " (https://existential.audio/blackhole); install it, play to it, and use --input mic --microphone"
                " BlackHole"
            )
        requires("soundcard", extra="system-audio", purpose="--input system")
        info = MicrophoneInfo(0, self.name, "", CHANNELS, SAMPLE_RATE, is_default=True)
        try:
            recording = _Recording()
            self._stream = CaptureStream(SimpleNamespace(InputStream=recording, PortAudioError=OSError), info)
        except Exception as error:
            server = "PulseAudio, or PipeWire with pipewire-pulse, runs" if sys.platform == "linux" else "there is one"
            raise AudioDeviceError(
                f"cannot capture system sound ({one_line(error.__cause__ or error):.200}): expected a default output;"
                f" check that {server}, or use --input FILE"
            ) from error
        self.name = f"system sound of {recording.speaker!r}"

    def _look_again(self) -> None:
        """Do nothing: another process looks anew."""


class _Recording:
    """The other process, as an `InputStream` of sounddevice."""

    def __init__(self) -> None:
        # Name of the output that was the default at the start.
        self.speaker = ""

        self._process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._thread = threading.Thread(target=self._read, name="system sound", daemon=True)

    def __call__(self, *, callback: Any, **_: object) -> "_Recording":  # noqa: ANN401 - as sounddevice
        """Say who takes the audio."""
        self._callback = callback
        return self

    def start(self) -> None:
        """Wait for the first audio. Raises OSError if it does not come."""
        assert self._process.stdout is not None
        impatience = threading.Timer(OPEN_TIMEOUT_S, self.abort)
        impatience.start()
        answer = one_line(self._process.stdout.readline(4 * MAX_ANSWER).decode("utf-8", "replace"))
        impatience.cancel()
        if not answer.startswith(CAPTURES):
            raise OSError(answer or "no answer")
        self.speaker = answer.removeprefix(CAPTURES)
        self._thread.start()

    @property
    def active(self) -> bool:
        return self._thread.is_alive()

    def abort(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while len(block := self._process.stdout.read(BLOCK_BYTES)) == BLOCK_BYTES:
            frames = np.frombuffer(block, dtype="<f4").reshape(-1, CHANNELS)
            self._callback(frames, BLOCK_FRAMES, _NO_STAMPS, _NO_FLAGS)


def capture(output: Any) -> None:  # noqa: ANN401
    """Write what the default output plays until that fails: a line with its name or the failure, then its samples."""
    answer = ""
    try:
        import soundcard

        while True:
            speaker = soundcard.default_speaker()
            monitor = next(
                source
                for source in soundcard.all_microphones(include_loopback=True)
                if source.isloopback and source.id in (speaker.id, f"{speaker.id}.monitor")
            )
            with monitor.recorder(SAMPLE_RATE, channels=CHANNELS, blocksize=BLOCK_FRAMES) as recorder:
                for i in itertools.count(1):
                    samples = recorder.record(BLOCK_FRAMES).astype("<f4").tobytes()
                    if not answer:
                        answer = CAPTURES + speaker.name
                        output.write(_line(answer))
                    output.write(samples)
                    output.flush()
                    if i % LOOK_BLOCKS == 0 and soundcard.default_speaker().id != speaker.id:
                        break
    except Exception as error:  # noqa: BLE001 - what libraries and drivers raise
        if not answer:
            output.write(_line(str(error) or "no default output"))
            output.flush()


def _line(text: str) -> bytes:
    return one_line(text)[:MAX_ANSWER].encode("utf-8", "replace") + b"\n"
