"""Makes the moving picture of README.md: captions as a real daemon published them, at their real times.

    python -m tools.moving_picture --model base
    python -m tools.moving_picture --recording talk.flac --end 20 --output talk.svg

Plays a recording at real-time pace to a daemon, records when each event comes, and draws an animated SVG: the sound
with a playhead, and below it the captions, stable text bright and text that may change pale.
"""

import argparse
import asyncio
import html
import subprocess
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.events import End, Event, Final, Partial, Revision
from tests.daemon import REPOSITORY, connected, pcm16, recording, running

EXAMPLE = REPOSITORY / "examples" / "kennedy.flac"

WIDTH, HEIGHT = 860, 200
COLUMNS, LINES, LINE_HEIGHT = 76, 3, 30
N_BARS = 172

# Seconds for which the last text stays.
REST_S = 4.0


async def record(model: str, samples: Float32Array) -> list[tuple[float, Event]]:
    """Caption samples at 16 kHz with a daemon. Returns its events, each with the second at which it came."""
    timeline: list[tuple[float, Event]] = []
    with running(
        "--model", model, "--language", "en", "--input", "-", "--no-captions", stdin=subprocess.PIPE
    ) as daemon:
        stdin = daemon.process.stdin
        assert stdin is not None
        async with connected(daemon.address("/v1/captions?after=0")) as (_, received):
            began_s = time.monotonic()
            n_sent = 0
            while not received.of(End):
                now_s = time.monotonic() - began_s
                timeline += [(now_s, event) for event in received.events[len(timeline) :]]
                due = min(len(samples), round(now_s * SAMPLE_RATE))
                if due > n_sent:
                    stdin.write(pcm16(samples[n_sent:due]))
                    stdin.flush()
                    n_sent = due
                elif not stdin.closed and n_sent == len(samples):
                    stdin.close()
                await asyncio.sleep(0.02)
    return timeline


def frames(timeline: Sequence[tuple[float, Event]]) -> list[tuple[float, str, str]]:
    """Return what is to be seen, each from its second on: stable text, and text that may change."""
    finals: dict[int, str] = {}
    shown = [(0.0, "", "")]
    for second, event in timeline:
        stable = unstable = ""
        match event:
            case Final(seq=seq, text=text):
                finals[seq] = text
            case Revision(of=of, text=text):
                finals[of] = text
            case Partial(text=text, stable=n):
                stable, unstable = text[:n], text[n:]
            case _:
                continue
        settled = " ".join(filter(None, [*finals.values(), stable]))
        if settled and unstable and not stable:
            unstable = f" {unstable}"
        if (settled, unstable) != shown[-1][1:]:
            shown.append((second, settled, unstable))
    return shown


def draw(shown: Sequence[tuple[float, str, str]], samples: Float32Array, title: str) -> str:
    """Return the animated SVG."""
    duration_s = len(samples) / SAMPLE_RATE
    loop_s = max(duration_s, shown[-1][0]) + REST_S
    pieces = np.array_split(np.abs(samples), N_BARS)
    loudest = max(float(piece.max()) for piece in pieces) or 1.0
    step, length = (WIDTH - 40) / N_BARS, (WIDTH - 40) * 1.0
    bars = "".join(
        f"M{20 + i * step:.0f} {55 - 28 * piece.max() / loudest:.0f}v{max(1, 56 * piece.max() / loudest):.0f}"
        for i, piece in enumerate(pieces)
    )
    styles, groups = [], []
    for i, (second, stable, unstable) in enumerate(shown):
        until_s = shown[i + 1][0] if i + 1 < len(shown) else loop_s
        begin, end = 100 * second / loop_s, 100 * until_s / loop_s
        last = "" if end >= 100 else f"{end:.2f}%{{opacity:0}}"
        first = "" if begin <= 0 else "0%{opacity:0}"
        styles.append(f"@keyframes f{i}{{{first}{begin:.2f}%{{opacity:1}}{last}}}#f{i}{{animation-name:f{i}}}")
        groups.append(f'<g id="f{i}">{_lines(stable, unstable)}</g>')
    played = 100 * duration_s / loop_s
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"<title>{title}</title>"
        f"<style>g{{opacity:0;animation:{loop_s:.2f}s step-end infinite}}"
        "text{font:17px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#f2f4f7;white-space:pre}"
        ".u{fill:#8391a5}"
        f"@keyframes p{{0%{{transform:none}}{played:.2f}%,100%{{transform:translateX({length:.0f}px)}}}}"
        f"#p{{animation:p {loop_s:.2f}s linear infinite}}{''.join(styles)}"
        # Who wants no motion sees the last text.
        f"@media(prefers-reduced-motion){{#f{len(shown) - 1}{{opacity:1}}g[id],#p{{animation:none}}}}</style>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#161b22"/>'
        f'<path d="{bars}" stroke="#4a6076" stroke-width="3"/>'
        '<path id="p" d="M20 20v70" stroke="#e8b04a" stroke-width="2"/>'
        f"{''.join(groups)}</svg>\n"
    )


def _lines(stable: str, unstable: str) -> str:
    """Return the last lines of a text; what may change has a class of its own."""
    lines, end, parts = textwrap.wrap(stable + unstable, COLUMNS, drop_whitespace=False), 0, []
    for line in lines:
        n_stable = min(max(len(stable) - end, 0), len(line))
        end += len(line)
        parts.append((line[:n_stable], line[n_stable:]))
    drawn = []
    for row, (sure, unsure) in enumerate(parts[-LINES:]):
        pale = f'<tspan class="u">{html.escape(unsure)}</tspan>' if unsure.strip() else ""
        drawn.append(f'<text x="20" y="{124 + row * LINE_HEIGHT}">{html.escape(sure)}{pale}</text>')
    return "".join(drawn)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="base", help="model (default: %(default)s)")
    parser.add_argument("--recording", type=Path, default=EXAMPLE, help="recording (default: %(default)s)")
    parser.add_argument("--end", type=float, default=11.0, help="seconds of it (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs" / "captions.svg")
    arguments = parser.parse_args()
    audio = recording(arguments.recording, end_s=arguments.end)
    seen = frames(asyncio.run(record(arguments.model, audio)))
    picture = draw(seen, audio, "Live captions: bright text is stable, pale text may still change")
    arguments.output.write_text(picture, encoding="utf-8", newline="\n")
