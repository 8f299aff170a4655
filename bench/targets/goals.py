"""What tidegate aims at inside a node, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Share:
    """At least this share of what a rank's own memory allows."""

    collective: str
    ranks: int
    bytes: int
    bound: str  # a variant of tidegate_bench_node
    least: float
    tensors: str = "ordinary"  # or "resident": in the group's shared memory


_LARGE = (16 * MIB, 128 * MIB)
SHARES = (
    *(Share("all_gather", 2, size * MIB, "streaming", s) for size, s in ((16, 0.85), (128, 0.79))),
    *(Share("all_gather", 4, size * MIB, "streaming", s) for size, s in ((16, 0.92), (128, 0.90))),
    *(Share("reduce_scatter", 2, size * MIB, "streaming", 0.82) for size in (16, 128)),
    *(Share("reduce_scatter", 4, size * MIB, "streaming", 0.66) for size in (16, 128)),
    *(Share("all_gather", ranks, MIB, "plain", s) for ranks, s in ((2, 0.65), (4, 0.60))),
    *(Share("reduce_scatter", ranks, MIB, "plain", s) for ranks, s in ((2, 0.50), (4, 0.36))),
    *(
        Share("all_gather", ranks, s, "streaming", 0.98, "resident")
        for ranks in (2, 4)
        for s in _LARGE
    ),
    *(Share("reduce_scatter", 2, size, "streaming", 0.95, "resident") for size in _LARGE),
    *(Share("reduce_scatter", 4, size, "streaming", 0.92, "resident") for size in _LARGE),
)
# In place against out of place, at these sizes.
IN_PLACE_BYTES = _LARGE

LATENCY_BYTES = 8 * KIB
MOST_BARRIERS = 2.0  # p50 of an all-gather of LATENCY_BYTES, in bare barriers
MOST_UNDER_LOAD_US = {2: 10.0, 4: 100.0}
MOST_IDLE_PERCENT = {4: 0.5}

# Of the better of the MPI libraries, from here up; below, and for the rest, 1.
LEAST_OVER_PEERS_BYTES = 64 * KIB
LEAST_OVER_PEERS = {"all_gather": 1.2, "reduce_scatter": 2.0, "all_reduce": 2.0}


def over_peers(collective: str, size: int) -> float:
    return LEAST_OVER_PEERS.get(collective, 1.0) if size >= LEAST_OVER_PEERS_BYTES else 1.0


_OVER_GLOO = {
    ("all_gather", 2): (20, 15, 5, 6),
    ("all_gather", 4): (60, 20, 4.5, 6),
    ("reduce_scatter", 2): (50, 25, 9, 9),
    ("reduce_scatter", 4): (100, 35, 8, 10),
    ("all_reduce", 2): (15, 10, 4, 3),
    ("all_reduce", 4): (15, 10, 4, 3),
}
_OVER_GLOO_BYTES = (64 * KIB, MIB, 16 * MIB, 128 * MIB)
_TWICE_GLOO = ("broadcast", "all_to_all", "gather", "scatter")


# For all-gather, at every size.
_OVER_GLOO_AT_8_RANKS = 4.0

# Of the null backend, in us a call up to LEAST_OVER_PEERS_BYTES.
MOST_ABOVE_NULL_US = {2: 10.0, 4: 60.0}
_BESIDE_NULL = ("all_gather", "reduce_scatter")


def above_null(collective: str, ranks: int, size: int) -> float | None:
    """How much longer than with no communication, at most; None where that is no aim."""
    if collective not in _BESIDE_NULL or size > LEAST_OVER_PEERS_BYTES:
        return None
    return MOST_ABOVE_NULL_US.get(ranks)


def over_gloo(collective: str, ranks: int, size: int) -> float:
    if (collective, ranks) == ("all_gather", 8):
        return _OVER_GLOO_AT_8_RANKS
    named = dict(zip(_OVER_GLOO_BYTES, _OVER_GLOO.get((collective, ranks), ()), strict=False))
    return named.get(size, 2.0 if collective in _TWICE_GLOO else 1.0)


# Of the time that a training step would save over gloo if nothing were communicated.
LEAST_OF_NULL_GAIN = 0.85


def shares_of(collective: str, ranks: int, size: int) -> Iterator[Share]:
    for share in SHARES:
        if (share.collective, share.ranks, share.bytes) == (collective, ranks, size):
            yield share
