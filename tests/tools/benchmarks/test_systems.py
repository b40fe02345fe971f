"""Playing to servers: ours in a process of its own, whisper-live as a test plays it."""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.daemon import recording
from tools.benchmarks import playing, systems
from tools.benchmarks.peers import whisper_live
from tools.benchmarks.peers.whisperlivekit import WhisperLiveKitConversation
from tools.benchmarks.processes import Meter, Server, ServerFailure, run

SAMPLES = np.random.default_rng(0).uniform(-0.5, 0.5, 8077).astype(np.float32)


@contextlib.contextmanager
def serving(script: Callable[[ServerConnection], None]) -> Iterator[str]:
    """Follow a script with every client; yield the server's address."""

    def follow(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            script(connection)

    with serve(follow, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def meter() -> Iterator[Meter]:
    server = Server("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], {})
    with Meter(server) as entered:
        yield entered
    server.stop()


def test_all_audio_is_sent_at_its_pace_and_all_answers_are_kept(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    received = bytearray()

    def answer(*texts: str) -> str:
        found = [{"text": text, "start": i, "end": i + 1, "completed": text[-1] == "."} for i, text in enumerate(texts)]
        return json.dumps({"segments": found})

    def script(connection: ServerConnection) -> None:
        assert json.loads(connection.recv())["use_vad"] is True
        connection.send('{"message": "SERVER_READY"}')
        connection.send(answer(" One"))
        while len(received) < SAMPLES.nbytes:
            received.extend(connection.recv())  # type: ignore[arg-type]
        for texts in ((" One.", " Two"), (" One.", " Two"), (" One.", " Two.")):
            connection.send(answer(*texts))
        connection.recv()

    monkeypatch.setattr(whisper_live, "QUIET_FINISHED_S", 0.5)
    with serving(script) as address:
        conversation = whisper_live.WhisperLiveConversation(address)
        asyncio.run(playing.play(conversation, SAMPLES, meter))
    assert bytes(received) == SAMPLES.tobytes()
    shown = conversation.timeline.revisions
    assert [each.n_stable for each in shown] == [0, 1, 2]
    assert [" ".join(each.words) for each in shown] == ["One", "One. Two", "One. Two."]
    assert shown[-1].wall_s >= len(SAMPLES) / 16_000
    assert conversation.timeline.peak_rss_mb > 1


def test_whisperlivekit_promises_its_lines_and_not_its_buffer() -> None:
    conversation = WhisperLiveKitConversation("ws://127.0.0.1:1")
    answer = {"lines": [{"text": " One two."}, {"text": None}], "buffer_transcription": " fell"}
    assert conversation.receive(json.dumps(answer), 1.5)
    (shown,) = conversation.timeline.revisions
    assert (shown.words, shown.n_stable) == (("One", "two.", "fell"), 2)
    assert not conversation.is_over(100.0)
    assert not conversation.receive('{"type": "ready_to_stop"}', 2.0)
    assert conversation.is_over(0.0)


@pytest.mark.parametrize("answers", [[], ['{"status": "WAIT"}'], ["nonsense"], ['{"message": "SERVER_READY"}']])
def test_a_server_that_says_nothing_refuses_or_goes_away_is_a_failure(
    answers: list[str], meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(connection: ServerConnection) -> None:
        connection.recv()
        for answer in answers:
            connection.send(answer)
        if not answers:
            connection.recv()

    monkeypatch.setattr(playing, "OPEN_TIMEOUT_S", 0.3)
    with serving(script) as address, pytest.raises(ServerFailure):
        asyncio.run(playing.play(whisper_live.WhisperLiveConversation(address), np.tile(SAMPLES, 20), meter))


def test_a_program_that_fails_is_reported_with_its_error() -> None:
    with pytest.raises(ServerFailure):
        run("it", [sys.executable, "-c", "raise ValueError('no model')"], {}, 60.0)
    with pytest.raises(ServerFailure):
        Server("it", ["./no-such-program"], {})


@pytest.mark.slow
def test_the_daemon_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "WARM_UP_S", 0.5)
    system = systems.Streamer(["--model", "nano.en", "--device", "CPU"])
    try:
        system.start()
        timeline = system.stream("sample", recording(end_s=3.0))
    finally:
        system.stop()
    assert timeline.revisions[-1].n_stable == len(timeline.revisions[-1].words) > 0
    assert timeline.revisions[-1].wall_s >= timeline.audio_s == 3.0
    assert timeline.cpu_s > 0
    assert timeline.encoder_calls
    assert timeline.decoder_calls
