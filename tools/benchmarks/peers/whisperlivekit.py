"""WhisperLiveKit 0.2.26 (github.com/QuentinFuxa/WhisperLiveKit), with either of its policies.

localagreement: faster-whisper with word times over the buffer after every 0.1 s of audio or as soon as it can; what two
passes in a row agree on is committed. simulstreaming, its default: AlignAtt; the encoder is faster-whisper's, as its
README advises for speed, the decoder PyTorch's, and decoding stops 25 frames before the end of the audio.

Its defaults else: speech detector (VAC) on, English, no diarization; PCM instead of a container, which it would start
ffmpeg for. Its lines are committed text, its `buffer_transcription` is not.
"""

import base64
import gzip
from typing import Literal

import numpy as np
import soundfile
from websockets.asyncio.client import ClientConnection

from streamer.constants import SAMPLE_RATE
from tools.benchmarks.peers.environment import TORCH, Environment
from tools.benchmarks.peers.peer import Peer, parse_answer
from tools.benchmarks.playing import Samples, Screen, pcm16
from tools.benchmarks.processes import ServerFailure
from tools.benchmarks.published import PublishedModel
from tools.benchmarks.systems import warm_up

# It asks for torchaudio too, of which no build for CPUs fits, and never imports it.
NEEDED = (
    TORCH,
    "fastapi>=0.141.1",
    "faster-whisper==1.2.1",
    "huggingface-hub>=0.25",
    "python-multipart>=0.0.31",
    "starlette>=1.3.1",
    *("librosa", "soundfile", "tiktoken", "tqdm", "uvicorn", "websockets"),
)
ENVIRONMENT = Environment("whisperlivekit", ((TORCH,), ("--no-deps", "whisperlivekit==0.2.26"), NEEDED))

Policy = Literal["localagreement", "simulstreaming"]
NAMES: dict[Policy, str] = {
    "localagreement": "whisperlivekit LocalAgreement",
    "simulstreaming": "whisperlivekit AlignAtt",
}


class WhisperLiveKit(Peer):
    """A server of WhisperLiveKit's."""

    def __init__(self, model: PublishedModel, policy: Policy) -> None:
        super().__init__(NAMES[policy], model, {})
        self._policy: Policy = policy

    def command(self, port: int) -> list[str]:
        """Return what starts the server."""
        python = str(ENVIRONMENT.python(self._model.peers_folder))
        server = [python, "-P", "-m", "whisperlivekit.basic_server", "--host", "127.0.0.1", "--port", str(port)]
        return [*server, *self._flags()]

    def conversation(self, port: int) -> "WhisperLiveKitConversation":
        """Return a new client's side of its protocol."""
        return WhisperLiveKitConversation(f"ws://127.0.0.1:{port}/asr?language=en")

    def _flags(self) -> list[str]:
        encoder = str(self._model.ctranslate2())
        warm_up_file = self._model.temporary / "warm-up.wav"
        soundfile.write(warm_up_file, warm_up(), SAMPLE_RATE)
        flags = ["--pcm-input", "--language", "en", "--warmup-file", str(warm_up_file)]
        flags += ["--backend-policy", self._policy, "--backend", "faster-whisper"]
        if self._policy == "localagreement":
            return [*flags, "--model_dir", encoder]
        flags += ["--encoder-model-path", encoder, "--decoder-model-path", str(self._model.openai())]
        return [*flags, "--custom-alignment-heads", heads_mask(self._model)]


class WhisperLiveKitConversation:
    """Its protocol: audio until an empty message, the whole state with every answer."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.screen = Screen()
        self._ended = False

    async def open(self, connection: ClientConnection) -> None:
        answer = parse_answer(await connection.recv(), self.address)
        if answer.get("type") != "config":
            raise ServerFailure(f"{self.address} began with {answer!r:.80}: expected its config")

    def encode(self, samples: Samples) -> bytes:
        return pcm16(samples)

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send(b"")

    def hear(self, message: str | bytes, wall_s: float) -> bool:
        answer = parse_answer(message, self.address)
        if answer.get("error"):
            raise ServerFailure(f"{self.address}: {answer['error']!s:.200}")
        if answer.get("type") == "ready_to_stop":
            self._ended = True
        if "lines" not in answer:
            return False
        lines = " ".join(line["text"] for line in answer["lines"] if line["text"])
        return self.screen.show(lines, answer["buffer_transcription"], wall_s)

    def is_over(self, quiet_s: float) -> bool:
        return self._ended


def heads_mask(model: PublishedModel) -> str:
    """Return the alignment heads as openai-whisper writes them: a mask over layers and heads, in gzip and base 85."""
    dims = model.checkpoint().dims
    mask = np.zeros((dims.n_text_layer, dims.n_text_head), dtype=np.bool_)
    mask[tuple(np.transpose(model.alignment_heads()))] = True
    return base64.b85encode(gzip.compress(mask.tobytes())).decode("ascii")
