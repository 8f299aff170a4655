"""What c10d asks of a group apart from its operations: options, time-outs, numbers, splitting."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

CPU = torch.device("cpu")
# From 2.14 on c10d hands the two on to any backend; before that it refuses the name.
NUMBERS_OF_GROUPS = hasattr(dist, "set_timeout")


def _backend(group: dist.ProcessGroup | None = None) -> Any:
    return (group or dist.group.WORLD)._get_backend(CPU)


def _options(context: RankContext) -> None:
    ranks = list(range(context.world_size))[::-1]
    group = dist.new_group(ranks, timeout=timedelta(seconds=77))
    backend = _backend(group)
    options = backend.options
    assert type(options).__name__ == "Options"
    assert options.backend == "tidegate"
    assert options._timeout == timedelta(seconds=77)
    assert options.group_name == group.group_name
    # c10d sorts the ranks of a new group.
    assert list(options.global_ranks_in_group) == sorted(ranks)
    for make in (copy.copy, copy.deepcopy):
        other = make(options)
        assert type(other) is type(options)
        assert other is not options
        assert other._timeout == options._timeout
        assert other.group_name == options.group_name
        assert list(other.global_ranks_in_group) == sorted(ranks)
        other._timeout = timedelta(seconds=1)
        other.group_name = "another"
        assert options._timeout == timedelta(seconds=77)
    # The options of the group itself are out of reach: c10d writes into what it is given.
    options.group_name = "changed"
    assert backend.options.group_name == group.group_name
    dist.destroy_process_group(group)


def test_options_are_copied_whole(pools: PoolKeeper) -> None:
    pools.get(2).run(_options)


def _given_options(context: RankContext) -> None:
    mine = type(_backend().options)(timeout=timedelta(seconds=5))
    group = dist.new_group(timeout=timedelta(seconds=66), pg_options=mine)
    # The argument outranks the options; these are copied, not kept.
    assert _backend(group).options._timeout == timedelta(seconds=66)
    assert mine._timeout == timedelta(seconds=5)
    assert mine.group_name == ""
    dist.destroy_process_group(group)


def test_options_of_the_caller_stay_the_callers(pools: PoolKeeper) -> None:
    pools.get(2).run(_given_options)


def _timeouts(context: RankContext) -> list[str]:
    texts = []
    ways = ["_set_default_timeout", "set_timeout"]
    ways += ["of the group"] if hasattr(dist.ProcessGroup, "set_timeout") else []
    ways += ["dist.set_timeout"] if NUMBERS_OF_GROUPS else []
    for way in ways:
        group = dist.new_group()
        dist.barrier(group)
        backend = _backend(group)
        assert backend.get_error() == ErrorType.SUCCESS
        timeout = timedelta(milliseconds=300)
        if way == "of the group":
            group.set_timeout(timeout)
        elif way == "dist.set_timeout":
            dist.set_timeout(timeout, group)
        else:
            getattr(backend, way)(timeout)
        assert backend.options._timeout == timeout
        if context.rank == 0:
            with pytest.raises(dist.DistBackendError, match="timed out after 3"):
                dist.all_reduce(torch.ones(2), group=group)
            assert backend.get_error() == ErrorType.TIMEOUT
            texts.append(way)
        dist.barrier()
        # The others are in the same group, which has failed for all.
        assert backend.get_error() == ErrorType.TIMEOUT
        dist.destroy_process_group(group)
    return texts


def test_a_timeout_can_be_set_and_is_kept(pools: PoolKeeper) -> None:
    expected = ["_set_default_timeout", "set_timeout"]
    assert pools.get(2).run(_timeouts)[0][:2] == expected


def _aborted(context: RankContext) -> None:
    group = dist.new_group()
    dist.barrier(group)
    dist.barrier()
    if context.rank == 0:
        _backend(group).abort()
    dist.barrier()
    assert _backend(group).get_error() == ErrorType.COMM_ERROR
    dist.destroy_process_group(group)


def test_get_error_tells_of_an_abort_on_every_rank(pools: PoolKeeper) -> None:
    pools.get(2).run(_aborted)


def _destroyed(context: RankContext) -> None:
    group = dist.new_group()
    dist.barrier(group)
    backend = _backend(group)
    dist.destroy_process_group(group)
    assert backend.get_error() == ErrorType.SUCCESS
    unused = dist.new_group()
    backend = _backend(unused)
    dist.destroy_process_group(unused)
    assert backend.get_error() == ErrorType.SUCCESS


def test_a_group_that_was_destroyed_has_not_failed(pools: PoolKeeper) -> None:
    pools.get(2).run(_destroyed)


def _numbers(context: RankContext) -> list[int]:
    group = dist.new_group()
    backend = _backend(group)
    seen = [backend._get_sequence_number_for_group()]
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    seen.append(backend._get_sequence_number_for_group())
    group.allreduce_coalesced([torch.ones(2), torch.ones(3)]).wait()  # one number a tensor
    seen.append(backend._get_sequence_number_for_group())
    if context.rank == 0:
        dist.send(torch.ones(1), 1, group=group)
    elif context.rank == 1:
        dist.recv(torch.ones(1), 0, group=group)
    seen.append(backend._get_sequence_number_for_group())  # transfers have numbers of their own
    if NUMBERS_OF_GROUPS:
        assert group._get_sequence_number_for_group() == seen[-1]
        assert [work._get_sequence_number() for work in works] == [1, 2, 3]
    dist.destroy_process_group(group)
    return seen


def test_collectives_are_numbered(pools: PoolKeeper) -> None:
    assert pools.get(3).run(_numbers) == [[0, 3, 5, 5]] * 3


def _eager(context: RankContext) -> None:
    backend = _backend()
    backend.eager_connect_single_device(CPU)
    backend.perform_nocolor_split(CPU)
    assert backend.supports_splitting
    assert not backend.supports_coalescing
    dist.barrier()


def test_calls_with_nothing_to_do_do_nothing(pools: PoolKeeper) -> None:
    pools.get(2).run(_eager)


def _split(context: RankContext) -> list[Any]:
    """Two halves of a group whose order is not that of the job, straight from the backend."""
    parent = dist.new_group()
    backend, rank, ranks = _backend(parent), context.rank, context.world_size
    store = dist.PrefixStore("halves", parent.get_group_store())
    options = backend.options
    found: list[Any] = []
    for number, members in enumerate(([0, 2, 3], [1])):
        options.group_name = f"half {number} of {parent.group_name}"
        child = backend.split(store, members, options)
        again = backend.split(store, members, options)
        assert (child is None) == (rank not in members)
        if child is None:
            assert again is None
            continue
        assert child is again  # once for each type of device, say some versions of c10d
        assert (child.rank(), child.size()) == (members.index(rank), len(members))
        assert list(child.options.global_ranks_in_group) == members
        assert child.options.group_name == options.group_name
        total = torch.tensor([float(rank)])
        child.allreduce([total]).wait()
        assert total.item() == sum(members)
        found.append((number, child.rank()))
        # Split again after it has gone, under the same name.
        child.shutdown()
        child = backend.split(store, members, options)
        assert child is not again
        child.allreduce([total]).wait()
        assert total.item() == sum(members) * len(members)
        child.shutdown()
    assert backend.options.group_name == parent.group_name
    for wrong in ([], [0, 0], [0, ranks], [-1]):
        with pytest.raises(ValueError, match="split in group"):
            backend.split(store, wrong, options)
    dist.barrier(parent)
    dist.destroy_process_group(parent)
    return found


def test_a_group_is_split(pools: PoolKeeper) -> None:
    found = pools.get(4).run(_split)
    assert found == [[(0, 0)], [(1, 0)], [(0, 1)], [(0, 2)]]


def _split_group(context: RankContext) -> list[float]:
    """Through c10d's own ProcessGroup, which asks the backend."""
    parent = dist.new_group()
    before = _backend(parent).options._timeout
    totals = []
    for members in ([0, 1], [2]):
        child = parent.split_group(
            members, timedelta(seconds=30), group_name=f"{parent.group_name}/{members}"
        )
        if context.rank not in members:
            assert child is None
            continue
        assert (child.rank(), child.size()) == (members.index(context.rank), len(members))
        total = torch.full((3,), float(context.rank + 1))
        child.allreduce([total]).wait()
        totals.append(float(total[0]))
        child.barrier().wait()
        child.shutdown()
    assert _backend(parent).options.group_name == parent.group_name
    assert _backend(parent).options._timeout == before
    dist.barrier(parent)
    dist.destroy_process_group(parent)
    return totals


def test_c10d_splits_a_group(pools: PoolKeeper) -> None:
    assert pools.get(3).run(_split_group) == [[3.0], [3.0], [3.0]]


def _halves_of_one_name(context: RankContext) -> list[float]:
    """Each half of the job calls its part of a split by the same name, as colours do."""
    parent = dist.new_group()
    store = dist.PrefixStore("halves of one name", parent.get_group_store())
    options = _backend(parent).options
    options.group_name = "dp"
    low = context.rank < 2
    totals = []
    for members in ([0, 1] if low else [2, 3], [0, 2] if context.rank in (0, 2) else [1, 3]):
        child = _backend(parent).split(store, members, options)
        assert child.size() == 2
        total = torch.tensor([float(context.rank)])
        child.allreduce([total]).wait()
        totals.append(total.item())
        child.shutdown()
    dist.barrier(parent)
    dist.destroy_process_group(parent)
    return totals


def test_groups_of_one_name_and_other_ranks_are_kept_apart(pools: PoolKeeper) -> None:
    expected = [[1.0, 2.0], [1.0, 4.0], [5.0, 2.0], [5.0, 4.0]]
    assert pools.get(4).run(_halves_of_one_name) == expected


def _split_again(context: RankContext, end: str) -> float:
    parent = dist.new_group()
    store = dist.PrefixStore(f"split again after {end}", parent.get_group_store())
    options = _backend(parent).options
    options.group_name = "again"
    child = _backend(parent).split(store, [0, 1], options)
    total = torch.ones(1)
    child.allreduce([total]).wait()
    dist.barrier(parent)  # Or the end reaches a rank that has yet to read the other's part.
    if context.rank == 0:
        getattr(child, end)()
    dist.barrier(parent)
    again = _backend(parent).split(store, [0, 1], options)
    assert again is not child
    again.allreduce([total]).wait()
    again.shutdown()
    dist.barrier(parent)
    dist.destroy_process_group(parent)
    return total.item()


@pytest.mark.parametrize("end", ["shutdown", "abort"])
def test_a_group_that_ended_on_one_rank_is_split_anew_on_all(pools: PoolKeeper, end: str) -> None:
    assert pools.get(2).run(_split_again, end) == [4.0, 4.0]


def _wrong_timeouts(context: RankContext) -> None:
    backend = _backend()
    before = backend.options._timeout
    for seconds in (0, -5):
        wrong = timedelta(seconds=seconds)
        text = f"the timeout is {1000 * seconds} ms, but must be positive"
        with pytest.raises(ValueError, match=text):
            dist.new_group(timeout=wrong)
        for way in ("_set_default_timeout", "set_timeout"):
            with pytest.raises(ValueError, match=text):
                getattr(backend, way)(wrong)
        assert backend.options._timeout == before
        group = dist.new_group()
        options = dist.AllreduceOptions()
        options.timeout = wrong
        with pytest.raises(ValueError, match=text):
            group.allreduce([torch.ones(2)], options)
        dist.destroy_process_group(group)
    options = dist.AllreduceOptions()  # As torch leaves it: the group's.
    group = dist.new_group()
    group.allreduce([torch.ones(2)], options).wait()
    dist.destroy_process_group(group)


def test_timeouts_that_are_not_positive_are_refused(pools: PoolKeeper) -> None:
    pools.get(2).run(_wrong_timeouts)
