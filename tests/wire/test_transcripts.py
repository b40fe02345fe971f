"""`/v1/sessions`: what was kept, over HTTP; tests/wire/test_refusals.py has what is refused."""

import asyncio
import contextlib
import io
import sqlite3
import threading
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from streamer.events import Error, Event, from_json
from streamer.history import audio as history_audio
from streamer.history import reader, writer
from streamer.history.audio import find_spans
from streamer.history.writer import History
from streamer.outputs.subtitles import open_writer
from streamer.server import transcripts
from tests.waiting import WAIT_S, wait_until
from tests.wire.conftest import keep
from tests.wire.harness import serving


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read and send a few words at a time."""
    monkeypatch.setattr(reader, "PAGE_EVENTS", 2)
    monkeypatch.setattr(transcripts, "CHUNK_CHARS", 10)


async def test_sessions_are_listed_newest_first_in_pages(history: History) -> None:
    for i in range(3):
        keep(history, f"s{i}", "one", "two")
    keep(history, "secret", "of a stream that goes on", own=False, end=False)
    async with serving(history_file=history) as running:
        answer = await running.ask("GET /v1/sessions?limit=2")
        assert answer.headers["cache-control"] == "no-store"
        first = answer.json()
        assert [session["session"] for session in first["sessions"]] == ["s2", "s1"]
        rest = (await running.ask(f"GET /v1/sessions?limit=2&before={first['before']}")).json()
        assert rest["before"] is None
        (shown,) = rest["sessions"]
        assert (await running.ask("GET /v1/sessions/s0")).json() == shown
        assert [shown.pop(name)[-1] for name in ("started", "ended")] == ["Z", "Z"]
        whose = {"session": "s0", "own": True, "source": "mic", "model": "nano.en", "language": "en"}
        assert shown == {**whose, "events": 3, "end": 91.5}


async def test_words_are_searched_for(history: History) -> None:
    keep(history, "s0", "Good morning everybody", "a [good] day")
    keep(history, "secret", "a good stream that goes on", own=False, end=False)
    async with serving(history_file=history) as running:
        found = (await running.ask("GET /v1/sessions?q=GOOD&limit=1")).json()
        hit = {"session": "s0", "seq": 3, "start": 3.0, "end": 3.75, "snippet": "a [\x02good\x03] day"}
        assert found["hits"][0] | {"time": ""} == {**hit, "time": ""}
        found = (await running.ask(f"GET /v1/sessions?q=GOOD&before={found['before']}")).json()
        assert [hit["snippet"] for hit in found["hits"]] == ["\x02Good\x03 morning everybody"]
        for text in ('"', "a AND", "x' OR 1=1 --", "NEAR(", "*", "\0", ""):
            answer = await running.http.get("/v1/sessions", params={"q": text})
            assert (answer.status_code in (200, 400), answer.text.count("\n")) == (True, 1), text


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("format", ["txt", "jsonl"])
async def test_a_transcript_is_what_the_writers_of_files_write(history: History, format: str) -> None:
    events = keep(history, "s0", "Grüße", "<b>& more", "", "and so on")
    stream = io.StringIO()
    writer = open_writer("text" if format == "txt" else format, stream)
    for event in events:
        writer.handle(event)
    writer.close()
    async with serving(history_file=history) as running:
        answer = await running.ask(f"GET /v1/sessions/s0.{format}")
        assert answer.text == stream.getvalue()
        assert answer.headers["content-type"] == transcripts.CONTENT_TYPES[format]
        assert answer.headers["x-content-type-options"] == "nosniff"
        if format == "jsonl":
            assert [from_json(line) for line in answer.text.splitlines()] == events


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """A history that keeps audio, too: 10 s of noise, of which seconds 4 to 6 are missing."""
    monkeypatch.setattr(writer, "PUBLISH_TIMEOUT_S", WAIT_S)
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, 160_000).astype(np.float32)
    with contextlib.closing(History(tmp_path / "history.db", audio=True)) as history:
        keep_audio = history.audio_keeper("s0")
        keep_audio(0, noise[:64_000])
        keep_audio(96_000, noise[96_000:])
        keep(history, "s0", *"abcd")  # at 0, 3, 6 and 9 s
        wait_until(lambda: find_spans(history, "s0")[-1:] == [(96_000, 160_000)])
        yield history


def loud(answer: httpx.Response) -> list[bool]:
    """Return of which fifths of a clip there is audio."""
    with wave.open(io.BytesIO(answer.content)) as file:
        assert file.getparams()[:3] == (1, 2, 16_000)
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32)
    return [float(np.abs(part[5:-5]).mean()) > 1000 for part in np.array_split(samples, 5)]


async def test_a_line_is_played_and_no_more(heard: History, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(history_file=heard) as running:
        assert (await running.ask("GET /v1/sessions/s0")).json()["audio"] == [[0.0, 4.0], [6.0, 10.0]]
        assert (await running.ask("GET /v1/input")).json()["audio"] is True  # then the page has marks
        answer = await running.ask("GET /v1/sessions/s0/2.wav")  # from 0 to 0.25 s, and a margin
        headers = [answer.headers[name] for name in ("content-type", "x-content-type-options", "cache-control")]
        assert headers == ["audio/wav", "nosniff", "no-store"]
        assert len(answer.content) == 44 + 2 * 16 * 350
        assert loud(answer) == [True] * 5
        # The margin was not kept.
        assert loud(await running.ask("GET /v1/sessions/s0/4.wav")) == [False, *[True] * 4]
        monkeypatch.setattr(transcripts, "MAX_CLIP_S", 0.2)
        assert len((await running.ask("GET /v1/sessions/s0/2.wav")).content) == 44 + 2 * 16 * 200
        # What is kept can be played while no more is.
        monkeypatch.setattr(history_audio, "MAX_WAITING_SAMPLES", 0)
        heard.audio_keeper("s0")(160_000, np.zeros(1600, np.float32))
        assert await running.status("GET /v1/sessions/s0/2.wav") == 200
        await running.ask("DELETE /v1/sessions/s0")
        assert await running.status("GET /v1/sessions/s0/2.wav") == 404


async def test_a_session_is_deleted_when_it_is_over(history: History) -> None:
    keep(history, "s0", "one")
    keep(history, "s1", "two", end=False)
    async with serving(history_file=history) as running:
        assert (await running.ask("GET /v1/input")).json()["kept"] is True
        assert await running.status("DELETE /v1/sessions/s1") == 409
        assert (await running.ask("DELETE /v1/sessions/s0")).json() == {"deleted": "s0"}
        assert [await running.status(f"{method} /v1/sessions/s0") for method in ("GET", "DELETE")] == [404, 404]
        assert (await running.ask("GET /v1/sessions/s1")).json()["events"] == 2


@pytest.mark.usefixtures("_small_pieces")
async def test_a_damaged_file_is_one_line(history: History, caplog: pytest.LogCaptureFixture) -> None:
    events = keep(history, "s0", *"abcdef")
    async with serving(history_file=history) as running:
        with contextlib.closing(sqlite3.connect(history.path)) as connection, connection:
            connection.execute("UPDATE events SET event = json_remove(event, '$.text') WHERE seq = 4")
        text = (await running.ask("GET /v1/sessions/s0.txt")).text
        assert (text[:3], text.endswith("]\n")) == ("a\n\n", True)
        *read, lost = map(from_json, (await running.ask("GET /v1/sessions/s0.jsonl")).text.splitlines())
        assert read == events[:2]
        assert isinstance(lost, Error)
        assert (lost.session, lost.seq, lost.code, lost.fatal) == ("s0", 2, "history_lost", False)
        with contextlib.closing(sqlite3.connect(history.path)) as connection, connection:
            connection.execute("DROP TABLE events")
        answer = await running.ask("GET /v1/sessions")
        assert answer.status_code == 503
        assert str(history.path) not in answer.text
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.usefixtures("_small_pieces")
async def test_no_more_threads_read_than_may_however_many_download(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(history, "s0", *(["one", "two"] * 10))
    read, reading, most = History.events, threading.Semaphore(transcripts.MAX_THREADS), list[bool]()
    both = threading.Barrier(transcripts.MAX_THREADS)

    def events(self: History, session: str, after: int, *, newest: bool) -> list[Event]:
        most.append(reading.acquire(blocking=False))
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # for the other that reads
        reading.release()
        return read(self, session, after, newest=newest)

    monkeypatch.setattr(History, "events", events)
    async with serving(history_file=history) as running:
        answers = await asyncio.gather(*(running.ask("GET /v1/sessions/s0.txt") for _ in range(8)))
    assert {answer.text.count("one") for answer in answers} == {10}
    assert set(most) == {True}


@pytest.mark.usefixtures("_small_pieces")
async def test_clients_that_read_slowly_keep_no_other_from_reading(history: History) -> None:
    keep(history, "s0", *(["word " * 5000] * 12))
    async with serving(history_file=history) as running, contextlib.AsyncExitStack() as stack:
        for _ in range(transcripts.MAX_THREADS + 1):
            await stack.enter_async_context(running.http.stream("GET", "/v1/sessions/s0.txt"))
        assert await running.status("GET /v1/sessions/s0") == 200
