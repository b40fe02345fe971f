"""`/v1/sessions`: what was kept, over HTTP."""

import asyncio
import contextlib
import io
import sqlite3
import threading
import time
import wave
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest

from streamer.engine.journal import Journal
from streamer.events import Error, Event, Gap, from_json
from streamer.history import audio as history_audio
from streamer.history import history as history_module
from streamer.history.audio import find_spans
from streamer.history.history import History, KeptSession
from streamer.outputs.subtitles import open_writer
from streamer.server import transcripts
from tests.builders import ready
from tests.waiting import wait_until
from tests.wire.support import WAIT_S, final, opened_log, serving, wait_published


def said(history: History, session: str, *texts: str, own: bool = True, end: bool = True) -> Sequence[Event]:
    """Keep a session with texts and a gap, and return its events."""
    log = Journal(session, 1000, keep=history.keeper(source="mic", own=own))
    events: list[Event] = [log.append(ready())]
    events += [log.append(final(i + 1, text, start=3.0 * i)) for i, text in enumerate(texts)]
    events.append(log.append(Gap(start=90.0, end=91.5, reason="overload")))
    if end:
        log.close()
    wait_published(log)
    return events


@contextlib.asynccontextmanager
async def asking(history: History | None, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(opened_log("now"), history_file=history, **settings) as running,
        httpx.AsyncClient(base_url=running.url, trust_env=False) as client,
    ):
        yield client


async def test_sessions_are_listed_newest_first_in_pages(history: History) -> None:
    for i in range(3):
        said(history, f"s{i}", "one", "two")
    said(history, "secret", "of a stream that goes on", own=False, end=False)
    async with asking(history) as client:
        answer = await client.get("/v1/sessions?limit=2")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        first = answer.json()
        assert [session["session"] for session in first["sessions"]] == ["s2", "s1"]
        rest = (await client.get(f"/v1/sessions?limit=2&before={first['before']}")).json()
        assert [session["session"] for session in rest["sessions"]] == ["s0"]
        assert rest["before"] is None
        (shown,) = rest["sessions"]
        assert (await client.get("/v1/sessions/s0")).json() == shown
        assert shown["started"].endswith("Z")
        assert shown | {"started": "", "ended": ""} == {
            "session": "s0",
            "own": True,
            "source": "mic",
            "model": "nano.en",
            "language": "en",
            "started": "",
            "ended": "",
            "events": 3,
            "end": 91.5,
        }


async def test_words_are_searched_for(history: History) -> None:
    said(history, "s0", "Good morning everybody", "a [good] day")
    said(history, "secret", "a good stream that goes on", own=False, end=False)
    async with asking(history) as client:
        found = (await client.get("/v1/sessions", params={"q": "GOOD", "limit": 1})).json()
        assert found["hits"][0] | {"time": ""} == {
            "session": "s0",
            "seq": 3,
            "start": 3.0,
            "end": 3.9,
            "time": "",
            "snippet": "a [\x02good\x03] day",
        }
        found = (await client.get("/v1/sessions", params={"q": "GOOD", "before": found["before"]})).json()
        assert [hit["snippet"] for hit in found["hits"]] == ["\x02Good\x03 morning everybody"]
        for text in ('"', "a AND", "x' OR 1=1 --", "NEAR(", "*", "\0", "ä" * 501, ""):
            answer = await client.get("/v1/sessions", params={"q": text})
            assert answer.status_code in (200, 400), text
            assert answer.text.count("\n") == 1


@pytest.mark.parametrize("format", ["txt", "jsonl"])
async def test_a_transcript_is_what_the_writers_of_files_write(
    history: History, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "PAGE_EVENTS", 2)
    monkeypatch.setattr(transcripts, "CHUNK_CHARS", 10)
    events = said(history, "s0", "Grüße", "<b>& more", "", "and so on")
    stream = io.StringIO()
    writer = open_writer("text" if format == "txt" else format, stream)
    for event in events:
        writer.handle(event)
    writer.close()
    async with asking(history) as client:
        answer = await client.get(f"/v1/sessions/s0.{format}")
        assert answer.text == stream.getvalue()
        assert answer.headers["content-type"] == transcripts.CONTENT_TYPES[format]
        assert answer.headers["x-content-type-options"] == "nosniff"
        if format == "jsonl":
            assert [from_json(line) for line in answer.text.splitlines()] == events


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """A history that keeps audio, too: 10 s of noise, of which seconds 4 to 6 are missing."""
    monkeypatch.setattr(history_module, "PUBLISH_TIMEOUT_S", WAIT_S)
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, 160_000).astype(np.float32)
    with contextlib.closing(History(tmp_path / "history.db").start(audio=True)) as history:
        keep = history.audio_keeper("s0")
        keep(0, noise[:64_000])
        keep(96_000, noise[96_000:])
        said(history, "s0", *"abcd")  # at 0, 3, 6 and 9 s
        wait_until(lambda: find_spans(history, "s0")[-1:] == [(96_000, 160_000)])
        yield history


def is_loud(answer: httpx.Response) -> list[bool]:
    """Return of which fifths of a clip there is audio."""
    with wave.open(io.BytesIO(answer.content)) as file:
        assert file.getparams()[:3] == (1, 2, 16_000)
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32)
    return [float(np.abs(part[5:-5]).mean()) > 1000 for part in np.array_split(samples, 5)]


async def test_a_line_is_played_and_no_more(heard: History) -> None:
    async with asking(heard) as client:
        assert (await client.get("/v1/sessions/s0")).json()["audio"] == [[0.0, 4.0], [6.0, 10.0]]
        answer = await client.get("/v1/sessions/s0/2.wav")  # from 0 to 0.3 s, and a margin
        assert answer.headers["content-type"] == "audio/wav"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert len(answer.content) == 44 + 2 * 16 * 400
        assert is_loud(answer) == [True] * 5
        assert is_loud(await client.get("/v1/sessions/s0/4.wav")) == [False, *[True] * 4]  # the margin was not kept
        assert (await client.get("/v1/sessions/s0/6.wav")).status_code == 404  # a gap of 90 s
        await client.delete("/v1/sessions/s0")
        assert (await client.get("/v1/sessions/s0/2.wav")).status_code == 404


async def test_kept_lines_can_be_played_while_no_more_are_kept(
    heard: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_audio, "MAX_WAITING_SAMPLES", 0)
    heard.audio_keeper("s0")(160_000, np.zeros(1600, np.float32))
    assert "audio is no longer kept" in caplog.text
    async with asking(heard) as client:
        assert (await client.get("/v1/input")).json()["audio"] is True  # then the page has marks
        assert (await client.get("/v1/sessions/s0/2.wav")).status_code == 200


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("s0/1.wav", "line '1.wav' is not in the session"),
        ("s0/99.wav", "line '99.wav' is not in the session: expected SEQ.wav"),
        ("s0/6.wav", "no audio of this line is kept"),
        ("s0/-2.wav", "line '-2.wav'"),
        ("s0/2.wav.wav", "line '2.wav.wav'"),
        ("s0/2.mp3", "line '2.mp3'"),
        ("s0/%D9%A2.wav", "line '٢.wav'"),
        ("s0/" + "9" * 5000 + ".wav", "is not in the session"),
        ("s0/2.wav%00", "is not in the session"),
        ("s0/..%2F..%2Fhistory.db", "does not exist"),
        ("..%2Fs0/2.wav", "does not exist"),
        ("%2e%2e/2.wav", "is not in the history"),
        ("' OR 1=1 --/2.wav", "is not in the history"),
        ("secret/2.wav", "is not in the history"),
    ],
)
async def test_lines_that_are_not_there_are_one_line(heard: History, path: str, problem: str) -> None:
    said(heard, "secret", "of a stream that goes on", own=False, end=False)
    async with asking(heard) as client:
        answer = await client.get("/v1/sessions/" + path)
        assert answer.status_code == 404
        assert problem in answer.json()["error"]
        assert answer.text.count("\n") == 1


async def test_a_session_is_deleted_when_it_is_over(history: History) -> None:
    said(history, "s0", "one")
    said(history, "s1", "two", end=False)
    said(history, "secret", "three", own=False, end=False)
    async with asking(history) as client:
        for name in ("s1", "secret"):
            answer = await client.delete(f"/v1/sessions/{name}")
            assert answer.status_code == 409
            assert "still open" in answer.json()["error"]
        assert (await client.delete("/v1/sessions/s0")).json() == {"deleted": "s0"}
        for method in ("GET", "DELETE"):
            assert (await client.request(method, "/v1/sessions/s0")).status_code == 404
        assert len(list(history.transcript(kept(history, "s1")))) == 3


async def test_what_is_not_there_is_told_in_one_line(history: History) -> None:
    said(history, "s0", "one")
    said(history, "secret", "two", own=False, end=False)
    async with asking(history) as client:
        for path, status in {
            "/v1/sessions/none": 404,
            "/v1/sessions/none.txt": 404,
            "/v1/sessions/secret": 404,
            "/v1/sessions/secret.txt": 404,
            "/v1/sessions/s0.srt": 404,
            "/v1/sessions/s0.": 404,
            "/v1/sessions/..%2f..%2fetc": 404,
            "/v1/sessions/s0/txt": 404,
            "/v1/sessions/": 404,
            "/v1/sessions?limit=0": 400,
            "/v1/sessions?limit=x": 400,
            "/v1/sessions?before=-1": 400,
            "/v1/sessions?before=99999999999999999999": 400,
            "/v1/sessions?limit=%D9%A3": 400,
        }.items():
            answer = await client.get(path)
            assert answer.status_code == status, path
            assert list(answer.json()) == ["error"]
            assert answer.text.count("\n") == 1
        assert (await client.post("/v1/sessions")).status_code == 405
        answer = await client.get("/v1/sessions/s0.srt")
        assert answer.json()["error"] == (
            "format 'srt' is unknown: expected one of txt, jsonl; `streamer history export` writes others"
        )


async def test_where_nothing_is_kept_the_answer_says_how_to_begin() -> None:
    async with asking(None) as client:
        for method, path in (("GET", ""), ("GET", "/s0"), ("GET", "/s0.txt"), ("DELETE", "/s0")):
            answer = await client.request(method, f"/v1/sessions{path}")
            assert answer.status_code == 404
            assert "--history auto" in answer.json()["error"]
        assert (await client.get("/v1/input")).json()["kept"] is False


async def test_what_is_kept_needs_a_token_and_the_page_is_told(history: History) -> None:
    token = "a secret of 20 characters"
    said(history, "s0", "one")
    async with asking(history, token=token) as client:
        for method in ("GET", "DELETE"):
            assert (await client.request(method, "/v1/sessions/s0")).status_code == 401
        assert (await client.get("/v1/sessions")).status_code == 401
        client.headers["Authorization"] = f"Bearer {token}"
        assert (await client.get("/v1/sessions/s0")).status_code == 200
        assert (await client.get("/v1/input")).json()["kept"] is True


async def test_a_damaged_file_is_one_line(
    history: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_module, "PAGE_EVENTS", 2)
    events = said(history, "s0", *"abcdef")
    with contextlib.closing(sqlite3.connect(history.path)) as connection, connection:
        connection.execute("UPDATE events SET event = json_remove(event, '$.text') WHERE seq = 4")
    async with asking(history) as client:
        answer = await client.get("/v1/sessions/s0.txt")
        assert (
            answer.text
            == "a\n\n[the rest of the session is missing: its history cannot be read, or was deleted meanwhile]\n"
        )
        *read, lost = map(from_json, (await client.get("/v1/sessions/s0.jsonl")).text.splitlines())
        assert read == events[:2]
        assert isinstance(lost, Error)
        assert (lost.session, lost.seq, lost.code, lost.fatal) == ("s0", 2, "history_lost", False)
        with contextlib.closing(sqlite3.connect(history.path)) as connection, connection:
            connection.execute("DROP TABLE events")
        answer = await client.get("/v1/sessions")
        assert answer.status_code == 503
        assert str(history.path) not in answer.text
    assert not [record for record in caplog.records if record.exc_info]


def kept(history: History, session: str) -> KeptSession:
    found = history.session(session)
    assert found is not None
    return found


async def test_no_more_threads_read_than_may_however_many_download(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "PAGE_EVENTS", 2)
    monkeypatch.setattr(transcripts, "CHUNK_CHARS", 10)
    said(history, "s0", *(["one", "two"] * 10))
    read, lock, n_reading = History.events, threading.Lock(), [0]
    most = 0

    def events(self: History, session: str, after: int, *, newest: bool) -> list[Event]:
        nonlocal most
        with lock:
            n_reading[0] += 1
            most = max(most, n_reading[0])
        time.sleep(0.005)
        with lock:
            n_reading[0] -= 1
        return read(self, session, after, newest=newest)

    monkeypatch.setattr(History, "events", events)
    async with asking(history) as client:
        answers = await asyncio.gather(*(client.get("/v1/sessions/s0.txt") for _ in range(8)))
    assert {answer.text.count("one") for answer in answers} == {10}
    assert most == transcripts.MAX_THREADS


async def test_clients_that_read_slowly_keep_nobody_from_reading(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "PAGE_EVENTS", 2)
    monkeypatch.setattr(transcripts, "CHUNK_CHARS", 10)
    said(history, "s0", *(["word " * 5000] * 40))
    async with asking(history) as client, contextlib.AsyncExitStack() as stack:
        for _ in range(transcripts.MAX_THREADS + 1):
            await stack.enter_async_context(client.stream("GET", "/v1/sessions/s0.txt"))
        assert (await client.get("/v1/sessions/s0")).json()["session"] == "s0"
