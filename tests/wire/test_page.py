"""The captions page in a real browser."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np
import pytest
import soundfile

from streamer.after.correct.pipeline import edits
from streamer.engine.journal import Journal
from streamer.errors import AudioFileError, BusyError
from streamer.events import Error, Final, Gap, Revision, Speakers, Speech, Translation
from streamer.history import history as history_module
from streamer.history.audio import find_spans
from streamer.history.history import History
from streamer.server import front
from streamer.server.tokens import TokenFile, new_token
from tests.browser import Page, browse, fake_microphone_flags
from tests.builders import ready
from tests.cutting import cutting
from tests.unit.outputs.finals import labelled
from tests.unit.protocols.recorded import segment
from tests.waiting import until
from tests.wire.support import WAIT_S, final, opened_log, partial, serving, wait_published, within
from tests.wire.test_rest import NotedRecordings

pytestmark = pytest.mark.slow

LIVE = "['live', 'speech'].includes(document.querySelector('#status').dataset.state)"
FINALS = "[...document.querySelectorAll('#finals .text')].map(p => p.textContent)"
TONE_HZ = 1000.0


def finals_are(*texts: str) -> str:
    return (
        f"JSON.stringify({FINALS}) === {json.dumps(json.dumps(list(texts), ensure_ascii=False, separators=(',', ':')))}"
    )


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


async def test_the_page_says_whether_captions_are_kept(tmp_path: Path) -> None:
    shown = "document.querySelector('#kept').checkVisibility()"
    async with serving() as running, browse(running.url) as page:
        await page.wait_for(LIVE)
        assert not await page.evaluate(shown)
    with contextlib.closing(History(tmp_path / "history.db").start()) as history:
        async with serving(history_file=history) as running, browse(running.url) as page:
            await page.wait_for(shown)
            kept = await page.evaluate("document.querySelector('#kept').innerText")
            assert kept == "These captions are kept: the daemon writes what is said to a file."


async def test_a_screen_reader_speaks_finals_and_nothing_else() -> None:
    live = "[role=log], [role=status], [role=alert], [aria-live]:not([aria-live=off]), [role=marquee], [role=timer]"
    spoken = "[...document.querySelector('#spoken').children].map(p => [p.lang, p.textContent].join(' '))"
    log = opened_log()
    for n in range(1, 11):
        log.append(final(n, f"old {n}"))
    async with serving(log) as running, browse(running.url) as page:
        assert await page.evaluate(f"[...document.querySelectorAll('{live}')].map(e => e.id)") == ["spoken"]
        await page.wait_for(f"{spoken}.at(-1) === 'en old 10'")
        assert await page.evaluate(f"{spoken}.length") == 3  # of a replay
        running.log.append(Speech(state="start", time=0.1))
        running.log.append(partial(11, "and so", 3))
        running.log.append(Gap(start=65.0, end=66.2, reason="overrun"))
        running.log.append(msgspec.structs.replace(final(12, "شكرا لكم."), language="ar", speaker="mic"))
        await page.wait_for(f"JSON.stringify({spoken}) === JSON.stringify(['ar mic: شكرا لكم.'])")
        last = "[...document.querySelectorAll('#finals .text')].at(-1)"
        assert await page.evaluate(f"[{last}.lang, {last}.dir, getComputedStyle({last}).direction]") == [
            "ar",
            "auto",
            "rtl",
        ]
        assert await page.evaluate("getComputedStyle(document.querySelector('#finals .text')).direction") == "ltr"
        assert await page.text("#finals .who") == "mic"


async def test_a_line_changes_in_place_and_shows_on_request_what_was_written_first() -> None:
    lines = "[...document.querySelectorAll('#finals p')].map((p) => p.innerText.trim())"
    async with serving() as running, browse(running.url) as page:

        def revise(of: Final, text: str, *speakers: str) -> None:
            words = labelled(final(1, text), *speakers).words
            running.log.append(Revision(of=of.seq, by="x", text=text, words=words, edits=edits(of.text, text)))

        await page.evaluate(
            "window.heard = []; new MutationObserver((found) => found.forEach(({ addedNodes }) =>"
            " heard.push(...[...addedNodes].map((p) => p.textContent))))"
            ".observe(document.querySelector('#spoken'), { childList: true })"
        )
        first, second = (running.log.append(final(n, text)) for n, text in ((1, "from shavon"), (2, "the next")))
        await page.wait_for("heard.join() === 'from shavon,the next'")
        revise(first, "from Siobhan")
        await page.wait_for("heard[2] === 'Corrected: from Siobhan'")
        assert await page.evaluate(lines) == ["from Siobhan", "the next"]
        assert await page.text(".changed") == "Siobhan"
        await page.evaluate("document.querySelector('.revised').focus()")
        for kind in ("keyDown", "keyUp"):
            await page.command("Input.dispatchKeyEvent", type=kind, key="Enter", windowsVirtualKeyCode=13, text="\r")
        assert await page.evaluate("document.querySelector('.revised').ariaExpanded") == "true"
        assert await page.evaluate("document.querySelector('.first').checkVisibility()")
        assert await page.text(".first") == "At first: from shavon"

        # Only who speaks is news: it is shown, what is open stays so, and nothing is read again.
        revise(first, "from Siobhan", "S1", "S3")
        revise(second, "the next", "S1", "S1")
        await page.wait_for(f"{lines}.at(-1).startsWith('S1')")
        running.log.append(Speakers(same=("S3", "S1")))
        running.log.append(Translation(of=second.seq, text="der nächste", language="de"))
        await page.wait_for("document.querySelector('.translation')?.lang === 'de'")
        assert await page.evaluate(lines) == ["S1\nfrom Siobhan\nAt first: from shavon", "the next\nder nächste"]
        assert await page.evaluate("document.activeElement.ariaExpanded") == "true"
        revise(running.log.append(final(3, "and shavon")), "and Siobhan")
        await page.wait_for("heard.at(-1).endsWith('and Siobhan')")
        assert len(await page.evaluate("heard")) in (4, 5)  # it is read once, but where the page was slow
        assert await saved(page) == "S1: from Siobhan\nthe next\nand Siobhan\n"
        assert page.problems == []


COPIED = """
00:00 The first African American community was founded here.
00:20 A paragraph. It goes on.
00:40
S1
Go ahead
S2
please now Good night.
Gute Nacht.
شكرا لكم. مع السلامة.
01:05 – 01:07 missing: audio was lost before it could be read

01:10 and so it goes
"""


async def test_text_that_is_copied_has_the_spaces_and_lines_of_the_page() -> None:
    log = opened_log()
    texts = ("The first African American", "community was founded here.", "A paragraph.", "It goes on.")
    for n, (start, text) in enumerate(zip((0.0, 2.0, 20.0, 21.0), texts, strict=True)):
        log.append(final(n, text, start))
    log.append(labelled(final(5, "Go ahead please now", 40.0), "S1", "S1", "S2", "S2"))
    said = [
        log.append(msgspec.structs.replace(final(n, text, 36.0 + n), language=language, speaker="S2"))
        for n, (text, language) in enumerate((("Good night.", "en"), ("شكرا لكم.", "ar"), ("مع السلامة.", "ar")), 6)
    ]
    log.append(Translation(of=said[0].seq, text="Gute Nacht.", language="de"))
    log.append(Gap(start=65.0, end=66.2, reason="overrun"))
    log.append(partial(9, "and so it goes", 6, 70.0))
    async with serving(log) as running, browse(running.url) as page:
        await page.wait_for("document.querySelector('.translation') && document.querySelector('#spoken p')")
        await page.click("#display [name=times]")
        await page.command("Emulation.setFocusEmulationEnabled", enabled=True)
        await page.command("Browser.grantPermissions", permissions=["clipboardReadWrite"], origin=running.url)
        await page.evaluate("getSelection().selectAllChildren(document.body); document.execCommand('copy')")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert COPIED in copied.replace("\r\n", "\n")
        assert copied.count("Good night.") == 1  # without what is there for screen readers only


async def test_the_page_is_legible_in_either_scheme_and_at_every_size(tmp_path: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    inside = "[...document.querySelectorAll('#finals p')].filter((p) => p.getBoundingClientRect().top >= {}).length"
    with contextlib.closing(History(tmp_path / "history.db").start()) as history:
        log = Journal("own", 1000, keep=history.keeper(source="microphone"))
        log.append(ready())
        async with serving(log, history_file=history) as running, browse(running.url) as page:
            running.health["notice"] = "nano.en knows few words"
            await page.wait_for(LIVE)
            said = log.append(labelled(final(0, "they said shavon"), "S1", "S1", "S2"))
            words = labelled(final(0, "they said Siobhan"), "S1", "S1", "S2").words
            new = edits(said.text, "they said Siobhan")
            log.append(Revision(of=said.seq, by="glossary", text="they said Siobhan", words=words, edits=new))
            log.append(Translation(of=said.seq, text="sie sagten Siobhan", language="de"))
            for n in range(1, 10):
                long = final(n, "we have a long word, Donaudampfschifffahrtsgesellschaft")
                doubted = tuple(msgspec.structs.replace(word, probability=0.3) for word in long.words)
                log.append(msgspec.structs.replace(long, words=doubted, speaker=str(n % 6)))
            log.append(Error(code="x", message="the microphone is gone: plug it in again", fatal=False))
            log.append(partial(11, "and so", 3))
            await page.wait_for("document.querySelector('#unstable').textContent === ' so'")
            for name in ("times", "doubts"):
                await page.click(f"#display [name={name}]")
            await page.click(".revised")
            await page.click("#find")
            grounds = set()
            for scheme in ("light", "dark"):
                await page.command(
                    "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
                )
                assert await page.violations() == []
                grounds.add(await page.evaluate(ground))
            assert len(grounds) == 2
            for dialog in ("display", "save", "sessions"):
                await page.click(f"[data-opens={dialog}]")
                assert await page.violations(f"#{dialog}") == []
                await page.click(f"#{dialog} .close")
            await page.click("#find")
            await page.evaluate("document.querySelectorAll('#display [type=checkbox]').forEach((box) => box.click())")
            await page.resize(800, 200)
            await page.wait_for(
                f"{inside.format('document.querySelector(`#captions`).getBoundingClientRect().top')} > 1"
            )
            assert await page.violations() == []  # its buttons have no text there
            await page.resize(320, 640, phone=True)
            for part in ("documentElement", "querySelector('#captions')"):
                assert await page.evaluate(f"document.{part}.scrollWidth") <= 320


@pytest.mark.parametrize("path", ["overlay", "settings"])
async def test_axe_core_finds_nothing_serious_on_other_pages(path: str) -> None:
    async with serving() as running, browse(running.url + path) as page:
        running.log.append(partial(1, "Good morning everybody.", 23))  # clients that connect later get it, too
        await page.wait_for("document.body.innerText.length")
        assert [found for found in await page.violations() if found.startswith(("serious", "critical"))] == []


async def test_captions_are_searched_and_earlier_sessions_opened(history: History) -> None:
    earlier = Journal("earlier", 1000, keep=history.keeper(source="microphone"))
    earlier.append(ready())
    for n in range(1, 601):
        earlier.append(final(n, f"number {n}" + " [laughs] a[0]" * (n == 7), start=3.0 * n))
    earlier.close()
    wait_published(earlier)
    log = opened_log()
    log.append(final(1, "Good morning"))
    async with serving(log, history_file=history) as running, browse(running.url) as page:
        await page.wait_for(finals_are("Good morning"))
        await page.click("[data-opens=sessions]")
        await page.wait_for("document.querySelectorAll('#sessions-list li').length === 1")
        assert "microphone · 30:00 · English · nano.en" in await page.text("#sessions-list .about")
        search = "((field) => {{ field.value = '{}'; field.dispatchEvent(new Event('input')); }})({})"
        await page.evaluate(search.format("NUMBER 7", "document.querySelector('#sessions-query')"))
        await page.wait_for("document.querySelectorAll('#sessions-list mark').length === 2")
        assert await page.text("#sessions-list span") == "number 7 [laughs] a[0]"
        await page.click("#sessions-list button")
        await page.wait_for("document.querySelector('#finals .current')?.textContent.includes('number 7')")
        assert not await page.evaluate("document.querySelector('#sessions').open")
        await page.click("#find")
        await page.evaluate(search.format("Number 60", "document.querySelector('#query')"))
        assert await page.text("#hits") == "2 found"
        for shown in ("2 of 2", "1 of 2", "2 of 2"):
            await page.click("#previous")
            assert await page.text("#hits") == shown
        await page.command("Input.dispatchKeyEvent", type="keyDown", key="Escape")
        assert await page.evaluate("document.querySelector('#search').hidden && document.activeElement.id === 'find'")
        assert (await saved(page, "srt")).startswith("1\n00:00:03,000 --> 00:00:03,700\nnumber 1\n\n2\n")
        await page.click("[data-opens=sessions]")
        await page.evaluate(search.format("", "document.querySelector('#sessions-query')"))
        await page.wait_for("document.querySelector('#sessions-list .about')?.textContent.includes('30:00')")
        await page.click("#sessions-list button")
        await page.wait_for("document.querySelector('#finals .text')?.textContent === 'number 1'")
        assert await page.evaluate("document.querySelector('#captions').scrollTop") == 0
        await page.click("#back")
        await page.wait_for(finals_are("Good morning"))
        assert page.problems == []


# Notes each change of the focused mark of the second line.
WATCH_MARK = """
document.querySelector('#finals p:nth-of-type(2) .play').focus();
globalThis.seen = [];
new MutationObserver(() => {
    const label = document.activeElement.ariaLabel;
    if (label !== seen.at(-1)) seen.push(label);
}).observe(document.querySelector('#finals'), { childList: true });
"""


async def test_a_line_is_played_and_one_without_audio_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "PUBLISH_TIMEOUT_S", WAIT_S)
    buttons = "[...document.querySelectorAll('#finals p')].map(p => p.querySelector('button.play')?.ariaLabel ?? '')"
    with contextlib.closing(History(tmp_path / "history.db").start(audio=True)) as history:
        log = Journal("now", 1000, keep=history.keeper(source="microphone"))
        log.append(ready())
        history.audio_keeper("now")(48_000, np.zeros(32_000, np.float32))
        for number, text in enumerate(("long ago", "with sound"), 1):
            log.append(final(number, text, start=3.0 * (number - 1)))
        await until(lambda: find_spans(history, "now") == [(48_000, 80_000)])
        async with serving(log, history_file=history) as running, browse(running.url) as page:
            await page.wait_for("document.querySelector('#kept-audio').checkVisibility()")
            assert "captions and their sound are kept" in await page.text("#kept")
            await page.wait_for(finals_are("long ago", "with sound"))
            assert await page.evaluate(buttons) == ["Play what was said at 00:00", "Play what was said at 00:03"]
            await page.evaluate(WATCH_MARK)  # half a second of sound may pass unseen on a busy machine
            for kind in ("keyDown", "keyUp"):
                await page.command("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r")
            once = "Stop what was said at 00:03,Play what was said at 00:03"
            await page.wait_for(f"seen.join() === '{once}'")
            click = "document.querySelector('#finals p:nth-of-type(2) .play').click();"
            await page.evaluate(3 * click)
            await page.wait_for(f"seen.join() === '{once},{once}'")
            assert await page.text("#message") == ""
            assert page.problems == []
            await page.click("#finals p:nth-of-type(1) .play")
            await page.wait_for("document.querySelector('#message').textContent.includes('no audio of this line')")
            assert await page.evaluate(buttons) == ["", "Play what was said at 00:03"]
            log.close()
            await asyncio.to_thread(wait_published, log)
            await page.click("[data-opens=sessions]")
            await page.wait_for("document.querySelectorAll('#sessions-list li').length === 1")
            await page.click("#sessions-list button")
            await page.wait_for(f'JSON.stringify({buttons}) === \'["","Play what was said at 00:03"]\'')
            assert await page.violations("#captions") == []


async def test_a_file_is_transcribed(tmp_path: Path) -> None:
    path = tmp_path / "talk.wav"
    soundfile.write(path, np.zeros(64_000), 16_000, subtype="PCM_16")
    drop = (
        "(() => { const data = new DataTransfer(); data.items.add(new File(['RIFF'], 'talk.wav'));"
        " window.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true })); })()"
    )
    recordings = NotedRecordings()
    more = asyncio.Event()
    recordings.items = [segment(1, "Ask not", 1.0), more, segment(2, "what.", 2.0)]
    async with serving(recordings=recordings) as running, browse(running.url) as page:
        await page.wait_for(LIVE)
        node = await page.command("Runtime.evaluate", expression="document.querySelector('#file')")
        await page.command("DOM.setFileInputFiles", files=[str(path)], objectId=node["result"]["objectId"])
        await page.wait_for(finals_are("Ask not"))
        assert recordings.opened[0].audio == path.read_bytes()
        await page.wait_for("document.querySelector('#job-text').textContent === 'talk.wav: 00:01 of 00:04'")
        assert 0 < await page.evaluate("document.querySelector('#job-progress').value") < 1
        more.set()
        await page.wait_for("document.querySelector('#job').hidden")
        assert await page.evaluate(FINALS) == ["Ask not", "what."]
        assert (await saved(page, "vtt")).startswith("WEBVTT\n\n00:00:01.000 --> 00:00:01.700\nAsk not\n")
        recordings.items = [AudioFileError("the recording is no audio: expected a file of sound")]
        await page.evaluate(drop)
        await page.wait_for("document.querySelector('#message').textContent.includes('is no audio')")
        assert await page.evaluate("document.activeElement.id") == "message"
        recordings.items = [asyncio.Event()]
        await page.evaluate(drop)
        await page.wait_for("document.querySelector('#job-text').textContent.includes('listening')")
        await page.click("#job-cancel")
        await within(recordings.opened[-1].closed.wait())
        await page.click("#back")
        await page.wait_for(LIVE)


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
            log.append(partial(4, "it has settled but not", len("it has settled")))
            await page.wait_for("document.querySelector('#stable').textContent === 'it has settled'")
        texts = ("before", "meanwhile", "after", "it has settled")
        assert (await saved(page)).splitlines() == list(texts)  # while the daemon is away
        new = opened_log("another session")
        new.append(final(1, "new run"))
        async with serving(new, port=port):
            await page.wait_for(finals_are(*texts, "the daemon was restarted", "new run"))
            assert (await saved(page)).splitlines() == [*texts, "[the daemon was restarted]", "new run"]


async def test_the_page_says_where_captions_are_missing(history: History) -> None:
    missing = "captions are missing here: they are no longer kept, or cannot be read"
    log, later = (Journal(name, 2, keep=history.keeper(source="microphone")) for name in ("own", "later"))
    log.append(ready())
    log.append(final(1, "before"))
    async with (
        serving(log, history_file=history) as running,
        cutting(running.port) as proxy,
        browse(f"http://127.0.0.1:{proxy.port}/") as page,
    ):
        await page.wait_for(finals_are("before"))
        proxy.cut()
        for n in range(2, 5):
            log.append(final(n, f"number {n}"))
        later.append(ready())
        later.append(final(1, "after"))
        await asyncio.to_thread(wait_published, later)
        with contextlib.closing(sqlite3.connect(history.path)) as connection, connection:
            connection.execute("DROP TABLE events")
        texts = ("before", missing, "number 3", "number 4")
        await page.wait_for(finals_are(*texts))
        port = running.port
        await running.server.stop()
        async with serving(later, port=port, history_file=history):
            await page.wait_for(finals_are(*texts, missing, "the daemon was restarted", "after"))


async def test_the_page_does_not_grow_for_ever() -> None:
    async with serving(queue_events=10_000) as running, browse(running.url) as page:
        await page.wait_for(LIVE)
        for n in range(1, 701):
            running.log.append(final(n, f"number {n}"))
        await page.wait_for(f"{FINALS}.at(-1) === 'number 700'")
        assert await page.evaluate(f"{FINALS}.length") == 500
        assert (await saved(page)).splitlines() == [f"number {n}" for n in range(1, 701)]
        await page.click("#earlier")
        assert await page.evaluate(f"[{FINALS}.length, {FINALS}[0]]") == [700, "number 1"]


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


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (844, 390)])
async def test_no_half_line_is_seen_at_the_top(width: int, height: int) -> None:
    hidden = "parseFloat(document.querySelector('#captions').style.getPropertyValue('--cut')) || 0"
    boxes = (
        "(() => { const { top } = document.querySelector('#captions').getBoundingClientRect();"
        " return [...document.querySelectorAll('#text .text')].flatMap((text) => [...text.getClientRects()])"
        ".map((box) => [box.top - top, box.bottom - top]); })()"
    )
    async with serving() as running, browse(running.url, width=width, height=height) as page:
        await page.wait_for(LIVE)
        n_cut = 0
        for n in range(1, 31):
            text = f"{n}: " + " ".join(["words"] * (5 + n % 7))
            running.log.append(final(n, text, 7.0 * n) if n % 2 else partial(n + 1, text, 9, 7.0 * n))
            await page.wait_for(f"document.querySelector('#text').textContent.includes('{n}:')")
            await page.evaluate("new Promise((resolve) => requestAnimationFrame(() => resolve()))")
            cut = [bottom for above, bottom in await page.evaluate(boxes) if above < -1 and bottom > 1]
            n_cut += bool(cut)
            assert await page.evaluate(hidden) >= max(cut, default=0) - 1
            if not cut:
                assert await page.evaluate(hidden) < 3
        assert n_cut > 2


@pytest.mark.parametrize(("width", "height"), [(390, 844), (844, 390)])
async def test_a_thumb_finds_each_button_and_a_late_state_is_read_to_its_end(width: int, height: int) -> None:
    small = (
        "[...document.querySelectorAll('body > :not(dialog) button')].filter((one) => one.checkVisibility())"
        ".filter((one) => Math.min(one.offsetWidth, one.offsetHeight) < 44).map(({ id }) => id)"
    )
    async with serving() as running, browse(running.url) as page:
        await page.command("Emulation.setTouchEmulationEnabled", enabled=True)
        await page.resize(width, height, phone=True)
        await page.wait_for("!document.querySelector('#pause').hidden")
        assert await page.evaluate(small) == []
        state = "document.querySelector('#status-text')"
        for text in ("12 s behind", "120 s behind", "Reconnecting…"):
            await page.evaluate(f"{state}.textContent = '{text}'")
            assert await page.evaluate(f"{state}.scrollWidth <= {state}.clientWidth"), text


async def test_what_comes_within_a_frame_is_laid_out_once() -> None:
    async with serving() as running, browse(running.url) as page:
        await page.wait_for(LIVE)
        await page.evaluate("window.held = []; void (window.requestAnimationFrame = (frame) => held.push(frame))")
        for n in range(1, 101):
            running.log.append(final(n, f"number {n}"))
        await page.wait_for(f"{FINALS}.length === 100")
        assert await page.evaluate("held.length") == 1
        await page.evaluate("document.querySelector('#captions').dispatchEvent(new Event('scroll')); held[0]()")
        assert await page.evaluate(
            "((m) => m.scrollTop > 0 && m.scrollHeight - m.scrollTop - m.clientHeight < 5)"
            "(document.querySelector('#captions'))"
        )


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


TOKEN = "a b&c=+/#% and ten more"


@pytest.mark.parametrize("place", ["?after=1&token=", "#token="])
async def test_a_token_leaves_the_address_and_stays_with_the_tab(place: str) -> None:
    async with serving(token=TOKEN) as running, browse(running.url + place + quote(TOKEN, safe="")) as page:
        await page.wait_for(LIVE)
        assert await page.evaluate("location.href") == running.url + ("?after=1" if "?" in place else "")
        running.log.append(final(1, "private"))
        await page.wait_for(finals_are("private"))
        await page.goto(running.url)  # with nothing but what the tab keeps
        await page.wait_for(finals_are("private"))
        await running.server.stop()
        await page.wait_for(f"!({LIVE})")  # it has noticed
        async with serving(running.log, port=running.port, token=TOKEN):
            await page.wait_for(LIVE)
            await page.click("#pause")
            await page.wait_for("document.querySelector('#status-text').textContent === 'Paused'")
        assert TOKEN[:5] not in "".join(page.problems)
        assert "token" not in "".join(page.problems)


async def test_a_page_without_the_token_asks_for_it_and_does_not_guess() -> None:
    async with serving(token=TOKEN) as running, browse(running.url) as page:
        await page.wait_for("!document.querySelector('#token-form').hidden")
        assert await page.text("#status-text") == "Token required"
        fill = "document.querySelector('#token').value = {}; document.querySelector('#token-form button').click()"
        await page.evaluate(fill.format(json.dumps("wrong ö")))
        await page.wait_for("document.querySelector('#status-text').textContent === 'Wrong token'")
        assert "wrong" in await page.text("#token-text")
        refused = running.registry.get_sample_value("streamer_refusals_total", {"reason": "token"})
        await page.evaluate("new Promise((resolve) => setTimeout(resolve, 700))")
        assert running.registry.get_sample_value("streamer_refusals_total", {"reason": "token"}) == refused
        await page.evaluate(fill.format(json.dumps(f" {TOKEN} ")))
        await page.wait_for(LIVE)
        assert await page.evaluate("document.querySelector('#token-form').hidden")
        assert TOKEN[:5] not in await page.evaluate("location.href")


async def test_a_token_that_is_revoked_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "TOKENS_S", 0.02)
    path = tmp_path / "tokens.json"
    secret, token = new_token("display", scopes=("read",))
    TokenFile(path).change(lambda _: (token,))
    async with serving(token_file=str(path)) as running, browse(f"{running.url}#token={secret}") as page:
        await page.wait_for(LIVE)
        await page.click("#pause")
        await page.wait_for("document.querySelector('#message').textContent.includes('lacks the scope control')")
        TokenFile(path).change(lambda _: ())
        await page.wait_for("!document.querySelector('#token-form').hidden")


async def test_the_daemons_input_can_be_paused() -> None:
    async with (
        serving(token="a b and ten letters more") as running,
        browse(running.url + "?token=a%20b%20and%20ten%20letters%20more") as page,
    ):
        await page.wait_for(LIVE)
        await page.click("#pause")
        await page.wait_for("document.querySelector('#status-text').textContent === 'Paused'")
        assert running.own.paused
        assert await page.text("#pause-text") == "Resume for everybody"
        await page.click("#pause")
        await page.wait_for(LIVE)
        assert running.own.commands == ["pause", "resume"]
        assert await page.text("#pause-text") == "Pause for everybody"
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
    async with serving(input=None) as running, browse(running.url) as page:
        await page.wait_for("document.querySelector('#status-text').textContent === 'No input'")
        assert "microphone" in await page.text("#empty")
        assert await page.evaluate("document.querySelector('#pause').hidden")


async def test_the_browsers_microphone_is_captioned(tmp_path: Path) -> None:
    wav = tmp_path / "tone.wav"
    soundfile.write(wav, 0.5 * np.sin(2 * np.pi * TONE_HZ * np.arange(48_000) / 48_000), 48_000, subtype="PCM_16")
    async with (
        serving() as running,
        cutting(running.port) as proxy,
        browse(f"http://127.0.0.1:{proxy.port}/", flags=fake_microphone_flags(wav)) as page,
    ):
        await page.wait_for(LIVE)
        await page.click("#microphone")
        stream = await running.streams.first()
        assert (stream.start.format, stream.start.channels) == ("s16le", 1)
        stream.log.append(partial(1, "a tone", 2))
        await page.wait_for("document.querySelector('#stable').textContent === 'a '")
        assert await page.text("#status-text") == "Your microphone"
        for shown in ("Muted", "Your microphone"):
            await page.click("#mute")
            assert await page.text("#status-text") == shown
            assert (
                await page.evaluate("document.querySelector('#mute').getAttribute('aria-pressed')")
                == str(shown == "Muted").lower()
            )
        for _ in range(2):
            await page.click("#pause")
        while [command for command, _ in stream.commands] != ["pause", "resume"]:
            stream.written.clear()
            await within(stream.written.wait())
        assert running.own.commands == []
        proxy.cut()
        await page.wait_for("document.querySelector('#status-text').textContent === 'Reconnecting…'")
        await page.wait_for("document.querySelector('#status-text').textContent === 'Your microphone'")
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
