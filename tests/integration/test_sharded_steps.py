"""Optimizers whose states are spread over the ranks of a node (``shard_over=``)."""

from __future__ import annotations

import pytest
import torch

from tests.integration import models, sharded_steps
from tests.support.pools import PoolKeeper
from tests.support.workers import WorkerError, WorkerPool


@pytest.mark.parametrize("ranks", [1, 4, 3, 2])
def test_any_number_of_ranks_has_the_bits_of_one_process(pools: PoolKeeper, ranks: int) -> None:
    pool = pools.get(ranks)
    pool.run(sharded_steps.all_rules)
    pool.run(sharded_steps.small_layouts)


def test_the_states_are_shared_out_in_one_segment(pools: PoolKeeper) -> None:
    told = pools.get(2).run(sharded_steps.memory)
    for part, whole, _, mapped in told:
        assert part == pytest.approx(whole / 2, rel=0.01)
        assert mapped
    assert len({inode for _, _, inode, _ in told}) == 1


def test_optimizers_are_made_and_dropped(pools: PoolKeeper) -> None:
    pools.get(2).run(sharded_steps.make_and_drop)


def test_one_rank_saves_the_states_of_all_and_each_loads_its_part(pools: PoolKeeper) -> None:
    pools.get(2).run(sharded_steps.save_and_load)


def test_elements_may_change_their_order_in_memory(pools: PoolKeeper) -> None:
    pool = pools.get(2)
    pool.run(sharded_steps.orders_that_change)
    pool.run(sharded_steps.orders_that_differ)
    pool.run(sharded_steps.raw_states_of_another_order)


def test_what_one_rank_refuses_no_rank_does(pools: PoolKeeper) -> None:
    pool = pools.get(2)
    pool.run(sharded_steps.refused_steps)
    pool.run(sharded_steps.refused_state)
    pool.run(sharded_steps.refused_arguments)
    pool.run(sharded_steps.refused_construction)
    pool.run(sharded_steps.refused_group)


def test_what_fails_half_way_on_one_rank_ends_the_optimizer_on_all(pools: PoolKeeper) -> None:
    pools.get(2).run(sharded_steps.fails_half_way)


def test_scalers_schedulers_and_groups_that_come_later(pools: PoolKeeper) -> None:
    pool = pools.get(2)
    pool.run(sharded_steps.scaler_and_scheduler)
    pool.run(sharded_steps.groups_added)


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_ddp_trains_as_one_process_on_all_samples(
    pools: PoolKeeper, max_norm: float | None
) -> None:
    recipe = models.Recipe(max_norm=max_norm)
    oracle = models.union_oracle(2, recipe)
    first, *others = pools.get(2).run(sharded_steps.ddp_training, recipe)
    for name, value in first.items():
        torch.testing.assert_close(value, oracle[name], rtol=2e-6, atol=2e-6)
        assert all(torch.equal(other[name], value) for other in others)


def test_a_lost_rank_is_an_error_and_no_hang() -> None:
    pool = WorkerPool(3, group_timeout_s=10.0)
    try:
        with pytest.raises(WorkerError) as failure:
            pool.run(sharded_steps.lost_before_step, timeout_s=60.0)
    finally:
        pool.close()
    # The others have seen what they had to see.
    assert "rank 2: died with exit code 9" in str(failure.value)
    assert "rank 0" not in str(failure.value)
    assert "rank 1" not in str(failure.value)
