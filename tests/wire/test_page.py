"""What the captions page shows in a real browser; its modules without a DOM are tested on their own."""
# ruff: noqa: ANN401 - settings are passed on

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import soundfile

from streamer.after.correct.pipeline import edits
from streamer.engine.eventlog import EventLog
from streamer.engine.journal import Journal
from streamer.errors import AudioFileError, BusyError
from streamer.events import Error, Final, Gap, Revision, Speakers, Speech, Translation
from streamer.history import writer
from streamer.history.audio import find_spans
from streamer.history.writer import History
from streamer.server import front
from streamer.server.tokens import TokenFile
from tests.browser import Page, browse, fake_microphone_flags
from tests.builders import final, partial, ready, words
from tests.cutting import cutting
from tests.unit.outputs.finals import labelled
from tests.unit.protocols.recorded import segment
from tests.waiting import WAIT_S, until
from tests.wire.conftest import keep
from tests.wire.harness import (
    NotedRecordings,
    Running,
    added,
    bearer,
    heard,
    opened_log,
    serving,
    wait_published,
    within,
)

pytestmark = pytest.mark.slow

LIVE = "['live', 'speech'].includes(document.querySelector('#status').dataset.state)"
FINALS = "[...document.querySelectorAll('#finals .text')].map(p => p.textContent)"
LINES = "[...document.querySelectorAll('#finals p')].map((p) => p.innerText.trim())"
SPOKEN = "[...document.querySelector('#spoken').children].map(p => [p.lang, p.textContent].join(' '))"
AT_BOTTOM = "((m) => m.scrollHeight - m.scrollTop - m.clientHeight < 5)(document.querySelector('#captions'))"
TOKEN = "a b&c=+/#% and ten more"


@contextlib.asynccontextmanager
async def showing(log: EventLog | None = None, address: str = "", **more: Any) -> AsyncIterator[tuple[Running, Page]]:
    """Run a server, and show its page."""
    async with serving(log, **more) as running, browse(running.url + address) as page:
        yield running, page


async def sees(page: Page, selector: str, text: str) -> None:
    """Wait until an element has a text; `...` stands for any at its beginning or end."""
    found = f"(document.querySelector({json.dumps(selector)})?.textContent ?? '')"
    part = text.strip(".") if "..." in text else ""
    await page.wait_for(f"{found}.includes({json.dumps(part)})" if part else f"{found} === {json.dumps(text)}")


async def finals_are(page: Page, *texts: str) -> None:
    await page.wait_for(f"JSON.stringify({FINALS}) === JSON.stringify({json.dumps(texts)})")


async def type_into(page: Page, selector: str, text: str) -> None:
    field = f"document.querySelector({json.dumps(selector)})"
    await page.evaluate(f"{field}.value = {json.dumps(text)}; {field}.dispatchEvent(new Event('input'))")


async def press_enter(page: Page, selector: str) -> None:
    await page.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
    for kind in ("keyDown", "keyUp"):
        await page.command("Input.dispatchKeyEvent", type=kind, key="Enter", windowsVirtualKeyCode=13, text="\r")


async def saved(page: Page, format: str = "txt") -> str:
    """Save the transcript and return what would be in the file."""
    text = await page.evaluate(
        "(async () => { const saved = new Promise((resolve) => {"
        "   URL.createObjectURL = (blob) => (resolve(blob.text()), 'blob:x');"
        "   HTMLAnchorElement.prototype.click = () => {}; });"
        " document.querySelector('[data-opens=save]').click();"
        f" document.querySelector('#save [value={format}]').click(); return await saved; }})()"
    )
    return str(text)


def revised(of: Final, text: str, *speakers: str) -> Revision:
    """Return a revision with speakers of its words."""
    return Revision(
        of=of.seq, by="x", text=text, words=labelled(final(text), *speakers).words, edits=edits(of.text, text)
    )


async def test_words_appear_settle_and_become_final_and_markup_is_text() -> None:
    evil = "<img src=x onerror=\"document.title='hit'\"> & <b>bold</b>"
    async with showing() as (running, page):
        await page.wait_for(LIVE)
        await sees(page, "#details", "nano.en...")
        running.log.append(Speech(state="start", time=0.1))
        await page.wait_for("document.querySelector('#status').dataset.state === 'speech'")
        running.log.append(partial("good 👋 morning every", len("good 👋 morning")))
        await sees(page, "#unstable", " every")
        assert await page.text("#stable") == "good 👋 morning"
        colours = "['stable', 'unstable'].map((id) => getComputedStyle(document.getElementById(id)).color)"
        assert len(set(await page.evaluate(colours))) == 2
        running.log.append(final("good 👋 morning everybody"))
        running.log.append(partial(evil, 5, segment=1))
        await sees(page, "#unstable", "...bold...")
        running.log.append(Gap(start=65.0, end=66.2, reason="cleared"))
        await page.wait_for("document.querySelector('#live').hidden")
        running.log.append(final(evil, segment=2))
        await finals_are(page, "good 👋 morning everybody", "01:05 – 01:07 missing: what was said was dropped", evil)
        assert await page.evaluate("document.querySelectorAll('#finals img, #finals b').length") == 0
        assert (await page.evaluate("document.title"), page.problems) == ("Live captions", [])


async def test_a_screen_reader_speaks_finals_and_nothing_else() -> None:
    live = "[role=log], [role=status], [role=alert], [aria-live]:not([aria-live=off]), [role=marquee], [role=timer]"
    log = opened_log()
    for n in range(1, 11):
        log.append(final(f"old {n}", segment=n))
    async with showing(log) as (running, page):
        assert await page.evaluate(f"[...document.querySelectorAll('{live}')].map(e => e.id)") == ["spoken"]
        await page.wait_for(f"{SPOKEN}.at(-1) === 'en old 10'")
        assert await page.evaluate(f"{SPOKEN}.length") == 3  # of a replay
        running.log.append(Speech(state="start", time=0.1))
        running.log.append(partial("and so", 3, segment=11))
        running.log.append(Gap(start=65.0, end=66.2, reason="overrun"))
        running.log.append(final("شكرا لكم.", segment=12, language="ar", speaker="mic"))
        await page.wait_for(f"{SPOKEN}.join() === 'ar mic: شكرا لكم.'")
        last = "[...document.querySelectorAll('#finals .text')].at(-1)"
        of_last = f"[{last}.lang, {last}.dir, getComputedStyle({last}).direction]"
        assert await page.evaluate(of_last) == ["ar", "auto", "rtl"]


async def test_a_line_changes_in_place_and_shows_on_request_what_was_written_first() -> None:
    async with showing() as (running, page):
        await page.evaluate(
            "window.heard = []; new MutationObserver((found) => found.forEach(({ addedNodes }) =>"
            " heard.push(...[...addedNodes].map((p) => p.textContent))))"
            ".observe(document.querySelector('#spoken'), { childList: true })"
        )
        first, second = (running.log.append(final(text, segment=n)) for n, text in enumerate(("from shavon", "and on")))
        await page.wait_for("heard.join() === 'from shavon,and on'")
        running.log.append(revised(first, "from Siobhan"))
        await page.wait_for("heard[2] === 'Corrected: from Siobhan'")
        assert await page.evaluate(LINES) == ["from Siobhan", "and on"]
        assert await page.text(".changed") == "Siobhan"
        await press_enter(page, ".revised")
        assert await page.evaluate("document.querySelector('.revised').ariaExpanded") == "true"
        # Only who speaks is news: it is shown, what is open stays so, and nothing is read again.
        running.log.append(revised(first, "from Siobhan", "S1", "S3"))
        running.log.append(revised(second, "and on", "S1", "S1"))
        await page.wait_for(f"{LINES}.at(-1).startsWith('S1')")
        running.log.append(Speakers(same=("S3", "S1")))
        running.log.append(Translation(of=second.seq, text="und weiter", language="de"))
        await page.wait_for("document.querySelector('.translation')?.lang === 'de'")
        assert await page.evaluate(LINES) == ["S1\nfrom Siobhan\nAt first: from shavon", "and on\nund weiter"]
        assert await page.evaluate("document.activeElement.ariaExpanded") == "true"
        assert await page.evaluate("heard.length") == 3
        assert await saved(page) == "S1: from Siobhan\nand on\n"
        assert page.problems == []


COPIED = """
00:00 The first African American community was founded here.
00:20
S1
Go ahead
S2
please now Good night.
Gute Nacht.
شكرا لكم.
01:05 – 01:07 missing: audio was lost before it could be read

01:10 and so it goes
"""


async def test_text_that_is_copied_has_the_spaces_and_lines_of_the_page() -> None:
    log = opened_log()
    log.append(final("The first African American"))
    log.append(final("community was founded here.", start=2.0, segment=1))
    log.append(labelled(final("Go ahead please now", start=20.0, segment=2), "S1", "S1", "S2", "S2"))
    night = log.append(final("Good night.", start=22.0, segment=3, speaker="S2"))
    log.append(final("شكرا لكم.", start=23.0, segment=4, speaker="S2", language="ar"))
    log.append(Translation(of=night.seq, text="Gute Nacht.", language="de"))
    log.append(Gap(start=65.0, end=66.2, reason="overrun"))
    log.append(partial("and so it goes", 6, start=70.0, segment=9))
    async with showing(log) as (running, page):
        await page.wait_for("document.querySelector('.translation') && document.querySelector('#spoken p')")
        await page.click("#display [name=times]")
        await page.command("Emulation.setFocusEmulationEnabled", enabled=True)
        await page.command("Browser.grantPermissions", permissions=["clipboardReadWrite"], origin=running.url)
        await page.evaluate("getSelection().selectAllChildren(document.body); document.execCommand('copy')")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert COPIED in copied.replace("\r\n", "\n")
        assert copied.count("Good night.") == 1  # without what is there for screen readers only


async def test_the_page_is_legible_in_either_scheme_and_at_every_size(history: History) -> None:
    log = Journal("own", 1000, keep=history.keeper(source="microphone"))
    log.append(ready())
    async with showing(log, history_file=history) as (running, page):
        running.health["notice"] = "nano.en knows few words"
        await page.wait_for(LIVE)
        said = log.append(labelled(final("they said shavon"), "S1", "S1", "S2"))
        log.append(revised(said, "they said Siobhan", "S1", "S1", "S2"))
        log.append(Translation(of=said.seq, text="sie sagten Siobhan", language="de"))
        for n in range(1, 10):
            text = "we have a long word, Donaudampfschifffahrtsgesellschaft"
            log.append(final(text, segment=n, words=words(text, probability=0.3), speaker=str(n % 6)))
        log.append(Error(code="x", message="the microphone is gone: plug it in again", fatal=False))
        log.append(partial("and so", 3, segment=11))
        await sees(page, "#unstable", " so")
        for selector in ("#display [name=times]", "#display [name=doubts]", ".revised", "#find"):
            await page.click(selector)
        grounds = set()
        for scheme in ("light", "dark"):
            media = [{"name": "prefers-color-scheme", "value": scheme}]
            await page.command("Emulation.setEmulatedMedia", features=media)
            assert await page.violations() == []
            grounds.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2
        for dialog in ("display", "save", "sessions"):
            await page.click(f"[data-opens={dialog}]")
            assert await page.violations(f"#{dialog}") == []
            await page.click(f"#{dialog} .close")
        await page.click("#find")
        await page.resize(800, 200)
        assert await page.violations() == []  # its buttons have no text there


@pytest.mark.parametrize(("width", "height"), [(320, 640), (844, 390)])
async def test_on_a_phone_nothing_is_cut_off_and_a_thumb_finds_each_button(width: int, height: int) -> None:
    hidden = "parseFloat(document.querySelector('#captions').style.getPropertyValue('--cut')) || 0"
    boxes = (
        "(() => { const { top } = document.querySelector('#captions').getBoundingClientRect();"
        " return [...document.querySelectorAll('#text .text')].flatMap((text) => [...text.getClientRects()])"
        ".map((box) => [box.top - top, box.bottom - top]); })()"
    )
    small = (
        "[...document.querySelectorAll('body > :not(dialog) button')].filter((one) => one.checkVisibility())"
        ".filter((one) => Math.min(one.offsetWidth, one.offsetHeight) < 44).map(({ id }) => id)"
    )
    async with showing() as (running, page):
        await page.command("Emulation.setTouchEmulationEnabled", enabled=True)
        await page.resize(width, height, phone=True)
        await page.wait_for("!document.querySelector('#pause').hidden")
        assert await page.evaluate(small) == []
        n_cut = 0
        for n in range(1, 21):  # no half line is seen at the top
            text = f"{n}: " + " ".join(["words"] * (5 + n % 7))
            running.log.append((final if n % 2 else partial)(text, start=7.0 * n, segment=n + 1 - n % 2))
            await sees(page, "#text", f"...{n}:...")
            await page.evaluate("new Promise((resolve) => requestAnimationFrame(() => resolve()))")
            cut = [bottom for above, bottom in await page.evaluate(boxes) if above < -1 and bottom > 1]
            n_cut += bool(cut)
            assert max(cut, default=0) - 1 <= await page.evaluate(hidden) < (1000 if cut else 3)
        assert n_cut > 2
        state = "document.querySelector('#status-text')"
        await page.evaluate(f"{state}.textContent = 'Reconnecting…'")
        assert await page.evaluate(f"{state}.scrollWidth <= {state}.clientWidth")
        running.log.append(final("Donaudampfschifffahrtsgesellschaft " * 2, segment=99))
        await sees(page, "#text", "...Donau...")
        for part in ("documentElement", "querySelector('#captions')"):
            assert await page.evaluate(f"document.{part}.scrollWidth") <= width


@pytest.mark.parametrize("path", ["overlay", "settings"])
async def test_axe_core_finds_nothing_serious_on_other_pages(path: str) -> None:
    async with showing(None, path) as (running, page):
        running.log.append(partial("Good morning everybody.", 23))  # clients that connect later get it, too
        await page.wait_for("document.body.innerText.length")
        assert [found for found in await page.violations() if found.startswith(("serious", "critical"))] == []


async def test_captions_are_searched_and_earlier_sessions_opened(history: History) -> None:
    keep(history, "earlier", *(f"number {n}" + " [laughs] a[0]" * (n == 7) for n in range(600)))
    log = opened_log()
    log.append(final("Good morning"))
    async with showing(log, history_file=history) as (_, page):
        await finals_are(page, "Good morning")
        await page.click("[data-opens=sessions]")
        await sees(page, "#sessions-list .about", "...mic · 01:31 · English · nano.en")
        await type_into(page, "#sessions-query", "NUMBER 7")
        await page.wait_for("document.querySelectorAll('#sessions-list mark').length === 2")
        assert await page.text("#sessions-list span") == "number 7 [laughs] a[0]"
        await page.click("#sessions-list button")
        await sees(page, "#finals .current", "...number 7...")
        assert not await page.evaluate("document.querySelector('#sessions').open")
        await page.click("#find")
        await type_into(page, "#query", "Number 59")
        assert await page.text("#hits") == "11 found"
        for shown in ("11 of 11", "10 of 11"):
            await page.click("#previous")
            assert await page.text("#hits") == shown
        await page.command("Input.dispatchKeyEvent", type="keyDown", key="Escape")
        assert await page.evaluate("document.querySelector('#search').hidden && document.activeElement.id === 'find'")
        assert (await saved(page, "srt")).startswith("1\n00:00:00,000 --> 00:00:00,700\nnumber 0\n\n2\n")
        await page.click("#back")
        await finals_are(page, "Good morning")
        assert page.problems == []


async def test_a_line_is_played_and_one_without_audio_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PUBLISH_TIMEOUT_S", WAIT_S)
    marks = "[...document.querySelectorAll('#finals p')].map(p => p.querySelector('button.play')?.ariaLabel ?? '')"
    kept = "document.querySelector('#kept').checkVisibility()"
    async with showing() as (_, page):
        await page.wait_for(LIVE)
        assert not await page.evaluate(kept)
    with contextlib.closing(History(tmp_path / "history.db", audio=True)) as history:
        log = Journal("now", 1000, keep=history.keeper(source="microphone"))
        log.append(ready())
        history.audio_keeper("now")(48_000, np.zeros(32_000, np.float32))
        log.append(final("long ago"))
        log.append(final("with sound", start=3.0, segment=1))
        await until(lambda: find_spans(history, "now") == [(48_000, 80_000)])
        async with showing(log, history_file=history) as (_, page):
            await page.wait_for(f"{kept} && document.querySelector('#kept-audio').checkVisibility()")
            await finals_are(page, "long ago", "with sound")
            assert await page.evaluate(marks) == ["Play what was said at 00:00", "Play what was said at 00:03"]
            # Half a second of sound may pass unseen on a busy machine: each change of the mark is noted.
            await page.evaluate(
                "globalThis.seen = []; new MutationObserver(() => { const label = document.activeElement.ariaLabel;"
                " if (label !== seen.at(-1)) seen.push(label); })"
                ".observe(document.querySelector('#finals'), { childList: true });"
            )
            await press_enter(page, "#finals p:nth-of-type(2) .play")
            await page.wait_for("seen.join() === 'Stop what was said at 00:03,Play what was said at 00:03'")
            assert (await page.text("#message"), page.problems) == ("", [])
            await page.click("#finals p:nth-of-type(1) .play")
            await page.wait_for("!document.querySelector('#message').hidden")
            assert await page.evaluate(marks) == ["", "Play what was said at 00:03"]
            log.close()
            await asyncio.to_thread(wait_published, log)
            await page.click("[data-opens=sessions]")
            await page.wait_for("document.querySelectorAll('#sessions-list li').length === 1")
            await page.click("#sessions-list button")
            await page.wait_for(f"{marks}.join() === ',Play what was said at 00:03'")


async def test_a_file_is_transcribed(tmp_path: Path) -> None:
    path = tmp_path / "talk.wav"
    soundfile.write(path, np.zeros(64_000), 16_000, subtype="PCM_16")
    drop = (
        "(() => { const data = new DataTransfer(); data.items.add(new File(['RIFF'], 'talk.wav'));"
        " window.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true })); })()"
    )
    more = asyncio.Event()
    recordings = NotedRecordings(segment(1, "Ask not", 1.0), more, segment(2, "what.", 2.0))
    async with showing(recordings=recordings) as (_, page):
        await page.wait_for(LIVE)
        node = await page.command("Runtime.evaluate", expression="document.querySelector('#file')")
        await page.command("DOM.setFileInputFiles", files=[str(path)], objectId=node["result"]["objectId"])
        await finals_are(page, "Ask not")
        assert recordings.opened[0].audio == path.read_bytes()
        await sees(page, "#job-text", "talk.wav: 00:01 of 00:04")
        assert 0 < await page.evaluate("document.querySelector('#job-progress').value") < 1
        more.set()
        await page.wait_for("document.querySelector('#job').hidden")
        assert await page.evaluate(FINALS) == ["Ask not", "what."]
        assert (await saved(page, "vtt")).startswith("WEBVTT\n\n00:00:01.000 --> 00:00:01.")
        recordings.items = [AudioFileError("the recording has no audio")]
        await page.evaluate(drop)
        await sees(page, "#message", "...the recording has no audio...")
        assert await page.evaluate("document.activeElement.id") == "message"
        recordings.items = [asyncio.Event()]
        await page.evaluate(drop)
        await sees(page, "#job-text", "...listening...")
        await page.click("#job-cancel")
        await within(recordings.opened[-1].closed.wait())
        await page.click("#back")
        await page.wait_for(LIVE)


async def test_the_page_comes_back_after_a_restart_and_shows_nothing_twice() -> None:
    log = opened_log()
    log.append(final("before"))
    async with showing(log) as (running, page):
        await finals_are(page, "before")
        port = running.port
        await running.server.stop()
        log.append(final("meanwhile", segment=2))
        async with serving(log, port=port):
            await finals_are(page, "before", "meanwhile")
            log.append(partial("it has settled but not", len("it has settled"), segment=4))
            await sees(page, "#stable", "it has settled")
        texts = ("before", "meanwhile", "it has settled")
        assert (await saved(page)).splitlines() == list(texts)  # while the daemon is away
        new = opened_log("another session")
        new.append(final("new run"))
        async with serving(new, port=port):
            await finals_are(page, *texts, "the daemon was restarted", "new run")
            assert (await saved(page)).splitlines() == [*texts, "[the daemon was restarted]", "new run"]
            new.append(Error(code="history_lost", message="x", fatal=False))
            await page.wait_for(f"{FINALS}.at(-1).startsWith('captions are missing here')")


async def test_the_page_follows_the_bottom_and_does_not_grow_for_ever() -> None:
    size = "parseFloat(getComputedStyle(document.querySelector('.column')).fontSize)"
    async with showing(queue_events=10_000) as (running, page):
        await page.wait_for(LIVE)
        await page.evaluate("[window.held, window.frame] = [[], requestAnimationFrame]")
        await page.evaluate("void (window.requestAnimationFrame = (frame) => held.push(frame))")
        for n in range(1, 701):
            running.log.append(final(f"number {n}", segment=n))
        await page.wait_for(f"{FINALS}.at(-1) === 'number 700'")
        assert await page.evaluate("held.length") == 1  # what comes within a frame is laid out once
        await page.evaluate("void (window.requestAnimationFrame = window.frame); held[0]()")
        await page.wait_for(AT_BOTTOM)
        assert await page.evaluate(f"{FINALS}.length") == 500
        assert (await saved(page)).splitlines() == [f"number {n}" for n in range(1, 701)]
        await page.evaluate("document.querySelector('#captions').scrollTop = 100")
        await page.wait_for("!document.querySelector('#jump').hidden")
        running.log.append(final("new", segment=701))
        await page.wait_for(f"{FINALS}.at(-1) === 'new'")
        assert not await page.evaluate(AT_BOTTOM)
        await page.click("#jump")
        await page.wait_for(f"{AT_BOTTOM} && document.querySelector('#jump').hidden")
        await page.click("#earlier")
        assert await page.evaluate(f"[{FINALS}.length, {FINALS}[0]]") == [701, "number 1"]
        before = await page.evaluate(size)
        await page.click("#larger")
        larger = await page.evaluate(size)
        await page.goto(running.url)  # it is remembered
        assert await page.evaluate(size) == larger > before


async def test_a_token_leaves_the_address_and_stays_with_the_tab() -> None:
    async with showing(None, f"?after=1&token={quote(TOKEN, safe='')}", token=TOKEN) as (running, page):
        await page.wait_for(LIVE)
        assert await page.evaluate("location.href") == running.url + "?after=1"
        running.log.append(final("private"))
        await finals_are(page, "private")
        await page.goto(running.url)  # with nothing but what the tab keeps
        await finals_are(page, "private")
        await page.click("#pause")
        await sees(page, "#status-text", "Paused")
        assert "token" not in "".join(page.problems)


async def test_a_rooms_page_shows_what_is_said_there_and_how_a_phone_gets_there(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    stage, audience = added(file, "main"), added(file, "audience", scopes=("read",))
    follow = "getComputedStyle(document.querySelector('#follow')).display"
    async with (
        serving(token_file=str(file), origins=["http://hall.example"], input=None) as running,
        browse(width=1400, height=800, flags=("--host-resolver-rules=MAP hall.example 127.0.0.1",)) as page,
    ):
        url = running.url.replace("127.0.0.1", "hall.example")
        await page.goto(f"{url}room/main#token={audience}")
        await sees(page, "#title", "main")
        await sees(page, "#empty", "No speech in this room yet.")
        await page.wait_for("document.querySelector('#code').naturalWidth > 0")
        assert await page.evaluate(follow) == "block"
        assert await page.text("#follow-address") == url.removeprefix("http://") + "room/main"
        hidden = "['pause', 'microphone', 'choose'].every((id) => document.getElementById(id).hidden)"
        await page.wait_for(hidden)
        async with running.socket("/v1/stream", additional_headers=bearer(stage)) as speaker:
            await speaker.send('{"type":"start","room":"main"}')
            stream = await running.streams.first()
            stream.log.append(final("good morning everybody"))
            await finals_are(page, "good morning everybody")
            await page.resize(400, 800)
            assert await page.evaluate(follow) == "none"
        # A token that may do more is not for everybody's eyes.
        await page.goto(f"{url}room/main#token={stage}")
        await sees(page, "#microphone-text", "Speak in this room")
        await page.wait_for("!document.querySelector('#microphone').hidden")
        assert await page.evaluate("document.querySelector('#follow').hidden")
        assert page.problems == []


async def test_a_page_asks_for_a_token_that_is_missing_wrong_or_revoked_and_does_not_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "TOKENS_S", 0.02)
    path = tmp_path / "tokens.json"
    secret = added(path, "display", scopes=("read",))
    fill = "document.querySelector('#token').value = {}; document.querySelector('#token-form button').click()"
    asks = "!document.querySelector('#token-form').hidden"
    async with showing(token_file=str(path)) as (running, page):
        await page.wait_for(asks)
        await sees(page, "#status-text", "Token required")
        await page.evaluate("window.timers = 0; window.setTimeout = () => { timers += 1; }")
        await page.evaluate(fill.format(json.dumps("wrong ö")))
        await sees(page, "#status-text", "Wrong token")
        assert await page.evaluate("timers") == 0  # it waits for nothing but its user
        await page.goto(running.url)
        await page.wait_for(asks)
        await page.evaluate(fill.format(json.dumps(f" {secret} ")))
        await page.wait_for(f"{LIVE} && !({asks})")
        assert secret not in await page.evaluate("location.href")
        await page.click("#pause")
        await sees(page, "#message", "...scope control...")
        TokenFile(path).change(lambda _: ())
        await page.wait_for(asks)


async def test_the_daemons_input_can_be_paused_by_several() -> None:
    async with showing() as (running, page):
        await page.wait_for(LIVE)
        await page.click("#pause")
        await sees(page, "#status-text", "Paused")
        assert (running.own.paused, await page.text("#pause-text")) == (True, "Resume for everybody")
        await page.click("#pause")
        await page.wait_for(LIVE)
        assert running.own.commands == ["pause", "resume"]
        running.own.paused = True  # another does it
        running.log.append(Gap(start=1.0, end=2.0, reason="paused"))
        await sees(page, "#status-text", "Paused")
        running.log.close()
        await page.wait_for("document.querySelector('#pause').hidden")
    async with showing(input=None) as (_, page):
        await sees(page, "#status-text", "No input")
        await sees(page, "#empty", "...microphone...")


async def test_the_browsers_microphone_is_captioned(tmp_path: Path) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 1000.0 * np.arange(48_000) / 48_000)
    soundfile.write(tmp_path / "tone.wav", tone, 48_000, subtype="PCM_16")
    async with (
        serving() as running,
        cutting(running.port) as proxy,
        browse(f"http://127.0.0.1:{proxy.port}/", flags=fake_microphone_flags(tmp_path / "tone.wav")) as page,
    ):
        await page.wait_for(LIVE)
        running.streams.refusal = BusyError("4 streams are open")
        await page.click("#microphone")
        await sees(page, "#message", "...4 streams are open...")
        await page.click("#back")
        await page.wait_for(LIVE)
        running.streams.refusal = None
        await page.click("#microphone")
        stream = await running.streams.first()
        assert (stream.start.format, stream.start.channels) == ("s16le", 1)
        stream.log.append(partial("a tone", 2, segment=1))
        await sees(page, "#stable", "a ")
        for shown in ("Muted", "Your microphone"):
            await page.click("#mute")
            assert await page.text("#status-text") == shown
            pressed = await page.evaluate("document.querySelector('#mute').getAttribute('aria-pressed')")
            assert pressed == str(shown == "Muted").lower()
        for _ in range(2):
            await page.click("#pause")
        await until(lambda: [command for command, _ in stream.commands] == ["pause", "resume"])
        assert running.own.commands == []
        proxy.cut()
        await sees(page, "#status-text", "Reconnecting…")
        await sees(page, "#status-text", "Your microphone")
        await heard(stream, 2 * stream.start.sample_rate)  # one second
        await page.click("#microphone")
        await within(stream.finished.wait())
        await finals_are(page, f"{len(stream.audio)} bytes")
        assert page.problems == []
        samples = np.frombuffer(bytes(stream.audio), dtype="<i2").astype(np.float64)
        loud = samples[np.abs(samples).argmax() :][: stream.start.sample_rate // 4]
        spectrum = np.abs(np.fft.rfft(loud * np.hanning(len(loud))))
        assert abs(spectrum.argmax() * stream.start.sample_rate / len(loud) - 1000.0) < 20
        assert np.abs(samples).max() > 3000
        await page.click("#back")  # to what the daemon transcribes
        running.log.append(final("the room"))
        await finals_are(page, "the room")


async def test_a_refused_microphone_is_explained() -> None:
    deny = "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('no', 'NotAllowedError'); }"
    none = "Object.defineProperty(navigator, 'mediaDevices', { value: undefined })"
    async with showing() as (_, page):
        await page.wait_for(LIVE)
        for broken, said in ((deny, "...refused..."), (none, "...no access to a microphone...")):
            await page.evaluate(f"void ({broken})")
            await page.click("#microphone")
            await sees(page, "#message", said)
        assert await page.evaluate(LIVE)
