"""Limits of all-gathers: how many, how large and how fast (docs/rate_limit.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta

    from torch.distributed import ProcessGroup

Limit = int | str | None


def set_limits(
    group: ProcessGroup | None = None,
    *,
    max_ops: Limit = None,
    max_bytes: Limit = None,
    wait: str | None = None,
    rate: Limit = None,
    burst: Limit = None,
    links: str | None = None,
) -> None:
    """Limit the all-gathers of this process, in all its groups together, or those of ``group``.

    ``max_ops`` of them, with at most ``max_bytes`` of output together, are in flight at a time:
    begun or next in line and not yet complete. ``max_bytes="auto"`` stands for ``max_ops=2``, as
    few as cost no speed. An async one for which there is no room starts later (``wait="queue"``,
    the default) or makes its caller wait (``"block"``). ``rate`` is in bytes a second, read from
    other ranks, with ``burst`` bytes at once after a pause (without it, what the rate gives in 10
    ms, at least 1 MiB); ``links`` names those on which they count: ``"all"`` (the default),
    ``"node"``, ``"net"``. Numbers may be text such as ``"1.5G"``.

    What is set replaces all limits before it, those of the ``TIDEGATE_AG_*`` variables too; without
    any, there is none. A group with limits of its own does not count for those of the process any
    more, also when its own are lifted; groups split off it begin with those that it was made with.
    A new rate also holds for all-gathers that have begun. Ranks may have different limits. Any
    thread may call it.

    ValueError for what those variables would not take, and if ``group`` does not use tidegate on
    the CPU or this rank is not in it.
    """
    from tidegate import _backend

    limits = _texts(max_ops, max_bytes, wait, rate, burst, links)
    if group is None:
        _backend.load_shim().set_limits(limits)
    else:
        _backend_of(group)._set_limits(limits)


def Options(
    *,
    timeout: timedelta | None = None,
    max_ops: Limit = None,
    max_bytes: Limit = None,
    wait: str | None = None,
    rate: Limit = None,
    burst: Limit = None,
    links: str | None = None,
) -> Any:
    """Make the ``pg_options`` of a group with limits of its own, as ``set_limits`` has them.

    ``dist.new_group(backend="tidegate", pg_options=tidegate.Options(max_bytes="64M"))``, or the
    same with ``init_process_group``. Without any limit those of the process hold. Bad limits raise
    ValueError when the group is made. ``timeout`` counts where c10d is given none.
    """
    from tidegate import _backend

    limits = _texts(max_ops, max_bytes, wait, rate, burst, links)
    if limits and max_ops is None and max_bytes is None and rate is None:
        given = ", ".join(
            f"{name.removeprefix('TIDEGATE_AG_').lower()}={limits[name]}" for name in limits
        )
        raise ValueError(
            f"tidegate.Options: {given} limits nothing by itself; give max_ops, max_bytes or rate"
        )
    options = _backend.load_shim().ProcessGroupTidegate.Options
    return options(limits=limits) if timeout is None else options(timeout, limits)


def _texts(
    max_ops: Limit, max_bytes: Limit, wait: str | None, rate: Limit, burst: Limit, links: str | None
) -> dict[str, str]:
    given = {
        "TIDEGATE_AG_MAX_OPS": max_ops,
        "TIDEGATE_AG_MAX_BYTES": max_bytes,
        "TIDEGATE_AG_WAIT": wait,
        "TIDEGATE_AG_RATE": rate,
        "TIDEGATE_AG_BURST": burst,
        "TIDEGATE_AG_LINKS": links,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _backend_of(group: ProcessGroup) -> Any:
    import torch
    import torch.distributed as dist

    if dist.get_rank(group) < 0:
        raise ValueError("tidegate.set_limits: this rank is not a member of the group")
    backend = group._get_backend(torch.device("cpu"))
    if backend.name() != "tidegate":
        raise ValueError(
            "tidegate.set_limits: the group uses " + backend.name() + " on the CPU, not tidegate"
        )
    return backend
