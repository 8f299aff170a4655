"""What many groups cost: cycles leak nothing, live groups fit in memory, creation is lazy."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.faults.inspection import descriptors, held_by_groups, resident_bytes, shared_mappings
from tests.faults.operations import Operations
from tests.faults.outcome import Context, Outcome, expect_exit, watched_job
from tests.support.processes import Message, Rank, count_threads

CYCLES = 200
SETTLED = 40  # cycles after which caches are warm
GROUPS = 100
LIVE_GROUPS = 200
LIVE_RANKS = 4
MEMORY_LIMIT = 1 << 30
CREATION_LIMIT_S = 2.0
RESIDENT_GROWTH_LIMIT = 8 << 20
COMMON_DESCRIPTOR_LIMIT = 1024  # the usual soft limit of a login shell


def _inventory() -> Message:
    gc.collect()
    return {
        "descriptors": descriptors(),
        "threads": count_threads(),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "shared": len(shared_mappings()),
        "resident": resident_bytes(),
    }


def cycles_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    before = descriptors()
    samples = []
    began = time.monotonic()
    for cycle in range(CYCLES):
        rank.join(30, name=str(cycle))
        operations = Operations(1 << 12)
        operations.all_gather()
        work = operations.reduce_scatter(asynchronous=True)
        if cycle % 3 == 0:
            Operations(1 << 18, dist.new_group()).all_reduce()
        if cycle % 2 == 0:
            work.wait()
        del work, operations
        dist.destroy_process_group()
        if cycle == 0 or (cycle + 1) % SETTLED == 0:
            held = held_by_groups(rank.world_size, before)
            samples.append({**_inventory(), "held": held})
    rank.report("cycled", samples=samples, seconds=time.monotonic() - began)


def cycles(context: Context, outcome: Outcome) -> None:
    outcome.variant = f"2 ranks, {CYCLES} init/destroy cycles"
    with watched_job(context, outcome, f"{__name__}:cycles_main", 2, limit=180) as job:
        for rank, report in job.expect("cycled").items():
            samples = report["samples"]
            first, last = samples[1], samples[-1]
            for sample in samples:
                outcome.leaks += [f"rank {rank} holds {what}" for what in sample["held"]]
            outcome.notes[f"rank {rank}"] = {"seconds": report["seconds"], "last": last}
            for what in ("descriptors", "threads", "shared"):
                # A second reaper comes with the first callback that has another one behind it.
                allowed = [first[what]]
                if what == "threads":
                    allowed.append(first[what] + 1)
                if last[what] not in allowed:
                    outcome.leaks.append(f"rank {rank} {what}: {first[what]} -> {last[what]}")
            # malloc splits and joins its arenas, so mappings and pages are held to a bound.
            if last["mappings"] > first["mappings"] + 8:
                outcome.leaks.append(
                    f"rank {rank} mappings: {first['mappings']} -> {last['mappings']}"
                )
            growth = last["resident"] - first["resident"]
            if growth > RESIDENT_GROWTH_LIMIT:
                outcome.leaks.append(f"rank {rank} grew by {growth} bytes")
        expect_exit(outcome, job, job.ranks())


def creation_main(rank: Rank) -> None:
    """Groups cost little before their first operation: no thread and no shared memory."""
    torch.set_num_threads(1)
    threads = count_threads()
    rank.join(30)
    joined = count_threads()
    rank.report("ready")
    rank.receive()
    began = time.monotonic()
    groups = [dist.new_group() for _ in range(GROUPS)]
    seconds = time.monotonic() - began
    idle = {"threads": count_threads(), "shared": len(shared_mappings())}
    tensor = torch.full((8,), float(rank.rank + 1))
    dist.all_reduce(tensor, group=groups[-1])
    rank.report(
        "created",
        seconds=seconds,
        idle=idle,
        threads=(threads, joined),
        total=tensor[0].item(),
    )
    rank.receive()
    dist.destroy_process_group()


def creation(context: Context, outcome: Outcome) -> None:
    outcome.variant = f"{LIVE_RANKS} ranks, {GROUPS} groups"
    target = f"{__name__}:creation_main"
    with watched_job(context, outcome, target, LIVE_RANKS, limit=90) as job:
        job.expect("ready")
        job.send("go", job.ranks())
        reports = job.expect("created")
        job.send("go", job.ranks())
        seconds = max(report["seconds"] for report in reports.values())
        outcome.notes["seconds"] = seconds
        outcome.require(seconds < CREATION_LIMIT_S, f"{GROUPS} groups took {seconds:.2f} s")
        for rank, report in reports.items():
            before, joined = report["threads"]
            outcome.require(
                joined == before, f"rank {rank}: init started {joined - before} threads"
            )
            idle = report["idle"]
            outcome.require(
                idle["threads"] == before,
                f"rank {rank}: {idle['threads'] - before} threads before the first operation",
            )
            outcome.require(
                idle["shared"] == 0,
                f"rank {rank}: {idle['shared']} segments before the first operation",
            )
            outcome.require(report["total"] == 10, f"rank {rank}: sum is {report['total']}")
        expect_exit(outcome, job, job.ranks())


def live_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    before = descriptors()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(COMMON_DESCRIPTOR_LIMIT, hard), hard))
    rank.join(60)
    groups = [dist.new_group() for _ in range(LIVE_GROUPS)]
    times = []
    for group in groups:
        began = time.monotonic()
        for count in (16, (1 << 20) // 4 // LIVE_RANKS):
            operations = Operations(count, group)
            operations.all_gather()
            operations.reduce_scatter()
            works = [
                operations.all_gather(asynchronous=True),
                operations.reduce_scatter(asynchronous=True),
            ]
            for work in works:
                work.wait()
            sums = operations.out_shard
            assert bool((sums == 10).all()), f"sum is {sums[0]}"
        times.append(time.monotonic() - began)
    rank.report(
        "live",
        shared=shared_mappings(),
        threads=count_threads(),
        descriptors=descriptors(),
        median_ms=statistics.median(times) * 1e3,
    )
    rank.receive()
    dist.destroy_process_group()
    rank.report("destroyed", held=held_by_groups(rank.world_size, before))


def live(context: Context, outcome: Outcome) -> None:
    outcome.variant = f"{LIVE_RANKS} ranks, {LIVE_GROUPS} live groups"
    target = f"{__name__}:live_main"
    with watched_job(context, outcome, target, LIVE_RANKS, limit=180) as job:
        reports = job.expect("live")
        total = _shared_bytes([report["shared"] for report in reports.values()])
        outcome.notes["shared_bytes"] = total
        outcome.notes["threads"] = {rank: report["threads"] for rank, report in reports.items()}
        outcome.notes["descriptors"] = reports[0]["descriptors"]
        outcome.notes["first_ops_median_ms"] = reports[0]["median_ms"]
        outcome.require(total <= MEMORY_LIMIT, f"{LIVE_GROUPS} live groups use {total} bytes")
        for rank, report in reports.items():
            # Threads are shared by the groups of a process.
            outcome.require(report["threads"] <= 16, f"rank {rank} has {report['threads']} threads")
        job.send("go", job.ranks())
        for rank, report in job.expect("destroyed").items():
            outcome.leaks += [f"rank {rank} holds {what}" for what in report["held"]]
        expect_exit(outcome, job, job.ranks())


def _shared_bytes(ranks: list[dict[int, Message]]) -> int:
    """Pages of all shared objects: exact where their blocks are known, else an upper bound."""
    total = 0
    for inode in set().union(*ranks):
        views = [objects[inode] for objects in ranks if inode in objects]
        blocks = [view["blocks"] for view in views if view["blocks"] is not None]
        size = max(view["size"] for view in views)
        total += blocks[0] if blocks else min(size, sum(view["resident"] for view in views))
    return total
