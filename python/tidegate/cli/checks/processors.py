"""Processors: how many there are to use, how many are asked for, and how fast they multiply."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tidegate.cli.checks.finding import Finding, fail, ok, warn
from tidegate.cli.checks.machine_view import MachineView

# fp32 operations a cycle and core with two FMA units, by the widest vectors.
_FLOPS_PER_CYCLE = {"avx512f": 64, "avx2": 32, "avx": 16, "asimd": 16, "": 8}
_DEFAULT_GHZ = 2.0
# A shared or virtual core reaches a half; a BLAS without vectors a twentieth.
_SLOW_SHARE = 0.1
_SIZE = 768
_ROUNDS = 5


def check_cpus(view: MachineView) -> Finding:
    online = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0))
    if view.limits is None:
        return warn("the quota is not known, since the shim does not load", "see the check shim")
    quota, usable = view.limits["cpu_quota"], view.limits["usable_cpus"]
    details = {"online": online, "affinity": affinity, "quota": quota, "usable": usable}
    quota_text = "no cgroup quota" if quota is None else f"cgroup quota {quota:g}"
    summary = f"{usable} usable of {online} online (affinity mask {affinity}, {quota_text})"
    if quota is not None and quota < affinity:
        return warn(
            summary,
            "a process that uses up its quota is stopped for the rest of the period, and its peers"
            f" wait: raise the quota, or use at most {usable} threads over all ranks"
            " (OMP_NUM_THREADS)",
            **details,
        )
    return ok(summary, **details)


def check_numa(view: MachineView) -> Finding:
    if view.limits is None:
        return warn("not known, since the shim does not load", "see the check shim")
    nodes = view.limits["numa_nodes"]
    local: list[str] = []
    for number in range(nodes):
        listed = view.read(f"sys/devices/system/node/node{number}/cpulist")
        if listed is not None and _cpus(listed) & os.sched_getaffinity(0):
            local.append(str(number))
    if nodes > 1 and len(local) != 1:
        return warn(
            f"{nodes} nodes with memory, and this process may run on several of them",
            "bind each rank to one node, e.g. `numactl --cpunodebind=N --membind=N`, or with GPUs"
            " `torchrun --numa-binding node`",
            nodes=nodes,
        )
    return ok(f"{nodes} node{'s' if nodes > 1 else ''} with memory", nodes=nodes)


def _cpus(listed: str) -> set[int]:
    """The numbers of a list such as "0-3,8"."""
    found: set[int] = set()
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _usable(view: MachineView) -> int:
    if view.limits is None:
        return len(os.sched_getaffinity(0))
    return int(view.limits["usable_cpus"])


def check_threads(view: MachineView) -> Finding:
    """Threads of all local ranks against processors; the environment is that of one rank."""
    try:
        import torch
    except Exception:
        return fail("torch cannot be imported", "see the check torch")
    ranks_text = view.environment.get("LOCAL_WORLD_SIZE", "1")
    if not ranks_text.isdigit() or int(ranks_text) < 1:
        return fail(
            f"LOCAL_WORLD_SIZE={ranks_text} is no number of ranks",
            "torchrun sets it: unset it, or give it the number of ranks on this machine",
        )
    ranks, usable = int(ranks_text), _usable(view)
    set_to = view.environment.get("OMP_NUM_THREADS", "")
    # OpenMP takes a list, too: a number for each level of nesting, of which torch has one.
    first = set_to.partition(",")[0].strip()
    if set_to and (not first.isdigit() or int(first) < 1):
        return warn(
            f"OMP_NUM_THREADS={set_to} is no number of threads, so OpenMP ignores it and each rank"
            f" takes {torch.get_num_threads()}",
            f"OMP_NUM_THREADS={max(1, usable // ranks)}, or unset it",
            ranks=ranks,
            processors=usable,
        )
    threads = int(first) if first else torch.get_num_threads()
    summary = f"{threads} a rank, {ranks} rank{'s' if ranks > 1 else ''}, {usable} processors"
    details = {"threads": threads, "ranks": ranks, "processors": usable}
    if threads * ranks > usable:
        return warn(
            summary + ": threads that spin for a processor slow every matmul several times",
            f"OMP_NUM_THREADS={max(1, usable // ranks)}"
            + (" and OMP_WAIT_POLICY=passive" if ranks > usable else ""),
            **details,
        )
    return ok(summary, **details)


def check_matmul(view: MachineView) -> Finding:
    """fp32 matmul of 768 x 768 in this process against processors x clock x vector width."""
    try:
        import torch
    except Exception:
        return fail("torch cannot be imported", "see the check torch")
    a, b = torch.rand(_SIZE, _SIZE), torch.rand(_SIZE, _SIZE)
    torch.mm(a, b)  # thread pools and packing buffers are made here
    best = min(_seconds(lambda: torch.mm(a, b)) for _ in range(_ROUNDS))
    measured = 2 * _SIZE**3 / best / 1e9
    processors = min(torch.get_num_threads(), _usable(view))
    vectors, clock = _vectors(view), _clock_ghz(view)
    estimate = processors * clock * _FLOPS_PER_CYCLE[vectors]
    details = {"gflops": round(measured, 1), "estimate_gflops": round(estimate, 1)}
    summary = (
        f"{measured:.0f} GFLOP/s, {measured / estimate:.0%} of {estimate:.0f} = {processors}"
        f" processors x {clock:.1f} GHz x {_FLOPS_PER_CYCLE[vectors]} a cycle"
        f" ({vectors or 'no wide vectors'})"
    )
    if measured < _SLOW_SHARE * estimate:
        return warn(
            summary,
            "look whether other processes use the processors (`uptime`), whether OMP_NUM_THREADS"
            " fits (check threads), and which BLAS torch has"
            " (`python -c 'import torch; print(torch.__config__.show())'`)",
            **details,
        )
    return ok(summary, **details)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _cpuinfo(view: MachineView, *names: str) -> str:
    """The value of the first line of /proc/cpuinfo with one of the names."""
    for line in (view.read("proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in names:
            return value.strip()
    return ""


def _vectors(view: MachineView) -> str:
    flags = set(_cpuinfo(view, "flags", "Features").split())
    return next(name for name in _FLOPS_PER_CYCLE if name in flags or not name)


def _clock_ghz(view: MachineView) -> float:
    """The greatest clock that the kernel tells, the present one, or a guess."""
    greatest = view.read("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")  # kHz
    if greatest and greatest.isdigit():
        return int(greatest) / 1e6
    present = _cpuinfo(view, "cpu MHz")
    try:
        return float(present) / 1e3
    except ValueError:
        return _DEFAULT_GHZ
