"""Memory: what groups are made of, how much there is, what may be locked, page sizes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import resource

from tidegate.cli.checks.finding import Finding, fail, ok, warn
from tidegate.cli.checks.machine_view import GIB, MachineView

_SCARCE = 1 << 30
_TOO_LITTLE = 64 << 20
_LANES = 2
_CHANNEL_BYTES = 260 << 10
_RANKS_IF_UNKNOWN = 8
_GROUPS = 4  # data parallel, sharding, tensor parallel, pipeline
# docker gives a container 64 MiB of /dev/shm unless told otherwise.
_SHM_WANTED = 256 << 20
_MEMLOCK_WANTED = 1 << 30
_CAP_SYS_PTRACE = 19  # linux/capability.h


def check_shared_memory(view: MachineView) -> Finding:
    """Does on a small scale what a group does: memfd_create, fallocate, seal, map, write.

    A memfd lies in no mount and counts as memory of its cgroup: /dev/shm limits it nowhere. What
    does use the mount is torch itself, where processes hand each other tensors.
    """
    size = 1 << 20
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
    size, free = _shm_mount(view)
    details = {"shm_bytes": size, "shm_free_bytes": free}
    if size >= _SHM_WANTED and free >= _SHM_WANTED:
        return ok(
            f"memfd works (/dev/shm, which is not needed, has {_in_gib(free)} free)", **details
        )
    if size >= _SHM_WANTED:
        mount = f"/dev/shm has {free >> 20} of {_in_mib(size)} free"
        remedy = "remove what ended processes left in /dev/shm"
    else:
        mount = f"/dev/shm has {_in_mib(size)}" if size else "/dev/shm is absent"
        remedy = "give it more: `docker run --shm-size=1g` or --ipc=host; in Kubernetes an emptyDir"
        remedy += " with medium Memory"
    return warn(
        f"memfd works, so groups do, but {mount}: workers of torch's DataLoader and"
        " torch.multiprocessing hand tensors over there, and may end with a bus error",
        remedy,
        **details,
    )


def _shm_mount(view: MachineView) -> tuple[int, int]:
    """Size of /dev/shm and what is free of it, in bytes; zeros if there is none."""
    try:
        status = os.statvfs(view.root / "dev/shm")
    except OSError:
        return 0, 0
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def _in_gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _in_mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def check_single_copy(view: MachineView) -> Finding:
    """May one rank read the memory of another? Only those who try it know; this knows what forbids.

    A rank is neither parent nor child of another, which is what matters to Yama.
    """
    scope = int(view.read("proc/sys/kernel/yama/ptrace_scope") or 0)
    status = view.read("proc/self/status") or ""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    privileged = effective is not None and bool(int(effective[1], 16) & 1 << _CAP_SYS_PTRACE)
    details = {"ptrace_scope": scope, "privileged": privileged}
    if scope > 2 or (scope > 0 and not privileged):
        return warn(
            f"kernel.yama.ptrace_scope is {scope}: ranks may not read each other's memory, so that"
            " all-gathers of 64 KiB to 16 MiB are copied twice where once is faster",
            "as root, `sysctl kernel.yama.ptrace_scope=0`; or give containers SYS_PTRACE",
            **details,
        )
    error = _read_own_memory()
    if error:
        return warn(
            f"process_vm_readv fails ({os.strerror(error)}): ranks cannot read each other's memory,"
            " so that all-gathers of 64 KiB to 16 MiB are copied twice where once is faster",
            "allow process_vm_readv in the container's seccomp profile (docker: SYS_PTRACE does)",
            **details,
        )
    return ok("ranks may read each other's memory (process_vm_readv)", **details)


class _Part(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _read_own_memory() -> int:
    """0, or the errno of process_vm_readv."""
    source = ctypes.create_string_buffer(b"tidegate")
    target = ctypes.create_string_buffer(len(source))
    ours = _Part(ctypes.addressof(target), len(target))
    theirs = _Part(ctypes.addressof(source), len(source))
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        read = libc.process_vm_readv(
            os.getpid(), ctypes.byref(ours), 1, ctypes.byref(theirs), 1, ctypes.c_ulong(0)
        )
    except AttributeError:
        return errno.ENOSYS
    return 0 if read == len(source) and target.raw == source.raw else ctypes.get_errno()


def check_memory(view: MachineView) -> Finding:
    """What is left, within the cgroup's limit, against what groups of this job can commit."""
    limits = view.limits
    if limits is None:
        return warn("not known, since the shim does not load", "see the check shim")
    available, limit = limits["available_memory"], limits["memory_limit"]
    ranks, stage = _ranks(view), _stage_bytes(view)
    group = group_bytes(ranks, stage)
    cap = "no cgroup limit" if limit is None else f"cgroup limit {_in_gib(limit)}"
    summary = f"{_in_gib(available)} available ({cap}); a group of {ranks} ranks takes at most"
    summary += f" {_in_mib(group)}"
    details = {"available_bytes": available, "limit_bytes": limit, "group_bytes": group}
    remedy = "stop other processes or raise the container's memory limit (docker run --memory)"
    if stage > 2 << 20:
        remedy += ", or lower TIDEGATE_STAGE_BYTES"
    if available < max(_TOO_LITTLE, group):
        return fail(summary, remedy, **details)
    if available < max(_SCARCE, _GROUPS * group):
        return warn(summary, remedy, **details)
    return ok(summary, **details)


def group_bytes(ranks: int, stage_bytes: int) -> int:
    """What a group can commit: a stage for each rank in each lane, a channel for each pair."""
    return _LANES * ranks * stage_bytes + ranks**2 * _CHANNEL_BYTES


def _ranks(view: MachineView) -> int:
    """How many ranks torchrun starts on this machine. A bad number is for the check threads."""
    text = view.environment.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) > 0 else _RANKS_IF_UNKNOWN


def _stage_bytes(view: MachineView) -> int:
    """TIDEGATE_STAGE_BYTES, its default if it is unset. A bad value is for the check settings."""
    for row in view.shim.settings():
        if row["name"] == "TIDEGATE_STAGE_BYTES":
            text = row["default"] if row["value"] is None or row["error"] else row["value"]
            size = re.match(r"([\d.]+) ?([kmgt]?)", text, re.IGNORECASE)
            assert size, text  # no error: the shim has read it
            return int(float(size[1]) * 1024 ** " kmgt".index(size[2].lower() or " "))
    raise AssertionError("no setting TIDEGATE_STAGE_BYTES")


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
