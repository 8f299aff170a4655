"""The memory that the ranks of a process group on one node share."""

from __future__ import annotations

import atexit
import datetime
import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tidegate._shim_types import OffloadNode, OffloadShards

#: The ranks have all just told each other that they come: who does not within this time is lost.
_MEETING = datetime.timedelta(seconds=60)
#: One a group, as long as the group lives: whether there is one must not depend on when the garbage
#: of a rank is collected.
_NODES: weakref.WeakKeyDictionary[ProcessGroup, OffloadNode] = weakref.WeakKeyDictionary()
#: What this rank has dropped and others may still read, by the node in whose memory it lies.
_DROPPED: list[tuple[OffloadNode, OffloadShards]] = []


def node_of(group: ProcessGroup) -> OffloadNode:
    """The segment of ``group``, made by its first optimizer; all ranks must call it.

    ValueError on a rank that is no member, and on all if they are not on one node, RuntimeError if
    one of them cannot share memory, and what the group raises if one is lost.
    """
    if dist.get_rank(group) < 0:
        raise ValueError("shard_over= must be a process group that this rank is a member of")
    node = _NODES.get(group)
    if node is None:
        node = _NODES[group] = _make(group)
        alive = list(_NODES.values())
        _DROPPED[:] = [entry for entry in _DROPPED if entry[0] in alive]
    return node


def keep_after(owner: object, node: OffloadNode, shards: OffloadShards) -> None:
    """Keep ``shards`` when ``owner`` goes, for peers that still write a checkpoint of it.

    Until all ranks have met again in the group or, where that has gone, in another one, but at
    least as long as the process lives if they do not.
    """
    weakref.finalize(owner, _DROPPED.append, (node, shards))
    _keep_at_exit()


@functools.cache
def _keep_at_exit() -> None:
    """What an interpreter that ends destroys would be freed under the eyes of the others."""
    from tidegate import _backend

    atexit.register(_backend.load_shim().OffloadShards.keep_all)


def dropped_in(node: OffloadNode) -> list[Any]:
    """What :func:`free` may free once all ranks have met."""
    return [entry for entry in _DROPPED if entry[0] is node]


def free(entries: list[Any]) -> None:
    for entry in entries:
        _DROPPED.remove(entry)


def gather(group: ProcessGroup, mine: Any) -> list[Any]:
    """``mine`` of all ranks."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def _make(group: ProcessGroup) -> OffloadNode:
    from tidegate import _backend

    shim = _backend.load_shim()
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    timeout = min(_timeout_of(group), _MEETING)
    host = identity = problem = None
    try:
        identity = shim.offload_node_identity()
        host = shim.OffloadNodeHost(ranks) if rank == 0 else None
    except Exception as error:
        problem = error
    told = gather(group, (identity, host.address if host else None, problem and str(problem)))
    _raise_first([problem for _, _, problem in told], problem)
    _check_one_node([identity for identity, _, _ in told])
    node = None
    try:
        if host is not None:
            node = host.serve(timeout)
        else:
            node = shim.OffloadNode.join(told[0][1], rank, ranks, timeout)
    except Exception as error:
        problem = error
    _raise_first(gather(group, problem and str(problem)), problem)
    assert node is not None
    return node


def _raise_first(problems: list[str | None], mine: Exception | None) -> None:
    if mine is not None:
        raise mine
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise RuntimeError(
                f"rank {rank} cannot share memory with the ranks of shard_over=: {problem}"
            )


def _check_one_node(identities: list[str]) -> None:
    nodes: dict[str, list[str]] = {}
    for rank, identity in enumerate(identities):
        nodes.setdefault(identity, []).append(str(rank))
    if len(nodes) > 1:
        spread = "; ".join(f"rank {', '.join(ranks)} on {name}" for name, ranks in nodes.items())
        raise ValueError(
            f"the ranks of shard_over= are on {len(nodes)} nodes ({spread}) and share no memory;"
            " pass a group of one node's ranks, such as torch.distributed.new_subgroups() makes"
        )


def _timeout_of(group: ProcessGroup) -> datetime.timedelta:
    """Of the group's operations on CPU tensors."""
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)
    timeout: datetime.timedelta = getattr(options, "_timeout", _MEETING)
    return timeout
