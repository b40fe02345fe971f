"""whisper-live's protocol, spoken with a server that a test plays."""

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.sync.server import ServerConnection

from tests.tools.benchmarks.scripted import serving
from tools.benchmarks.peers import whisper_live
from tools.benchmarks.peers.whisper_live import Transcript, WhisperLiveConversation
from tools.benchmarks.processes import ServerFailure


def segment(text: str, start: float, end: float, *, completed: bool) -> dict[str, Any]:
    return {"text": text, "start": f"{start:.3f}", "end": f"{end:.3f}", "completed": completed}


def test_finished_segments_are_gathered_from_answers_that_hold_the_last_few() -> None:
    transcript = Transcript()
    transcript.take([segment(" One", 0, 1, completed=False)])
    assert (transcript.finished, transcript.open) == ([], " One")
    transcript.take([segment(" One.", 0, 1, completed=True), segment(" Two", 1, 2, completed=False)])
    transcript.take([segment(" One.", 0, 1, completed=True), segment(" Two.", 1, 2, completed=True)])
    assert (transcript.finished, transcript.open) == ([" One.", " Two."], "")
    transcript.take([segment(" Two.", 1, 2, completed=True), segment(" Three.", 2, 3, completed=True)])
    assert transcript.finished == [" One.", " Two.", " Three."]


def test_what_is_shown_is_what_its_client_would_show() -> None:
    conversation = WhisperLiveConversation("ws://127.0.0.1:1")
    answer = {"segments": [segment(" A right.", 0, 1, completed=True), segment(" To", 1, 2, completed=False)]}
    assert conversation.hear(json.dumps(answer), 1.0)
    revision = conversation.screen.revisions[-1]
    assert revision.words == ("A", "right.", "To")
    assert revision.n_stable == 2
    assert not conversation.hear(json.dumps(answer), 2.0)
    assert not conversation.hear('{"language": "en", "language_prob": 1.0}', 2.0)
    # An open segment is waited for longer.
    assert not conversation.is_over(whisper_live.QUIET_FINISHED_S + 1)
    assert conversation.is_over(whisper_live.QUIET_S + 1)


@pytest.mark.parametrize(
    "answer", ['{"status": "WAIT", "message": 3.5}', '{"message": "DISCONNECT"}', "nonsense", "[]"]
)
def test_a_refusal_is_a_failure(answer: str) -> None:
    with pytest.raises(ServerFailure, match=r"ws://127\.0\.0\.1:1"):
        WhisperLiveConversation("ws://127.0.0.1:1").hear(answer, 1.0)


def test_audio_follows_when_the_server_is_ready() -> None:
    asked: dict[str, Any] = {}

    def script(connection: ServerConnection) -> None:
        asked.update(json.loads(connection.recv()))
        connection.send(json.dumps({"uid": asked["uid"], "message": "SERVER_READY", "backend": "faster_whisper"}))

    async def open_one(port: int) -> None:
        conversation = WhisperLiveConversation(f"ws://127.0.0.1:{port}")
        async with connect(conversation.address) as connection:
            await conversation.open(connection)

    with serving(script) as port:
        asyncio.run(open_one(port))
    assert asked["use_vad"] is True
    assert asked["language"] == "en"
    assert asked["send_last_n_segments"] == 10
