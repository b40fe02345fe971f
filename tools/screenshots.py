"""Makes the pictures of docs/: a daemon's pages in a real Chromium, while it captions a recording.

    python -m tools.screenshots
    python -m tools.screenshots --model small.en --output /tmp/pictures
    python -m tools.screenshots --told

With `--told` only those of what is learnt after a final, from events that need no model.

The recording plays at a quarter of the pace of speech, so that a picture's words still stand when the next is taken.
The overlay is laid over its video frame as OBS does it: captured without a ground, and drawn over.
"""

import argparse
import asyncio
import base64
import contextlib
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import soundfile
from PIL import Image

from streamer.after.correct.pipeline import edits
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.events import Event, Final, Partial, Revision, Translation
from tests.browser import Page, browse
from tests.daemon import REPOSITORY, WAIT_S, Received, connected, recording, running
from tests.wire.support import final, opened_log, partial, serving
from tools.moving_picture import EXAMPLE

DOCS = REPOSITORY / "docs"

SILENCE_S = 15.0  # behind the recording, so that the daemon still listens when the last picture is taken
SPEED = 0.25

DESKTOP, PHONE, TELEVISION = (1280, 800), (390, 844), (1280, 720)
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


async def main(model: str, output: Path, *, told: bool) -> None:
    """Make all pictures, or those of events that are told."""
    output.mkdir(parents=True, exist_ok=True)
    await told_pictures(output)
    if told:
        return
    with tempfile.TemporaryDirectory() as folder:
        talk = Path(folder) / "talk.wav"
        silence = np.zeros(round(SILENCE_S * SAMPLE_RATE), np.float32)
        soundfile.write(talk, np.concatenate([recording(EXAMPLE), silence]), SAMPLE_RATE)
        with running("--model", model, "--input", talk, "--speed", str(SPEED)) as daemon:
            async with (
                connected(daemon.address("/v1/captions?after=0")) as (_, heard),
                browse(daemon.url, width=DESKTOP[0], height=DESKTOP[1]) as captions,
                browse(f"{daemon.url}overlay?size=44&fade=0", width=TELEVISION[0], height=TELEVISION[1]) as overlay,
                browse(f"{daemon.url}settings?lines=2&size=64", width=DESKTOP[0], height=DESKTOP[1]) as settings,
            ):
                await until(heard, is_telling)
                for theme in ("dark", "light"):
                    await prefer(captions, theme)
                    for name, (width, height) in (("captions", DESKTOP), ("captions-phone", PHONE)):
                        await captions.resize(width, height, phone=width == PHONE[0])
                        file = f"{name}.png" if theme == "dark" else f"{name}-light.png"
                        if file == "captions.png" or output.resolve() != DOCS:
                            await picture(captions, output / file)
                await until(heard, lambda events: len(finals(events)) == 2)
                await over_video(overlay, output / "overlay.png")
                preview = "document.querySelector('#preview').contentDocument"
                await settings.wait_for(f"{preview}.querySelectorAll('.line').length > 1")
                await picture(settings, output / "settings.png")
            daemon.stop()


async def told_pictures(output: Path) -> None:
    """Make the pictures of what is learnt after a final."""
    talks: dict[str, Callable[[EventLog], str]] = {
        "captions-speakers": tell_speakers,
        "captions-revised": tell_revised,
        "captions-translation": tell_translated,
    }
    for name, tell in talks.items():
        log = opened_log()
        async with serving(log) as running, browse(running.url, width=DESKTOP[0], height=DESKTOP[1]) as page:
            shown = tell(log)
            await page.wait_for(f"document.querySelector('#finals').textContent.includes({json.dumps(shown)})")
            await page.evaluate("document.querySelector('.revised')?.click()")
            for theme, (width, height) in itertools.product(("dark", "light"), (DESKTOP, PHONE)):
                await prefer(page, theme)
                await page.resize(width, height, phone=width == PHONE[0])
                ending = ("-phone" if width == PHONE[0] else "") + ("-light" if theme == "light" else "")
                if not ending or output.resolve() != DOCS:  # all are for a folder of one's own
                    await picture(page, output / f"{name}{ending}.png")


def tell_speakers(log: EventLog) -> str:
    """Tell a talk of three, some of it within one final."""
    for number, turns in enumerate(
        [
            [("S1", "Good morning, and welcome to the hearing.")],
            [("S2", "Thank you. I have three questions,"), ("S1", "Go ahead."), ("S2", "and a remark.")],
            [("S3", "May I come in here? The figures on page four are from last year.")],
        ],
        1,
    ):
        said = final(number, " ".join(text for _, text in turns), 8.0 * number)
        speakers = [speaker for speaker, text in turns for _ in text.split()]
        words = zip(said.words, speakers, strict=True)
        named = tuple(msgspec.structs.replace(word, speaker=speaker) for word, speaker in words)
        log.append(msgspec.structs.replace(said, words=named))
    return "from last year"


def tell_revised(log: EventLog) -> str:
    """Tell texts of which one is corrected."""
    log.append(final(1, "The next speaker comes from the harbour office.", 3.0))
    said = log.append(final(2, "Please welcome Shavon Nick Owen, who will show us the plans.", 9.0))
    text = "Please welcome Siobhán Ní Eoghain, who will show us the plans."
    words = final(2, text, 9.0).words
    log.append(Revision(of=said.seq, by="glossary", text=text, words=words, edits=edits(said.text, text)))
    log.append(final(3, "Thank you. Can everybody see the slides?", 15.0))
    return "the slides"


def tell_translated(log: EventLog) -> str:
    """Tell texts with their translations."""
    for number, (text, translation) in enumerate(
        [
            ("Guten Morgen und willkommen zur Anhörung.", "Good morning and welcome to the hearing."),
            ("Zuerst hören wir den Bericht aus dem Hafenamt.", "First we hear the report from the harbour office."),
        ],
        1,
    ):
        said = log.append(msgspec.structs.replace(final(number, text, 6.0 * number), language="de"))
        log.append(Translation(of=said.seq, text=translation, language="en"))
    log.append(partial(3, "Die Brücke wurde vor sechzig", len("Die Brücke wurde"), 20.0))
    return "First we hear"


async def prefer(page: Page, theme: str) -> None:
    """Let the browser ask pages for a dark or a light theme."""
    await page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])


async def until(heard: Received, come: Callable[[Sequence[Event]], bool]) -> None:
    """Wait until events have come."""
    async with asyncio.timeout(2 * WAIT_S), heard.changed:
        await heard.changed.wait_for(lambda: come(heard.events) or heard.close_code is not None)
    if not come(heard.events):
        raise SystemExit(f"the recording ended before there was anything to see: {heard.events[-3:]}")


def is_telling(events: Sequence[Event]) -> bool:
    """Whether there is a final, and more is being said."""
    return bool(finals(events)) and isinstance(events[-1], Partial)


def finals(events: Sequence[Event]) -> list[Final]:
    """Return the finals."""
    return [event for event in events if isinstance(event, Final)]


async def over_video(overlay: Page, path: Path) -> None:
    """Take a picture of the overlay over a video frame."""
    await overlay.command("Emulation.setDefaultBackgroundColorOverride", color={"r": 0, "g": 0, "b": 0, "a": 0})
    words = await overlay.command("Page.captureScreenshot", format="png")
    async with browse(width=TELEVISION[0], height=TELEVISION[1]) as stage:
        layers = [("svg+xml", base64.b64encode(FRAME.encode()).decode()), ("png", words["data"])]
        images = "".join(f'<img src="data:image/{kind};base64,{data}">' for kind, data in layers)
        style = "<style>body { margin: 0 } img { position: absolute; width: 100%; height: 100% }</style>"
        await stage.evaluate(f"document.documentElement.innerHTML = {json.dumps(style + images)}")
        await stage.evaluate("Promise.all([...document.images].map((image) => image.decode()))")
        await picture(stage, path)


async def picture(page: Page, path: Path) -> None:
    """Write what is seen as a small PNG file."""
    taken = await page.command("Page.captureScreenshot", format="png")
    image = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
    image.quantize(N_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="base", help="model (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=DOCS, help="directory (default: docs)")
    parser.add_argument("--told", action="store_true", help="only what is learnt after a final; needs no model")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(arguments.model, arguments.output, told=arguments.told))
