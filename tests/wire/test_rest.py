"""Recordings over HTTP, from a socket to recordings that only take notes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from streamer.constants import SAMPLE_RATE
from streamer.daemon.backend import RecordingQueue, Transcription
from streamer.errors import AudioFileError, BusyError, InferenceError, StoppingError, UnknownModelError
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions
from streamer.server import front
from streamer.server.tokens import TokenFile
from tests.unit.protocols.recorded import segment
from tests.waiting import WAIT_S, until
from tests.wire.support import Running, added, serving, within

TOKEN = "a-secret-of-16-or-more"
MODEL = ModelInfo(name="nano.en", created=7, loaded=True)

Item = RecordedSegment | Exception | asyncio.Event


class Awaited(asyncio.Event):
    """Counts how often it is waited for."""

    n_waiting = 0

    async def wait(self) -> Literal[True]:
        self.n_waiting += 1
        return await super().wait()


class Noted(Transcription):
    """A recording that yields what it is told to."""

    def __init__(self, path: Path, options: RecordingOptions, items: Sequence[Item]) -> None:
        super().__init__(MODEL.name)
        self.options = options
        self.audio = path.read_bytes()
        self.n_samples = 4 * SAMPLE_RATE
        self.language = "en"
        self.closed = asyncio.Event()
        self._script = items

    async def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        for item in self._script:
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, Exception):
                raise item
            else:
                yield item

    def close(self) -> None:
        self.closed.set()


class NotedRecordings(RecordingQueue):
    def __init__(self) -> None:
        # What the next recordings yield, raise, or wait for.
        self.items: Sequence[Item] = [segment(1, "Ask not"), segment(2, "what.", 1.0)]
        self.opened: list[Noted] = []
        self.arrived = asyncio.Event()

    def models(self) -> Sequence[ModelInfo]:
        return [MODEL]

    def find(self, model: str) -> ModelInfo:
        with pytest.raises(RuntimeError, match="no running event loop"):  # it reads directories: others would wait
            asyncio.get_running_loop()
        if model not in ("nano.en", "whisper-1", ""):
            raise UnknownModelError(f"model {model!r} is not here: expected nano.en")
        return MODEL

    async def open(self, path: Path, options: RecordingOptions, model: str = "") -> Noted:
        await asyncio.to_thread(self.find, model)
        job = Noted(path, options, self.items)
        self.opened.append(job)
        self.arrived.set()
        return job

    def stop(self) -> None:
        """They end by themselves."""


class Rest:
    """A server and a client of it."""

    def __init__(self, running: Running, recordings: NotedRecordings, client: httpx.AsyncClient) -> None:
        self.running = running
        self.recordings = recordings
        self.client = client

    async def transcribe(self, **fields: Any) -> httpx.Response:  # noqa: ANN401 - any field
        file = {"file": ("a.wav", b"RIFF audio")}
        return await self.client.post("/v1/audio/transcriptions", files=file, data={"model": "whisper-1", **fields})


@asynccontextmanager
async def rest(**settings: Any) -> AsyncIterator[Rest]:  # noqa: ANN401 - passed on
    recordings = NotedRecordings()
    async with (
        serving(recordings=recordings, **settings) as running,
        httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=WAIT_S) as client,
    ):
        yield Rest(running, recordings, client)


async def pieces(n_bytes: int) -> AsyncIterator[bytes]:
    """Yield a body that is sent in chunks."""
    for _ in range(n_bytes // 100_000):
        yield bytes(100_000)


async def test_a_form_is_answered_with_its_text() -> None:
    async with rest() as served:
        response = await served.transcribe(language="en", response_format="verbose_json")
        assert response.json()["text"] == "Ask not what."
        (job,) = served.recordings.opened
        assert job.audio == b"RIFF audio"
        assert (job.options.language, job.options.task, job.closed.is_set()) == ("en", "transcribe", True)
        assert (await served.transcribe(response_format="text")).text == "Ask not what.\n"


async def test_a_text_streams_as_it_becomes_final() -> None:
    async with rest() as served:
        response = await served.transcribe(stream="true")
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
        assert [event.get("delta", event.get("text")) for event in events] == ["Ask not", " what.", "Ask not what."]
        assert served.recordings.opened[0].closed.is_set()
        served.recordings.items = [segment(1, "Ask"), InferenceError("the device failed")]
        assert '"error":{"message":"the device failed"' in (await served.transcribe(stream="true")).text


@pytest.mark.parametrize("stream", ["true", "false"])
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
    async with rest() as served:
        served.recordings.items = [error]
        response = await served.transcribe(stream=stream)
        assert response.status_code == status
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}
        assert ("Retry-After" in response.headers) == (status in (429, 503))
        assert served.recordings.opened[0].closed.is_set()


async def test_bad_values_and_models_that_are_not_here_are_refused() -> None:
    async with rest() as served:
        assert (await served.transcribe(temperature="hot")).status_code == 400
        response = await served.transcribe(model="large-v9")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
        assert (await served.client.get("/v1/models/large-v9")).status_code == 404
        assert (await served.client.post("/whisper/large-v9", content=b"x")).status_code == 404


async def test_models_are_listed_and_described() -> None:
    async with rest() as served:
        listed = (await served.client.get("/v1/models")).json()
        described = (await served.client.get("/v1/models/nano.en")).json()
        assert listed == {"object": "list", "data": [described]}
        assert described.items() >= {"id": "nano.en", "object": "model", "created": 7, "owned_by": "streamer"}.items()
        assert (await served.client.get("/whisper/nano.en")).json() == described


async def test_a_model_is_an_address_with_its_options_in_the_query() -> None:
    async with rest() as served:
        address = "/whisper/nano.en?language=en&task=translate&format=srt"
        response = await served.client.post(address, content=b"audio")
        assert response.headers["content-type"].startswith("application/x-subrip")
        assert response.text.startswith("1\n00:00:00,000 --> ")
        options = served.recordings.opened[0].options
        assert (options.language, options.task) == ("en", "translate")
        form = await served.client.post("/whisper/nano.en", files={"file": b"audio"})
        assert (form.json()["text"], form.json()["model"]) == ("Ask not what.", "nano.en")
        assert (await served.client.post("/whisper/nano.en?format=mp3", content=b"audio")).status_code == 400


@pytest.mark.parametrize("expects", [True, False])
async def test_a_wrong_token_is_refused_before_the_recording_is_sent(expects: bool) -> None:
    async with rest(token=TOKEN) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.running.port)
        head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1:{served.running.port}\r\n"
        head += "Authorization: Bearer wrong\r\nContent-Length: 60000000\r\n"
        head += "Expect: 100-continue\r\n" if expects else ""
        writer.write(f"{head}\r\n".encode())
        answer = await within(reader.readuntil(b"\r\n\r\n"))
        assert answer.startswith(b"HTTP/1.1 401 ")  # no 100 before it
        if not expects:  # a client that reads the answer behind its recording gets it
            writer.write(bytes(3_000_000))
            await within(writer.drain())
            writer.write_eof()
        assert b"invalid_api_key" in await within(reader.readline())
        writer.close()


async def test_who_asks_before_sending_is_told_to_go_on_if_the_token_is_right() -> None:
    async with rest(token=TOKEN) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.running.port)
        head = f"POST /whisper/nano.en HTTP/1.1\r\nHost: 127.0.0.1:{served.running.port}\r\nExpect: 100-continue\r\n"
        writer.write(f"{head}Authorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n\r\n".encode())
        assert (await within(reader.readuntil(b"\r\n\r\n"))).startswith(b"HTTP/1.1 100 ")
        writer.write(b"audio")
        assert (await within(reader.readuntil(b"\r\n\r\n"))).startswith(b"HTTP/1.1 200 ")
        assert served.recordings.opened[0].audio == b"audio"
        writer.close()


async def test_behind_an_error_with_little_left_of_the_body_the_connection_goes_on() -> None:
    async with rest(token=TOKEN) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.running.port)
        head = f"HTTP/1.1\r\nHost: 127.0.0.1:{served.running.port}\r\n".encode()
        writer.write(b"POST /v1/listen %sContent-Length: 100000\r\n\r\n" % head)
        assert (await within(reader.readuntil(b"\r\n\r\n"))).startswith(b"HTTP/1.1 401 ")
        writer.write(bytes(100_000) + b"GET /healthz %sConnection: close\r\n\r\n" % head)
        rest_of_both = await within(reader.read())
        assert rest_of_both.count(b"HTTP/1.1 200 ") == 1
        writer.close()


async def test_a_body_beyond_the_limit_is_refused_by_its_length_and_by_its_bytes() -> None:
    async with rest(max_upload_mb=1.0) as served:
        for body in (bytes(1_500_000), pieces(1_500_000)):
            response = await served.client.post("/whisper/nano.en", content=body)
            assert response.status_code == 413
            assert "server.max_upload_mb" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("half", [True, False])
async def test_who_hangs_up_ends_the_recording(stream: str, half: bool) -> None:
    async with rest() as served:
        served.recordings.items = [segment(1, "Ask"), asyncio.Event()]
        _, writer = await asyncio.open_connection("127.0.0.1", served.running.port)
        body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\naudio\r\n'
        body += b'--x\r\nContent-Disposition: form-data; name="stream"\r\n\r\n%s\r\n--x--\r\n' % stream.encode()
        head = f"Host: 127.0.0.1:{served.running.port}\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        writer.write(b"POST /v1/audio/transcriptions HTTP/1.1\r\n" + head.encode() + body)
        await within(served.recordings.arrived.wait())
        if half:
            writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        else:
            writer.close()
        await within(served.recordings.opened[0].closed.wait())
        writer.close()


async def test_an_answer_that_is_on_its_way_comes_when_the_daemon_stops() -> None:
    async with rest() as served:
        stopped = asyncio.Event()
        served.recordings.items = [stopped, StoppingError("the daemon stops")]
        asking = asyncio.create_task(served.transcribe())
        await within(served.recordings.arrived.wait())
        stopping = asyncio.create_task(served.running.server.stop())
        stopped.set()
        assert (await asking).status_code == 503
        await stopping


async def test_a_revoked_token_ends_the_requests_that_were_made_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "TOKENS_S", 0.02)
    path = tmp_path / "tokens.json"
    tokens = {name: added(path, name) for name in ("gone", "stays")}
    never = Awaited()

    async with rest(token_file=str(path)) as served:

        async def ask(name: str, stream: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {tokens[name]}"}
            fields = {"model": "whisper-1", "stream": stream}
            async with httpx.AsyncClient(base_url=served.running.url, trust_env=False, timeout=WAIT_S) as client:
                file = {"file": ("a.wav", b"RIFF audio")}
                return await client.post("/v1/audio/transcriptions", files=file, data=fields, headers=headers)

        served.recordings.items = [segment(1, "Ask not"), never, segment(2, "what.", 1.0)]
        waiting, streaming = asyncio.create_task(ask("gone", "false")), asyncio.create_task(ask("gone", "true"))
        staying = asyncio.create_task(ask("stays", "false"))
        await until(lambda: never.n_waiting >= 3)  # the stream's first event is on its way
        TokenFile(path).change(lambda known: tuple(token for token in known if token.name != "gone"))
        answer = await within(waiting)
        assert (answer.status_code, answer.json()) == (401, {"error": "the token was revoked or has expired"})
        with pytest.raises(httpx.RemoteProtocolError):
            await within(streaming)
        never.set()
        assert (await within(staying)).json()["text"] == "Ask not what."
        for job in served.recordings.opened:
            await within(job.closed.wait())
