"""What the backend counted. Only the harness reads it: code under test never imports tidegate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.support.backend import IS_TIDEGATE


@dataclass
class Traffic:
    """Calls per operation of this process, over all groups and by group; bytes from peers."""

    calls: Counter[str] = field(default_factory=Counter)
    shm_bytes: int = 0
    groups: dict[str, Counter[str]] = field(default_factory=dict)

    def since(self, earlier: Traffic) -> Traffic:
        groups = {
            name: calls - earlier.groups.get(name, Counter()) for name, calls in self.groups.items()
        }
        return Traffic(
            self.calls - earlier.calls,
            self.shm_bytes - earlier.shm_bytes,
            {name: calls for name, calls in groups.items() if calls},
        )


def traffic() -> Traffic | None:
    """The counters now; None when the harness drives another backend."""
    if not IS_TIDEGATE:
        return None
    import tidegate

    stats = tidegate.stats()
    groups = {
        name: Counter({op: numbers["calls"] for op, numbers in group["ops"].items()})
        for name, group in stats["groups"].items()
    }
    return Traffic(sum(groups.values(), Counter()), stats["links"]["shm"]["bytes"], groups)
