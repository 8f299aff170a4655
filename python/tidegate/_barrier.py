"""The monitored barrier, which torch keeps for gloo up to 2.13."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Block until all ranks of ``group`` have come, or say which ones have not.

    What ``torch.distributed.monitored_barrier`` does, also where torch refuses the name of the
    backend. ``group`` defaults to the default group; a rank outside of it returns at once.
    ``timeout`` defaults to that of the group; zero looks once.

    A rank that gives up raises ``torch.distributed.DistBackendError`` (a ``RuntimeError``): rank 0
    names the first missing rank, or all of them if ``wait_all_ranks``; the others that rank 0 let
    them wait, and why. A rank that comes later is told that the barrier was given up. The group
    stays usable, and the next barrier is the next one for every rank. A group that has failed
    raises what it failed with.

    It goes over the group's store, not over its memory, so it works while collectives hang. It
    takes milliseconds: use ``torch.distributed.barrier`` where nobody need be named.
    """
    import torch.distributed as dist

    if timeout is not None:
        if not isinstance(timeout, timedelta):
            raise TypeError(f"timeout must be a datetime.timedelta; got {timeout!r}")
        if timeout < timedelta(0):
            raise ValueError(f"timeout must not be negative; got {timeout}")
    if dist.get_rank(group) < 0:
        return
    members = dist.group.WORLD if group is None else group
    assert members is not None  # get_rank has raised if there is no default group
    # Not timeout=None: the binding of some torches takes a timedelta alone.
    if timeout is None:
        members.monitored_barrier(wait_all_ranks=wait_all_ranks)
    else:
        members.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)
