"""torch.profiler and ExecutionTraceObserver over a training: an event for every call counted."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from tests.integration import models
from tests.integration.models import UNITS
from tests.integration.rows.base import (
    Calls,
    Meter,
    Outcome,
    Row,
    Tensors,
    compare,
    each_step,
    local_parameters,
    local_shards,
)
from tests.integration.rows.fsdp2 import shard
from tests.support.workers import RankContext

EVENT = "record_param_comms"
# What trace tools know a collective by: the names that ProcessGroupNCCL gives.
IN_TRACES = {
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
}


def _named(names: list[str]) -> Counter[str]:
    """Under tidegate's names; the waits for asynchronous calls have events of their own."""
    return Counter(IN_TRACES[name] for name in names if name != "wait")


def _from_profiler(run: Callable[[], None], path: Path) -> Counter[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    profiler.export_chrome_trace(str(path))
    trace = json.loads(path.read_text())
    events = [event for event in trace["traceEvents"] if event.get("name") == EVENT]
    names = [event["args"]["Collective name"] for event in events]
    pairs = zip(names, events, strict=True)
    sizes = {event["args"]["Group size"] for name, event in pairs if name != "wait"}
    assert sizes == {torch.distributed.get_world_size()}, sizes
    assert trace["distributedInfo"]["backend"] == "tidegate", trace["distributedInfo"]
    return _named(names)


def _from_observer(run: Callable[[], None], path: Path) -> Counter[str]:
    observer = ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    run()
    observer.stop()
    observer.unregister_callback()
    nodes = [node for node in json.loads(path.read_text())["nodes"] if node["name"] == EVENT]
    names = []
    for node in nodes:
        given = [value for value in node["inputs"]["values"] if isinstance(value, str)]
        (name,) = {*IN_TRACES, "wait"} & set(given)
        names.append(name)
    return _named(names)


def _fsdp2(context: RankContext) -> tuple[nn.Module, Callable[[], Tensors], Tensors]:
    n = context.world_size
    model = shard(models.build(), init_device_mesh("cpu", (n,)))
    wanted = local_shards(models.union_oracle(n), n, context.rank)
    return model, lambda: local_parameters(model), wanted


def _ddp(context: RankContext) -> tuple[nn.Module, Callable[[], Tensors], Tensors]:
    model = DistributedDataParallel(models.build())

    def found() -> Tensors:
        return {name: value.detach() for name, value in model.module.named_parameters()}

    return model, found, models.union_oracle(context.world_size)


def _traced(
    trace: Callable[[Callable[[], None], Path], Counter[str]],
    wrap: Callable[[RankContext], tuple[nn.Module, Callable[[], Tensors], Tensors]],
) -> Callable[[RankContext], Outcome]:
    def run(context: RankContext) -> Outcome:
        model, found, wanted = wrap(context)
        meter = Meter()

        def train() -> None:
            with meter:
                models.train(model, context.rank)

        with tempfile.TemporaryDirectory(prefix="trace-") as directory:
            seen = trace(train, Path(directory) / "trace.json")
        if meter.used is not None:
            assert seen == meter.used.calls, (seen, meter.used.calls)
        return compare(found(), wanted, meter.used)

    return run


_WAYS: tuple[tuple[str, str, Callable[[Callable[[], None], Path], Counter[str]]], ...] = (
    ("profiler", "torch.profiler", _from_profiler),
    ("execution_trace", "ExecutionTraceObserver", _from_observer),
)
_TRAININGS: tuple[
    tuple[str, Callable[[RankContext], tuple[nn.Module, Callable[[], Tensors], Tensors]], Calls],
    ...,
] = (
    ("fsdp2", _fsdp2, each_step(all_gather=2 * UNITS - 1, reduce_scatter=UNITS)),
    # The second forward of DDP sends the order of its buckets.
    ("ddp", _ddp, {**each_step(all_reduce=1), "broadcast": 2}),
)

ROWS = tuple(
    Row(
        f"{way}_{training}_w{n}",
        n,
        _traced(trace, wrap),
        f"{tool} has a record_param_comms for every call that tidegate counted",
        calls=calls,
    )
    for n in (2, 3)
    for way, tool, trace in _WAYS
    for training, wrap, calls in _TRAININGS
)
