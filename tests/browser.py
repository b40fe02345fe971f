"""A headless Chromium for tests, driven over the Chrome DevTools Protocol.

    async with browse(url) as page:
        await page.wait_for("document.querySelector('#finals p')")
        assert "hello" in await page.text("#finals")

Where no Chromium is installed the test is skipped with that reason.
"""

import asyncio
import atexit
import base64
import contextlib
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.waiting import WAIT_S

POLL_S = 0.05

AXE = Path(sys.prefix) / "apart" / "axe_playwright_python" / "axe.min.js"

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
    "--autoplay-policy=no-user-gesture-required",
)


def fake_microphone_flags(wav: Path) -> tuple[str, ...]:
    """Flags that make `wav` the browser's microphone, allowed without a question and played over and over."""
    return (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={wav}",
    )


def find_chromium() -> str:
    """Return the browser's path; skip the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip("no Chromium on this machine: install the package chromium to run the tests of the captions page")


class Page:
    """One page of the browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        # Answers that are waited for, by the number of their command.
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        # What went wrong in the page, one line each: exceptions, failed requests, refused content.
        self.problems: list[str] = []

    async def goto(self, url: str) -> None:
        """Open an address and wait until the page is there."""
        await self.command("Page.navigate", url=url)
        await self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return the value of a JavaScript expression, awaited where it is a promise."""
        answer = await self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise AssertionError(f"{expression}: {details.get('exception', {}).get('description', details['text'])}")
        return answer["result"].get("value")

    async def wait_for(self, condition: str, timeout_s: float = WAIT_S) -> Any:  # noqa: ANN401 - any JSON value
        """Return the value of a JavaScript expression once it is true; fail where that takes too long."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            # Decided in the page: an element is true there and an empty object here.
            value = await self.evaluate(f"(async () => {{ const v = await ({condition}); return v ? [v] : null; }})()")
            if value is not None:
                return value[0]
            if asyncio.get_running_loop().time() > deadline:
                text = await self.evaluate("document.body.innerText")
                raise AssertionError(f"still not true: {condition}\npage: {text}\nproblems: {self.problems}")
            await asyncio.sleep(POLL_S)

    async def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    async def click(self, selector: str) -> None:
        """Click an element as a user would, whose gesture some interfaces require."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    async def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Give the page another size, in CSS pixels."""
        await self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    async def violations(self, selector: str = "html") -> list[str]:
        """Return what axe-core finds wrong with a part of the page as it is now, one line each."""
        if not AXE.is_file():
            pytest.skip(f"needs {AXE}: see the Makefile")
        if not await self.evaluate("'axe' in window"):
            await self.command("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))
        found = await self.evaluate(
            f"axe.run({json.dumps(selector)}, {{ resultTypes: ['violations'] }}).then(({{ violations }}) => violations)"
        )
        return [
            f"{one['impact']}: {one['help']}: {', '.join(str(node['target'][0]) for node in one['nodes'])}"
            for one in found
        ]

    async def screenshot(self, path: Path) -> None:
        """Write what is seen as a PNG file."""
        answer = await self.command("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    async def command(self, method: str, **params: object) -> dict[str, Any]:
        """Send one command of the DevTools protocol and return its result."""
        number = next(self._ids)
        self._pending[number] = asyncio.get_running_loop().create_future()
        await self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        try:
            async with asyncio.timeout(WAIT_S):
                answer = await self._pending[number]
        finally:
            del self._pending[number]
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def listen(self) -> None:
        """Take in what the browser says, until it leaves."""
        try:
            async for text in self._connection:
                message = json.loads(text)
                if "id" in message:
                    future = self._pending.get(message["id"])
                    if future is not None and not future.done():
                        future.set_result(message)
                elif message["method"] == "Runtime.exceptionThrown":
                    details = message["params"]["exceptionDetails"]
                    self.problems.append(details.get("exception", {}).get("description", details["text"]))
                elif message["method"] == "Log.entryAdded":
                    entry = message["params"]["entry"]
                    if entry["level"] in ("warning", "error"):
                        self.problems.append(f"{entry['text']} {entry.get('url', '')}".strip())
        except ConnectionClosed:
            pass
        for future in self._pending.values():
            if not future.done():
                future.set_exception(AssertionError("the browser is gone"))


@contextlib.asynccontextmanager
async def browse(
    url: str = "about:blank", *, flags: Sequence[str] = (), width: int = 1280, height: int = 800
) -> AsyncIterator[Page]:
    """Open a tab of a browser with these flags, and `url` in it; close the tab in the end.

    Tabs share what is stored for an address: tests serve on ports of their own.
    """
    browser = await asyncio.to_thread(_browser, tuple(flags))
    target = await asyncio.to_thread(_ask, browser, "PUT", "new?about:blank")
    try:
        async with connect(target["webSocketDebuggerUrl"], max_size=None, proxy=None, ping_interval=None) as connection:
            page = Page(connection)
            listening = asyncio.create_task(page.listen())
            try:
                for domain in ("Page", "Runtime", "Log"):
                    await page.command(f"{domain}.enable")
                await page.resize(width, height)
                if url != "about:blank":
                    await page.goto(url)
                yield page
            finally:
                listening.cancel()
    finally:
        await asyncio.to_thread(_ask, browser, "GET", f"close/{target['id']}")


@functools.cache
def _browser(flags: tuple[str, ...]) -> int:
    """Start a browser that goes with this process, and return its debugger's port: to start one takes half a second."""
    path = find_chromium()
    profile = Path(tempfile.mkdtemp(prefix="streamer-browser-"))
    root = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    process = subprocess.Popen(
        [
            path,
            *FLAGS,
            *root,
            f"--user-data-dir={profile}",
            "--remote-debugging-port=0",
            *flags,
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(_end, process, profile)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"Chromium ended with exit code {process.returncode} before it was ready"
        with contextlib.suppress(OSError, ValueError, IndexError):
            port = int((profile / "DevToolsActivePort").read_text(encoding="utf-8").splitlines()[0])
            _ask(port, "GET", "version")
            return port
        time.sleep(POLL_S)
    raise AssertionError(f"Chromium was not ready after {WAIT_S:.0f} s")


def _end(process: "subprocess.Popen[bytes]", profile: Path) -> None:
    process.terminate()
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(profile, ignore_errors=True)


def _ask(port: int, method: str, what: str) -> dict[str, Any]:
    """Ask a browser's debugger over HTTP."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"http://127.0.0.1:{port}/json/{what}", method=method)
    with opener.open(request, timeout=WAIT_S) as response:
        body = response.read()
    return dict(json.loads(body)) if body.startswith(b"{") else {}
