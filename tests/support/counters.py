"""What the backend counted. Only the harness reads it: code under test never imports tidegate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.support.backend import IS_TIDEGATE


@dataclass
class Traffic:
    """Calls per operation over all groups of this process, and bytes through shared memory."""

    calls: Counter[str] = field(default_factory=Counter)
    shm_bytes: int = 0

    def since(self, earlier: Traffic) -> Traffic:
        return Traffic(self.calls - earlier.calls, self.shm_bytes - earlier.shm_bytes)


def traffic() -> Traffic | None:
    """The counters now; None when the harness drives another backend."""
    if not IS_TIDEGATE:
        return None
    import tidegate

    stats = tidegate.stats()
    calls: Counter[str] = Counter()
    for group in stats["groups"].values():
        for op, numbers in group["ops"].items():
            calls[op] += numbers["calls"]
    return Traffic(calls, stats["links"]["shm"]["bytes"])
