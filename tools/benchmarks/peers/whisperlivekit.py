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

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.whisper.heads import known_heads
from tools.benchmarks.peers.environment import TORCH, Environment, variables_of_peer
from tools.benchmarks.peers.whisper_live import parse_answer
from tools.benchmarks.playing import Conversation
from tools.benchmarks.processes import ServerFailure
from tools.benchmarks.published import PublishedModel
from tools.benchmarks.systems import System, warm_up

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


class WhisperLiveKit(System):
    """A server of WhisperLiveKit's."""

    def __init__(self, model: PublishedModel, policy: Policy) -> None:
        super().__init__(NAMES[policy], variables_of_peer())
        self._model = model
        self._policy: Policy = policy

    def command(self, port: int) -> list[str]:
        python, encoder = str(ENVIRONMENT.python(self._model.peers_folder)), str(self._model.ctranslate2())
        warm_up_file = self._model.temporary / "warm-up.wav"
        soundfile.write(warm_up_file, warm_up(), SAMPLE_RATE)
        command = [python, "-P", "-m", "whisperlivekit.basic_server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--pcm-input", "--language", "en", "--warmup-file", str(warm_up_file)]
        command += ["--backend-policy", self._policy, "--backend", "faster-whisper"]
        if self._policy == "localagreement":
            return [*command, "--model_dir", encoder]
        command += ["--encoder-model-path", encoder, "--decoder-model-path", str(self._model.openai())]
        return [*command, "--custom-alignment-heads", heads_mask(self._model)]

    def conversation(self, port: int) -> "WhisperLiveKitConversation":
        return WhisperLiveKitConversation(f"ws://127.0.0.1:{port}/asr?language=en")


class WhisperLiveKitConversation(Conversation):
    """Its protocol: audio until an empty message, the whole state with every answer."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._ended = False

    async def open(self, connection: ClientConnection) -> None:
        answer = parse_answer(await connection.recv(), self.address)
        if answer.get("type") != "config":
            raise ServerFailure(f"{self.address} began with {answer!r:.80}: expected its config")

    def encode(self, samples: Float32Array) -> bytes:
        return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send(b"")

    def receive(self, message: str | bytes, wall_s: float) -> bool:
        answer = parse_answer(message, self.address)
        if answer.get("type") == "ready_to_stop":
            self._ended = True
        if "lines" not in answer:
            return False
        lines = " ".join(line["text"] for line in answer["lines"] if line["text"])
        return self.timeline.show(lines.split(), answer["buffer_transcription"].split(), wall_s)

    def is_over(self, quiet_s: float) -> bool:
        return self._ended


def heads_mask(model: PublishedModel) -> str:
    """Return the alignment heads as openai-whisper writes them: a mask over layers and heads, in gzip and base 85."""
    dims = model.checkpoint().dims
    mask = np.zeros((dims.n_text_layer, dims.n_text_head), dtype=np.bool_)
    mask[tuple(np.transpose(known_heads(dims, model.name)))] = True
    return base64.b85encode(gzip.compress(mask.tobytes())).decode("ascii")
