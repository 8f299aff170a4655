"""The pool reports what goes wrong in its ranks: every suite relies on that."""

from __future__ import annotations

import os
import time
from multiprocessing import util

import pytest

from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext, WorkerError


def _rank(context: RankContext, *arguments: object) -> tuple[object, ...]:
    return (context.rank, *arguments)


def _raise_on_one(context: RankContext) -> None:
    if context.rank == 1:
        raise ValueError("seven geese")


def _die_on_one(context: RankContext) -> None:
    if context.rank == 1:
        os._exit(41)


def _hang_on_one(context: RankContext) -> None:
    while context.rank == 1:
        time.sleep(0.1)


def _exit_badly(context: RankContext) -> None:
    if context.rank == 1:
        util.Finalize(None, os._exit, args=(3,), exitpriority=0)


def test_results_come_in_rank_order(pools: PoolKeeper) -> None:
    results = pools.get(2).run(_rank, "all", per_rank=[["a"], ["b"]])
    assert results == [(0, "all", "a"), (1, "all", "b")]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_raise_on_one, "seven geese"),
        (_die_on_one, "exit code 41"),
        (_hang_on_one, "_hang_on_one"),  # in the stack that a silent rank is asked for
    ],
)
def test_a_failing_rank_is_named_and_the_ranks_are_replaced(
    function, words: str, pools: PoolKeeper
) -> None:
    pool = pools.get(2)
    with pytest.raises(WorkerError, match=f"rank 1: .*(\n.*)*{words}"):
        pool.run(function, timeout_s=3.0)
    assert pools.get(2) is not pool
    assert pools.get(2).run(_rank) == [(0,), (1,)]


def test_a_rank_that_ends_badly_is_reported(pools: PoolKeeper) -> None:
    pools.get(2).run(_exit_badly)
    with pytest.raises(WorkerError, match="rank 1 ended with exit code 3"):
        pools.close()
    assert pools.get(2).run(_rank) == [(0,), (1,)]
