"""Small SVG pictures: shapes with text, and line charts over logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from tidegate.cli.errors import CommandError

COLOURS = (
    *("#1f5f99", "#c8553d", "#3f8f4f", "#8e5ea2", "#b8860b", "#2a9d9d", "#d0679d", "#666666"),
    *("#7fb0dd", "#e9a38f", "#94cfa0", "#c7abd3", "#e3c77a", "#8fd0d0", "#eab6d0", "#aaaaaa"),
)


def write(path: Path, text: str) -> None:
    """CommandError, naming path and reason, where it cannot be written."""
    try:
        path.write_text(text)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error


class Picture:
    """Shapes in the order in which they are drawn; coordinates in pixels from the upper left."""

    def __init__(self, width: float, height: float) -> None:
        self.width = width
        self.height = height
        self._parts: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, title: str = ""
    ) -> None:
        shape = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" '
        self._add(shape + f'fill="{fill}" stroke="#888"', "rect", title)

    def band(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """A rectangle without an outline, as a background."""
        shape = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        self._add(shape + f'fill="{fill}"', "rect", "")

    def line(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        colour: str,
        width: float = 1,
        title: str = "",
        arrow: bool = False,
    ) -> None:
        (x1, y1), (x2, y2) = start, end
        self._add(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width:.1f}"',
            "line",
            title,
        )
        if arrow:
            self._arrow_head(start, end, colour)

    def curve(self, points: Sequence[tuple[float, float]], colour: str, title: str = "") -> None:
        """A straight line from point to point."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        shape = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"'
        self._add(shape, "polyline", title)

    def text(self, x: float, y: float, text: str, anchor: str = "start", size: int = 11) -> None:
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
            f"{escape(text)}</text>"
        )

    def svg(self) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} '
                f'{self.height:.0f}" width="{self.width:.0f}" font-family="sans-serif" '
                'font-size="11" fill="#333">',
                f'<rect width="{self.width:.0f}" height="{self.height:.0f}" fill="#fff"/>',
                *self._parts,
                "</svg>\n",
            ]
        )

    def _add(self, shape: str, element: str, title: str) -> None:
        end = f"><title>{escape(title)}</title></{element}>" if title else "/>"
        self._parts.append(shape + end)

    def _arrow_head(
        self, start: tuple[float, float], end: tuple[float, float], colour: str
    ) -> None:
        angle = math.atan2(end[1] - start[1], end[0] - start[0])
        corners = [end]
        for turn in (2.7, -2.7):
            corners.append(
                (end[0] + 7 * math.cos(angle + turn), end[1] + 7 * math.sin(angle + turn))
            )
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        self._parts.append(f'<polygon points="{points}" fill="{colour}"/>')


Curves = Mapping[str, Sequence[tuple[float, float]]]
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 170, 34, 30
_WIDTH, _HEIGHT = 760, 340


def log_charts(
    charts: Mapping[str, Curves], x_text: Callable[[float], str], y_text: Callable[[float], str]
) -> str:
    """Charts below each other, by title: named curves through positive points, with a legend."""
    picture = Picture(_WIDTH, _HEIGHT * len(charts))
    for number, (title, curves) in enumerate(charts.items()):
        _log_chart(picture, _HEIGHT * number, title, curves, x_text, y_text)
    return picture.svg()


def _log_chart(
    picture: Picture,
    offset: float,
    title: str,
    curves: Curves,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> None:
    xs = sorted({x for points in curves.values() for x, _ in points})
    ys = [y for points in curves.values() for _, y in points]
    if not xs:
        return
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 1e-9)
    x_span = math.log(xs[-1] / xs[0]) or 1.0
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        part = math.log(x / xs[0]) / x_span
        height = (math.log10(y) - low) / max(1, high - low)
        return _LEFT + part * (right - _LEFT), offset + bottom - height * (bottom - _TOP)

    picture.text(_LEFT, offset + 20, title, size=14)
    for exponent in range(low, high + 1):
        _, y = place(xs[0], 10.0**exponent)
        picture.line((_LEFT, y), (right, y), "#ddd")
        picture.text(_LEFT - 6, y + 4, y_text(10.0**exponent), "end")
    for x in xs[:: max(1, math.ceil(len(xs) / 8))]:
        picture.text(place(x, min(ys))[0], offset + bottom + 16, x_text(x), "middle")
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        picture.curve([place(x, y) for x, y in sorted(points)], colour, name)
        for x, y in points:
            picture.rect(
                place(x, y)[0] - 2, place(x, y)[1] - 2, 4, 4, colour, f"{name}: {y_text(y)}"
            )
        picture.text(right + 12, offset + _TOP + 10 + 15 * number, name)
        picture.rect(right + 2, offset + _TOP + 2 + 15 * number, 7, 7, colour)
