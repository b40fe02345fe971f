"""client.js in a real browser; what it does for its programs is in tests/wire/client/test_conversations.py."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import streamer
from tests.browser import browse
from tests.cutting import cutting
from tests.wire.support import heard, opened_log, serving

ROOT = Path(__file__).parent.parent.parent
SAMPLES = (np.arange(96_000) * 7 % 20_000 - 10_000).astype("<i2")  # two seconds at 48 kHz

# In the page: `events`, `states`, and a stream `s` that has not been given anything.
OPEN = """
(async () => {
  const { stream } = await import("./client.js");
  window.events = [];
  window.states = [];
  window.samples = Int16Array.from({ length: 96000 }, (_, i) => ((i * 7) % 20000) - 10000);
  window.s = stream({
    url: location.href,
    start: { sample_rate: 48000, task: "translate" },
    onEvent: (event) => events.push(event),
    onState: (state) => states.push(state),
  });
})()
"""


async def test_a_stream_continues_where_its_connection_broke(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running, cutting(running.port) as proxy, browse(f"http://127.0.0.1:{proxy.port}/") as page:
        await page.evaluate(OPEN)
        await page.evaluate("s.send(samples.subarray(0, 30000))")
        stream = await running.streams.first()
        await heard(stream, 60_000)
        await page.wait_for("events.length")
        proxy.cut()
        await page.wait_for("states.at(-1).state !== 'open'")
        await page.evaluate("s.pause(); s.send(samples.subarray(30000, 50001)); s.set({ language: 'de' }); s.resume()")
        await page.evaluate(
            "s.send(Float32Array.from(samples.subarray(50001), (x) => x / 32767)); s.finish(); s.finish()"
        )
        await page.wait_for("states.at(-1).state === 'ended'")
        assert stream.audio == SAMPLES.tobytes()
        assert stream.commands == [("pause", 60_000), ("set", 100_002), ("resume", 100_002)]
        assert await page.evaluate("events.map((event) => event.type)") == ["ready", "final", "end"]
        assert await page.evaluate("s.waiting") == 0
    # The name of the session is a secret, and addresses stand in the logs of proxies.
    assert "?session=" not in caplog.text


async def test_captions_are_followed_and_a_refusal_is_reported() -> None:
    listen = """
    (async () => {
      const { listen, stream } = await import("./client.js");
      window.states = [];
      const options = { url: location.href, onEvent() {}, onState: (state) => states.push(state) };
      window.listener = listen(options);
      const s = stream({ ...options, start: { colour: "red" } });
      s.send(new ArrayBuffer(2));
      try { s.send(new ArrayBuffer(3)); } catch (error) { return error.name; }
    })()
    """
    async with serving(opened_log(), input=None) as running, browse(running.url) as page:
        assert await page.evaluate(listen) == "RangeError"
        await page.wait_for("states.some(({ state, status }) => state === 'lost' && status === 404)")
        await page.wait_for("states.some(({ state, code }) => state === 'failed' && code === 'bad_message')")


async def test_an_error_without_a_close_is_a_broken_connection() -> None:
    script = """
    (async () => {
      const { listen } = await import("./client.js");
      class Refused { // as Node 22 says it
        readyState = 0;
        constructor() { setTimeout(() => this.onerror(new Event("error"))); }
        close() {}
      }
      const sockets = [Refused, WebSocket];
      window.WebSocket = class { constructor(...given) { return new (sockets.shift())(...given); } };
      window.states = [];
      listen({ url: location.href, onEvent() {}, onState: ({ state }) => states.push(state) });
    })()
    """
    async with serving() as running, browse(running.url) as page:
        await page.evaluate(script)
        await page.wait_for("states.join() === 'connecting,lost,connecting,open'")


async def test_what_cannot_work_is_reported_at_once() -> None:
    script = """
    (async (token) => {
      const client = await import("./client.js");
      return ["listen", "stream"].map((name) => {
        const states = [];
        try {
          client[name]({ url: location.href, token, onEvent() {}, onState: (state) => states.push(state) });
        } catch (error) {
          return error.message;
        }
        return states.at(-1).state;
      });
    })
    """
    async with serving() as running, browse(running.url) as page:
        for token in ("key\n", "schlüssel", "密码", "\ud800"):
            assert await page.evaluate(f"{script}({json.dumps(token)})") == ["refused", "failed"]
        await page.evaluate("delete window.WebSocket")  # as in Node 20
        assert all("Node 22" in message for message in await page.evaluate(f"{script}('')"))


def test_the_package_for_npm_is_the_pages_own_module() -> None:
    package = ROOT / "clients" / "js"
    described = json.loads((package / "package.json").read_text(encoding="utf-8"))
    assert described["version"] == streamer.__version__
    source = re.findall(r"copyFileSync\('(.*?)', 'index\.js'\)", described["scripts"]["prepare"])
    module = (package / source[0]).read_text(encoding="utf-8")
    texts = [module, *(path.read_text(encoding="utf-8") for path in (package / "README.md", ROOT / "docs/clients.md"))]
    needed = f"Node {described['engines']['node'].removeprefix('>=')} or later"
    assert all(needed in " ".join(text.split()) for text in texts)
    exported = set(re.findall(r"^export function (\w+)", module, re.MULTILINE))
    typed = (package / "index.d.ts").read_text(encoding="utf-8")
    assert exported == set(re.findall(r"^export function (\w+)", typed, re.MULTILINE))
