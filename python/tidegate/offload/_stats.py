"""What the engine of this process has done."""

from __future__ import annotations

import json
from typing import Any


def stats() -> dict[str, Any]:
    """Return the engine's threads and memory.

    ``{"threads": [processors], "arena": {...}, "shared": [...]}``; ``threads`` has a processor for
    each thread of the pool (-1: not bound to one), ``arena`` the bytes that were asked for and
    those taken, and which kind of pages and of pinning was achieved and why not more
    (``docs/offload.md``). ``shared`` has an entry for each segment that is shared with other ranks
    (``shard_over=``): ``{"inode": ..., "rank": ..., "ranks": ..., "arena": {...}}``, of this rank's
    slice. Empty until the first optimizer of this process has states. Any thread may call it.
    """
    from tidegate import _backend

    result: dict[str, Any] = json.loads(_backend.load_shim().offload_stats_json())
    return result
