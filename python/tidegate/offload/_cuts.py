"""Which elements of which parameter each of several ranks steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

#: Parts begin at multiples of this many elements: of offload::kBlock, so that all that the engine
#: takes in blocks is whole in a part.
BLOCK = 4096


def cuts_of(counts: Sequence[int], weights: Sequence[int], ranks: int) -> list[list[int]]:
    """For each tensor of ``counts`` elements, where the part of each rank begins, and the end.

    ``weights`` is what an element of each tensor costs, at least 1. All tensors, one after another,
    are cut into ``ranks`` stretches of equal cost, to the nearest block: large tensors are shared
    out, small ones are whole in one rank.
    """
    total = sum(count * weight for count, weight in zip(counts, weights, strict=True))
    cuts: list[list[int]] = []
    before = 0  # What the tensors in front of this one cost.
    for count, weight in zip(counts, weights, strict=True):
        inner = (
            _nearest(total * rank // ranks - before, weight, count) for rank in range(1, ranks)
        )
        cuts.append([0, *inner, count])
        before += count * weight
    return cuts


def _nearest(cost: int, weight: int, count: int) -> int:
    """Of the places at which a tensor can be cut, the one nearest to what costs ``cost``."""
    if cost <= 0:
        return 0
    if cost >= count * weight:
        return count
    below = cost // weight // BLOCK * BLOCK
    above = min(below + BLOCK, count)
    return below if cost - below * weight <= above * weight - cost else above


def sizes_of(cuts: Sequence[int]) -> list[int]:
    """The number of elements of each rank's part."""
    return [end - begin for begin, end in pairwise(cuts)]
