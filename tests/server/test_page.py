"""The captions page in a real browser."""

import json
from pathlib import Path

import numpy as np
import soundfile

from streamer.errors import BusyError
from streamer.events import Error, Gap, Speech
from tests.browser import browse, fake_microphone_flags
from tests.server.support import final, opened_log, partial, serving, within

LIVE = "['live', 'speech'].includes(document.querySelector('#status').dataset.state)"
FINALS = "[...document.querySelectorAll('#finals p')].map(p => p.textContent)"
TONE_HZ = 1000.0


def finals_are(*texts: str) -> str:
    return (
        f"JSON.stringify({FINALS}) === {json.dumps(json.dumps(list(texts), ensure_ascii=False, separators=(',', ':')))}"
    )


async def test_words_appear_settle_and_become_final() -> None:
    async with serving() as running, browse(running.url) as page:
        await page.wait_for(LIVE)
        assert "nano.en" in await page.text("#details")
        running.log.append(Speech(state="start", time=0.1))
        await page.wait_for("document.querySelector('#status').dataset.state === 'speech'")
        running.log.append(partial(1, "good 👋 morning every", len("good 👋 morning")))
        await page.wait_for("document.querySelector('#unstable').textContent === ' every'")
        assert await page.text("#stable") == "good 👋 morning"
        style = "getComputedStyle(document.querySelector('#{}')).color"
        assert await page.evaluate(style.format("stable")) != await page.evaluate(style.format("unstable"))
        running.log.append(final(1, "good 👋 morning everybody"))
        running.log.append(Gap(start=65.0, end=66.2, reason="overrun"))
        await page.wait_for("document.querySelectorAll('#finals p').length === 2")
        assert await page.evaluate("document.querySelector('#live').hidden")
        spoken, gap = await page.evaluate(FINALS)
        assert spoken == "good 👋 morning everybody"
        assert "01:05 – 01:07" in gap
        assert page.problems == []


async def test_text_is_shown_as_text() -> None:
    evil = "<img src=x onerror=\"document.title='hit'\"> & <b>bold</b>"
    async with serving() as running, browse(running.url) as page:
        running.log.append(partial(1, evil, 5))
        await page.wait_for("document.querySelector('#unstable').textContent.includes('bold')")
        running.log.append(final(1, evil))
        await page.wait_for(finals_are(evil))
        assert await page.evaluate("document.querySelectorAll('#finals img, #finals b').length") == 0
        assert await page.evaluate("document.title") == "Live captions"


async def test_the_page_comes_back_after_a_restart_and_shows_nothing_twice() -> None:
    log = opened_log()
    log.append(final(1, "before"))
    async with serving(log) as running, browse(running.url) as page:
        await page.wait_for(finals_are("before"))
        port = running.port
        await running.server.stop()
        log.append(final(2, "meanwhile"))
        async with serving(log, port=port):
            await page.wait_for(finals_are("before", "meanwhile"))
            log.append(final(3, "after"))
            await page.wait_for(finals_are("before", "meanwhile", "after"))
        new = opened_log("another session")
        new.append(final(1, "new run"))
        async with serving(new, port=port):
            await page.wait_for(finals_are("before", "meanwhile", "after", "the daemon was restarted", "new run"))


async def test_the_page_does_not_grow_for_ever() -> None:
    async with serving(queue_events=10_000) as running, browse(running.url) as page:
        await page.wait_for(LIVE)
        for n in range(1, 701):
            running.log.append(final(n, f"number {n}"))
        await page.wait_for(f"{FINALS}.at(-1) === 'number 700'")
        assert await page.evaluate(f"{FINALS}.length") == 500
        saved = await page.evaluate(
            "(async () => { let text; URL.createObjectURL = (blob) => ((text = blob.text()), 'blob:x');"
            " HTMLAnchorElement.prototype.click = () => {}; document.querySelector('#download').click();"
            " return await text; })()"
        )
        assert saved.splitlines() == [f"number {n}" for n in range(1, 701)]


async def test_the_page_follows_the_bottom_unless_the_reader_scrolled_up() -> None:
    at_bottom = "((m) => m.scrollHeight - m.scrollTop - m.clientHeight < 5)(document.querySelector('#captions'))"
    async with serving() as running, browse(running.url, width=390, height=700) as page:
        await page.wait_for(LIVE)
        for n in range(1, 61):
            running.log.append(final(n, f"number {n}"))
        await page.wait_for(f"{FINALS}.length === 60 && {at_bottom}")
        assert await page.evaluate("document.querySelector('#jump').hidden")
        await page.evaluate("document.querySelector('#captions').scrollTop = 100")
        await page.wait_for("!document.querySelector('#jump').hidden")
        running.log.append(final(61, "new"))
        await page.wait_for(f"{FINALS}.length === 61")
        assert await page.evaluate("document.querySelector('#captions').scrollTop") == 100
        await page.click("#jump")
        await page.wait_for(f"{at_bottom} && document.querySelector('#jump').hidden")


async def test_text_size_is_remembered() -> None:
    size = "parseFloat(getComputedStyle(document.querySelector('.column')).fontSize)"
    async with serving() as running, browse(running.url) as page:
        before = await page.evaluate(size)
        await page.click("#larger")
        await page.click("#larger")
        larger = await page.evaluate(size)
        assert larger > before
        await page.goto(running.url)
        assert await page.evaluate(size) == larger


async def test_nothing_is_wider_than_a_phone() -> None:
    async with serving() as running, browse(running.url) as page:
        await page.resize(320, 640, phone=True)
        running.log.append(final(1, "Donaudampfschifffahrtsgesellschaft" * 4))
        running.log.append(Error(code="x", message="the microphone is gone: plug it in again", fatal=False))
        await page.wait_for("document.querySelectorAll('#finals p').length === 2")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 320
        assert await page.evaluate("document.querySelector('#captions').scrollWidth") <= 320


async def test_a_page_with_a_token_passes_it_on() -> None:
    async with serving(token="a b&c") as running, browse(running.url + "?token=a%20b%26c") as page:
        await page.wait_for(LIVE)
        running.log.append(final(1, "private"))
        await page.wait_for(finals_are("private"))


async def test_the_daemons_input_can_be_paused() -> None:
    async with serving(token="a b") as running, browse(running.url + "?token=a%20b") as page:
        await page.wait_for(LIVE)
        await page.click("#pause")
        await page.wait_for("document.querySelector('#status-text').textContent === 'Paused'")
        assert running.own.paused
        assert await page.text("#pause-text") == "Resume"
        await page.click("#pause")
        await page.wait_for(LIVE)
        assert running.own.commands == ["pause", "resume"]
        assert await page.text("#pause-text") == "Pause"
        # Somebody else does it.
        running.own.paused = True
        running.log.append(Gap(start=1.0, end=2.0, reason="paused"))
        await page.wait_for("document.querySelector('#status-text').textContent === 'Paused'")
        assert page.problems == []
        running.log.close()
        await page.wait_for("document.querySelector('#pause').hidden")


async def test_what_was_cleared_is_shown_no_more() -> None:
    async with serving() as running, browse(running.url) as page:
        running.log.append(partial(1, "never mind", 5))
        await page.wait_for("document.querySelector('#unstable').textContent === ' mind'")
        running.log.append(Gap(start=0.0, end=0.6, reason="cleared"))
        await page.wait_for("document.querySelector('#live').hidden")
        assert "dropped" in await page.evaluate(f"{FINALS}.at(-1)")


async def test_a_daemon_without_input_says_so() -> None:
    async with serving(feed=None) as running, browse(running.url) as page:
        await page.wait_for("document.querySelector('#status-text').textContent === 'No input'")
        assert "microphone" in await page.text("#empty")
        assert await page.evaluate("document.querySelector('#pause').hidden")


async def test_the_browsers_microphone_is_captioned(tmp_path: Path) -> None:
    wav = tmp_path / "tone.wav"
    soundfile.write(wav, 0.5 * np.sin(2 * np.pi * TONE_HZ * np.arange(48_000) / 48_000), 48_000, subtype="PCM_16")
    async with serving() as running, browse(running.url, flags=fake_microphone_flags(wav)) as page:
        await page.wait_for(LIVE)
        await page.click("#microphone")
        stream = await running.streams.first()
        assert (stream.start.format, stream.start.channels) == ("s16le", 1)
        stream.log.append(partial(1, "a tone", 2))
        await page.wait_for("document.querySelector('#stable').textContent === 'a '")
        assert await page.text("#status-text") == "Your microphone"
        for _ in range(2):
            await page.click("#pause")
        while [command for command, _ in stream.commands] != ["pause", "resume"]:
            stream.written.clear()
            await within(stream.written.wait())
        assert running.own.commands == []
        while len(stream.audio) < 2 * stream.start.sample_rate:  # one second
            stream.written.clear()
            await within(stream.written.wait())
        await page.click("#microphone")
        await within(stream.finished.wait())
        await page.wait_for(finals_are(f"{len(stream.audio)} bytes"))
        await page.wait_for("document.querySelector('#microphone').getAttribute('aria-pressed') === 'false'")
        assert page.problems == []

        samples = np.frombuffer(bytes(stream.audio), dtype="<i2").astype(np.float64)
        loud = samples[np.abs(samples).argmax() :][: stream.start.sample_rate // 4]
        spectrum = np.abs(np.fft.rfft(loud * np.hanning(len(loud))))
        heard_hz = spectrum.argmax() * stream.start.sample_rate / len(loud)
        assert abs(heard_hz - TONE_HZ) < 20
        assert np.abs(samples).max() > 3000

        # And back to what the daemon hears.
        await page.click("#back")
        running.log.append(final(1, "the room"))
        await page.wait_for(finals_are("the room"))


async def test_a_refused_microphone_is_explained() -> None:
    deny = "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('no', 'NotAllowedError'); }"
    async with serving() as running, browse(running.url) as page:
        await page.wait_for(LIVE)
        await page.evaluate(f"void ({deny})")
        await page.click("#microphone")
        await page.wait_for("document.querySelector('#message').textContent.includes('refused')")
        await page.evaluate("void Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
        await page.click("#microphone")
        await page.wait_for("document.querySelector('#message').textContent.includes('no access to a microphone')")
        assert not running.streams.opened
        assert await page.evaluate(LIVE)


async def test_a_stream_that_is_refused_says_why(tmp_path: Path) -> None:
    wav = tmp_path / "tone.wav"
    soundfile.write(wav, np.zeros(16_000), 16_000, subtype="PCM_16")
    async with serving() as running, browse(running.url, flags=fake_microphone_flags(wav)) as page:
        await page.wait_for(LIVE)
        running.streams.refusal = BusyError("4 streams are open, expected at most 4: try again later")
        await page.click("#microphone")
        await page.wait_for("document.querySelector('#message').textContent.includes('4 streams are open')")
        assert await page.evaluate("!document.querySelector('#back').hidden")
