"""Recordings over HTTP, from a socket to recordings that only take notes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamer.errors import AudioFileError, BusyError, InferenceError, StoppingError
from streamer.server import front
from streamer.server.tokens import TokenFile
from tests.unit.protocols.recorded import segment
from tests.waiting import until
from tests.wire.harness import TOKEN, Item, NotedRecordings, Running, added, bearer, serving, within

OPENAI = "/v1/audio/transcriptions"
SEGMENTS = (segment(1, "Ask not"), segment(2, "what.", 1.0))
EITHER = pytest.mark.parametrize("stream", ["true", "false"])


@asynccontextmanager
async def recording(*items: Item, **settings: Any) -> AsyncIterator[tuple[Running, NotedRecordings]]:  # noqa: ANN401
    """Run a server whose recordings yield these items."""
    recordings = NotedRecordings(*(items or SEGMENTS))
    async with serving(recordings=recordings, **settings) as running:
        yield running, recordings


async def transcribe(running: Running, token: str = "", **fields: str) -> httpx.Response:
    """Send a recording as OpenAI's clients do."""
    file, data = {"file": ("a.wav", b"RIFF audio")}, {"model": "whisper-1", **fields}
    return await running.http.post(OPENAI, files=file, data=data, headers=bearer(token) if token else {})


async def test_a_form_is_answered_with_its_text() -> None:
    async with recording() as (running, recordings):
        answer = await transcribe(running, language="en", response_format="verbose_json")
        assert answer.json()["text"] == "Ask not what."
        (job,) = recordings.opened
        assert (job.audio, job.closed.is_set()) == (b"RIFF audio", True)
        assert (job.options.language, job.options.task) == ("en", "transcribe")
        assert (await transcribe(running, response_format="text")).text == "Ask not what.\n"
        translations = await running.http.post("/v1/audio/translations", files={"file": b"RIFF audio"})
        assert (translations.status_code, recordings.opened[-1].options.task) == (200, "translate")


async def test_a_text_streams_as_it_becomes_final() -> None:
    async with recording() as (running, recordings):
        answer = await transcribe(running, stream="true")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
        assert [event.get("delta", event.get("text")) for event in events] == ["Ask not", " what.", "Ask not what."]
        assert recordings.opened[0].closed.is_set()
        recordings.items = [segment(1, "Ask"), InferenceError("the device failed")]
        assert '"error":{"message":"the device failed"' in (await transcribe(running, stream="true")).text


@EITHER
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (AudioFileError("no audio"), 400),
        (BusyError("full"), 429),
        (StoppingError("stops"), 503),
        (InferenceError("x"), 500),
        (RuntimeError("x"), 500),
    ],
)
async def test_an_error_before_the_text_is_the_answer(error: Exception, status: int, stream: str) -> None:
    async with recording(error) as (running, recordings):
        answer = await transcribe(running, stream=stream)
        assert answer.status_code == status
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert answer.headers.get("Retry-After") == ("5" if status in (429, 503) else None)
        assert recordings.opened[0].closed.is_set()


async def test_models_are_listed_and_described() -> None:
    async with recording() as (running, _):
        described = (await running.ask("GET /v1/models/nano.en")).json()
        assert described.items() >= {"id": "nano.en", "object": "model", "created": 7, "owned_by": "streamer"}.items()
        assert (await running.ask("GET /v1/models")).json() == {"object": "list", "data": [described]}
        assert (await running.ask("GET /whisper/nano.en")).json() == described
        assert (await running.ask("GET /v1/models/whisper-1")).json() == {**described, "id": "whisper-1"}


async def test_a_model_is_an_address_with_its_options_in_the_query() -> None:
    async with recording() as (running, recordings):
        answer = await running.ask("POST /whisper/nano.en?language=en&task=translate&format=srt", b"audio")
        assert answer.headers["content-type"].startswith("application/x-subrip")
        assert answer.text.startswith("1\n00:00:00,000 --> ")
        assert (recordings.opened[0].options.language, recordings.opened[0].options.task) == ("en", "translate")
        form = await running.http.post("/whisper/nano.en", files={"file": b"audio"})
        assert (form.json()["text"], form.json()["model"]) == ("Ask not what.", "nano.en")


def head(path: str, n_bytes: int, *more: str) -> bytes:
    """Return the head of a request that brings a recording."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {n_bytes}", *more]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


@pytest.mark.parametrize("more", [["Expect: 100-continue"], []])
async def test_a_wrong_token_is_refused_before_the_recording_is_sent(more: list[str]) -> None:
    async with recording(token=TOKEN) as (running, _):
        reader, writer = await running.raw()
        writer.write(head(OPENAI, 60_000_000, "Authorization: Bearer wrong", *more))
        assert (await within(reader.readuntil(b"\r\n\r\n"))).startswith(b"HTTP/1.1 401 ")  # no 100 before it
        if not more:  # a client that reads the answer behind its recording gets it
            writer.write(bytes(3_000_000))
            await within(writer.drain())
            writer.write_eof()
        assert b"invalid_api_key" in await within(reader.readline())
        writer.close()


async def test_a_client_that_asks_before_sending_is_told_to_go_on_if_its_token_is_right() -> None:
    async with recording(token=TOKEN) as (running, recordings):
        reader, writer = await running.raw()
        writer.write(head("/whisper/nano.en", 5, f"Authorization: Bearer {TOKEN}", "Expect: 100-continue"))
        assert (await within(reader.readuntil(b"\r\n\r\n"))).startswith(b"HTTP/1.1 100 ")
        writer.write(b"audio")
        assert (await within(reader.readuntil(b"\r\n\r\n"))).startswith(b"HTTP/1.1 200 ")
        assert recordings.opened[0].audio == b"audio"
        writer.close()


async def test_behind_an_error_with_little_left_of_the_body_the_connection_goes_on() -> None:
    async with recording(token=TOKEN) as (running, _):
        last = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        answers = await running.answer(head("/v1/listen", 100_000) + bytes(100_000) + last)
        assert answers.startswith("HTTP/1.1 401 ")
        assert answers.count("HTTP/1.1 200 ") == 1


async def test_the_rest_of_a_refused_body_is_not_waited_for() -> None:
    async with recording(token=TOKEN, header_timeout_s=0.1) as (running, _):
        assert (await running.answer(head("/v1/listen", 1_000_000) + b"begun")).startswith("HTTP/1.1 401 ")


@EITHER
@pytest.mark.parametrize("half", [True, False])
async def test_a_client_that_hangs_up_ends_the_recording(stream: str, half: bool) -> None:
    async with recording(segment(1, "Ask"), asyncio.Event()) as (running, recordings):
        form = httpx.Request("POST", running.url, files={"file": b"audio"}, data={"stream": stream})
        body = form.read()
        _, writer = await running.raw()
        writer.write(head(OPENAI, len(body), f"Content-Type: {form.headers['content-type']}") + body)
        await within(recordings.arrived.wait())
        writer.write_eof() if half else writer.close()
        await within(recordings.opened[0].closed.wait())
        writer.close()


async def test_an_answer_that_is_on_its_way_comes_when_the_daemon_stops() -> None:
    stopped = asyncio.Event()
    async with recording(stopped, StoppingError("the daemon stops")) as (running, recordings):
        asking = asyncio.create_task(transcribe(running))
        await within(recordings.arrived.wait())
        stopping = asyncio.create_task(running.server.stop())
        stopped.set()
        assert (await asking).status_code == 503
        await stopping


async def test_a_revoked_token_ends_the_requests_that_were_made_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "TOKENS_S", 0.02)
    path, go = tmp_path / "tokens.json", asyncio.Event()
    gone, stays = added(path, "gone"), added(path, "stays")
    async with recording(SEGMENTS[0], go, SEGMENTS[1], token_file=str(path)) as (running, recordings):
        answers = [
            asyncio.create_task(transcribe(running, token, stream=stream))
            for token, stream in ((gone, "false"), (gone, "true"), (stays, "false"))
        ]
        await until(lambda: [job.n_waiting for job in recordings.opened] == [1] * 3)  # an event is on its way
        TokenFile(path).change(lambda known: known[1:])
        answer = await within(answers[0])
        assert (answer.status_code, answer.json()) == (401, {"error": "the token was revoked or has expired"})
        with pytest.raises(httpx.RemoteProtocolError):
            await within(answers[1])
        go.set()
        assert (await within(answers[2])).json()["text"] == "Ask not what."
        for job in recordings.opened:
            await within(job.closed.wait())
