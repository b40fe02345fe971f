"""The conversations of tests/golden/protocols/native.txt with our clients, in Python and in JavaScript, and a server.

The server receives what a conversation says. A client passes to its program what was published, once each.
"""

import asyncio
import base64
import contextlib
import json
import logging
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from streamer.client.audio import Item
from streamer.client.captions import listen
from streamer.client.stream import stream
from streamer.errors import StreamerError
from tests.conversations import Conversation, Script, Step, conversations
from tests.wire.harness import within

CLIENT_JS = Path(__file__).parents[3] / "streamer" / "server" / "static" / "client.js"

# What a client may add to its `start`.
DEFAULTS = {"format": "s16le", "sample_rate": 16_000, "channels": 1}

# Reads items from its input, a line of JSON each, and prints events, and at last how it ended.
PROGRAM_JS = """
import { createInterface } from "node:readline";
import { listen, stream } from "./client.mjs";
const [url, start] = process.argv.slice(2);
const show = (found) => console.log(JSON.stringify(found));
const leave = (code = "") => process.exit(show([Number.isInteger(code) ? "peer" : code]));
const onState = ({ state, code }) => ["ended", "failed", "refused"].includes(state) && leave(code);
const options = { url, onEvent: show, onState };
const client = start ? stream({ ...options, start: JSON.parse(start) }) : listen(options);
createInterface({ input: process.stdin }).on("line", (line) => {
  const { type, audio, ...options } = JSON.parse(line);
  type === "audio" ? client.send(Buffer.from(audio, "base64")) : client[type](options);
  if (type === "close") leave();
});
"""

# Behind the module: prints what moves the client.
TRACE_JS = """
const traced = { get: (row, input) => (row[input] && console.error(input), row[input]) };
for (const state in TRANSITIONS) TRANSITIONS[state] = new Proxy(TRANSITIONS[state], traced);
"""


class PythonClient:
    """`streamer.stream` or `streamer.listen`, and a program that uses it."""

    def __init__(self, port: int, start: Mapping[str, Any] | None, logged: pytest.LogCaptureFixture) -> None:
        self._logged = logged
        self._items: asyncio.Queue[Any] = asyncio.Queue()
        self._address = f"127.0.0.1:{port}"
        self._using = asyncio.create_task(self._use(start))

    async def give(self, item: bytes | dict[str, Any]) -> None:
        await self._items.put(item)

    async def leave(self) -> None:
        self._using.cancel()

    async def result(self) -> tuple[list[Any], str, list[str]]:
        """Return the events, the code of the error, and what moved the client."""
        events, error = await within(self._using)
        found = [record.args for record in self._logged.records if record.name == "streamer.client.machine"]
        return events, error, [str(args[2]) for args in found if isinstance(args, tuple)]

    async def _use(self, start: Mapping[str, Any] | None) -> tuple[list[Any], str]:
        events: list[Any] = []
        if start is None:
            found: Any = listen(self._address, on_notice=print)
        else:
            found = stream(self._given(), self._address, on_notice=print, **start)
        try:
            async with contextlib.aclosing(aiter(found)) as reading:
                async for event in reading:
                    events.append(json.loads(event.to_json()))
        except StreamerError as error:
            return events, error.code
        except asyncio.CancelledError:  # by `leave`
            pass
        return events, ""

    async def _given(self) -> AsyncIterator[Item]:
        while (item := await self._items.get()) != {"type": "finish"}:
            if isinstance(item, dict):
                kind = item.pop("type")
                yield item if kind == "set" else kind  # type: ignore[misc]
            else:
                yield item


class JavaScriptClient:
    """client.js in Node, and a program that uses it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def give(self, item: bytes | dict[str, Any]) -> None:
        if isinstance(item, bytes):
            item = {"type": "audio", "audio": base64.b64encode(item).decode("ascii")}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(item).encode("utf-8") + b"\n")

    async def leave(self) -> None:
        await self.give({"type": "close"})

    async def result(self) -> tuple[list[Any], str, list[str]]:
        printed, inputs = await within(self._process.communicate())
        *events, (error,) = map(json.loads, printed.splitlines())
        return events, error, inputs.decode("utf-8").splitlines()


class Server:
    """A server that plays its part of a conversation, and what the client's program is to get."""

    def __init__(self, talk: Conversation) -> None:
        self.events: list[Any] = []
        self.error = ""
        self._talk = talk
        self._script = Script()
        self._published: list[Any] = []
        # Requests, each with its connection and what is to be answered; connections.
        self._asked: asyncio.Queue[tuple[ServerConnection, str, asyncio.Future[Any]]] = asyncio.Queue()
        self._opened: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self._connection: Any = None
        self._answer: asyncio.Future[Response | None] = asyncio.Future()
        # The newest event that the client has; where the session began, and what the server has, in seconds.
        self._place = ("", 0)
        self._base_s = self._heard_s = 0.0

    async def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer a request as the conversation does, also if a page asks why its WebSocket was refused."""
        if "Upgrade" in request.headers:
            self._answer = asyncio.Future()
            await self._asked.put((connection, request.path, self._answer))
        return await self._answer

    async def accept(self, connection: ServerConnection) -> None:
        """Serve a connection."""
        await self._opened.put(connection)
        await connection.wait_closed()

    async def play(self, step: Step, following: Step, client: PythonClient | JavaScriptClient) -> None:
        """Play a line."""
        text = step.text
        match step.kind:
            case "connect":
                self._connection, path, answer = await within(self._asked.get())
                assert path == text
                if not following.text.startswith("status") and following.kind != "leave":
                    answer.set_result(None)
                    self._connection = await within(self._opened.get())
            case ">" | ">>":
                message = self._talk.message(text)
                if step.kind == ">" and '"start"' not in text:
                    await client.give(message if isinstance(message, bytes) else json.loads(message))
                await self._receive(text, message)
            case "!" if not text.startswith(("refuse", "forget")):
                self._published.append(json.loads(self._script.event(text).to_json()))
            case "<" if text.startswith("status"):
                _, status, said = text.split(" ", 2)
                self._answer.set_result(self._connection.respond(int(status), json.dumps({"error": said})))
            case "<" if text.startswith("close"):
                _, code, *reason = text.split(" ", 2)
                await self._connection.close(int(code), *reason)
            case "<" if not text.startswith("{"):
                await self._connection.send(text)
            case "<":
                await self._send(text)
            case "break":
                await within(await self._connection.ping())  # so that the client has what was sent
                self._connection.transport.abort()
            case "leave":
                if self._answer.done():
                    await within(await self._connection.ping())
                await client.leave()
                if self._answer.done():
                    await within(self._connection.wait_closed())
                    assert self._connection.close_code == int(text)
                else:
                    self._answer.set_result(self._connection.respond(503, "{}"))

    async def _receive(self, text: str, message: str | bytes) -> None:
        if isinstance(message, bytes):
            found = b""
            while len(found) < len(message):
                found += (piece := await within(self._connection.recv()))
                assert len(piece) <= 2**16, "the server reads small messages between others"
            assert found == message, f"expected {text}, found other audio, {len(found)} bytes"
            if first := re.match(r"\(audio ([\d.]+) to", text):
                self._base_s = float(first[1]) - self._heard_s
            return
        found = json.loads(await within(self._connection.recv()))
        self._talk.expect(text, {key: found[key] for key in found if key in text or found[key] != DEFAULTS.get(key)})
        if found["type"] == "start":
            self._place, self._heard_s = ("", 0), 0.0

    async def _send(self, text: str) -> None:
        event = None if '"resumed"' in text or '"session":""' in text else self._published[:1]
        if event:
            self._talk.expect(text, event := self._published.pop(0))
        else:
            event = json.loads(text)
            self._heard_s = event.get("heard_samples", 0) / 16_000 if '"resumed"' in text else self._heard_s
        await self._connection.send(json.dumps(event))
        place = event["session"], event["seq"]
        if event["type"] == "error" and ((event["fatal"] and event["session"]) or self._place == ("", 0)):
            self.error = event["code"]
        between = event["type"] == "error" and not event["fatal"]
        if event["type"] not in ("resumed", "end") and event["session"] and (between or place != self._place):
            self._place = place
            self.events.append(_later(event, self._base_s))


def _later(value: Any, by_s: float) -> Any:  # noqa: ANN401 - JSON
    """Return an event or a word with its times in all the audio."""
    if isinstance(value, list):
        return [_later(each, by_s) for each in value]
    times = {key: round(value[key] + by_s, 3) for key in ("start", "end", "time") if key in value}
    words = {"words": _later(value["words"], by_s)} if "words" in value else {}
    return {**value, **times, **words}


async def play(talk: Conversation, start_client: Callable[..., Awaitable[PythonClient | JavaScriptClient]]) -> None:
    """Play a conversation with a client."""
    first = next((step.text for step in talk.steps if '"type":"start"' in step.text), None)
    start = {key: value for key, value in json.loads(first).items() if key != "type"} if first else None
    server = Server(talk)
    async with serve(server.accept, "127.0.0.1", 0, process_request=server.answer) as running:
        client = await start_client(next(iter(running.sockets)).getsockname()[1], start)
        for step, following in pairwise([*talk.steps, Step("", "")]):
            await server.play(step, following, client)
        events, error, inputs = await client.result()
    assert [event for event in events if event["type"] != "end"] == server.events
    assert [input for input, _ in groupby(inputs)] == talk.inputs
    expected = (server.error or "peer") if talk.inputs[-1] == "refused" else ""
    assert error == expected or (expected == "device" and error == "peer"), "a client may have no class for it"


@pytest.mark.parametrize("talk", conversations("native", "clients"))
async def test_the_python_client_keeps_its_part_of_a_conversation(
    talk: Conversation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "streamer.client.machine")

    async def start_client(port: int, start: Mapping[str, Any] | None) -> PythonClient:
        return PythonClient(port, start, caplog)

    await play(talk, start_client)


@pytest.mark.parametrize("talk", conversations("native", "clients"))
async def test_client_js_keeps_its_part_of_a_conversation(talk: Conversation, tmp_path: Path) -> None:
    node = shutil.which("node") or pytest.skip("no Node on this machine")
    soon = re.sub(r"MAX_DELAY_MS = \d+", "MAX_DELAY_MS = 10", CLIENT_JS.read_text(encoding="utf-8"))
    (tmp_path / "client.mjs").write_text(soon + TRACE_JS, encoding="utf-8")
    (tmp_path / "program.mjs").write_text(PROGRAM_JS, encoding="utf-8")

    async def start_client(port: int, start: Mapping[str, Any] | None) -> JavaScriptClient:
        command = [node, "--no-warnings", "--experimental-websocket", "program.mjs", f"http://127.0.0.1:{port}/"]
        given = [] if start is None else [json.dumps(start)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, *given, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe
        )
        return JavaScriptClient(process)

    await play(talk, start_client)
