"""What clients of each protocol have, message by message, and the delays that are told."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from streamer.engine.eventlog import EventLog
from tests.server.support import final, partial
from tools import benchmark
from tools.benchmarks import protocols
from tools.benchmarks.processes import ServerFailure
from tools.benchmarks.protocols import PROTOCOLS, Reached, tcp_connection

SEGMENT = {"start": "0.000", "end": "1.000", "text": " One two.", "completed": True}


def counts(name: str, *messages: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return after each message how many words are shown, stable and final."""
    client = PROTOCOLS[name]("localhost:1")
    found = []
    for message in messages:
        client.hear(json.dumps(message), 0.0)
        shown, stable, is_final = (len(times) for times in client.reached.times.values())
        found.append((shown, stable, is_final))
    return found


def test_words_are_reached_once() -> None:
    reached = Reached()
    reached.take(partial(1, "one two three", stable=3), 1.0)
    reached.take(partial(1, "one", stable=3), 2.0)
    reached.take(final(1, "one two"), 3.0)
    reached.take(partial(2, "four"), 4.0)
    assert reached.times == {"shown": [1.0, 1.0, 1.0], "stable": [1.0, 3.0], "final": [3.0, 3.0]}


def test_native_words_are_shown_stable_and_final() -> None:
    events = [partial(1, "one two", stable=3), final(1, "one two")]
    assert counts("native", *(json.loads(event.to_json()) for event in events)) == [(2, 1, 0), (2, 2, 2)]
    with pytest.raises(ServerFailure, match="no room"):
        counts(
            "native", {"type": "error", "seq": 1, "session": "s", "code": "busy", "message": "no room", "fatal": True}
        )


def test_openais_deltas_are_stable_and_completed_items_final() -> None:
    kind = "conversation.item.input_audio_transcription."
    messages = [
        {"type": f"{kind}delta", "item_id": "a", "delta": "one"},
        {"type": "input_audio_buffer.committed", "item_id": "a"},
        {"type": f"{kind}delta", "item_id": "a", "delta": " two"},
        {"type": f"{kind}completed", "item_id": "a", "transcript": "one two"},
        {"type": f"{kind}delta", "item_id": "b", "delta": "three"},
    ]
    assert [found[1:] for found in counts("OpenAI Realtime", *messages)] == [(1, 0), (1, 0), (2, 0), (2, 2), (3, 2)]


def test_deepgrams_results_are_interim_or_final() -> None:
    results = [
        {"type": "Results", "is_final": is_final, "channel": {"alternatives": [{"transcript": text}]}}
        for text, is_final in (("one two", False), ("one", True), ("two three", False))
    ]
    assert counts("Deepgram", *results, {"type": "Metadata"}) == [(2, 0, 0), (2, 1, 1), (3, 1, 1), (3, 1, 1)]


def test_whisperlives_segments_come_again_and_again() -> None:
    later = {**SEGMENT, "start": "1.000", "text": " Three.", "completed": False}
    messages = [{**SEGMENT, "completed": False}], [SEGMENT], [SEGMENT, later]
    assert counts("WhisperLive", *({"uid": "u", "segments": found} for found in messages)) == [
        (2, 0, 0),
        (2, 2, 2),
        (3, 2, 2),
    ]


def test_vosks_replies_are_partial_or_a_result() -> None:
    assert counts("Vosk", {"partial": "one two"}, {"text": "one"}, {"partial": ""}) == [(2, 0, 0), (2, 1, 1), (2, 1, 1)]


async def test_wyomings_events_are_read_from_tcp() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"hello\n"
        data = b'{"text":"one two"}'
        writer.write(b'{"type":"transcript-chunk","data_length":%d,"payload_length":2}\n%sxx' % (len(data), data))
        writer.write(b'{"type":"transcript-stop","data":{}}\n')
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, tcp_connection(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}") as connection:
        await connection.send("hello\n")
        messages = [json.loads(message) async for message in connection]
    assert counts("Wyoming", *messages) == [(2, 2, 2), (2, 2, 2)]


def test_what_a_protocol_adds_is_told_beside_the_native_one() -> None:
    delays: dict[str, dict[str, list[float]]] = {
        "native": {"shown": [], "stable": [], "final": [0.001, 0.003]},
        "Wyoming": {"shown": [], "stable": [], "final": [0.004, 0.006]},
        "Vosk": {"shown": [], "stable": [], "final": []},
    }
    rows = protocols._rows(delays, {"native": 0, "Wyoming": 1, "Vosk": 0}, {"Vosk": "refused"})
    assert rows[-1] == {"protocol": "Vosk", "error": "refused"}
    (added,) = (row for row in rows if row["protocol"] == "Wyoming")
    assert added["added_p50_s"] == pytest.approx(0.003)
    assert (added["words"], added["words_missing"]) == (2, 1)


def test_events_are_noted_before_they_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventLog, "append", EventLog.append)  # put back at the end

    def daemon(arguments: object) -> int:
        EventLog("s", 10).append(final(1, "one"))
        return 7

    monkeypatch.setattr(protocols, "main", daemon)
    assert protocols.run_noting(str(tmp_path / "events"), ["run"]) == 7
    at_s, _, event = (tmp_path / "events").read_text(encoding="utf-8").partition(" ")
    assert float(at_s) > 0
    assert json.loads(event)["text"] == "one"


def test_a_protocol_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["protocols", "--names", "telex"]) == 2
    assert "expected some of native,OpenAI Realtime" in capsys.readouterr().err
