"""The overlay and the page that builds its address, in a real browser."""

import itertools
import json

import pytest

from streamer.events import Revision
from tests.browser import Page, browse
from tests.builders import final, partial
from tests.wire.harness import TOKEN, Running, as_json, serving

pytestmark = pytest.mark.slow

# How OBS's browser source puts its user's own styles into a page: what stands there unless it is changed, and more.
OBS_STYLES = """
(() => {
  const style = document.createElement("style");
  style.innerHTML = "body { background-color: rgba(0, 0, 0, 0); margin: 0px auto; overflow: hidden; }"
    + ".settled { color: rgb(1, 2, 3); }";
  document.querySelector("head").appendChild(style);
})()
"""

LINES = "[...document.querySelectorAll('.line')].map((line) => line.textContent)"


def lines_are(*texts: str) -> str:
    return f"JSON.stringify({LINES}) === {json.dumps(json.dumps(texts, separators=(',', ':')))}"


async def opened(running: Running, page: Page, address: str) -> None:
    """Open an overlay, and wait until it follows the captions."""
    await running.value("streamer_subscribers", {}, 0)
    await page.goto(address)
    await running.value("streamer_subscribers", {}, 1)


async def alphas(page: Page) -> list[list[int]]:
    """Return how opaque each pixel is, 0 to 255, as rows, where nothing lies under the page."""
    await page.command("Emulation.setDefaultBackgroundColorOverride", color={"r": 0, "g": 0, "b": 0, "a": 0})
    png = (await page.command("Page.captureScreenshot", format="png"))["data"]
    rows: list[list[int]] = await page.evaluate(
        f"""(async () => {{
          const image = new Image();
          image.src = "data:image/png;base64,{png}";
          await image.decode();
          const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
          context.drawImage(image, 0, 0);
          const {{ data }} = context.getImageData(0, 0, image.width, image.height);
          return Array.from({{ length: image.height }}, (_, y) =>
            Array.from({{ length: image.width }}, (_, x) => data[4 * (y * image.width + x) + 3]));
        }})()"""
    )
    return rows


async def test_with_the_styles_of_obs_all_but_the_words_is_transparent_and_other_pages_take_none() -> None:
    async with serving() as running, browse(width=400, height=200) as page:
        await opened(running, page, f"{running.url}overlay?background=00000080&size=30&fade=0")
        await page.evaluate(OBS_STYLES)
        running.log.append(final("good morning", segment=1))
        await page.wait_for(lines_are("good morning"))
        assert await page.evaluate("getComputedStyle(document.querySelector('.settled')).color") == "rgb(1, 2, 3)"
        rows = await alphas(page)
        assert {alpha for row in rows[:100] for alpha in row} == {0}
        assert {0, 128, 255} <= {alpha for row in rows[100:] for alpha in row}  # around, behind and in the words
        # What reads better later changes in its place.
        said = running.log.append(final("from shavon", segment=2))
        running.log.append(partial("and more", 3, segment=3))
        await page.wait_for(lines_are("good morning from", "shavon and"))
        for text in ("from Chevron", "from Siobhan O'Hara"):
            running.log.append(Revision(of=said.seq, by="glossary", text=text, words=(), edits=()))
        await page.wait_for(lines_are("good morning from", "Siobhan O'Hara and"))
        assert page.problems == []
        for path in ("", "settings"):
            await page.goto(running.url + path)
            await page.evaluate(OBS_STYLES)
            await page.wait_for("true")
            assert any("Content Security Policy" in problem for problem in page.problems), path
            page.problems.clear()


async def test_words_fill_lines_that_roll_and_what_has_settled_stays() -> None:
    said = ("each of these words settles in its place, 完了。 and keeps it whatever comes behind it. " * 4).split()
    events = []
    for segment, words in enumerate((said[:20], said[20:21], said[21:]), 1):
        for n in range(1, len(words)):
            settled = " ".join(words[: max(0, n - 2)])
            text = " ".join([settled, *(f"{word}X" for word in words[max(0, n - 2) : n])]).strip()
            events.append(as_json(partial(text, len(settled) + n % 3, segment=segment)))  # may end within a word
        events.append(as_json(final(" ".join(words), segment=segment)))
    async with serving() as running, browse(width=1000, height=300) as page:
        # As the page of settings gives them: none takes the place of another.
        await page.goto(f"{running.url}overlay?lines=2&size=40&font=monospace&fade=0#preview")
        await page.evaluate(
            f"window.seen = [[]]; new MutationObserver(() => seen.push({LINES}))"
            ".observe(document.querySelector('#lines'), { childList: true, subtree: true });"
            f"for (const event of {json.dumps(events)}) postMessage({{ ...event, session: 's1' }})"
        )
        await page.wait_for(f"{LINES}.join(' ').split('whatever').length === 5")
        await page.wait_for(f"{LINES}.at(-1).endsWith('behind it.')")
        seen: list[list[str]] = await page.evaluate("seen")
        widths = await page.evaluate(
            "[...document.querySelectorAll('.text')].map((text) => text.getBoundingClientRect().width)"
            ".filter((width) => width)"
        )
        room = await page.evaluate("document.querySelector('#lines').clientWidth")
        assert page.problems == []
    for before, after in itertools.pairwise(seen):
        if before:  # nothing but more words in the last line, or lines below it
            assert before[:-1] == after[: len(before) - 1]
            assert after[len(before) - 1].startswith(before[-1])
    assert " ".join(seen[-1]) == " ".join(said)
    assert len(seen) > len(said) / 2
    assert "X" not in json.dumps(seen)
    assert max(widths) <= room
    assert len(seen[-1]) <= len(" ".join(said)) / 30  # lines were full when the next began


async def test_lines_move_smoothly_fade_and_never_roll_back() -> None:
    async with serving() as running, browse(width=700, height=300) as page:
        await page.command(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "no-preference"}]
        )
        await opened(running, page, f"{running.url}overlay?lines=2&fade=1&size=50&words=all")
        await page.evaluate(
            "window.moves = []; Element.prototype.animate = function (frames, { duration }) {"
            " moves.push([frames[0].transform, duration > 100]); return { cancel() {} }; }"
        )
        running.log.append(partial("it is so", 5))
        await page.wait_for(lines_are("it is so"))
        assert await page.evaluate("moves") == []  # nothing was there that could roll
        running.log.append(partial("it is so " + "long " * 6, 5))
        await page.wait_for(f"{LINES}.length === 2")
        assert await page.evaluate("moves") == [["translateY(70px)", True]]
        assert await page.text(".settled") == "it is"
        running.log.append(partial("it is so short", 5))
        await page.wait_for(lines_are("it is so short", ""))
        running.log.append(final("it is <b>so</b>"))
        await page.wait_for(lines_are("it is <b>so</b>", ""))
        await page.wait_for("document.querySelector('.gone')")
        await page.wait_for(f"{LINES}.length === 0 && !document.querySelector('.gone')")
        running.log.append(final("again", segment=2))
        await page.wait_for(lines_are("again"))
        assert len(await page.evaluate("moves")) == 1


GOOD = "lines=12&size=8&font=Noto Sans 日本語&color=Rebeccapurple&background=0f08&position=top&fade=0&room=a&words=all"
BAD = (
    *("lines=0", "lines=2.5", "size=99999", "size=4e1", "size=40px", "position=left", "fade=-1", "words=", "speed=1"),
    *("font=a;b", 'font=a"', "font=url(x)", "font=" + "a" * 61, "font=", "__proto__=1", "lines=1&lines=2"),
    *("color=red;position:fixed", "color=var(--x)", "color=url(//evil.example)", "color=12345", "color=inherit"),
    *("color=nocolour", "background=%23fff}body{display:none"),
)


async def test_parameters_are_what_they_may_be_or_nothing_is_shown() -> None:
    parse = """(async (queries) => {
      const { parse } = await import("./address.js");
      return queries.map((query) => { try { return parse(query); } catch (error) { return error.message; } });
    })"""
    async with serving() as running, browse(f"{running.url}overlay") as page:
        good, plain, *wrong = await page.evaluate(f"{parse}({json.dumps([GOOD, '?token=x', *BAD])})")
        assert "&".join(f"{name}={text}" for name, text in good.items()) == GOOD
        assert plain["lines"] == "2"
        assert [type(message) for message in wrong] == [str] * len(BAD)
        await page.goto(f"{running.url}overlay?color=red;x")
        await page.wait_for("document.querySelector('#message').textContent.includes('red;x')")
        assert page.problems == []


async def test_the_settings_build_an_address_whose_token_is_out_of_sight() -> None:
    frame = "document.querySelector('#preview').contentDocument"
    fill = """(([id, value]) => {
      const field = document.getElementById(id);
      field.value = value;
      for (const type of ["input", "change"]) field.dispatchEvent(new Event(type, { bubbles: true }));
    })"""
    async with serving(token=TOKEN) as running, browse(f"{running.url}settings?lines=4", width=320) as page:
        await page.wait_for(f"{frame}.querySelector('.settled') && !document.querySelector('#token-field').hidden")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 320
        await page.resize(1280, 800)
        assert await page.text("#address") == f"{running.url}overlay?lines=4"
        changes = {"size": 60, "color": "#ffee00", "opacity": 0, "words": "all", "token": TOKEN, "source": "live"}
        for change in changes.items():
            await page.evaluate(f"{fill}({json.dumps(change)})")
        query = "lines=4&size=60&color=ffee00&background=00000000&words=all"
        assert await page.text("#address") == f"{running.url}overlay?{query}#token=••••••••"
        assert await page.evaluate("location.search") == f"?{query}"
        style = f"getComputedStyle({frame}.querySelector('#captions'))"
        await page.wait_for(f"{style}.fontSize === '60px' && {style}.color === 'rgb(255, 238, 0)'")
        await page.wait_for("document.querySelector('#state').textContent === 'Connected'")
        await page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        await page.click("#copy")
        await page.wait_for("document.querySelector('#copy').textContent === 'Copied'")
        address = await page.evaluate("copied")
        await page.evaluate(f"{fill}(['font', 'a; b'])")
        assert "one font" in await page.text("#problem")
        assert TOKEN not in await page.evaluate("document.documentElement.outerHTML + location.href")

        await page.evaluate("sessionStorage.clear()")
        await page.goto(f"{running.url}overlay?{query}")
        await page.wait_for("document.querySelector('#message').textContent.includes('asks for a token')")
        await page.goto("about:blank#")
        await opened(running, page, address)
        running.log.append(final("over the video"))
        await page.wait_for(lines_are("over the video"))
        assert await page.evaluate("location.href") == f"{running.url}overlay?{query}"
        assert await page.evaluate("document.querySelector('#message').hidden")
