"""One cell of `tidegate sim`: an algorithm, simulated in chunks of a sensible size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.cli.quantities import size

if TYPE_CHECKING:
    from tidegate._shim_types import Cluster

_SLOTS = 2
_ALIGNMENT = 64
_LEAST_CHUNK = 1024  # a shard is not cut into smaller ones
_STEADY_CHUNKS = 64  # pipelines longer than twice this are continued in a straight line
_MOST_STEPS = 1 << 23  # about ten seconds; a chunking that takes more is not tried
_FEW_RANKS = 64
_EXACT_RANKS = 1024


@dataclass(frozen=True)
class Chunking:
    """Into what blocks are cut: chunks of `bytes`; 0: the executor's, or the `best`."""

    best: bool
    bytes: int
    buffer: int

    def __str__(self) -> str:
        if self.bytes > 0:
            return f"chunks of {size(self.bytes)}"
        if self.best:
            return f"the best chunks that need no more than {size(self.buffer)}"
        return "chunks of the executor"


@dataclass
class Measurement:
    seconds: float
    tier_bytes: dict[str, float]
    chunks: int
    peak_stage_bytes: int
    extrapolated: bool


def simulate(
    cluster: Cluster, collective: str, algorithm: str, total: int, root: int, chunking: Chunking
) -> Measurement | str:
    """What becomes of it, or why it cannot be run."""
    shape = cluster.shape(collective, algorithm, root)
    cell = _Cell(cluster, collective, algorithm, root)
    block = _longest_block(collective, total, cluster.ranks, shape["parts"])
    try:
        if chunking.bytes == 0 and chunking.best and block > 0:
            return _best(cell, total, block, shape["sub_slots"], chunking.buffer)
        chunk = chunking.bytes or shape["slot_bytes"] // shape["sub_slots"]
        chunk = chunk // _ALIGNMENT * _ALIGNMENT
        if chunking.bytes == 0 and chunk > 0 and block > 2 * _STEADY_CHUNKS * chunk:
            return _continued(cell, total, block, chunk)
        return _measurement(cell.run(total, chunking.bytes))
    except ValueError as error:
        return str(error)


class _Cell:
    def __init__(self, cluster: Cluster, collective: str, algorithm: str, root: int) -> None:
        self.cluster = cluster
        self.asked = collective, algorithm
        self.root = root
        self._orbits = list(_orbits_of(cluster, collective))

    def run(self, total: int, chunk: int) -> dict[str, Any]:
        """With as few ranks for all as is possible; ValueError where it cannot be run."""
        while True:
            try:
                return self.cluster.simulate(
                    *self.asked, total, self.root, chunk_bytes=chunk, orbit=self._orbits[0]
                )
            except ValueError:
                # A machine or a plan that is not the same after this shift.
                if len(self._orbits) == 1:
                    raise
                self._orbits.pop(0)

    def price(self, total: int) -> float:
        return self.cluster.price(*self.asked, total, self.root)


def _orbits_of(cluster: Cluster, collective: str) -> Iterator[int]:
    """How many ranks may stand for all, as simulate() takes it: those of a node, or of the nodes
    below one switch; in the end, unless they are too many, all (0)."""
    counts: list[int] = cluster.ranks_of_nodes()
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    if cluster.ranks > _FEW_RANKS and not rooted and len(set(counts)) == 1:
        nodes = 1
        while 3 * nodes <= len(counts) and counts[0] * nodes <= _EXACT_RANKS:
            if len(counts) % nodes == 0:
                yield counts[0] * nodes
            nodes *= 2
        if cluster.ranks > _EXACT_RANKS:
            return
    yield 0


def _longest_block(collective: str, total: int, ranks: int, parts: int) -> int:
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return -(-total // ranks)
    return -(-total // max(1, parts))


def _best(cell: _Cell, total: int, block: int, sub_slots: int, buffer: int) -> Measurement | str:
    """The fastest of a few numbers of chunks, as long as more are faster."""
    best: dict[str, Any] | None = None
    for chunks in (1, 4, 16, 64):
        chunk = -(-block // chunks)
        chunk = -(-chunk // _ALIGNMENT) * _ALIGNMENT
        slots = 1 if chunks == 1 else _SLOTS
        if slots * sub_slots * min(chunk, block) > buffer:
            continue
        if best is not None and (chunk < _LEAST_CHUNK or 4 * best["steps"] > _MOST_STEPS):
            break
        run = cell.run(total, chunk)
        if best is not None and run["seconds"] >= best["seconds"]:
            break
        best = run
    if best is None:
        return f"64 chunks need more than the {size(buffer)} of --buffer"
    return _measurement(best)


def _continued(cell: _Cell, total: int, block: int, chunk: int) -> Measurement:
    """The planner's price, and bytes in proportion to those of a shorter message."""
    shorter = total * _STEADY_CHUNKS * chunk // block
    run = cell.run(shorter, 0)
    factor = total / shorter
    return Measurement(
        seconds=cell.price(total),
        tier_bytes={tier: value * factor for tier, value in run["tier_bytes"].items()},
        chunks=-(-block // chunk),
        peak_stage_bytes=run["peak_stage_bytes"],
        extrapolated=True,
    )


def _measurement(run: dict[str, Any]) -> Measurement:
    fields = ("seconds", "tier_bytes", "chunks", "peak_stage_bytes")
    return Measurement(**{name: run[name] for name in fields}, extrapolated=False)
