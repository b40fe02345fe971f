"""docs/protocol.md says what the server does."""

import asyncio
import http.server
import json
import os
import re
import sys
import threading
import wave
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from streamer import errors
from streamer.errors import StreamerError
from streamer.events import EVENT_TYPES, GapReason, from_json
from streamer.protocols.native import StreamStart, parse_message
from tests.browser import browse
from tests.builders import final
from tests.daemon import REPOSITORY
from tests.wire.harness import serving, within

DOCUMENT = (REPOSITORY / "docs" / "protocol.md").read_text(encoding="utf-8")

# Codes of errors that are published as events.
PUBLISHED = {
    *("failed", "audio_device", "audio_file", "truncated", "device", "bad_message", "config", "busy"),
    *("unknown_session", "idle", "room_taken", "stopping"),
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", DOCUMENT, flags=re.DOTALL | re.MULTILINE)


def test_every_event_has_an_example_that_is_one_and_every_field_is_described() -> None:
    sections = re.split(r"^### `\w+`$", DOCUMENT, flags=re.MULTILINE)[1:]
    for name, block, section in zip(EVENT_TYPES, blocks("json"), sections, strict=True):
        example = from_json(block)
        assert example.type == name
        assert json.loads(example.to_json()) == json.loads(block), "it has no field that the event does not have"
        described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?):", section, re.MULTILINE))))
        assert {field.name for field in msgspec.structs.fields(type(example))} - {"seq", "session"} <= described, name


def test_every_reason_and_every_code_is_described() -> None:
    reasons, _, codes = DOCUMENT.partition("### Reasons of gaps")[2].partition("### Error codes")
    codes = codes.partition("## Close codes")[0]
    assert set(get_args(GapReason)) == set(re.findall(r"`([a-z]+)`", reasons)) - {"reason"}
    described = set(re.findall(r"`([a-z_]+)`", codes)) - {"code", "seq"}
    assert described >= PUBLISHED
    classes = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, StreamerError)]
    others = {"internal", "history_lost", "turns", "waiting", "odd_bytes", "bad_samples", "out_of_range"}
    assert described <= others | {error.code for error in classes}


def test_the_examples_of_messages_are_some_and_every_key_is_described() -> None:
    examples = [example for example in blocks("text") if not example.startswith("connect")]  # a conversation
    assert [parse_message(example)[0] for example in examples] == ["set", "resume"]
    for key in StreamStart.__struct_fields__:
        assert f"| `{key}` |" in DOCUMENT


@pytest.mark.slow
async def test_the_python_client_that_sends_fast_waits_for_the_answers_to_its_pings(tmp_path: Path) -> None:
    (program,) = blocks("python")
    audio, path = bytes(20_000_000), tmp_path / "long.wav"  # more than the system's buffers have room for
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(audio)
    impatient = {"ping_interval": 0.05, "ping_timeout": 0.1}  # by default 20 s each
    patch = f"import websockets.asyncio.client as c; c.connect.__init__.__kwdefaults__.update({impatient})\n"
    async with serving() as running, serving() as other:
        program = patch + program.replace("127.0.0.1:8765", f"127.0.0.1:{running.port}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, path, stdout=asyncio.subprocess.PIPE, env={**os.environ, "NO_PROXY": "*"}
        )
        async with other.socket("/v1/stream", **impatient, close_timeout=0.1) as client:
            first = await running.streams.first()  # a program takes a while to begin: both are held up from here on
            sending = asyncio.create_task(send_all(client, audio))
            streams = [first, await other.streams.first()]
            while not sending.done():  # until the one with a limit is cut off
                for stream in streams:
                    stream.room.clear()
                await asyncio.sleep(0.01)
                for stream in streams:
                    stream.room.set()
                await asyncio.sleep(0)
        with pytest.raises(ConnectionClosed):
            await sending
        said, _ = await within(process.communicate())
        assert (said.decode(), process.returncode) == (f"{len(audio)} bytes\n", 0)


async def send_all(client: ClientConnection, audio: bytes) -> None:
    for start in range(0, len(audio), 16_000):
        await client.send(audio[start : start + 16_000])


@pytest.mark.slow
async def test_the_page_shows_the_finals_from_another_port_and_from_a_file(tmp_path: Path) -> None:
    (page_text,) = blocks("html")
    token = "a-token-of-sixteen-or-more"
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as elsewhere:
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        named = f"http://localhost:{elsewhere.server_port}"
        async with (
            serving(origins=(named,)) as running,
            serving(origins=("null",), token=token) as guarded,
            serving(token=token) as closed,
            browse() as page,
        ):
            for n, (server, address, shown) in enumerate(
                [
                    (running, f"{named}/captions.html", ""),
                    (guarded, (tmp_path / "captions.html").as_uri(), token),
                    (closed, (tmp_path / "captions.html").as_uri(), token),
                ]
            ):
                text = page_text.replace("localhost:8765", f"127.0.0.1:{server.port}")
                text = text.replace('const token = ""', f'const token = "{shown}"')
                (tmp_path / "captions.html").write_text(text, encoding="utf-8")
                server.log.append(final(f"words {n}", segment=1))
                await page.goto(address)
                if server is closed:
                    refused = {"reason": "origin"}
                    await server.value("streamer_refusals_total", refused, 1)
                else:
                    await page.wait_for(f"document.body.innerText.trim() === 'words {n}'")
        elsewhere.shutdown()
