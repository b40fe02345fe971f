"""Bodies to files: raw and in forms; tests/wire/test_refusals.py has what is refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from tests.unit.protocols.recorded import segment
from tests.wire.harness import NotedRecordings, serving, within

AUDIO = bytes(range(256)) * 6_000
PATH = "/whisper/nano.en"
FORM = "/v1/audio/transcriptions"


async def pieces(n_bytes: int) -> AsyncIterator[bytes]:
    """Yield a body that is sent in chunks."""
    for _ in range(n_bytes // 10_000):
        yield bytes(10_000)


async def test_a_body_becomes_a_file_that_goes_with_the_request() -> None:
    recordings = NotedRecordings()
    async with serving(recordings=recordings, max_upload_mb=3.0) as running:
        for body, status in ((AUDIO, 200), (pieces(3_000_000), 200), (pieces(3_010_000), 413)):
            assert (await running.ask(f"POST {PATH}", body)).status_code == status
        assert (await running.http.post(FORM, files={"file": bytes(3_000_000)})).status_code == 413
    assert [len(each.audio) for each in recordings.opened] == [len(AUDIO), 3_000_000]
    assert recordings.opened[0].audio == AUDIO
    assert not any(each.path.parent.exists() for each in recordings.opened)


async def test_a_form_gives_its_file_and_its_fields_in_any_order() -> None:
    recordings = NotedRecordings(segment(1, "one"))
    field = "timestamp_granularities[]"
    files: Any = [(field, (None, "word")), ("other", ("b.wav", b"no")), ("file", ("a.mp3", AUDIO))]
    files += [(field, (None, "segment")), ("response_format", (None, "verbose_json"))]
    async with serving(recordings=recordings) as running:
        answer = (await running.http.post(FORM, files=files)).json()
        assert {"words", "segments"} <= answer.keys()
        assert recordings.opened[-1].audio == AUDIO
        # Whatever its name, if it is the only one.
        assert (await running.http.post(FORM, files={"audio": ("../a", b"abc")})).status_code == 200
        assert recordings.opened[-1].audio == b"abc"
        # A field has its bound, too.
        long: Any = {"file": b"x", "prompt": (None, "x" * 200_000)}
        assert (await running.http.post(FORM, files=long)).status_code == 400


async def test_a_form_of_open_webui_is_understood() -> None:
    """As its 0.12.4 sends it, by aiohttp: in chunks, without a name of a model, the language as its pages have it."""
    recordings = NotedRecordings(segment(1, "one"))
    text = "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name="
    file = 'Content-Type: application/octet-stream\r\nContent-Disposition: form-data; name="file"; filename="a.webm"'
    parts = (f'{text}"model"\r\n\r\n', f'{text}"language"\r\n\r\nen-US', f"{file}\r\n\r\naudio")

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield f"--x\r\n{part}\r\n".encode()
        yield b"--x--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=x", "Authorization": "Bearer any"}
    async with serving(recordings=recordings) as running:
        answer = await running.http.post(FORM, content=body(), headers=headers)
        assert answer.json()["text"] == "one"
        (job,) = recordings.opened
        assert (job.audio, job.options.language) == (b"audio", "en")


@pytest.mark.skipif(not hasattr(psutil.Process, "io_counters"), reason="this system does not count what is written")
@pytest.mark.parametrize("arguments", [{"content": AUDIO}, {"files": {"file": AUDIO}}])
async def test_a_recording_is_written_once(arguments: dict[str, Any]) -> None:
    process = psutil.Process()
    async with serving(recordings=NotedRecordings()) as running:
        before = process.io_counters().write_chars
        assert (await running.http.post(PATH, **arguments)).status_code == 200
        assert len(AUDIO) <= process.io_counters().write_chars - before < 1.5 * len(AUDIO)


async def test_more_recordings_at_once_than_may_be_are_refused() -> None:
    go = asyncio.Event()
    recordings = NotedRecordings(go)
    async with serving(recordings=recordings, max_recordings=1) as running:
        first = asyncio.create_task(running.ask(f"POST {PATH}", AUDIO))
        await within(recordings.arrived.wait())
        assert (await running.ask(f"POST {PATH}", AUDIO)).status_code == 429
        go.set()
        assert (await first).status_code == 200
        assert (await running.ask(f"POST {PATH}", AUDIO)).status_code == 200
