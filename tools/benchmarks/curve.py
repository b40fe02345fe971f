"""Draws how many words more are wrong live than offline, over the delay of stable words."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from streamer.errors import UsageError
from tools.benchmarks.figures import Figures

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 48, 56

TITLE = "Words that are wrong live and not offline, by the delay of stable words"
X_LABEL = "stable p50, s"
Y_LABEL = "WER live − offline, points"

# Between two ticks; one of them gives at most MOST_TICKS.
STEPS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
MOST_TICKS = 7

FONT_PX = 13

STYLE = (
    f"text{{font:{FONT_PX}px system-ui,sans-serif;fill:#f2f4f7}}.t{{fill:#8391a5}}"
    ".a{stroke:#39424e}.z{stroke:#8391a5}.i{stroke:#58a6ff;stroke-width:2;opacity:.5}"
    ".f{stroke:#58a6ff;fill:none;stroke-dasharray:4 4}circle{fill:#58a6ff}"
)


class Point(NamedTuple):
    """A system in the picture; percentages of the words that were said."""

    name: str
    stable_s: float
    delta: float
    low: float
    high: float


class Axis(NamedTuple):
    """Values from `first` to `last`, drawn from `start` to `end` pixels."""

    first: float
    last: float
    step: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + (value - self.first) / (self.last - self.first) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return [self.first + k * self.step for k in range(round((self.last - self.first) / self.step) + 1)]


def draw(columns: Mapping[str, Figures]) -> str:
    """Return an SVG with a point for each system, its 95 % confidence interval, and a line through the best.

    Raises UsageError if no system has both a delay and a difference.
    """
    points = []
    for name, figures in columns.items():
        summary = figures.summary()
        stable_s, delta = summary["stable_p50_s"], summary["delta_streamed"]
        if stable_s is not None and delta is not None:
            low, high = (summary[f"delta_streamed_{end}"] for end in ("low", "high"))
            ends = (delta if low is None else low, delta if high is None else high)
            points.append(Point(name, stable_s, 100 * delta, *(100 * end for end in ends)))
    if not points:
        raise UsageError("nothing can be drawn: expected recordings with an offline text and the times of their words")
    x = _axis([0.0, *(point.stable_s for point in points)], LEFT, WIDTH - RIGHT)
    y = _axis([0.0, *(value for p in points for value in (p.low, p.high))], HEIGHT - BOTTOM, TOP)
    front = " ".join(f"{x.at(p.stable_s):.0f},{y.at(p.delta):.0f}" for p in best(points))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{TITLE}">'
        f"<title>{TITLE}</title><style>{STYLE}</style>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#161b22"/><text x="{LEFT}" y="28">{TITLE}</text>'
        f'{_grid(x, y)}<polyline class="f" points="{front}"/>{_drawn(points, x, y)}</svg>\n'
    )


def best(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both delay and difference, the soonest first."""
    found: list[Point] = []
    for point in sorted(points, key=lambda point: (point.stable_s, point.delta)):
        if not found or point.delta < found[-1].delta:
            found.append(point)
    return found


def _axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Return an axis whose ends are ticks and that has all values."""
    for step in STEPS:
        first, last = math.floor(min(values) / step), math.ceil(max(values) / step)
        if last - first < MOST_TICKS:
            break
    return Axis(first * step, max(last, first + 1) * step, step, start, end)


def _grid(x: Axis, y: Axis) -> str:
    found = ""
    for value in x.ticks():
        at = f"{x.at(value):.0f}"
        found += f'<path class="a" d="M{at} {TOP}V{HEIGHT - BOTTOM}"/>'
        found += f'<text class="t" x="{at}" y="{HEIGHT - 34}" text-anchor="middle">{round(value, 2):g}</text>'
    for value in y.ticks():
        at, style = f"{y.at(value):.0f}", "a" if abs(value) > y.step / 2 else "z"
        found += f'<path class="{style}" d="M{LEFT} {at}H{WIDTH - RIGHT}"/>'
        found += f'<text class="t" x="{LEFT - 8}" y="{int(at) + 4}" text-anchor="end">{round(value, 2):g}</text>'
    middle, foot = (TOP + HEIGHT - BOTTOM) / 2, HEIGHT - 12
    found += f'<text class="t" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{foot}" text-anchor="middle">{X_LABEL}</text>'
    turned = f'transform="translate(18 {middle:.0f})rotate(-90)"'
    return f'{found}<text class="t" {turned} text-anchor="middle">{Y_LABEL}</text>'


def _drawn(points: Sequence[Point], x: Axis, y: Axis) -> str:
    """Return each point with its interval and its name, which stands where no other name is."""
    found = ""
    names: list[tuple[float, float, float]] = []  # left end, right end and foot of each, in pixels
    for point in sorted(points, key=lambda point: -point.delta):
        across, up = x.at(point.stable_s), y.at(point.delta)
        width = 0.55 * FONT_PX * len(point.name)
        fits = across + 9 + width < WIDTH - RIGHT
        left, anchor, at = (across + 9, "start", across + 9) if fits else (across - 9 - width, "end", across - 9)
        foot = up + 4
        while any(left < b and a < left + width and abs(foot - other) < FONT_PX for a, b, other in names):
            foot += 1
        names.append((left, left + width, foot))
        said = f"{point.name}: {point.stable_s:.2f} s, {point.delta:+.1f} points [{point.low:+.1f}, {point.high:+.1f}]"
        found += (
            f"<g><title>{html.escape(said)}</title>"
            f'<path class="i" d="M{across:.0f} {y.at(point.low):.0f}V{y.at(point.high):.0f}"/>'
            f'<circle cx="{across:.0f}" cy="{up:.0f}" r="5"/>'
            f'<text x="{at:.0f}" y="{foot:.0f}" text-anchor="{anchor}">{html.escape(point.name)}</text></g>'
        )
    return found
