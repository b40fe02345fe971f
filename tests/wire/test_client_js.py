"""client.js in a real browser; what it does for its programs is in tests/wire/client/test_conversations.py."""

import json
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

import streamer
from tests.browser import browse
from tests.builders import final
from tests.fences import fences_of
from tests.wire.harness import serving

ROOT = Path(__file__).parent.parent.parent
STATIC = ROOT / "streamer" / "server" / "static"


async def test_floats_become_samples_half_a_sample_is_refused_and_what_waits_is_counted() -> None:
    script = """
    (async () => {
      const { stream } = await import("./client.js");
      window.states = [];
      window.s = stream({ url: location.href, onEvent() {}, onState: ({ state }) => states.push(state) });
      s.send(new Float32Array([0, 0.5, -1, 2]));
      const before = s.waiting;
      s.finish();
      s.finish();
      try { s.send(new ArrayBuffer(3)); } catch (error) { return [before, error.name]; }
    })()
    """
    async with serving() as running, browse(running.url) as page:
        assert await page.evaluate(script) == [8, "RangeError"]
        await page.wait_for("states.at(-1) === 'ended'")
        assert await page.evaluate("s.waiting") == 0
        samples = np.frombuffer(bytes(running.streams.opened[0].audio), "<i2")
    assert samples.tolist() == [0, 16384, -32767, 32767]


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


async def test_the_documented_page_shows_the_finals_from_another_port(tmp_path: Path) -> None:
    (fence,) = fences_of("tests/wire/test_client_js.py")  # that of docs/clients/libraries.md
    (tmp_path / "client.js").write_text((STATIC / "client.js").read_text(encoding="utf-8"), encoding="utf-8")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as elsewhere:
        threading.Thread(target=elsewhere.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://localhost:{elsewhere.server_port}"
        async with serving(origins=(address,)) as running, browse() as page:
            text = fence.text.replace("http://localhost:8765/", running.url)
            (tmp_path / "index.html").write_text(text, encoding="utf-8")
            await page.goto(f"{address}/index.html")
            await running.value("streamer_subscribers", {}, 1)
            running.log.append(final("Ask not", segment=1))
            await page.wait_for("document.querySelector('#text').textContent.trim() === 'Ask not'")
        elsewhere.shutdown()


def test_the_package_for_npm_is_the_pages_own_module() -> None:
    package = ROOT / "clients" / "js"
    described = json.loads((package / "package.json").read_text(encoding="utf-8"))
    assert described["version"] == streamer.__version__
    source = re.findall(r"copyFileSync\('(.*?)', 'index\.js'\)", described["scripts"]["prepare"])
    module = (package / source[0]).read_text(encoding="utf-8")
    pages = (package / "README.md", ROOT / "docs/clients/libraries.md")
    texts = [module, *(path.read_text(encoding="utf-8") for path in pages)]
    needed = f"Node {described['engines']['node'].removeprefix('>=')} or later"
    assert all(needed in " ".join(text.split()) for text in texts)
    exported = set(re.findall(r"^export function (\w+)", module, re.MULTILINE))
    typed = (package / "index.d.ts").read_text(encoding="utf-8")
    assert exported == set(re.findall(r"^export function (\w+)", typed, re.MULTILINE))
