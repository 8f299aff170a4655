"""What trace tools read: record_param_comms with the arguments of every call."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    ReduceScatterOptions,
)
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from tests.support.backend import all_gather_single, reduce_scatter_single
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

RANKS = 2
# From 2.13 on the trace also says whether a call is asynchronous, and its number.
NEWER_FIELDS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

# Name of the call, elements in and out on rank 0, root, and the split sizes: what ProcessGroupNCCL
# tells of calls with tensors of 6 elements.
EXPECTED = {
    "allreduce": (6, 6, None),
    "allreduce_coalesced": (12, 12, None),
    "broadcast": (6, 6, 1),
    "reduce": (6, 6, 1),
    "all_gather": (6, 12, None),
    "_allgather_base": (6, 12, None),
    "allgather_into_tensor_coalesced": (12, 24, None),
    "reduce_scatter": (12, 6, None),
    "_reduce_scatter_base": (12, 6, None),
    "reduce_scatter_tensor_coalesced": (24, 12, None),
    "gather": (6, 12, 1),
    "scatter": (12, 6, 1),
    "all_to_all": (6, 6, None),
    "all_to_allv": (6, 6, None),
    "barrier": (0, 0, None),
}


def _calls(rank: int, async_op: bool) -> list[Callable[[], Any]]:
    """One call of each kind."""
    group, is_root = dist.group.WORLD, rank == 1
    tensor = torch.ones(6, dtype=torch.bfloat16)
    twelve = tensor.repeat(RANKS)
    lists = [torch.ones(6, dtype=torch.bfloat16) for _ in range(RANKS)]

    def coalesced(name: str, options: Any, *arguments: Any) -> Any:
        options.asyncOp = async_op
        return getattr(group, name)(*arguments, options)

    return [
        lambda: dist.all_reduce(tensor, async_op=async_op),
        lambda: coalesced(
            "allreduce_coalesced", AllreduceCoalescedOptions(), [tensor, tensor.clone()]
        ),
        lambda: dist.broadcast(tensor, 1, async_op=async_op),
        lambda: dist.reduce(tensor, 1, async_op=async_op),
        lambda: dist.all_gather(lists, tensor, async_op=async_op),
        lambda: all_gather_single(twelve, tensor, async_op=async_op),
        lambda: coalesced(
            "allgather_into_tensor_coalesced",
            AllgatherOptions(),
            [twelve, twelve.clone()],
            [tensor, tensor.clone()],
        ),
        lambda: dist.reduce_scatter(tensor, lists, async_op=async_op),
        lambda: reduce_scatter_single(tensor, twelve, dist.ReduceOp.SUM, async_op=async_op),
        lambda: coalesced(
            "reduce_scatter_tensor_coalesced",
            ReduceScatterOptions(),
            [tensor, tensor.clone()],
            [twelve, twelve.clone()],
        ),
        lambda: dist.gather(tensor, lists if is_root else None, 1, async_op=async_op),
        lambda: dist.scatter(tensor, lists if is_root else None, 1, async_op=async_op),
        lambda: dist.all_to_all_single(tensor.clone(), tensor, async_op=async_op),
        lambda: dist.all_to_all_single(
            tensor.clone(),
            tensor,
            [2, 4] if rank == 0 else [4, 2],
            [2, 4] if rank == 0 else [4, 2],
            async_op=async_op,
        ),
        lambda: dist.barrier(async_op=async_op),
    ]


def _run(rank: int, async_op: bool) -> None:
    for call in _calls(rank, async_op):
        work = call()
        if work is not None:
            work.wait()


def _trace(context: RankContext, async_op: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        _run(context.rank, async_op)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            trace = json.load(file)
    named = [event for event in trace["traceEvents"] if event.get("name") == "record_param_comms"]
    return trace["distributedInfo"], [event["args"] for event in named]


@pytest.mark.parametrize("async_op", [False, True])
def test_every_collective_tells_its_arguments(pools: PoolKeeper, async_op: bool) -> None:
    for rank, (info, events) in enumerate(pools.get(RANKS).run(_trace, async_op)):
        assert info["backend"] == "tidegate"
        assert (info["rank"], info["world_size"]) == (rank, RANKS)
        calls = [args for args in events if args["Collective name"] != "wait"]
        waits = len(events) - len(calls)
        assert waits == (len(EXPECTED) if async_op else 0)
        assert [args["Collective name"] for args in calls] == list(EXPECTED)
        numbers = []
        for args in calls:
            name = args["Collective name"]
            inputs, outputs, root = EXPECTED[name]
            assert args["In msg nelems"] == inputs, name
            assert args["Out msg nelems"] == outputs, name
            assert args["dtype"] == ("Byte" if name == "barrier" else "BFloat16"), name
            assert args["Group size"] == RANKS
            assert args["Process Group Name"] == "0"
            assert args["Process Group Description"] == "default_pg"
            assert args["Process Group Ranks"] == "[0, 1]"
            assert (args["Global rank start"], args["Global rank stride"]) == (0, 1)
            assert args["Rank"] == (rank if root is None else root), name
            splits = (args["In split size"], args["Out split size"])
            uneven = "[2, 4]" if rank == 0 else "[4, 2]"
            assert splits == ((uneven, uneven) if name == "all_to_allv" else ("[]", "[]")), name
            if NEWER_FIELDS:
                assert args["Is asynchronized op"] == async_op
                numbers.append(args["Seq"])
        assert numbers == sorted(set(numbers))


def _trace_transfer(context: RankContext) -> list[dict[str, Any]]:
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        if context.rank == 0:
            dist.send(torch.ones(5), 1)
        else:
            dist.recv(torch.ones(5), 0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    shapes = [
        (event.name, event.input_shapes, event.is_async)
        for event in profiler.events()
        if event.name.startswith("tidegate:")
    ]
    assert shapes == [("tidegate:send" if context.rank == 0 else "tidegate:recv", [[5]], True)]
    return [event["args"] for event in events if event.get("name") == "record_param_comms"]


def test_transfers_tell_their_peer(pools: PoolKeeper) -> None:
    for rank, events in enumerate(pools.get(RANKS).run(_trace_transfer)):
        transfer, wait = events
        assert transfer["Collective name"] == ("send" if rank == 0 else "recv")
        assert transfer["Rank"] == 1 - rank
        assert (transfer["In msg nelems"], transfer["dtype"]) == (5, "Float")
        assert wait["Collective name"] == "wait"


def _observe(context: RankContext) -> list[str]:
    dist.barrier()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "execution.json")
        observer = ExecutionTraceObserver().register_callback(path)
        observer.start()
        _run(context.rank, False)
        observer.stop()
        observer.unregister_callback()
        with open(path) as file:
            nodes = json.load(file)["nodes"]
    names = []
    for node in nodes:
        if node["name"] != "record_param_comms":
            continue
        attributes = {attribute["name"]: attribute["value"] for attribute in node["attrs"]}
        names.append(attributes["collective_name"])
        assert attributes["pg_name"] == "0"
        assert attributes["pg_desc"] == "default_pg"
        assert attributes["pg_size"] == RANKS
    return names


def test_the_execution_trace_holds_every_collective(pools: PoolKeeper) -> None:
    assert pools.get(RANKS).run(_observe) == [list(EXPECTED)] * RANKS


def _shapes(context: RankContext) -> list[tuple[str, Any]]:
    dist.barrier()
    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        _run(context.rank, True)
    events = [event for event in profiler.function_events if event.name.startswith("tidegate:")]
    assert all(event.is_async for event in events)
    return [(event.name, event.input_shapes) for event in events]


def test_events_show_the_shapes_of_the_inputs(pools: PoolKeeper) -> None:
    for shapes in pools.get(RANKS).run(_shapes):
        found = dict(shapes)
        assert len(shapes) == len(EXPECTED)
        assert found["tidegate:all_reduce"] == [[6]]
        assert found["tidegate:all_reduce_coalesced"] == [[6], [6]]
        assert found["tidegate:all_gather"] == [[6]]
        assert found["tidegate:reduce_scatter"] == [[6], [6]]
        assert found["tidegate:reduce_scatter_single"] == [[12]]
        assert found["tidegate:barrier"] == []


def _trace_output_splits(context: RankContext) -> list[str]:
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_to_all_single(torch.zeros(4), torch.ones(4), output_split_sizes=[2, 2])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    named = [event for event in events if event.get("name") == "record_param_comms"]
    return [event["args"]["Collective name"] for event in named]


def test_splits_of_the_output_alone_are_splits(pools: PoolKeeper) -> None:
    assert pools.get(RANKS).run(_trace_output_splits) == [["all_to_allv"]] * RANKS
