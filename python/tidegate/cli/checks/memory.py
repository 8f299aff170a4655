"""Memory: what groups are made of, how much there is, what may be locked, page sizes."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource

from tidegate.cli.checks.finding import Finding, fail, ok, warn
from tidegate.cli.checks.machine_view import GIB, MachineView

# A group of 8 ranks with the default stage (1 MiB a rank and lane) commits 16 MiB and a little.
_SCARCE = 1 << 30
_TOO_LITTLE = 64 << 20
_MEMLOCK_WANTED = 1 << 30


def check_shared_memory(view: MachineView) -> Finding:
    """Does on a small scale what a group does: memfd_create, fallocate, seal, map, write."""
    size = 1 << 20
    mount = _shm_mount(view)
    try:
        descriptor = os.memfd_create("tidegate-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            with mmap.mmap(descriptor, size) as memory:
                memory[:8] = b"tidegate"
        finally:
            os.close(descriptor)
    except OSError as error:
        return fail(
            f"a memfd of 1 MiB cannot be made: {error.strerror} (errno {error.errno})",
            "groups live in memfds: raise `ulimit -n` and `ulimit -f`, allow memfd_create in the"
            " container's seccomp profile, and free memory",
        )
    return ok(f"memfd works (no mount is needed; {mount})")


def _shm_mount(view: MachineView) -> str:
    try:
        status = os.statvfs(view.root / "dev/shm")
    except OSError:
        return "/dev/shm is absent"
    return f"/dev/shm has {status.f_frsize * status.f_bavail / GIB:.1f} GiB free"


def check_memory(view: MachineView) -> Finding:
    limits = view.limits
    if limits is None:
        return warn("not known, since the shim does not load", "see the check shim")
    available, limit = limits["available_memory"], limits["memory_limit"]
    cap = "no cgroup limit" if limit is None else f"cgroup limit {limit / GIB:.1f} GiB"
    summary = f"{available / GIB:.1f} GiB available ({cap})"
    details = {"available_bytes": available, "limit_bytes": limit}
    remedy = "stop other processes or raise the container's memory limit (docker run --memory)"
    if available < _TOO_LITTLE:
        return fail(summary, remedy, **details)
    if available < _SCARCE:
        return warn(summary, remedy, **details)
    return ok(summary, **details)


def check_memlock(view: MachineView) -> Finding:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = soft == resource.RLIM_INFINITY
    shown = "unlimited" if unlimited else f"{soft / (1 << 20):.1f} MiB"
    try:
        adapters = sorted(os.listdir(view.root / "sys/class/infiniband"))
    except OSError:
        adapters = []
    details = {"soft_bytes": None if unlimited else soft, "rdma_adapters": adapters}
    if unlimited or soft >= _MEMLOCK_WANTED:
        return ok(shown, **details)
    if adapters:
        return warn(
            f"{shown}, too little to register memory with {', '.join(adapters)}",
            "`ulimit -l unlimited` (LimitMEMLOCK=infinity in a unit, --ulimit memlock=-1 of docker"
            " run)",
            **details,
        )
    return ok(
        f"{shown} (enough: shared memory is not locked, and no RDMA adapter is here)", **details
    )


def check_hugepages(view: MachineView) -> Finding:
    mode = _chosen(view.read("sys/kernel/mm/transparent_hugepage/enabled"))
    shared = _chosen(view.read("sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    reserved = 0
    for line in (view.read("proc/meminfo") or "").splitlines():
        if line.startswith("HugePages_Total:"):
            reserved = int(line.split()[1])
    summary = f"transparent: {mode} (of shared memory: {shared}), reserved: {reserved}"
    details = {"transparent": mode, "transparent_shared": shared, "reserved": reserved}
    if mode == "never":
        return warn(
            summary,
            "large tensors and copies of them are slower without: as root, echo madvise >"
            " /sys/kernel/mm/transparent_hugepage/enabled",
            **details,
        )
    return ok(summary, **details)


def _chosen(text: str | None) -> str:
    """The bracketed word of "always [madvise] never"."""
    if text is None or "[" not in text:
        return "not known"
    return text.partition("[")[2].partition("]")[0]
