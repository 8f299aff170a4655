"""The barrier that names who is missing."""

from __future__ import annotations

import contextlib
import re
import time
from datetime import timedelta

import pytest
import tidegate
import torch
import torch.distributed as dist

from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

SHORT = timedelta(milliseconds=200)
LONG = timedelta(seconds=20)


def _outcome(group: dist.ProcessGroup | None, timeout: timedelta, name_all: bool) -> str:
    try:
        tidegate.monitored_barrier(group, timeout, name_all)
    except dist.DistBackendError as error:
        return str(error)
    return "passed"


def _pass(context: RankContext) -> list[str]:
    outcomes = []
    for name_all in (False, True, False):
        dist.all_reduce(torch.ones(3))
        outcomes.append(_outcome(None, LONG, name_all))
    dist.group.WORLD.monitored_barrier()  # the name in c10d, with the group's timeout
    tidegate.monitored_barrier()
    return outcomes


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_passes_when_all_come(pools: PoolKeeper, ranks: int) -> None:
    assert pools.get(ranks).run(_pass) == [["passed"] * 3] * ranks


def _miss(context: RankContext, missing: list[int], name_all: bool) -> tuple[str, float]:
    """Some ranks stay away; then all use the group, and pass the next barrier but one."""
    start = time.monotonic()
    outcome = ""
    if context.rank not in missing:
        outcome = _outcome(None, SHORT, name_all)
    seconds = time.monotonic() - start
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total.tolist() == [context.world_size] * 4
    if context.rank in missing:
        outcome = _outcome(None, LONG, name_all)  # the one that the others gave up
    assert _outcome(None, LONG, name_all) == "passed"
    return outcome, seconds


def _check(outcomes: list[tuple[str, float]], missing: list[int], root: str) -> None:
    reached = "Rank {0} successfully reached monitoredBarrier, but received errors while waiting"
    for rank, (text, seconds) in enumerate(outcomes):
        if rank in missing:
            assert "after rank 0 had given it up" in text
            continue
        assert re.search(root if rank == 0 else reached.format(rank), text), text
        assert re.search(root, text) or rank != 0
        # Of the others one may have come just before rank 0 gave up.
        assert seconds < 5.0
        assert seconds >= 0.2 or rank != 0


@pytest.mark.parametrize("name_all", [False, True])
def test_the_missing_rank_is_named_and_the_group_goes_on(pools: PoolKeeper, name_all: bool) -> None:
    outcomes = pools.get(3).run(_miss, [1], name_all)
    _check(outcomes, [1], r"^\[Rank 0\]: Rank 1 failed to pass monitoredBarrier in 200 ms")
    assert "Rank 1 failed to pass" in outcomes[2][0]


def test_the_first_missing_rank_is_named_or_all(pools: PoolKeeper) -> None:
    outcomes = pools.get(4).run(_miss, [1, 3], False)
    _check(outcomes, [1, 3], r"Rank 1 failed to pass monitoredBarrier in 200 ms \(and 1 more")
    outcomes = pools.get(4).run(_miss, [1, 3], True)
    _check(outcomes, [1, 3], r"Ranks 1, 3 failed to pass monitoredBarrier in 200 ms")


def _without_root(context: RankContext) -> str:
    outcome = _outcome(None, SHORT, False) if context.rank else ""
    dist.barrier()
    if context.rank == 0:
        assert _outcome(None, LONG, False) == "passed"
    dist.barrier()
    return outcome


def test_the_others_name_rank_0(pools: PoolKeeper) -> None:
    # Both of the others have come, so rank 0 passes when it comes; they have given up by then.
    _, *others = pools.get(3).run(_without_root)
    for text in others:
        assert "Rank 0 failed to pass monitoredBarrier" in text


def _at_once(context: RankContext) -> str:
    group = dist.new_group()
    outcome = _outcome(group, timedelta(0), False) if context.rank == 0 else ""
    dist.barrier()
    dist.destroy_process_group(group)
    return outcome


def test_a_timeout_of_zero_looks_once(pools: PoolKeeper) -> None:
    assert "Rank 0 timed out in monitoredBarrier after 0 ms" in pools.get(2).run(_at_once)[0]


def _in_subgroup(context: RankContext) -> str:
    ranks = [context.world_size - 1, 0]
    group = dist.new_group(ranks)
    if context.rank not in ranks:
        return _outcome(group, SHORT, False)
    outcome = _outcome(group, SHORT, False) if dist.get_rank(group) == 0 else ""
    dist.barrier(group)
    dist.destroy_process_group(group)
    return outcome


def test_a_subgroup_names_its_own_ranks_and_those_of_the_job(pools: PoolKeeper) -> None:
    text, bystander, _ = pools.get(3).run(_in_subgroup)
    assert bystander == "passed"
    assert "Rank 1 failed to pass monitoredBarrier in 200 ms (in the job: 2)" in text


def _of_a_failed_group(context: RankContext) -> str:
    group = dist.new_group()
    dist.barrier(group)
    dist.barrier()  # An abort may overtake the end of the call before it on another rank.
    if context.rank == 1:
        group.abort()
    start = time.monotonic()
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(1), group=group)
    outcome = _outcome(group, LONG, False)
    assert time.monotonic() - start < 10.0
    dist.barrier()
    dist.destroy_process_group(group)
    return outcome


def test_a_failed_group_says_so_at_once(pools: PoolKeeper) -> None:
    for text in pools.get(2).run(_of_a_failed_group):
        assert "aborted" in text


def _bad_timeouts(context: RankContext) -> None:
    with pytest.raises(TypeError, match="timedelta"):
        tidegate.monitored_barrier(timeout=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        tidegate.monitored_barrier(timeout=timedelta(seconds=-1))


def test_other_timeouts_are_refused(pools: PoolKeeper) -> None:
    pools.get(1).run(_bad_timeouts)
