"""What training takes on devices and hosts: bytes of a parameter by layout, of a rank by mode.

Counts what lives as long as the training: parameters, gradients, master copies and optimizer
states. Activations, and what FSDP gathers for the layer at work, come on top in every mode.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tidegate.cli.errors import UsageError

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
MASTERS = ("auto", "none", "fp32", "split")
STATES = ("fp32", "bf16", "8bit")
#: Names of the states of each optimizer, one element a parameter each.
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw-amsgrad": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "adam-amsgrad": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "sgd": (),
    "sgd-momentum": ("momentum_buffer",),
    "adagrad": ("sum",),
    "lion": ("exp_avg",),
}
#: Those whose states there are in fewer than 32 bits.
COMPRESSIBLE = ("adamw",)

_QUANTIZATION_BLOCK = 256  # elements that share a scale of fp32
# offload/memory: a block takes what was asked for up to a line, a large one begins at a page, and a
# large arena grows by huge pages.
_LINE, _PAGE, _HUGE_PAGE = 64, 4096, 2 << 20
_LARGE_BLOCK, _LARGE_ARENA = 1 << 20, 512 << 20

_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOST_PARAMETERS = 10**15
_MOST_MEMORY = 1 << 60
_MOST_DIGITS = 1000  # Python reads few more


@dataclass(frozen=True)
class Layout:
    """How the parameters of an optimizer are stored; master is never "auto"."""

    optimizer: str
    dtype: str
    master: str
    states: str

    @property
    def parameter(self) -> float:
        return ELEMENT_BYTES[self.dtype]

    @property
    def gradient(self) -> float:
        """Autograd's gradients have the type of their parameters."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def master_bytes(self) -> float:
        """A split master is the 16 bits that a bf16 parameter lacks of an fp32 one."""
        return {"none": 0, "fp32": 4, "split": 2}[self.master]

    @property
    def state(self) -> float:
        """One state of a parameter."""
        return {"fp32": 4, "bf16": 2, "8bit": 1 + 4 / _QUANTIZATION_BLOCK}[self.states]

    @property
    def total(self) -> float:
        states = len(OPTIMIZERS[self.optimizer]) * self.state
        return self.gradient + self.parameter + self.master_bytes + states


def layout_of(optimizer: str, dtype: str, master: str, states: str) -> Layout:
    """UsageError for what there is not, with what there is."""
    if dtype == "fp32" and master in ("fp32", "split"):
        raise UsageError(
            f"--master {master} with --dtype fp32: such a parameter is its own master; auto or none"
        )
    if master == "split" and dtype != "bf16":
        raise UsageError(
            f"--master split with --dtype {dtype}: only bf16 is the upper half of fp32; auto, none"
            " or fp32"
        )
    if states != "fp32" and optimizer not in COMPRESSIBLE:
        raise UsageError(
            f"--states {states} with --optimizer {optimizer}: there is that of"
            f" {', '.join(COMPRESSIBLE)} alone; fp32"
        )
    if states != "fp32" and dtype != "fp32" and master == "none":
        raise UsageError(
            f"--states {states} with --dtype {dtype} --master none: states in fewer bits go with a"
            " master; auto, fp32" + (" or split" if dtype == "bf16" else "")
        )
    if master == "auto":
        master = "none" if dtype == "fp32" else "fp32"
    return Layout(optimizer, dtype, master, states)


@dataclass(frozen=True)
class Tensors:
    """A rank's part of all parameters: so many elements, in so many tensors of equal length."""

    elements: int
    count: int

    def allocations(self, element_bytes: float) -> list[int]:
        """Bytes of each tensor of one kind; of 8-bit states also of their scales."""
        whole = int(element_bytes)
        sizes = []
        for elements in self._lengths():
            sizes.append(whole * elements)
            if element_bytes != whole:
                sizes.append(4 * -(-elements // _QUANTIZATION_BLOCK))
        return [size for size in sizes if size]

    def bytes(self, element_bytes: float) -> int:
        return sum(self.allocations(element_bytes))

    def _lengths(self) -> list[int]:
        least, more = divmod(self.elements, self.count)
        return [least + (number < more) for number in range(self.count)]


@dataclass(frozen=True)
class Need:
    """Bytes of a mode, of the rank that needs most, and of a node that is full of ranks."""

    mode: str
    what: str
    device_rank: int
    host_rank: int  #: the arena included
    arena_rank: int
    pinned_by_torch_rank: int  #: were the arena's blocks tensors of torch's pinned allocator
    host_node: int
    remark: str = ""


@dataclass(frozen=True)
class Job:
    """How many parameters there are, in how many tensors, and who holds them."""

    parameters: int
    ranks: int
    ranks_per_node: int
    tensors: int = 1


def needs(job: Job, layout: Layout) -> list[Need]:
    """A row for each mode."""
    whole = Tensors(job.parameters, job.tensors)
    shard = Tensors(_share(job.parameters, job.ranks), job.tensors)
    node_shard = Tensors(_share(job.parameters, job.ranks_per_node), job.tensors)
    states = [layout.state] * len(OPTIMIZERS[layout.optimizer])
    kept = [layout.master_bytes, *states]
    model = [layout.parameter, layout.gradient]
    # Without the engine there are no split masters and no compressed states.
    plain_master = 4 if layout.master != "none" else 0
    plain_state = 4 if plain_master else layout.parameter
    plain = [*model, plain_master, *([plain_state] * len(states))]

    def need(
        mode: str, what: str, device: int, own: int, arena: list[int], remark: str = ""
    ) -> Need:
        used = arena_bytes(arena)
        return Need(
            *(mode, what, device, own + used, used, pinned_by_torch(arena)),
            *(job.ranks_per_node * (own + used), remark),
        )

    return [
        need("none, sharded", "FSDP, all on the device", _all(shard, plain), 0, []),
        need("none, replicated", "DDP, all on the device", _all(whole, plain), 0, []),
        need(
            *("M1", "FSDP on the host", 0),
            *(_all(shard, model), _blocks(shard, kept)),
        ),
        need(
            *("M2", "FSDP, states on the host", _all(shard, model)),
            *(0, _blocks(shard, [*model, *kept]), "comes with CUDA"),
        ),
        need(
            *("M4", "DDP on the host, states over the node", 0),
            *(_all(whole, model), _blocks(node_shard, [layout.parameter, *kept])),
        ),
    ]


def arena_bytes(blocks: Sequence[int]) -> int:
    """What the arena takes of memory for blocks of these sizes."""
    used = sum(_up(block, _PAGE if block >= _LARGE_BLOCK else _LINE) for block in blocks)
    return _up(used, _HUGE_PAGE if used >= _LARGE_ARENA else _PAGE)


def pinned_by_torch(blocks: Sequence[int]) -> int:
    """What torch's CachingHostAllocator locks for them: each rounded up to a power of two."""
    return sum(1 << (block - 1).bit_length() for block in blocks)


def parameters(text: str) -> int:
    """Reads "7B", "124M", "1.3B" or "124439808": powers of 1000, as the names of models are."""
    count = _scaled("--params", text, _DECIMAL, "a number such as 7B, 124M, 1.3B or 124439808")
    if not 1 <= count <= _MOST_PARAMETERS:
        raise UsageError(f"--params {text}: 1 to 1000T parameters")
    return count


def memory(text: str) -> int:
    """Reads "512G", "1.5TiB" or "4096": powers of 1024."""
    stripped = re.sub(r"(?i)i?b$", "", text)
    count = _scaled("--memory", stripped, _BINARY, "bytes such as 512G, 1.5T or 4096", text)
    if count > _MOST_MEMORY:
        raise UsageError(f"--memory {text}: at most {_MOST_MEMORY >> 40}T")
    return count


def _scaled(
    option: str, text: str, units: dict[str, int], legal: str, shown: str | None = None
) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+) ?([a-zA-Z]?)", text)
    if found is None or found[2].upper() not in units or len(text) > _MOST_DIGITS:
        raise UsageError(f"{option} {text if shown is None else shown}: {legal}")
    # Exact, however large.
    return round(Fraction(found[1]) * units[found[2].upper()])


def _share(elements: int, ranks: int) -> int:
    return -(-elements // ranks)


def _all(tensors: Tensors, kinds: Sequence[float]) -> int:
    return sum(tensors.bytes(kind) for kind in kinds)


def _blocks(tensors: Tensors, kinds: Sequence[float]) -> list[int]:
    return [block for kind in kinds if kind for block in tensors.allocations(kind)]


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
