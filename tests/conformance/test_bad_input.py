"""Calls that must be refused, and ranks that disagree about a call."""

from __future__ import annotations

import re

import pytest

from tests.conformance.mistakes import (
    DISAGREEMENTS,
    MISTAKES,
    Refusal,
    disagreed,
    refused,
    sides_of,
)
from tests.support.pools import PoolKeeper

# What a caller may catch: the value, the combination or the type is wrong.
REFUSALS = {"ValueError", "NotImplementedError", "TypeError"}
# Far below the group's timeout, with room for a loaded machine.
NOTICED_WITHIN_S = 10.0


def _outcome(result: Refusal) -> str:
    kind = result.kinds[0] if result.kinds else "no exception"
    return f"{kind} after {result.seconds:.3f} s: {result.message}"


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_mistake_is_refused_and_the_group_stays_usable(
    ranks: int, name: str, pools: PoolKeeper
) -> None:
    op = MISTAKES[name].op
    for rank, result in enumerate(pools.get(ranks).run(refused, name)):
        where = f"rank {rank}: {_outcome(result)}"
        assert REFUSALS & set(result.kinds), where
        assert op in result.message, f"the operation is not named; {where}"
        assert "group" in result.message, f"the group is not named; {where}"
        assert result.untouched, f"an output was written; {where}"
        assert result.usable, f"the group is not usable afterwards; {where}"


@pytest.mark.parametrize("name", DISAGREEMENTS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_disagree_all_get_an_error_with_both_sides(
    ranks: int, name: str, pools: PoolKeeper
) -> None:
    for rank, result in enumerate(pools.get(ranks).run(disagreed, name)):
        where = f"rank {rank}: {_outcome(result)}"
        assert "DistBackendError" in result.kinds, where
        for side in sides_of(name, ranks):
            assert re.search(side, result.message), f"{side!r} is not shown; {where}"
        assert result.seconds < NOTICED_WITHIN_S, where
        assert result.untouched, f"an output was written; {where}"
        assert result.usable, f"other groups are not usable afterwards; {where}"
