"""Tensors in a group's shared memory: tidegate.empty, allocate_tensor, and FSDP2's use of it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.python.jobs import run_job

PREAMBLE = """
import gc, os, signal, sys, time
import torch
import torch.distributed as dist
import tidegate

def resident():
    return tidegate.stats()["links"]["shm"]["resident_bytes"]

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # Lines of ranks must not tear.

dist.init_process_group("tidegate")
rank, size = dist.get_rank(), dist.get_world_size()
"""


def job(script: str, folder: Path, size: int = 2, **env: str) -> tuple[list[str], str]:
    """The lines that the ranks print, and what they log."""
    done = run_job(PREAMBLE + textwrap.dedent(script), folder, size, env)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines()), done.stderr


@pytest.mark.parametrize("size", [2, 3, 4])
def test_collectives_read_resident_tensors_where_they_lie(tmp_path: Path, size: int) -> None:
    lines, _ = job(
        """
        def values(n, dtype, seed):
            return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(dtype)

        def run(make, n, dtype):
            shard = make(n, dtype).copy_(values(n, dtype, rank))
            gathered = make(n * size, dtype)
            dist.all_gather_single(gathered, shard)
            in_place = make(n * size, dtype)
            in_place[rank * n : (rank + 1) * n] = shard
            dist.all_gather_single(in_place, in_place[rank * n : (rank + 1) * n])
            whole = make(n * size, dtype).copy_(values(n * size, dtype, 100 + rank))
            part = make(n, dtype)
            dist.reduce_scatter_single(part, whole, op=dist.ReduceOp.AVG)
            over = whole.clone() if make is ordinary else make(n * size, dtype).copy_(whole)
            dist.reduce_scatter_single(over[rank * n : (rank + 1) * n], over)
            total = make(n, dtype).copy_(shard)
            dist.all_reduce(total)
            turned = make(n * size, dtype)
            dist.all_to_all_single(turned, whole)
            return [gathered, in_place, part, over[rank * n : (rank + 1) * n], total, turned]

        def ordinary(n, dtype):
            return torch.empty(n, dtype=dtype)

        def shared(n, dtype):
            return tidegate.empty(n, dtype=dtype)

        def mixed(n, dtype):
            return (shared if rank % 2 else ordinary)(n, dtype)

        for dtype in (torch.float32, torch.bfloat16):
            for n in (1, 1000, 300_001):
                before = resident()
                expected = run(ordinary, n, dtype)
                assert resident() == before
                for make in (shared, mixed):
                    for one, other in zip(expected, run(make, n, dtype)):
                        assert torch.equal(one, other), (dtype, n, make)
        assert resident() > 0
        dist.destroy_process_group()
        say("right")
        """,
        tmp_path,
        size,
    )
    assert lines == ["right"] * size


def test_fsdp2_trains_to_the_same_bits_from_the_memory_of_the_group(tmp_path: Path) -> None:
    lines, _ = job(
        """
        from torch.distributed.fsdp import FSDPModule, fully_shard

        def train(from_group):
            torch.manual_seed(1)
            model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
            for module in model.modules():
                if from_group and isinstance(module, FSDPModule):
                    module.set_allocate_memory_from_process_group_for_comm(True)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for step in range(5):
                torch.manual_seed(10 * step + rank)
                model(torch.randn(8, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return [p.to_local().clone() for p in model.parameters()]

        ordinary = train(False)
        assert resident() == 0
        shared = train(True)
        # Half of each layer and of its gradients comes from the other rank, but for the copy that
        # goes into a gather: its input is a part of its output.
        assert resident() > 5 * 4 * 64 * 64, resident()
        assert all(torch.equal(a, b) for a, b in zip(ordinary, shared))
        dist.destroy_process_group()
        say("right")
        """,
        tmp_path,
    )
    assert lines == ["right"] * 2


def test_tensors_are_as_torch_makes_them_and_outlive_their_group(tmp_path: Path) -> None:
    lines, _ = job(
        """
        assert tidegate.empty(2, 3).shape == tidegate.empty((2, 3)).shape == (2, 3)
        assert tidegate.empty(4).dtype == torch.float32
        assert tidegate.empty(4, dtype=torch.int8).dtype == torch.int8
        assert tidegate.empty().shape == () and tidegate.empty(0, 7).shape == (0, 7)
        assert tidegate.empty(5).data_ptr() % 4096 == 0
        for wrong in (lambda: tidegate.empty(-1), lambda: tidegate.empty(3, group=gloo)):
            gloo = dist.new_group(backend="gloo")
            try:
                wrong()
            except ValueError as error:
                assert "tidegate.empty" in str(error)
            else:
                raise AssertionError("accepted")
        alone = dist.new_group([rank], backend="tidegate", use_local_synchronization=True)
        assert tidegate.empty(3, group=alone).fill_(1).sum() == 3
        kept = tidegate.empty(1 << 20).fill_(7)
        child = os.fork()
        if child == 0:
            good = bool((kept == 7).all())
            del kept
            gc.collect()
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert (kept == 7).all()
        dist.destroy_process_group()
        gc.collect()
        kept += 1
        assert (kept == 8).all()
        say("right")
        """,
        tmp_path,
    )
    assert lines == ["right"] * 2


def test_a_full_heap_is_ordinary_memory_with_one_warning(tmp_path: Path) -> None:
    lines, log = job(
        """
        held = [tidegate.empty(256, 1024) for _ in range(6)]
        for one in held:
            one.fill_(rank)
        outputs = [torch.empty(2 * 256 * 1024) for _ in held]
        for one, output in zip(held, outputs):
            dist.all_gather_single(output, one.view(-1))
            assert output[0] == 0 and output[-1] == 1
        say("read", resident())
        dist.destroy_process_group()
        """,
        tmp_path,
        TIDEGATE_HEAP_BYTES="4M",
    )
    assert lines == [f"read {4 << 20}"] * 2
    assert log.count("goes to ordinary memory") == 2  # One a rank.
    assert "1.0 MiB" in log or "1 MiB" in log
    assert "TIDEGATE_HEAP_BYTES" in log


def test_memory_of_dead_tensors_goes_back_to_the_machine(tmp_path: Path) -> None:
    lines, _ = job(
        """
        def pages():
            with open("/proc/meminfo") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("Shmem:"))

        dist.barrier()
        if rank == 0:
            tensor = tidegate.empty(64 << 20, dtype=torch.uint8).fill_(1)
            held = [pages()]
            del tensor
            deadline = time.monotonic() + 20
            while pages() > held[0] - (48 << 10) and time.monotonic() < deadline:
                time.sleep(0.05)
            say("given back", pages() <= held[0] - (48 << 10))
        dist.barrier()
        dist.destroy_process_group()
        """,
        tmp_path,
    )
    assert lines == ["given back True"]


@pytest.mark.parametrize("memory", ["shared", "ordinary"])
@pytest.mark.parametrize("how", ["killed", "aborted"])
def test_a_rank_that_goes_while_its_tensor_is_read_fails_the_others(
    tmp_path: Path, how: str, memory: str
) -> None:
    done = run_job(
        PREAMBLE
        + textwrap.dedent(
            f"""
            how = "{how}"
            make = tidegate.empty if "{memory}" == "shared" else torch.empty
            n = 1 << 20
            shard, gathered = make(n).fill_(rank), torch.empty(size * n)
            dist.all_gather_single(gathered, shard)
            store = dist.distributed_c10d._get_default_store()
            store.set(f"gathered{{rank}}", "1")
            if rank == 1:
                store.wait([f"gathered{{peer}}" for peer in range(size)])
                # In the others' operation, with this rank's part of it undone.
                time.sleep(0.5)
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.group.WORLD._get_backend(torch.device("cpu")).abort()
                time.sleep(0.5)
                os._exit(0)
            begun = time.monotonic()
            try:
                dist.all_gather_single(gathered, shard)
            except dist.DistBackendError as error:
                assert "rank 1" in str(error), error
                assert time.monotonic() - begun < 30
                say("failed")
            shard.fill_(3)  # Still memory of this process.
            os._exit(0)
            """
        ),
        tmp_path,
        3,
        {"TIDEGATE_SINGLE_COPY_BYTES": "1T"},
    )
    assert done.stdout.splitlines().count("failed") == 2, done.stdout + done.stderr


def test_a_rank_that_unmaps_its_tensor_while_it_is_read_is_named(tmp_path: Path) -> None:
    done = run_job(
        PREAMBLE
        + textwrap.dedent(
            """
            import ctypes, mmap
            n = 1 << 18
            memory = mmap.mmap(-1, size * 4 * n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            gathered = torch.frombuffer(memory, dtype=torch.float32)
            shard = gathered[rank * n : (rank + 1) * n].fill_(rank)  # Read by nobody else here.
            for _ in range(5):
                dist.all_gather_single(gathered, shard)
            store = dist.distributed_c10d._get_default_store()
            if rank == 0:
                copied = tidegate.stats()["links"]["shm"]["single_copy_bytes"]
                store.set("copied", str(copied))
            if store.get("copied") == b"0":
                say("forbidden")
                os._exit(0)
            if rank == 1:
                work = dist.all_gather_single(gathered, shard, async_op=True)
                time.sleep(0.5)  # It has arrived by now.
                libc = ctypes.CDLL(None)
                libc.munmap(ctypes.c_void_p(shard.data_ptr()), ctypes.c_size_t(4 * n))
                store.set("pid", str(os.getpid()))
            pid = store.get("pid").decode()
            try:
                work.wait() if rank == 1 else dist.all_gather_single(gathered, shard)
            except dist.DistBackendError as error:
                assert f"cannot copy the tensor of rank 1 (pid {pid}, " in str(error), error
                assert "rank 1 unmapped that tensor" in str(error), error
                say("named")
            store.add("done", 1)
            while store.add("done", 0) < size:  # Nobody is killed for the other's end.
                time.sleep(0.01)
            os._exit(0)
            """
        ),
        tmp_path,
        2,
        {"TIDEGATE_SINGLE_COPY_BYTES": "1T"},
    )
    if "forbidden" in done.stdout:
        pytest.skip("processes may not read each other here")
    assert done.stdout.split() == ["named", "named"], done.stdout + done.stderr
