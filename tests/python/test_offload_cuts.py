"""How the elements of an optimizer are shared out over ranks, and which ranks may share."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.offload._cuts import BLOCK, cuts_of
from tidegate.offload._node import _check_one_node

COUNTS = st.lists(st.integers(0, 30 * BLOCK), max_size=20)


@given(COUNTS, st.integers(1, 9), st.data())
def test_parts_are_whole_blocks_that_cover_each_tensor(
    counts: list[int], ranks: int, data: st.DataObject
) -> None:
    weights = [data.draw(st.integers(1, 2000)) for _ in counts]
    cuts = cuts_of(counts, weights, ranks)
    assert len(cuts) == len(counts)
    for count, places in zip(counts, cuts, strict=True):
        assert len(places) == ranks + 1
        assert (places[0], places[-1]) == (0, count)
        assert all(begin <= end for begin, end in pairwise(places))
        assert all(place % BLOCK == 0 or place == count for place in places)


@given(COUNTS, st.integers(1, 9), st.data())
def test_each_rank_has_its_share_to_a_block(
    counts: list[int], ranks: int, data: st.DataObject
) -> None:
    weights = [data.draw(st.integers(1, 2000)) for _ in counts]
    cuts = cuts_of(counts, weights, ranks)
    total = sum(count * weight for count, weight in zip(counts, weights, strict=True))
    for rank in range(ranks):
        share = sum(
            (places[rank + 1] - places[rank]) * weight
            for places, weight in zip(cuts, weights, strict=True)
        )
        # Both ends of its stretch are rounded, each to the nearest block.
        assert abs(share - total / ranks) <= BLOCK * max(weights, default=0) + 1


def test_a_large_tensor_is_shared_and_small_ones_are_whole() -> None:
    assert cuts_of([10 * BLOCK], [3], 2) == [[0, 5 * BLOCK, 10 * BLOCK]]
    assert cuts_of([100] * 4, [1] * 4, 2) == [
        [0, 100, 100],
        [0, 100, 100],
        [0, 0, 100],
        [0, 0, 100],
    ]


def test_ranks_of_several_nodes_are_refused_with_a_remedy() -> None:
    _check_one_node(["a", "a"])
    with pytest.raises(ValueError, match=r"on 2 nodes \(rank 0, 2 on a; rank 1 on b\).*new_sub"):
        _check_one_node(["a", "b", "a"])
