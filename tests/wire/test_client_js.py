"""static/client.js in a real browser: connections break, daemons restart, and nothing is lost or comes twice."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

import streamer
from streamer.events import Speech
from tests.browser import Page, browse
from tests.cutting import cutting
from tests.wire.support import RecordingStream, final, heard, opened_log, serving

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


async def send(page: Page, first: int, last: int) -> None:
    await page.evaluate(
        f"for (let i = {first}; i < {last}; i += 4800) s.send(samples.subarray(i, Math.min({last}, i + 4800)))"
    )


async def test_a_stream_goes_on_where_its_connection_broke(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running, cutting(running.port) as proxy, browse(f"http://127.0.0.1:{proxy.port}/") as page:
        await page.evaluate(OPEN)
        await send(page, 0, 30_000)
        stream = await running.streams.first()
        await heard(stream, 60_000)
        await page.wait_for("events.length")
        proxy.cut()
        await page.wait_for("states.at(-1).state !== 'open'")
        await page.evaluate("s.pause()")
        await send(page, 30_000, 50_001)
        await page.evaluate("s.set({ language: 'de' }); s.resume()")
        await heard(stream, 100_002)
        stream.log.append(final(1, "said"))
        proxy.cut()
        await page.wait_for("events.some((event) => event.type === 'final')")
        await page.evaluate("s.send(Float32Array.from(samples.subarray(50001), (x) => x / 32767))")
        await page.evaluate("s.finish(); s.finish()")
        await page.wait_for("states.at(-1).state === 'ended'")
        assert stream.audio == SAMPLES.tobytes()
        assert list(dict.fromkeys(stream.commands)) == [("pause", 60_000), ("set", 100_002), ("resume", 100_002)]
        assert await page.evaluate("events.map((event) => event.type)") == ["ready", "final", "final", "end"]
        assert await page.evaluate("events.map((event) => event.seq)") == [1, 2, 3, 4]
        assert await page.evaluate("s.waiting") == 0
    # The name of the session is a secret, and addresses lie in the logs of proxies.
    assert "?session=" not in caplog.text


async def test_a_daemon_that_was_restarted_is_given_the_rest() -> None:
    async with serving() as running, browse(running.url) as page:
        await page.evaluate(OPEN)
        await page.evaluate("s.set({ language: 'de' })")
        await send(page, 0, 60_000)
        await page.evaluate("s.pause()")
        stream = await running.streams.first()
        await heard(stream, 120_000)
        stream.log.append(final(1, "said a word"))  # to 0.9 s
        await page.wait_for("events.length === 2")
        stream.room.clear()  # what was said behind that is never final
        port = running.port
        await running.server.stop(timeout_s=0.1)
        await send(page, 60_000, 96_000)
        await page.evaluate("s.finish()")
        async with serving(port=port) as again:
            await page.wait_for("states.at(-1).state === 'ended'")
            rest = again.streams.opened[0]
        assert (rest.start.language, rest.start.task, rest.start.sample_rate) == ("de", "translate", 48_000)
        assert rest.audio == SAMPLES[43_200:].tobytes()
        assert rest.commands == [("pause", 2 * 16_800)]
        assert await page.evaluate("events.map((event) => event.type)") == [
            *("ready", "final", "error"),  # the daemon stops
            *("ready", "final", "end"),
        ]
        assert await page.evaluate("events.at(-2).start") == 0.9  # of all the audio
        assert await page.evaluate("events.at(-2).words[0].start") == 0.9


async def test_what_a_stopping_daemon_has_heard_is_not_read_out_of_its_sentence() -> None:
    def prepare(opened: RecordingStream) -> None:
        opened.session.report = lambda error: opened.log.append(
            msgspec.structs.replace(error, message="stopping in 5 s")
        )

    async with serving() as running, browse(running.url) as page:
        running.streams.prepare = prepare
        await page.evaluate(OPEN)
        await send(page, 0, 60_000)
        await heard(await running.streams.first(), 120_000)
        port = running.port
        await running.server.stop(timeout_s=5.0)
        await send(page, 60_000, 96_000)
        await page.evaluate("s.finish()")
        async with serving(port=port) as again:
            await page.wait_for("states.at(-1).state === 'ended'")
            assert again.streams.opened[0].audio == SAMPLES[60_000:].tobytes()


async def test_captions_are_followed_and_a_refusal_is_told() -> None:
    log = opened_log()
    log.append(Speech(state="start", time=0.5))
    async with serving(log, input=None) as running, browse(running.url) as page:
        listen = """
        (async () => {
          const { listen, stream } = await import("./client.js");
          window.states = [];
          const options = { url: location.href, onEvent() {}, onState: (state) => states.push(state) };
          window.listener = listen(options);
          const s = stream({ ...options, start: { colour: "red" } });
          s.send(new ArrayBuffer(2));
          try { s.send(new ArrayBuffer(3)); } catch (error) { return error.message; }
        })()
        """
        assert "whole samples" in await page.evaluate(listen)
        await page.wait_for("states.some(({ state, status }) => state === 'lost' && status === 404)")
        await page.wait_for("states.some(({ state, code }) => state === 'failed' && code === 'bad_message')")
        assert await page.evaluate("states.find(({ code }) => code).message.includes('colour')")


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


async def test_what_cannot_work_is_told_at_once() -> None:
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
        return [states.at(-1).state, states.at(-1).message];
      });
    })
    """
    async with serving() as running, browse(running.url) as page:
        for token in ("key\n", "schlüssel", "密码", "\ud800"):
            (refused, message), failed = await page.evaluate(f"{script}({json.dumps(token)})")
            assert (refused, failed) == ("refused", ["failed", message])
            assert "expected printable ASCII" in message
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
