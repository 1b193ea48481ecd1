"""Curves as SVG: coordinates and ticks of a chart, for a template to draw. No script, nothing from a network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT = 440, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 24
TINY, HUGE = 1e-200, 1e200  # outside, an axis with room around its values would leave what a number can be
MOST_POINTS = 300  # of one curve; of more steps, the lowest and highest of each stretch are kept, so a spike stays
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """One curve: SVG points, and its last value in words."""

    name: str
    points: str
    last: str
    dots: list[tuple[float, float]] = field(default_factory=list)  # where there are few points


@dataclass(frozen=True)
class Chart:
    """A chart with its ticks as (place, words); `marks` are steps at which something happened."""

    title: str
    note: str
    curves: list[Curve]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    marks: list[tuple[float, str]]


def chart(
    title: str,
    series: Mapping[str, Points],
    *,
    note: str = "",
    log: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> Chart | None:
    """A chart of (x, y) series; None where no series has two points. `log`: a logarithmic axis, values above 0 only.

    A value that is not finite or larger than HUGE is left out, on a logarithmic axis also one that is not above TINY.
    """
    drawn = {
        name: [(x, y) for x, y in points if abs(y) < HUGE and (y > TINY or not log)] for name, points in series.items()
    }
    drawn = {name: thinned(points) for name, points in drawn.items() if len(points) > 1}
    if not drawn:
        return None
    xs, ys = ([point[axis] for points in drawn.values() for point in points] for axis in (0, 1))
    scale = math.log10 if log else float
    low, high = _span(scale(min(ys)), scale(max(ys)))
    first, last = min(xs), max(*xs, min(xs) + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        down = TOP + (high - scale(y)) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(down, 1)

    curves = []
    for name, points in drawn.items():
        places = [place(x, y) for x, y in points]
        dots = places if len(places) <= 20 else []
        curves.append(Curve(name, " ".join(f"{x},{y}" for x, y in places), short(points[-1][1]), dots))
    bottom = 10**low if log else low
    return Chart(
        title,
        note + (" (logarithmic)" if log else ""),
        curves,
        [(place(x, ys[0])[0], f"{x:,.0f}") for x in ticks(first, last) if first <= x <= last],
        [(place(first, y)[1], short(y)) for y in (log_ticks(low, high) if log else ticks(low, high))],
        [(place(x, bottom)[0], words) for x, words in marks if first <= x <= last],
    )


def _span(low: float, high: float) -> tuple[float, float]:
    """A little room above and below; around a constant, as much as it is worth."""
    room = (high - low) * 0.06 or max(abs(high) * 0.1, 1e-9)
    return low - room, high + room


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about MOST_POINTS: the lowest and the highest of each stretch, in order."""
    if len(points) <= MOST_POINTS:
        return points
    stretch = math.ceil(2 * len(points) / MOST_POINTS)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        kept += sorted({low, high})
    return kept


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from `low` to `high`: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / most
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    start = math.ceil(low / step)
    return [round(i * step, 12) for i in range(start, math.floor(high / step) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the powers of ten `low` and `high`: 1, 2 and 5 times a power, or the powers alone where
    these are many; evenly spaced ones where there are fewer than two."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    factors = (1, 2, 5) if high - low < 3 else (1,)
    found = [
        factor * 10.0**power for power in powers for factor in factors if low <= math.log10(factor) + power <= high
    ]
    return found if len(found) > 1 else [float(10**place) for place in ticks(low, high, 3)]


def short(value: float) -> str:
    """A number in about four characters."""
    if value == 0 or 0.01 <= abs(value) < 10_000:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if abs(value) >= 10_000:
        for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.3g}{letter}"
    return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
