"""Makes the pictures of docs/: a daemon's pages in a real Chromium, and captions as an animated SVG.

    python -m tools.pictures
    python -m tools.pictures --model small.en --output /tmp/pictures
    python -m tools.pictures --only captions-speakers.png

The recording of the pages plays at a quarter of the pace of speech, so that a picture's words still stand when the next
is taken. The overlay is laid over its video frame as OBS does it: captured without a ground, and drawn over. The SVG
has the captions of a recording at their real times, stable text bright and text that may change pale. Pictures of
speakers, corrections and translations are made of events, and need no model.
"""

import argparse
import asyncio
import base64
import functools
import html
import io
import json
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import soundfile
from PIL import Image

from streamer.after.correct.pipeline import edits
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.events import End, Event, Final, Partial, Revision, Translation
from tests.browser import Page, browse
from tests.builders import final, partial
from tests.daemon import REPOSITORY, connected, pcm16, recording, running
from tests.wire.harness import opened_log, serving

EXAMPLE = REPOSITORY / "examples" / "kennedy.flac"

SILENCE_S = 15.0  # behind the recording, so that the daemon still listens when the last picture is taken
SPEED = 0.25

on_desktop = functools.partial(browse, width=1280, height=800)
on_television = functools.partial(browse, width=1280, height=720)

N_COLOURS = 128  # of a picture

# A talk in a hall, in flat colours: someone at a lectern, and a slide.
FRAME = """
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1280 720"><rect width="1280" height="720" fill="#27313f"/>
<path d="M0 560h1280v160H0z" fill="#6b4f3a"/><path d="M0 560h1280v14H0z" fill="#80614a"/>
<path d="M520 70h640v370H520z" fill="#f1ede2"/><path d="M560 120h330v34H560z" fill="#c4553d"/>
<path d="M560 380V330h60v50zm90 0V290h60v90zm90 0V310h60v70zm90 0V240h60v140zm90 0V200h60v180z" fill="#3f7d87"/>
<path d="M560 190h200M560 220h150" stroke="#9a958a" stroke-width="10"/>
<path d="M310 310h40v40h-40z" fill="#c48c68"/>
<path d="M235 600c-8-150 0-250 95-262 95 12 103 112 95 262z" fill="#c9a227"/>
<circle cx="330" cy="262" r="62" fill="#d9a37c"/>
<path d="M266 262c-6-90 134-96 128 0-20-40-96-60-128 0z" fill="#3a2a20"/>
<path d="M215 470h230l-24 190H239z" fill="#4d3526"/><path d="M200 455h260v26H200z" fill="#5f4431"/></svg>
"""

# The SVG: its size, columns and lines of text, bars of the sound, and seconds for which the last text stays.
SVG_WIDTH, SVG_HEIGHT = 860, 200
COLUMNS, LINES, LINE_HEIGHT = 76, 3, 30
N_BARS = 172
END_S, REST_S = 11.0, 4.0
TITLE = "Live captions: bright text is stable, pale text may still change"


async def pages(model: str, output: Path) -> None:
    """Make the pictures of a daemon's pages while it captions a recording."""
    with tempfile.TemporaryDirectory() as folder:
        talk = Path(folder) / "talk.wav"
        silence = np.zeros(round(SILENCE_S * SAMPLE_RATE), np.float32)
        soundfile.write(talk, np.concatenate([recording(EXAMPLE), silence]), SAMPLE_RATE)
        with running("--model", model, "--input", talk, "--speed", str(SPEED)) as daemon:
            async with (
                connected(daemon.address("/v1/captions?after=0")) as (_, received),
                on_desktop(daemon.url) as captions,
                on_television(f"{daemon.url}overlay?size=44&fade=0") as overlay,
                on_desktop(f"{daemon.url}settings?lines=2&size=64") as settings,
            ):
                await received.wait_for(Final)
                await received.wait_for(Partial, n=len(received.of(Partial)) + 1)
                await prefer_dark(captions)
                await picture(captions, output / "captions.png")
                await received.wait_for(Final, n=2)
                await over_video(overlay, output / "overlay.png")
                preview = "document.querySelector('#preview').contentDocument"
                await settings.wait_for(f"{preview}.querySelectorAll('.line').length > 1")
                await picture(settings, output / "settings.png")


async def page_of(publish: Callable[[EventLog], str], path: Path) -> None:
    """Make a picture of the captions page once it shows the text that `publish` returns."""
    log = opened_log()
    async with serving(log) as server, on_desktop(server.url) as page:
        shown = publish(log)
        await page.wait_for(f"document.querySelector('#finals').textContent.includes({json.dumps(shown)})")
        await page.evaluate("document.querySelector('.revised')?.click()")
        await prefer_dark(page)
        await picture(page, path)


def speakers(log: EventLog) -> str:
    """Publish a talk of three, some of it within one final."""
    turns = (
        [("S1", "Good morning, and welcome to the hearing.")],
        [("S2", "Thank you. I have three questions,"), ("S1", "Go ahead."), ("S2", "and a remark.")],
        [("S3", "May I come in here? The figures on page four are from last year.")],
    )
    for number, spoken in enumerate(turns, 1):
        said = final(" ".join(text for _, text in spoken), start=8.0 * number, segment=number)
        names = [speaker for speaker, text in spoken for _ in text.split()]
        words = zip(said.words, names, strict=True)
        named = tuple(msgspec.structs.replace(word, speaker=speaker) for word, speaker in words)
        log.append(msgspec.structs.replace(said, words=named))
    return "from last year"


def revised(log: EventLog) -> str:
    """Publish texts of which one is corrected."""
    log.append(final("The next speaker comes from the harbour office.", start=3.0, segment=1))
    said = log.append(final("Please welcome Shavon Nick Owen, who will show us the plans.", start=9.0, segment=2))
    assert isinstance(said, Final)
    right = final("Please welcome Siobhán Ní Eoghain, who will show us the plans.", start=9.0)
    changed = edits(said.text, right.text)
    log.append(Revision(of=said.seq, by="glossary", text=right.text, words=right.words, edits=changed))
    log.append(final("Thank you. Can everybody see the slides?", start=15.0, segment=3))
    return "the slides"


def translated(log: EventLog) -> str:
    """Publish texts with their translations."""
    texts = (
        ("Guten Morgen und willkommen zur Anhörung.", "Good morning and welcome to the hearing."),
        ("Zuerst hören wir den Bericht aus dem Hafenamt.", "First we hear the report from the harbour office."),
    )
    for number, (text, translation) in enumerate(texts, 1):
        said = log.append(final(text, start=6.0 * number, segment=number, language="de"))
        log.append(Translation(of=said.seq, text=translation, language="en"))
    log.append(partial("Die Brücke wurde vor sechzig", len("Die Brücke wurde"), start=20.0, segment=3))
    return "First we hear"


async def over_video(overlay: Page, path: Path) -> None:
    """Make a picture of the overlay over a video frame."""
    await overlay.command("Emulation.setDefaultBackgroundColorOverride", color={"r": 0, "g": 0, "b": 0, "a": 0})
    words = await overlay.command("Page.captureScreenshot", format="png")
    async with on_television() as stage:
        layers = [("svg+xml", base64.b64encode(FRAME.encode()).decode()), ("png", words["data"])]
        images = "".join(f'<img src="data:image/{kind};base64,{data}">' for kind, data in layers)
        style = "<style>body { margin: 0 } img { position: absolute; width: 100%; height: 100% }</style>"
        await stage.evaluate(f"document.documentElement.innerHTML = {json.dumps(style + images)}")
        await stage.evaluate("Promise.all([...document.images].map((image) => image.decode()))")
        await picture(stage, path)


async def prefer_dark(page: Page) -> None:
    """Let the browser ask pages for a dark theme."""
    await page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])


async def picture(page: Page, path: Path) -> None:
    """Write what is displayed as a small PNG file."""
    taken = await page.command("Page.captureScreenshot", format="png")
    image = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
    image.quantize(N_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


async def animation(model: str, path: Path) -> None:
    """Caption a recording at real-time pace with a daemon, and draw its captions at their times."""
    samples = recording(EXAMPLE, end_s=END_S)
    events: list[tuple[float, Event]] = []
    arguments = ("--model", model, "--language", "en", "--input", "-", "--no-captions")
    with running(*arguments, stdin=subprocess.PIPE) as daemon:
        stdin = daemon.process.stdin
        assert stdin is not None
        async with connected(daemon.address("/v1/captions?after=0")) as (_, received):
            began_s, n_sent = time.monotonic(), 0
            while not received.of(End):
                now_s = time.monotonic() - began_s
                events += [(now_s, event) for event in received.events[len(events) :]]
                due = min(len(samples), round(now_s * SAMPLE_RATE))
                if not stdin.closed:
                    stdin.write(pcm16(samples[n_sent:due]))
                    stdin.flush()
                    n_sent = due
                    if n_sent == len(samples):
                        stdin.close()
                await asyncio.sleep(0.02)
    path.write_text(draw(frames(events), samples), encoding="utf-8", newline="\n")


def frames(events: Sequence[tuple[float, Event]]) -> list[tuple[float, str, str]]:
    """Return what is displayed, each from its second on: stable text, and text that may change."""
    finals: dict[int, str] = {}
    shown = [(0.0, "", "")]
    for second, event in events:
        stable = unstable = ""
        if isinstance(event, Partial):
            stable, unstable = event.text[: event.stable], event.text[event.stable :]
        elif isinstance(event, Final | Revision):
            finals[event.seq if isinstance(event, Final) else event.of] = event.text
        else:
            continue
        all_stable = " ".join(filter(None, [*finals.values(), stable]))
        if all_stable and unstable and not stable:
            unstable = f" {unstable}"
        if (all_stable, unstable) != shown[-1][1:]:
            shown.append((second, all_stable, unstable))
    return shown


def draw(shown: Sequence[tuple[float, str, str]], samples: Float32Array) -> str:
    """Return the animated SVG: the sound with a playhead, and below it the captions."""
    duration_s = len(samples) / SAMPLE_RATE
    loop_s = max(duration_s, shown[-1][0]) + REST_S
    levels = [float(piece.max()) for piece in np.array_split(np.abs(samples), N_BARS)]
    loudest = max(levels) or 1.0
    bars = "".join(
        f"M{20 + i * (SVG_WIDTH - 40) / N_BARS:.0f} {55 - 28 * level / loudest:.0f}v{max(1, 56 * level / loudest):.0f}"
        for i, level in enumerate(levels)
    )
    styles, groups = [], []
    for i, (second, stable, unstable) in enumerate(shown):
        begin, end = (100 * at_s / loop_s for at_s in (second, shown[i + 1][0] if i + 1 < len(shown) else loop_s))
        last = "" if end >= 100 else f"{end:.2f}%{{opacity:0}}"
        first = "" if begin <= 0 else "0%{opacity:0}"
        styles.append(f"@keyframes f{i}{{{first}{begin:.2f}%{{opacity:1}}{last}}}#f{i}{{animation-name:f{i}}}")
        groups.append(f'<g id="f{i}">{_lines(stable, unstable)}</g>')
    played = 100 * duration_s / loop_s
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SVG_WIDTH} {SVG_HEIGHT}" role="img"'
        f' aria-label="{TITLE}"><title>{TITLE}</title>'
        f"<style>g{{opacity:0;animation:{loop_s:.2f}s step-end infinite}}"
        "text{font:17px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#f2f4f7;white-space:pre}"
        ".u{fill:#8391a5}"
        f"@keyframes p{{0%{{transform:none}}{played:.2f}%,100%{{transform:translateX({SVG_WIDTH - 40}px)}}}}"
        f"#p{{animation:p {loop_s:.2f}s linear infinite}}{''.join(styles)}"
        # Who wants no motion sees the last text.
        f"@media(prefers-reduced-motion){{#f{len(shown) - 1}{{opacity:1}}g[id],#p{{animation:none}}}}</style>"
        f'<rect width="{SVG_WIDTH}" height="{SVG_HEIGHT}" rx="12" fill="#161b22"/>'
        f'<path d="{bars}" stroke="#4a6076" stroke-width="3"/>'
        '<path id="p" d="M20 20v70" stroke="#e8b04a" stroke-width="2"/>'
        f"{''.join(groups)}</svg>\n"
    )


def _lines(stable: str, unstable: str) -> str:
    """Return the last lines of a text; what may change has a class of its own."""
    end, parts = 0, []
    for line in textwrap.wrap(stable + unstable, COLUMNS, drop_whitespace=False):
        n_stable = min(max(len(stable) - end, 0), len(line))
        end += len(line)
        parts.append((line[:n_stable], line[n_stable:]))
    drawn = ""
    for row, (sure, unsure) in enumerate(parts[-LINES:]):
        pale = f'<tspan class="u">{html.escape(unsure)}</tspan>' if unsure.strip() else ""
        drawn += f'<text x="20" y="{124 + row * LINE_HEIGHT}">{html.escape(sure)}{pale}</text>'
    return drawn


async def main() -> None:
    """Make the pictures that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="base", help="model (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs", help="directory (default: docs)")
    parser.add_argument("--only", default="", metavar="TEXT", help="pictures whose names contain this")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if any(options.only in name for name in ("captions.png", "overlay.png", "settings.png")):
        await pages(options.model, options.output)
    for name, publish in (("speakers", speakers), ("revised", revised), ("translation", translated)):
        if options.only in f"captions-{name}.png":
            await page_of(publish, options.output / f"captions-{name}.png")
    if options.only in "captions.svg":
        await animation(options.model, options.output / "captions.svg")


if __name__ == "__main__":
    asyncio.run(main())
