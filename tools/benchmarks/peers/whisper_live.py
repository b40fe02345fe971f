"""whisper-live 0.10 (github.com/collabora/WhisperLive): faster-whisper over all audio behind the last finished segment,
again and again.

Served as its README says for a custom faster-whisper model: one model for all clients, int8 on a CPU, one OpenMP
thread, beam search and temperature fallback as faster-whisper has them. The client asks for what its own client asks
for by default. Only the limit of ten minutes that a client may stay is lifted.

A segment is finished when another follows it in the same pass, or when the same text has come eleven times; until then
its text is displayed but not promised. Its server ends a connection at the end of the audio without a last pass, so its
own client waits until the text has not changed for 15 s; we do the same, or less if all is finished.
"""

import json
import uuid
from typing import Any

from websockets.asyncio.client import ClientConnection

from tools.benchmarks.peers.environment import TORCH, Environment, variables_of_peer
from tools.benchmarks.playing import Conversation
from tools.benchmarks.processes import ServerFailure
from tools.benchmarks.published import PublishedModel
from tools.benchmarks.systems import System

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

SERVER = """
import sys
from whisper_live.server import TranscriptionServer

TranscriptionServer().run("127.0.0.1", port=int(sys.argv[1]), backend="faster_whisper", single_model=True,
    faster_whisper_custom_model_path=sys.argv[2], max_clients=64, max_connection_time=24 * 3600)
"""

OPTIONS = {
    "language": "en",
    "task": "transcribe",
    "model": "small",  # the server's own takes its place
    "use_vad": True,
    "send_last_n_segments": 10,
    "no_speech_thresh": 0.45,
    "clip_audio": False,
    "same_output_threshold": 10,
}

# Without a change of the text: until all is transcribed, and if the last segment is finished already.
QUIET_S = 15.0
QUIET_FINISHED_S = 4.0


class WhisperLive(System):
    """A server of whisper-live's."""

    def __init__(self, model: PublishedModel) -> None:
        super().__init__("whisper-live", variables_of_peer({"OMP_NUM_THREADS": "1"}))
        self._model = model

    def command(self, port: int) -> list[str]:
        python = ENVIRONMENT.python(self._model.peers_folder)
        return [str(python), "-P", "-c", SERVER, str(port), str(self._model.ctranslate2())]

    def conversation(self, port: int) -> "WhisperLiveConversation":
        return WhisperLiveConversation(f"ws://127.0.0.1:{port}")


class WhisperLiveConversation(Conversation):
    """Its protocol, as its own client speaks it. An answer has the last finished segments, and the open one."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._finished: list[str] = []
        self._open = ""
        self._end_s = 0.0  # of the last finished segment

    async def open(self, connection: ClientConnection) -> None:
        await connection.send(json.dumps({"uid": str(uuid.uuid4()), **OPTIONS}))
        while parse_answer(await connection.recv(), self.address).get("message") != "SERVER_READY":
            pass

    async def finish(self, connection: ClientConnection) -> None:
        """Send nothing: it would end the connection, whatever it has not transcribed yet."""

    def receive(self, message: str | bytes, wall_s: float) -> bool:
        answer = parse_answer(message, self.address)
        if "segments" not in answer:
            return False
        self._open = ""
        for segment in answer["segments"]:
            if not segment["completed"]:
                self._open = segment["text"]
            elif not self._finished or float(segment["start"]) >= self._end_s:  # as its client does
                self._finished.append(segment["text"])
                self._end_s = float(segment["end"])
        return self.timeline.show(" ".join(self._finished).split(), self._open.split(), wall_s)

    def is_over(self, quiet_s: float) -> bool:
        return quiet_s > (QUIET_S if self._open else QUIET_FINISHED_S)


def parse_answer(message: str | bytes, address: str) -> dict[str, Any]:
    """Return a peer's answer. Raises ServerFailure if it is not a JSON object, or is a refusal."""
    try:
        answer = json.loads(message)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ServerFailure(f"{address} sent {message!r:.80}: expected a JSON object")
    if answer.get("error") or answer.get("status") in ("ERROR", "WAIT") or answer.get("message") == "DISCONNECT":
        raise ServerFailure(f"{address} refuses: {message!r:.200}")
    return answer
