"""A topology as text: its nodes as trees, equal ones once, and the switches between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tidegate.cli.quantities import rate, seconds

if TYPE_CHECKING:
    from tidegate._shim_types import Cluster

_NAMES = {"numa": "NUMA node", "gpu": "GPU", "nic": "NIC"}
_FABRIC = -1  # as the node of a vertex
_MOST_SWITCHES = 8  # kinds of them


@dataclass
class Group:
    """What a table shows: a title, and rows of name, kind and what it is joined to."""

    title: str
    rows: list[tuple[str, str, str]]


@dataclass
class _Line:
    depth: int
    names: list[str]
    kind: str
    numbers: list[int]
    joined: str
    is_leaf: bool

    def continues(self, last: _Line) -> bool:
        mine = self.depth, self.kind, self.joined, self.is_leaf
        return self.is_leaf and mine == (last.depth, last.kind, last.joined, last.is_leaf)

    def row(self) -> tuple[str, str, str]:
        numbers = [number for number in self.numbers if number >= 0]
        kind = self.kind + (f" {_numbers(numbers)}" if numbers else "")
        return "  " * self.depth + _span(self.names), kind, self.joined


def groups(cluster: Cluster) -> list[Group]:
    """A group for each run of equal nodes, then one for the fabric."""
    vertices: list[dict[str, Any]] = cluster.vertices()
    links: list[dict[str, Any]] = cluster.links()
    by_node: dict[int, list[int]] = defaultdict(list)
    for index, vertex in enumerate(vertices):
        by_node[vertex["node"]].append(index)
    links_from: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for link in links:
        links_from[link["from"]].append(link)
    nodes = [_Node(vertices, links_from, members) for n, members in by_node.items() if n >= 0]
    found = [_node_group(list(alike)) for _, alike in groupby(nodes, _Node.signature)]
    if by_node[_FABRIC]:
        found.append(_fabric_group(vertices, links, by_node[_FABRIC]))
    return found


class _Node:
    def __init__(
        self,
        vertices: list[dict[str, Any]],
        links_from: dict[int, list[dict[str, Any]]],
        members: list[int],
    ) -> None:
        self._vertices = vertices
        self._links_from = links_from
        self._members = members
        self.name: str = vertices[members[0]]["id"]

    def signature(self) -> tuple[object, ...]:
        """Equal for nodes that consist of the same, whatever they and their ranks are called."""
        first = self._members[0]
        return tuple(
            (
                *(self._vertices[v][key] for key in ("kind", "rail", "bandwidth_Bps")),
                max(-1, self._vertices[v]["parent"] - first),
                tuple(
                    (link["to"] - first if self._has(link["to"]) else None, _figures(link))
                    for link in self._links_from[v]
                ),
            )
            for v in self._members
        )

    def lines(self) -> Iterator[_Line]:
        below: dict[int, list[int]] = defaultdict(list)
        for v in self._members[1:]:
            below[self._place_of(v)].append(v)

        def visit(v: int, depth: int) -> Iterator[_Line]:
            vertex = self._vertices[v]
            yield _Line(
                depth,
                [self._local(v)],
                _kind(vertex),
                [vertex["number"]],
                self._joined(v),
                is_leaf=v not in below,
            )
            for child in below.get(v, ()):
                yield from visit(child, depth + 1)

        for v in below[self._members[0]]:
            yield from visit(v, 0)

    def _place_of(self, v: int) -> int:
        """Ranks stand below what they run on, the rest below what contains it."""
        vertex = self._vertices[v]
        if vertex["kind"] == "rank":
            for link in self._links_from[v]:
                if self._has(link["to"]):
                    return int(link["to"])
        return int(vertex["parent"])

    def _has(self, v: int) -> bool:
        return self._members[0] <= v <= self._members[-1]

    def _local(self, v: int) -> str:
        name: str = self._vertices[v]["id"]
        return name.removeprefix(self.name + "/") if self._has(v) else name

    def _joined(self, v: int) -> str:
        alike: dict[str, list[str]] = defaultdict(list)
        for link in self._links_from[v]:
            alike[_figures(link)].append(self._local(link["to"]))
        return "; ".join(
            f"{', '.join(names) if len(names) < 3 else _span(names)} {figures}"
            for figures, names in alike.items()
        )


def _node_group(alike: list[_Node]) -> Group:
    title = alike[0].name
    if len(alike) > 1:
        title += f" .. {alike[-1].name} ({len(alike):,} alike)"
    merged: list[_Line] = []
    for line in alike[0].lines():
        if merged and line.continues(merged[-1]):
            merged[-1].names += line.names
            merged[-1].numbers += line.numbers
        else:
            merged.append(line)
    return Group(title, [line.row() for line in merged])


def _fabric_group(
    vertices: list[dict[str, Any]], links: list[dict[str, Any]], switches: list[int]
) -> Group:
    ports: dict[int, Counter[str]] = {v: Counter() for v in switches}
    for link in links:
        for this, other in ((link["from"], link["to"]), (link["to"], link["from"])):
            if this in ports:
                ports[this][f"{_name(vertices[other])} {_figures(link)}"] += 1
    alike: dict[str, list[int]] = defaultdict(list)
    for v, counts in ports.items():
        alike["; ".join(f"{count} x {what}" for what, count in counts.items())].append(v)
    rows = []
    for joined, members in list(alike.items())[:_MOST_SWITCHES]:
        name = vertices[members[0]]["id"]
        more = f" ({len(members):,} alike)" if len(members) > 1 else ""
        rows.append((name + more, "switch", joined))
    if len(alike) > _MOST_SWITCHES:
        rows.append((f"and {len(alike) - _MOST_SWITCHES} kinds more", "", ""))
    return Group("between nodes", rows)


def _name(vertex: dict[str, Any]) -> str:
    kind: str = vertex["kind"]
    return _NAMES.get(kind, kind)


def _kind(vertex: dict[str, Any]) -> str:
    if vertex["kind"] != "nic":
        return _name(vertex)
    port = f" {rate(vertex['bandwidth_Bps'])}" if vertex["bandwidth_Bps"] > 0 else ""
    return f"{_name(vertex)}{port} rail {vertex['rail']}"


def _figures(link: dict[str, Any]) -> str:
    there, back = link["bandwidth_Bps"], link["bandwidth_back_Bps"]
    rates = rate(there) if there == back else f"{rate(there)} and {rate(back)} back"
    shared = " shared" if link["shared"] else ""
    return f"{link['path']} {rates}{shared}, {seconds(link['latency_s'])}"


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"


def _numbers(numbers: list[int]) -> str:
    if len(numbers) == numbers[-1] - numbers[0] + 1:
        return _span(list(map(str, numbers)))
    shown = numbers if len(numbers) < 5 else [*numbers[:3], numbers[-1]]
    return ", ".join(map(str, shown[:-1])) + (" .. " if len(numbers) > 4 else ", ") + str(shown[-1])
