"""A LiveKit agent that listens to a recording: python examples/livekit_agent.py FILE [ADDRESS [TOKEN]]

Prints interim and final text, and each turn of the user, which a voice agent would send to its language model. It needs
no LiveKit server: an agent in a room takes its audio from there instead.
"""

import asyncio
import sys
import time

import numpy as np
from livekit import rtc
from livekit.agents import Agent, AgentSession, StopResponse, io, llm

from streamer.audio.sources.file import read_audio
from streamer.plugins.agents.livekit import STT

FRAME_S = 0.02
SILENCE_S = 3.0
begin_s = 0.0


def say(kind: str, text: str) -> None:
    print(f"{time.monotonic() - begin_s:7.2f} {kind:8}{text}", flush=True)


class SpokenFile(io.AudioInput):
    """A recording and then silence, as fast as a microphone gives them."""

    def __init__(self, path: str) -> None:
        super().__init__(label="recording")
        samples = np.concatenate([*read_audio(path), np.zeros(round(SILENCE_S * 16_000))])
        self._pcm = (samples * 32767).astype("<i2").tobytes()
        self._first = 0
        self.over = asyncio.Event()

    async def __anext__(self) -> rtc.AudioFrame:
        global begin_s
        begin_s = begin_s or time.monotonic()
        size = round(FRAME_S * 16_000) * 2
        data, self._first = self._pcm[self._first : self._first + size], self._first + size
        if not data:
            self.over.set()
        await asyncio.sleep(begin_s + self._first / 32_000 - time.monotonic())
        return rtc.AudioFrame(data.ljust(size, b"\0"), 16_000, 1, size // 2)


class Listener(Agent):
    """Prints turns in place of an answer."""

    async def on_user_turn_completed(self, turn_ctx: llm.ChatContext, new_message: llm.ChatMessage) -> None:
        say("turn", new_message.text_content)
        raise StopResponse


async def main(path: str, address: str = "localhost", token: str = "") -> None:
    stt = STT(address, token=token, language="en")
    session = AgentSession(stt=stt, vad=None, turn_handling={"turn_detection": "stt"})
    session.on("user_input_transcribed", lambda said: say("final" if said.is_final else "interim", said.transcript))
    session.on("error", lambda event: say("error", str(event.error.error)))
    session.input.audio = recording = SpokenFile(path)
    await session.start(Listener(instructions=""))
    await recording.over.wait()
    while session.user_state == "speaking":
        await asyncio.sleep(FRAME_S)
    await session.aclose()


asyncio.run(main(*sys.argv[1:]))
