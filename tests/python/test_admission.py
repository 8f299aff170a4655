"""Budgets of all-gathers in flight: kept, whoever waits, and never in the way of an end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.python.jobs import expect_right, run_job

COMMON = """
import os
import signal
import threading
import time
import pytest
import torch
import torch.distributed as dist
import tidegate

def gather(elements, call, group=None, asynchronous=True):
    size = dist.get_world_size(group)
    part = torch.arange(elements, dtype=torch.float32) + 100000.0 * dist.get_rank(group) + call
    whole = torch.empty(elements * size)
    work = dist.all_gather_into_tensor(whole, part, group=group, async_op=asynchronous)
    return work, whole

def check(whole, elements, call):
    for rank, part in enumerate(whole.view(-1, elements)):
        wanted = torch.arange(elements, dtype=torch.float32) + 100000.0 * rank + call
        assert torch.equal(part, wanted), (rank, call)

def admission(group=None):
    stats = tidegate.stats()
    return stats["groups"][group.group_name]["admission"] if group else stats["admission"]

def say_right():
    dist.destroy_process_group()
    os.write(1, b"right\\n")

"""

BUDGETS = """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    ranks = dist.get_world_size()
    sizes = [1 + 37 * i * i * i for i in range(16)]  # to 500 KB a rank, odd ones and one element
    largest = 4 * ranks * sizes[-1]
    promotions = 0
    dist.barrier()
    for wait in ("queue", "block"):
        for ops in (1, 2, 3, None):
            for limit in ("1M", "2M", None):
                tidegate.set_limits(max_ops=ops, max_bytes=limit, wait=wait)
                pending = [gather(n, call) for call, n in enumerate(sizes)]
                for call, (work, whole) in enumerate(pending):
                    work.wait()
                    check(whole, sizes[call], call)
                found = admission()
                assert found["limits"]["max_ops"] == ops and found["limits"]["wait"] == wait
                most = 16 if ops is None else ops
                if ops is None and limit is None:
                    assert found["high_water_ops"] == 0, found  # There is nothing to count for.
                    continue
                # A rank that was late by a second lets others pass over budget.
                late, promotions = found["promotions"] - promotions, found["promotions"]
                assert wait == "block" or late == 0, found
                assert 0 < found["high_water_ops"] <= most + late, found
                if limit is not None:
                    # One that is larger than the budget passes alone.
                    bytes_ = max(int(limit[0]) << 20, largest) + late * largest
                    assert found["high_water_bytes"] <= bytes_, found
                dist.barrier()
    say_right()
"""


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_no_more_than_the_budget_is_in_flight(ranks: int, tmp_path: Path) -> None:
    expect_right(COMMON + BUDGETS, tmp_path, ranks)


# Rank 1 makes its calls when rank 0 is known to wait for room.
BLOCKED = """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group(pg_options=tidegate.Options(max_ops=2, wait="block"))
    gather(1, 0, group)[0].wait()
    issued = []
    def issue():
        issued.extend(gather(1000, call, group) for call in range(6))
    if dist.get_rank() == 0:
        thread = threading.Thread(target=issue)
        thread.start()
        while admission(group)["waits"] == 0:
            pass
        assert len(issued) <= 2
        store.set("waits", "1")
        thread.join()
    else:
        store.wait(["waits"])
        issue()
    for call, (work, whole) in enumerate(issued):
        work.wait()
        check(whole, 1000, call)
    found = admission(group)
    assert found["high_water_ops"] <= 2 + found["promotions"], found
    if dist.get_rank() == 0:
        assert found["waits"] >= 1 and found["wait_seconds"] > 0, found
    # The group's own limits hold for it instead of the process's, which have counted nothing.
    assert admission()["waits"] == 0 and admission()["high_water_ops"] == 0
    say_right()
"""


def test_a_caller_waits_for_room(tmp_path: Path) -> None:
    expect_right(COMMON + BLOCKED, tmp_path, 2)


OPPOSITE = """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    groups = [dist.new_group(), dist.new_group()]
    tidegate.set_limits(max_ops=1, wait="block")
    order = [0, 0, 1, 1] if dist.get_rank() == 0 else [1, 1, 0, 0]
    calls = [0, 0]
    pending = []
    for number in order:
        pending.append((number, calls[number], gather(500, calls[number], groups[number])))
        calls[number] += 1
    for number, call, (work, whole) in pending:
        work.wait()
        check(whole, 500, call)
    everybody = torch.tensor([admission()["promotions"]])
    tidegate.set_limits()
    dist.all_reduce(everybody)
    assert everybody.item() > 0  # Else neither rank would ever have come to what the other awaits.
    say_right()
"""


def test_ranks_that_use_groups_in_opposite_orders_get_on(tmp_path: Path) -> None:
    expect_right(COMMON + OPPOSITE, tmp_path, 2)


REVERSED = """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    tidegate.set_limits(max_ops=1)
    dist.barrier()
    if dist.get_rank() == 0:
        pending = [gather(300, call) for call in range(8)]
        dist.barrier(async_op=True)
        # Nobody else has called: seven wait, and the wait for the last one lets all pass.
        assert admission()["waits"] == 7 and admission()["high_water_ops"] == 1
        with pytest.raises(dist.DistBackendError, match="waited"):
            from datetime import timedelta
            pending[-1][0].wait(timedelta(milliseconds=1))
        assert admission()["promotions"] == 7 and admission()["high_water_ops"] == 8
        dist.distributed_c10d._get_default_store().set("promoted", "1")
    else:
        dist.distributed_c10d._get_default_store().wait(["promoted"])
        pending = [gather(300, call) for call in range(8)]
        dist.barrier(async_op=True)
    for call in reversed(range(8)):
        work, whole = pending[call]
        work.wait()
        check(whole, 300, call)
    # A sync call, too, lets pass what is before it in its group.
    tidegate.set_limits(max_ops=1)
    before = admission()["promotions"]
    if dist.get_rank() == 0:
        pending = [gather(300, call) for call in range(3)]
        store = dist.distributed_c10d._get_default_store()
        def let_the_other_call():
            while admission()["promotions"] - before < 3:
                pass
            store.set("called", "1")
        thread = threading.Thread(target=let_the_other_call)
        thread.start()
        # Nobody else has called the first one yet, so it is promoted with those before it.
        check(gather(300, 3, asynchronous=False)[1], 300, 3)
        thread.join()
        assert admission()["promotions"] - before == 3
    else:
        dist.distributed_c10d._get_default_store().wait(["called"])
        pending = [gather(300, call) for call in range(3)]
        check(gather(300, 3, asynchronous=False)[1], 300, 3)
    for call, (work, whole) in enumerate(pending):
        work.wait()
        check(whole, 300, call)
    say_right()
"""


def test_what_is_waited_for_passes_with_all_before_it(tmp_path: Path) -> None:
    expect_right(COMMON + REVERSED, tmp_path, 2)


SEVERAL_GROUPS = """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    groups = [dist.new_group() for _ in range(3)]
    # Ranks may have different limits, and wait differently.
    rank = dist.get_rank()
    tidegate.set_limits(max_ops=rank + 1, wait="block" if rank % 2 else "queue")
    for round_ in range(5):
        pending = [
            (call, gather(200 + call, call, groups[call % 3])) for call in range(round_, 12)
        ]
        for call, (work, whole) in pending:
            work.wait()
            check(whole, 200 + call, call)
    found = admission()
    # The oldest of each group always passes: two more than the limit with three groups.
    assert found["high_water_ops"] <= rank + 1 + 2 + found["promotions"], found
    # Other collectives do not count, and are not held.
    tidegate.set_limits(max_ops=1, wait="block")
    summed = torch.ones(5)
    works = [dist.all_reduce(summed, async_op=True), dist.broadcast(summed, 0, async_op=True)]
    for work in works:
        work.wait()
    assert admission()["high_water_ops"] == 0
    # In a coalescing window nothing waits; what is coalesced is one operation.
    backend = groups[0]._get_backend(torch.device("cpu"))
    outs = [torch.empty(7 * dist.get_world_size()) for _ in range(4)]
    backend._start_coalescing()
    for out in outs:
        dist.all_gather_into_tensor(out, torch.full((7,), float(rank)), group=groups[0])
    backend._end_coalescing().wait()
    for out in outs:
        assert torch.equal(out.view(-1, 7)[:, 3], torch.arange(dist.get_world_size()).float())
    say_right()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_groups_share_the_budget_of_the_process(ranks: int, tmp_path: Path) -> None:
    expect_right(COMMON + SEVERAL_GROUPS, tmp_path, ranks)


SIGNALLED = """
class Stop(Exception):
    pass

def handler(*_):
    raise Stop

if __name__ == "__main__":
    dist.init_process_group("tidegate")
    tidegate.set_limits(max_ops=1, wait="block")
    gather(10, 0)[0].wait()
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        signal.signal(signal.SIGUSR1, handler)
        def send_signal():
            while admission()["waits"] == 0:
                pass
            os.kill(os.getpid(), signal.SIGUSR1)
        thread = threading.Thread(target=send_signal)
        thread.start()
        with pytest.raises(Stop):
            for call in range(3):
                gather(10, call)
        thread.join()
        store.set("stopped", "1")
    else:
        store.wait(["stopped"])
    with pytest.raises(dist.DistBackendError, match="signal while an all_gather waited for room"):
        gather(10, 1)[0].wait()
    os.write(1, b"right\\n")
"""


def test_a_signal_ends_a_callers_wait(tmp_path: Path) -> None:
    expect_right(COMMON + SIGNALLED, tmp_path, 2)


PROFILED = """
from torch.profiler import ProfilerActivity, profile

if __name__ == "__main__":
    dist.init_process_group("tidegate")
    tidegate.set_limits(max_ops=1, wait="block")
    gather(10, 0)[0].wait()
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["waits"])
        pending = [gather(10, call) for call in range(2)]
    else:
        def let_the_other_call():
            while admission()["waits"] == 0:
                pass
            store.set("waits", "1")
        thread = threading.Thread(target=let_the_other_call)
        thread.start()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            pending = [gather(10, call) for call in range(2)]
        thread.join()
        names = [event.name for event in profiler.events()]
        assert names.count("tidegate:wait_for_room") == 1
    for work, _ in pending:
        work.wait()
    say_right()
"""


def test_the_wait_for_room_is_an_event_of_the_profiler(tmp_path: Path) -> None:
    expect_right(COMMON + PROFILED, tmp_path, 2)


FAILED = """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    tidegate.set_limits(max_ops=1, wait="block")
    gather(10, 0)[0].wait()
    group = dist.distributed_c10d._get_default_group()
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.wait(["gathered"])  # Or the abort ends what rank 1 has not finished yet.
        def abort():
            while admission()["waits"] == 0:
                pass
            group.abort()
        thread = threading.Thread(target=abort)
        thread.start()
        calls = [gather(10, call)[0] for call in range(3)]  # The second waits until the abort.
        for call in calls:
            with pytest.raises(dist.DistBackendError, match="aborted"):
                call.wait()
        thread.join()
        store.set("over", "1")
    else:
        store.set("gathered", "1")
        store.wait(["over"])  # A rank that has left is another reason to fail.
    os.write(1, b"right\\n")
"""


def test_an_abort_ends_a_callers_wait(tmp_path: Path) -> None:
    expect_right(COMMON + FAILED, tmp_path, 2)


BY_LINK = """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    for links, is_held in (("net", False), ("node", True), ("all", True)):
        tidegate.set_limits(rate="20M", burst="1M", links=links)
        before = admission()["waits"]
        check(gather(1 << 20, 0, asynchronous=False)[1], 1 << 20, 0)
        assert (admission()["waits"] > before) == is_held, links
    with pytest.raises(ValueError, match="TIDEGATE_AG_LINKS=usb is not accepted"):
        tidegate.set_limits(rate="20M", links="usb")
    with pytest.raises(ValueError, match="TIDEGATE_AG_MAX_OPS=0 is not accepted.*1 to 1048576"):
        dist.new_group(pg_options=tidegate.Options(max_ops=0))
    with pytest.raises(ValueError, match="wait=block limits nothing by itself"):
        tidegate.Options(wait="block")
    with pytest.raises(ValueError, match="the group uses gloo on the CPU"):
        tidegate.set_limits(dist.new_group(backend="gloo"), max_ops=1)
    dist.barrier()  # Or a rank ends while another still connects to it over gloo.
    say_right()
"""


def test_a_rate_counts_on_the_links_that_are_named(tmp_path: Path) -> None:
    expect_right(COMMON + BY_LINK, tmp_path, 2)


ALONE = """
import torch.distributed as dist

dist.init_process_group("tidegate", store=dist.HashStore(), rank=0, world_size=1)
"""


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("MAX_OPS", "0", "1 to 1048576"),
        ("MAX_OPS", "-2", "1 to 1048576"),
        ("MAX_OPS", "many", "1 to 1048576"),
        ("MAX_BYTES", "0", "4 KiB to 1 TiB, auto"),
        ("MAX_BYTES", "-64M", "4 KiB to 1 TiB, auto"),
        ("MAX_BYTES", "9000T", "4 KiB to 1 TiB, auto"),
        ("WAIT", "maybe", "queue, block"),
        ("LINKS", "usb", "all, node, net"),
    ],
)
def test_a_bad_limit_is_refused(name: str, value: str, legal: str, tmp_path: Path) -> None:
    done = run_job(ALONE, tmp_path, 1, {f"TIDEGATE_AG_{name}": value})
    assert done.returncode != 0
    assert re.search(f"TIDEGATE_AG_{name}={value} is not accepted.*{legal}", done.stderr)


def test_limits_from_the_environment(tmp_path: Path) -> None:
    script = """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    dist.barrier()
    for call, (work, whole) in enumerate([gather(100, call) for call in range(5)]):
        work.wait()
        check(whole, 100, call)
    found = admission()
    assert found["limits"]["max_ops"] == 2 and found["limits"]["wait"] == "block", found
    assert 0 < found["high_water_ops"] <= 2 + found["promotions"], found
    say_right()
"""
    env = {"TIDEGATE_AG_MAX_BYTES": "auto", "TIDEGATE_AG_WAIT": "block"}
    expect_right(COMMON + script, tmp_path, 2, **env)


ENDED = """
from datetime import timedelta

if __name__ == "__main__":
    dist.init_process_group("tidegate")
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group()
    other = dist.new_group()
    tidegate.set_limits(max_ops=1, wait="block")
    gather(10, 0, group)[0].wait()
    gather(10, 0, other)[0].wait()
    # From here on, for a busy machine may need longer for the first one.
    group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(milliseconds=700))
    if dist.get_rank() == 0:
        store.wait(["gathered"])  # Or the abort ends what rank 1 has not finished yet.
        # Its deadline ends the wait, and the operation, whose peer never came.
        works = [gather(10, call, group)[0] for call in range(2)]
        for work in works:
            with pytest.raises(dist.DistBackendError, match="timed out after"):
                work.wait()
        # So does the group's end, which a thread waits for meanwhile.
        waits = admission()["waits"]
        def shut_down():
            while admission()["waits"] == waits:
                pass
            other._get_backend(torch.device("cpu")).abort()
        first = gather(10, 1, other)[0]
        thread = threading.Thread(target=shut_down)
        thread.start()
        second = gather(10, 2, other)[0]
        thread.join()
        for work in (first, second):
            with pytest.raises(dist.DistBackendError, match="abort"):
                work.wait()
        store.set("over", "1")
    else:
        store.set("gathered", "1")
        store.wait(["over"])
    os.write(1, b"right\\n")
"""


def test_a_deadline_ends_a_callers_wait(tmp_path: Path) -> None:
    expect_right(COMMON + ENDED, tmp_path, 2)


FORKED = """
if __name__ == "__main__":
    dist.init_process_group("tidegate", store=dist.HashStore(), rank=0, world_size=1)
    for wait in ("queue", "block"):
        tidegate.set_limits(max_ops=1, wait=wait)
        work, whole = gather(10, 0)
        work.wait()
        child = os.fork()
        if child == 0:
            # Nothing of the parent's gate is touched: the call fails as any other.
            with pytest.raises(dist.DistBackendError, match="forked"):
                gather(10, 1)[0].wait()
            del work
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os.write(1, b"right\\n")
"""


def test_a_forked_child_is_refused_with_limits_too(tmp_path: Path) -> None:
    expect_right(COMMON + FORKED, tmp_path, 1)
