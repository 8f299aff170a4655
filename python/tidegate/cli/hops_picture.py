"""A plan as a picture: for the first chunk, who sends what to whom in which step of the pipeline.

Time runs to the right, one column for each lag of the schedule (docs/architecture.md); ranks stand
below each other, nodes as bands. Puts are drawn strong, reads of a neighbour's stage pale, and both
wider the more blocks they move.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.cli.errors import UsageError
from tidegate.cli.quantities import seconds, size
from tidegate.cli.svg import Picture

if TYPE_CHECKING:
    from tidegate._shim_types import Cluster

_MOST_RANKS = 64
_STAGE = re.compile(r"stage\((\d+)\)\[\d+(?:\+(\d+)x\d+)?\]")
_PUT, _READ = "#c8553d", "#7fb0dd"
_LEFT, _TOP, _ROW, _COLUMN = 70, 56, 30, 130


@dataclass(frozen=True)
class Hop:
    """Blocks from the memory of one rank to another, in the column `lag`."""

    lag: int
    source: int
    target: int
    is_put: bool


def hops_of(program: dict[str, Any]) -> Iterator[tuple[Hop, int]]:
    """The hops of one rank's program (its JSON form), each with its number of blocks."""
    rank = program["rank"]
    for step in program["steps"]:
        lag = step.get("lag", 0)
        # A wait or a signal moves nothing.
        sources = [step["src"]] if "src" in step else step.get("operands", [])
        for word in sources:
            owner, blocks = _stage(word)
            if owner not in (None, rank):
                yield Hop(lag, owner, rank, is_put=False), blocks
        owner, blocks = _stage(step.get("dst", ""))
        if owner not in (None, rank):
            yield Hop(lag, rank, owner, is_put=True), blocks


def _stage(word: str) -> tuple[Any, int]:
    """Owner and number of blocks of a slice of a stage; (None, 0) for any other."""
    match = _STAGE.match(word)
    return (int(match[1]), int(match[2] or 1)) if match else (None, 0)


def draw(cluster: Cluster, plan: dict[str, Any], root: int) -> str:
    if cluster.ranks > _MOST_RANKS:
        raise UsageError(
            f"{cluster.ranks} ranks do not fit into a picture; --fake with at most {_MOST_RANKS}"
        )
    asked = plan["collective"], plan["algorithm"]
    hops: Counter[Hop] = Counter()
    columns = 1
    for rank in range(cluster.ranks):
        program = json.loads(cluster.schedule(*asked, rank, root, "json"))
        columns = max(columns, *(1 + step.get("lag", 0) for step in program["steps"]), 1)
        for hop, blocks in hops_of(program):
            hops[hop] += blocks
    return _picture(cluster, plan, hops, columns)


def _picture(cluster: Cluster, plan: dict[str, Any], hops: Counter[Hop], columns: int) -> str:
    width = max(_LEFT + _COLUMN * columns + 20, 620)
    picture = Picture(width, _TOP + _ROW * cluster.ranks + 40)
    title = f"{plan['collective']} {plan['algorithm']}, {plan['cluster']}"
    picture.text(_LEFT, 20, title, size=14)
    predicted = f"{size(plan['bytes'])} in {seconds(plan['predicted_seconds'])}, as simulated"
    picture.text(_LEFT, 38, predicted)
    _draw_ranks(picture, cluster, width)
    for column in range(columns):
        x = _LEFT + _COLUMN * column
        picture.text(x + _COLUMN / 2, _TOP + _ROW * cluster.ranks + 14, f"lag {column}", "middle")
        if column > 0:
            picture.line((x, _TOP), (x, _TOP + _ROW * cluster.ranks), "#ddd")
    # Puts last, above the reads.
    for hop, blocks in sorted(hops.items(), key=lambda item: (item[0].is_put, item[0].lag)):
        _draw_hop(picture, hop, blocks)
    y = _TOP + _ROW * cluster.ranks + 30
    picture.line((_LEFT, y - 4), (_LEFT + 24, y - 4), _PUT, 2, arrow=True)
    picture.text(_LEFT + 30, y, "put into the other's stage")
    picture.line((_LEFT + 190, y - 4), (_LEFT + 214, y - 4), _READ, 2, arrow=True)
    picture.text(_LEFT + 220, y, "read out of the other's stage, on the same node")
    return picture.svg()


def _draw_ranks(picture: Picture, cluster: Cluster, width: float) -> None:
    node_of = [v["node"] for v in sorted(_ranks(cluster), key=lambda v: int(v["number"]))]
    nodes = sorted(set(node_of))
    for rank, node in enumerate(node_of):
        y = _TOP + _ROW * rank
        fill = "#f4f4f4" if nodes.index(node) % 2 == 0 else "#e4ecf4"
        picture.band(_LEFT, y, width - _LEFT - 20, _ROW, fill)
        picture.line((_LEFT, y + _ROW / 2), (width - 20, y + _ROW / 2), "#bbb")
        picture.text(_LEFT - 8, y + _ROW / 2 + 4, f"rank {rank}", "end")


def _ranks(cluster: Cluster) -> list[dict[str, Any]]:
    return [vertex for vertex in cluster.vertices() if vertex["kind"] == "rank"]


def _draw_hop(picture: Picture, hop: Hop, blocks: int) -> None:
    x = _LEFT + _COLUMN * hop.lag
    ends = [(_TOP + _ROW * (rank + 0.5)) for rank in (hop.source, hop.target)]
    # Side by side rather than above each other where both directions are used.
    shift = 0 if hop.source < hop.target else 12
    start, end = (x + 16 + shift, ends[0]), (x + _COLUMN - 30 + shift, ends[1])
    title = f"rank {hop.source} to rank {hop.target}: {blocks} block{'s' if blocks > 1 else ''}"
    width = min(4.0, 1.0 + 0.5 * (blocks - 1)) + (0.5 if hop.is_put else 0)
    picture.line(start, end, _PUT if hop.is_put else _READ, width, title, arrow=True)
