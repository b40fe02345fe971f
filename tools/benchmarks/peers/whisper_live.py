"""whisper-live 0.10 (github.com/collabora/WhisperLive): faster-whisper over all audio behind the last finished segment,
again and again.

Served as its README says for a custom faster-whisper model: one model for all clients, int8 on a CPU, one OpenMP thread
unless told otherwise, beam search and temperature fallback as faster-whisper has them. The client asks for what its own
client asks for by default: its speech detector on, `no_speech_thresh` 0.45, `same_output_threshold` 10, the last 10
segments with every answer. Only the limit of ten minutes that a client may stay is lifted.

A segment is finished when another follows it in the same pass, or when the same text has come eleven times; until then
its text is the client's to see but not promised. Its server ends a connection at the end of the audio without a last
pass, so its own client waits until the text has not changed for 15 s; we do the same, or less where all is finished.
"""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection

from tools.benchmarks.peers.environment import TORCH, Environment
from tools.benchmarks.peers.peer import Peer, parse_answer
from tools.benchmarks.playing import Samples, Screen
from tools.benchmarks.processes import ServerFailure
from tools.benchmarks.published import PublishedModel

# Without what only its client (PyAudio) and its other backends need. It asks for torchaudio too, of which no build for
# CPUs fits, and never imports it.
NEEDED = (
    TORCH,
    "faster-whisper==1.2.0",
    "tokenizers==0.20.3",
    "onnxruntime>=1.20,<2",
    "numpy<2.5",
    *("av", "fastapi", "python-multipart", "scipy", "tqdm", "uvicorn", "websockets"),
)
ENVIRONMENT = Environment("whisper_live", ((TORCH,), ("--no-deps", "whisper-live==0.10.0"), NEEDED))

SERVER = Path(__file__).with_name("whisper_live_server.py")

# Without a change of the text: until all is said, and where the last segment is finished already.
QUIET_S = 15.0
QUIET_FINISHED_S = 4.0


class WhisperLive(Peer):
    """A server of whisper-live's."""

    def __init__(self, model: PublishedModel, *, n_threads: int = 1) -> None:
        """`n_threads` are OpenMP's; its run_server.py takes 1 by default."""
        super().__init__("whisper-live", model, {"OMP_NUM_THREADS": str(n_threads)})

    def command(self, port: int) -> list[str]:
        """Return what starts the server."""
        python = ENVIRONMENT.python(self._model.peers_folder)
        model = self._model.ctranslate2()
        # -P: beside the script lies a module of the library's name.
        return [str(python), "-P", str(SERVER), str(port), str(model)]

    def conversation(self, port: int) -> "WhisperLiveConversation":
        """Return a new client's side of its protocol."""
        return WhisperLiveConversation(f"ws://127.0.0.1:{port}")


class WhisperLiveConversation:
    """Its protocol, as its own client speaks it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._uid = str(uuid.uuid4())
        self._transcript = Transcript()
        self.screen = Screen()

    async def open(self, connection: ClientConnection) -> None:
        options = {
            "uid": self._uid,
            "language": "en",
            "task": "transcribe",
            "model": "small",  # the server's own takes its place
            "use_vad": True,
            "send_last_n_segments": 10,
            "no_speech_thresh": 0.45,
            "clip_audio": False,
            "same_output_threshold": 10,
        }
        await connection.send(json.dumps(options))
        while True:
            answer = parse_answer(await connection.recv(), self.address)
            if answer.get("message") == "SERVER_READY":
                return
            _check(answer, self.address)

    def encode(self, samples: Samples) -> bytes:
        return samples.astype("<f4").tobytes()

    async def finish(self, connection: ClientConnection) -> None:
        """Nothing: it ends the connection when it is told, whatever it has not heard yet."""

    def hear(self, message: str | bytes, wall_s: float) -> bool:
        answer = parse_answer(message, self.address)
        _check(answer, self.address)
        if "segments" not in answer:
            return False
        self._transcript.take(answer["segments"])
        finished = " ".join(self._transcript.finished)
        return self.screen.show(finished, self._transcript.open, wall_s)

    def is_over(self, quiet_s: float) -> bool:
        return quiet_s > (QUIET_S if self._transcript.open else QUIET_FINISHED_S)


class Transcript:
    """All segments so far: an answer holds the last finished ones, and the one that is not."""

    def __init__(self) -> None:
        self.finished: list[str] = []
        self.open = ""
        self._end_s = 0.0

    def take(self, segments: Sequence[dict[str, Any]]) -> None:
        """Take an answer's segments. As its client does, a finished one counts where it begins behind the last."""
        self.open = ""
        for segment in segments:
            if not segment["completed"]:
                self.open = segment["text"]
            elif not self.finished or float(segment["start"]) >= self._end_s:
                self.finished.append(segment["text"])
                self._end_s = float(segment["end"])


def _check(answer: dict[str, Any], address: str) -> None:
    if answer.get("status") in ("ERROR", "WAIT") or answer.get("message") == "DISCONNECT":
        raise ServerFailure(f"{address}: {answer.get('status', '')} {answer.get('message', '')}")
