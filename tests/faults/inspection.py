"""What a process holds, read from /proc by the process itself."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from tests.support.processes import Message

# What a process may keep for all its groups until it exits: its doorbell, the socket of its node
# service, and for each process that it ever shared a group with a pidfd and that one's doorbell.
KEPT = {"memfd": 1, "socket": 1}
KEPT_SHARED_BYTES_A_RANK = 1 << 16
SETTLE_LIMIT_S = 2.0


def shared_mappings() -> dict[int, Message]:
    """Shared memory mapped here, by inode: name, size, bytes resident here, blocks if known."""
    found: dict[int, Message] = {}
    current: Message | None = None
    pattern = re.compile(
        r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+)\s+(/memfd:|/dev/shm|/dev/zero)(.*)"
    )
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            current = None
            if match := pattern.match(line):
                start, end, inode, kind, name = match.groups()
                entry = {"name": kind + name, "size": 0, "resident": 0, "blocks": None}
                current = found.setdefault(int(inode), entry)
                current["size"] += int(end, 16) - int(start, 16)
                try:  # readable by root only
                    stat = os.stat(f"/proc/self/map_files/{start}-{end}")
                    current["blocks"] = stat.st_blocks * 512
                except OSError:
                    pass
        elif current is not None and line.startswith("Rss:"):
            current["resident"] += int(line.split()[1]) * 1024
    return found


def descriptors() -> dict[str, int]:
    """Open descriptors of this process by kind, e.g. {"socket": 2, "memfd": 1, "pidfd": 3}."""
    counts: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        kind = re.sub(r"^/(memfd):.*|^anon_inode:\[?(\w+)\]?|^(\w+):\[.*", r"\1\2\3", target)
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def resident_bytes() -> int:
    """Resident memory that is this process's own (shared memory not counted)."""
    text = Path("/proc/self/status").read_text()
    return sum(int(kb) * 1024 for kb in re.findall(r"^RssAnon:\s+(\d+)", text, re.MULTILINE))


def held_by_groups(ranks: int, before: dict[str, int], tcp_store: bool = False) -> list[str]:
    """What this process, all its groups destroyed, still holds for them; `before` the first group.

    `ranks` counts the processes that it shared groups with, itself included. A thread of the
    backend may be the last to let go of a group, just after destroy returned: a leak stays.
    """
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while (found := _held_now(ranks, before, tcp_store)) and time.monotonic() < deadline:
        time.sleep(0.001)
    return found


def _held_now(ranks: int, before: dict[str, int], tcp_store: bool) -> list[str]:
    found = []
    after = descriptors()
    for kind, kept in {**KEPT, "pidfd": ranks - 1}.items():
        if kind == "socket" and tcp_store:
            continue  # a TCPStore is torch's, and so is the question when its sockets are closed
        more = after.get(kind, 0) - before.get(kind, 0)
        if more > kept:
            found.append(f"{more} {kind} descriptors, {kept} are shared by all groups")
    shared = sum(mapping["size"] for mapping in shared_mappings().values())
    if shared > ranks * KEPT_SHARED_BYTES_A_RANK:
        found.append(f"{shared} bytes of shared memory")
    return found
