"""A topology as a picture: nodes as boxes, what they consist of inside, links by their class."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tidegate.cli.quantities import rate, seconds
from tidegate.cli.svg import Picture

if TYPE_CHECKING:
    from tidegate._shim_types import Cluster

_LAYERS = ("rank", "core", "gpu", "cache", "switch", "numa", "node", "nic")
_FILLS = {
    **{"rank": "#fff2cc", "core": "#e6eef7", "gpu": "#d9ead3", "cache": "#dde7f0"},
    **{"switch": "#eadcf4", "numa": "#cfe2f3", "node": "#e8e8e8", "nic": "#f9d9c8"},
}
_LINKS = {
    **{"LOC": "#888888", "NVL": "#3f8f4f", "C2C": "#2a9d9d"},
    **{"PIX": "#1f5f99", "SYS": "#b8860b", "NET": "#c8553d"},
}
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 66, 22, 14
_ROW = 58
_MOST_IN_ROW = 16
_MOST_NODES = 4
_MOST_SWITCHES = 16


def draw(cluster: Cluster) -> str:
    """The first nodes with all that is in them, and the switches that they hang on."""
    vertices: list[dict[str, Any]] = cluster.vertices()
    links: list[dict[str, Any]] = cluster.links()
    joined = {link[end] for link in links for end in ("from", "to")}
    shown = [
        v
        for v, vertex in enumerate(vertices)
        # For a node that nothing hangs on itself its frame is enough.
        if 0 <= vertex["node"] < _MOST_NODES and (v in joined or vertex["kind"] != "node")
    ]
    fabric = _switches_near(vertices, links, set(shown))
    layout = _Layout()
    for node in sorted({vertices[v]["node"] for v in shown}):
        layout.add_node([v for v in shown if vertices[v]["node"] == node], vertices)
    layout.add_fabric(fabric)

    picture = Picture(layout.width, layout.height)
    picture.text(_GAP, 20, cluster.name or "topology", size=14)
    hidden = cluster.nodes - _MOST_NODES
    if hidden > 0:
        picture.text(layout.width - _GAP, 20, f"and {hidden:,} nodes more", "end")
    for x, width, height, name in layout.frames:
        picture.rect(x, 34, width, height, "#fafafa")
        picture.text(x + 6, 48, name)
    for link in links:
        _draw_link(picture, layout, link)
    for v, (x, y) in layout.centres.items():
        _draw_vertex(picture, vertices, v, x, y)
    for number, (path, colour) in enumerate(_LINKS.items()):
        picture.line(
            (_GAP + 70 * number, layout.height - 10),
            (_GAP + 20 + 70 * number, layout.height - 10),
            colour,
            2,
        )
        picture.text(_GAP + 24 + 70 * number, layout.height - 6, path)
    return picture.svg()


class _Layout:
    """Centres of boxes. Nodes stand side by side, kinds in rows, the fabric below all nodes."""

    def __init__(self) -> None:
        self.centres: dict[int, tuple[float, float]] = {}
        self.frames: list[tuple[float, float, float, str]] = []
        self._right = float(_GAP)
        self._bottom = 0.0

    @property
    def width(self) -> float:
        return max(self._right, 460)

    @property
    def height(self) -> float:
        return self._bottom + 30

    def add_node(self, members: list[int], vertices: list[dict[str, Any]]) -> None:
        rows: list[list[int]] = []
        for kind in _LAYERS:
            layer = [v for v in members if vertices[v]["kind"] == kind]
            for start in range(0, len(layer), _MOST_IN_ROW):
                rows.append(layer[start : start + _MOST_IN_ROW])
        width = max(len(row) for row in rows) * (_BOX_WIDTH + _GAP) + _GAP
        for number, row in enumerate(rows):
            self._spread(row, self._right, width, 74 + _ROW * number)
        height = 40 + _ROW * len(rows)
        name = vertices[members[0]]["id"].partition("/")[0]
        self.frames.append((self._right, width, height, name))
        self._right += width + _GAP
        self._bottom = max(self._bottom, 34 + height + _GAP)

    def add_fabric(self, rows: list[list[int]]) -> None:
        for row in rows:
            if row:
                self._spread(row, 0, self.width, self._bottom + 30)
                self._bottom += _ROW

    def _spread(self, row: list[int], left: float, width: float, y: float) -> None:
        for number, v in enumerate(row):
            self.centres[v] = (left + width * (number + 0.5) / len(row), y)


def _switches_near(
    vertices: list[dict[str, Any]], links: list[dict[str, Any]], shown: set[int]
) -> list[list[int]]:
    """Switches of the fabric that the shown nodes hang on, then those behind these."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for link in links:
        for this, other in ((link["from"], link["to"]), (link["to"], link["from"])):
            if vertices[other]["node"] < 0:
                neighbours[this].add(other)
    leaves = sorted(set().union(*(neighbours[v] for v in shown)))[:_MOST_SWITCHES]
    behind = set().union(*(neighbours[v] for v in leaves)) if leaves else set()
    return [leaves, sorted(behind - set(leaves))[:_MOST_SWITCHES]]


def _draw_link(picture: Picture, layout: _Layout, link: dict[str, Any]) -> None:
    start, end = layout.centres.get(link["from"]), layout.centres.get(link["to"])
    if start is None or end is None:
        return
    width = min(5.0, max(1.0, math.log10(link["bandwidth_Bps"]) - 8.5))
    title = f"{link['id']}: {link['path']}, {rate(link['bandwidth_Bps'])}"
    title += f", {seconds(link['latency_s'])}" + (", shared" if link["shared"] else "")
    picture.line(start, end, _LINKS.get(link["path"], "#888888"), width, title)


def _draw_vertex(
    picture: Picture, vertices: list[dict[str, Any]], v: int, x: float, y: float
) -> None:
    vertex = vertices[v]
    name: str = vertex["id"].rpartition("/")[2] if vertex["kind"] != "node" else "node"
    title = vertex["id"]
    if vertex["bandwidth_Bps"] > 0:
        title += f", {rate(vertex['bandwidth_Bps'])}"
    left, top = x - _BOX_WIDTH / 2, y - _BOX_HEIGHT / 2
    picture.rect(left, top, _BOX_WIDTH, _BOX_HEIGHT, _FILLS[vertex["kind"]], title)
    picture.text(x, y + 4, name if len(name) <= 11 else name[:9] + "..", "middle", size=10)
