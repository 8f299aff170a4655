"""`tidegate estimate`: what an optimizer takes on devices and hosts, by where its states are."""

from __future__ import annotations

import argparse
import json
import re
import resource
from dataclasses import asdict, dataclass
from typing import Any

from tidegate.cli import footprint
from tidegate.cli.checks.machine_view import MachineView
from tidegate.cli.errors import UsageError
from tidegate.cli.footprint import Job, Layout, Need
from tidegate.cli.output import Output
from tidegate.cli.quantities import size

SUMMARY = "tell what an optimizer takes on devices and hosts, by mode"
DESCRIPTION = (
    "Bytes of parameters, gradients, master copies and optimizer states: of a rank on its device"
    " and on its host, and of a node, in each mode of docs/offload.md; what torch's pinned"
    " allocator would lock for the same; and whether it fits. Activations, and what FSDP gathers"
    " for the layer at work, come on top."
)
_DEFAULT_RANKS_PER_NODE = 8
_MOST_RANKS = 1 << 20
_MOST_TENSORS = 1 << 20
_CAP_IPC_LOCK = 14  # linux/capability.h


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--params", required=True, metavar="N", help="parameters: 7B, 124M, 1.3B (powers of 1000)"
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="ranks in all (1)")
    parser.add_argument(
        "--ranks-per-node", type=int, metavar="N", help="ranks of a node (all, at most 8)"
    )
    parser.add_argument(
        "--optimizer", default="adamw", metavar="NAME", help=f"{', '.join(footprint.OPTIMIZERS)}"
    )
    parser.add_argument(
        "--dtype", default="fp32", metavar="T", help="of parameters and gradients: fp32, bf16, fp16"
    )
    parser.add_argument(
        "--master",
        default="auto",
        metavar="M",
        help="none, fp32, split (the 16 bits that bf16 lacks) or auto: fp32 for 16-bit parameters",
    )
    parser.add_argument("--states", default="fp32", metavar="S", help="fp32, bf16 or 8bit (fp32)")
    parser.add_argument(
        "--tensors", type=int, default=1, metavar="N", help="of a rank: 1, a flat shard (1)"
    )
    parser.add_argument("--memory", metavar="SIZE", help="of a node: 512G, 1.5T (this machine's)")
    parser.add_argument("--json", action="store_true", help="one JSON object")


@dataclass(frozen=True)
class Node:
    """What a node has for a job, in bytes; None: not known, or no limit."""

    name: str
    available: int | None
    lockable: int | None = None


def run(options: argparse.Namespace, output: Output) -> int:
    job, layout = _job(options), _layout(options)
    node = _this_machine() if options.memory is None else _asked(options.memory)
    rows = footprint.needs(job, layout)
    if options.json:
        print(json.dumps(_as_json(job, layout, node, rows), indent=2))
    else:
        _show(job, layout, node, rows, output)
    return 0


def _job(options: argparse.Namespace) -> Job:
    parameters = footprint.parameters(options.params)
    _check("--ranks", options.ranks, 1, _MOST_RANKS)
    per_node = options.ranks_per_node
    if per_node is None:
        per_node = min(options.ranks, _DEFAULT_RANKS_PER_NODE)
    _check("--ranks-per-node", per_node, 1, options.ranks)
    _check("--tensors", options.tensors, 1, _MOST_TENSORS)
    return Job(parameters, options.ranks, per_node, options.tensors)


def _layout(options: argparse.Namespace) -> Layout:
    for option, legal in (
        *(("optimizer", tuple(footprint.OPTIMIZERS)), ("dtype", tuple(footprint.ELEMENT_BYTES))),
        *(("master", footprint.MASTERS), ("states", footprint.STATES)),
    ):
        value = getattr(options, option)
        if value not in legal:
            raise UsageError(f"--{option} {value}: none of {', '.join(legal)}")
    return footprint.layout_of(options.optimizer, options.dtype, options.master, options.states)


def _check(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{option} {value}: {least} to {most:,}")


def _asked(text: str) -> Node:
    return Node("a node", footprint.memory(text))


def _this_machine() -> Node:
    view = MachineView()
    return Node("this machine", available_memory(view), _lockable(view))


def available_memory(view: MachineView | None = None) -> int | None:
    """Bytes of this machine, by the shim, which knows of cgroups; without it by what the kernel
    says of the whole machine. None: not known."""
    view = view or MachineView()
    limits = view.limits
    if limits is not None:
        available: int = limits["available_memory"]
        return available
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", view.read("proc/meminfo") or "", re.M)
    return int(found[1]) << 10 if found else None


def _lockable(view: MachineView) -> int | None:
    """Bytes that this process may mlock; None: no limit."""
    status = view.read("proc/self/status") or ""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.M)
    if effective is not None and int(effective[1], 16) & 1 << _CAP_IPC_LOCK:
        return None
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _show(job: Job, layout: Layout, node: Node, rows: list[Need], output: Output) -> None:
    nodes = -(-job.ranks // job.ranks_per_node)
    ranks = f"{job.ranks:,} rank{'s' if job.ranks > 1 else ''}"
    where = "one node" if nodes == 1 else f"{nodes:,} nodes of {job.ranks_per_node}"
    print(f"{job.parameters:,} parameters, {layout.optimizer}, {ranks} on {where}")
    parts = " + ".join(f"{name} {_bytes(count)}" for name, count in _parts(layout).items())
    print(f"{_bytes(layout.total)} B a parameter: {parts}")
    print()
    header = ("mode", "what", "device/rank", "host/rank", "arena/rank", "torch pins", "host/node")
    cells = []
    for row in rows:
        memory = (row.device_rank, row.host_rank, row.arena_rank, row.pinned_by_torch_rank)
        shown = [size(count) if count else "-" for count in (*memory, row.host_node)]
        what = f"{row.what} ({row.remark})" if row.remark else row.what
        cells.append((row.mode, what, *shown, _fits(row, node)))
    output.table((*header, "fits"), cells)
    print()
    if node.available is None:
        print(f"{node.name}: available memory not known")
    else:
        print(f"{node.name}: {size(node.available)} available")
    if node.name != "a node":
        print(f"may be locked: {_lock_text(node, rows)}")


def _parts(layout: Layout) -> dict[str, float]:
    """What a parameter is made of, in bytes."""
    found: dict[str, float] = {"gradient": layout.gradient, "parameter": layout.parameter}
    if layout.master_bytes:
        found["lower half" if layout.master == "split" else "master"] = layout.master_bytes
    return found | dict.fromkeys(footprint.OPTIMIZERS[layout.optimizer], layout.state)


def _bytes(count: float) -> str:
    return f"{count:.3f}".rstrip("0").rstrip(".")


def _fits(row: Need, node: Node) -> str:
    if not row.host_node or node.available is None:
        return "-"
    short = row.host_node - node.available
    return "yes" if short <= 0 else f"no, {size(short)} short"


def _lock_text(node: Node, rows: list[Need]) -> str:
    """By mlock; memory that a device knows of (cudaHostRegister) comes with CUDA."""
    if node.lockable is None:
        return "all of it (mlock; registration with a device comes with CUDA)"
    most = max(row.arena_rank for row in rows)
    if most <= node.lockable:
        return f"{size(node.lockable)} of a rank (mlock), enough for its arena"
    return (
        f"{size(node.lockable)} of a rank (RLIMIT_MEMLOCK), the largest arena is {size(most)}: the"
        " rest stays pageable; `ulimit -l unlimited`"
    )


def _as_json(job: Job, layout: Layout, node: Node, rows: list[Need]) -> dict[str, Any]:
    return {
        "version": 1,
        **asdict(job),
        "layout": {
            **asdict(layout),
            "bytes_of_parts": _parts(layout),
            "bytes_per_parameter": layout.total,
        },
        "node": {"available_bytes": node.available, "lockable_bytes": node.lockable},
        "modes": [
            {
                **asdict(row),
                "fits": None if node.available is None else row.host_node <= node.available,
            }
            for row in rows
        ],
    }
