"""What every row of the integration table is made of.

A row is a function that runs inside the ranks: it does something with torch's own features,
compares the result with an oracle that needs no communication, and returns an `Outcome`. To add
one, write the function in the module of its area and put a `Row` into that module's `ROWS`; facts
that are not a difference of tensors are plain assertions in the function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.integration.models import STEPS
from tests.support.counters import Traffic, traffic
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

FP32_TOLERANCE = 2e-6
FP64_TOLERANCE = 1e-12

Calls = Mapping[str, int]
Tensors = dict[str, torch.Tensor]


@dataclass
class Outcome:
    """What one rank found. `traffic` is None when the harness drives another backend."""

    difference: float
    digest: str  # of this rank's result: equal only if two runs gave the same bits
    traffic: Traffic | None


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `run` is called inside every rank. A row that needs pools of several sizes, or processes of its
    own, has None there and `drive`, which is called outside the ranks; `world_size` is then the one
    it starts with, and `label` what the table prints in its place. Either gives the same digests
    each time. `shows`: what a green row proves, for the documentation.

    `calls`: how often every rank (or, as a function, the given rank) calls each operation, exactly;
    an operation named in none of these must not be called. `some`: operations whose number is
    torch's affair, each called at least once on some rank. `may`: operations that torch may use.
    """

    name: str
    world_size: int
    run: Callable[[RankContext], Outcome] | None
    shows: str
    calls: Calls | Callable[[int], Calls]
    some: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    tolerance: float = FP32_TOLERANCE
    drive: Callable[[PoolKeeper], list[Outcome]] | None = None
    label: str = ""
    timeout_s: float = 120.0
    slow: bool = False  # takes minutes: only where every row is taken
    lacking: str = ""  # what this torch lacks for the row, which is then skipped
    beside_cuda: str = ""  # what fails in torch, with CPU tensors, where it sees a CUDA device

    def __post_init__(self) -> None:
        assert (self.run is None) != (self.drive is None), self.name

    def why_skipped(self) -> str:
        """Empty if it can run. Not for ranks: a process that has asked for CUDA cannot fork."""
        return self.lacking or (self.beside_cuda if torch.cuda.is_available() else "")

    @property
    def ranks(self) -> str:
        return self.label or str(self.world_size)

    def calls_of(self, rank: int) -> Calls:
        return self.calls(rank) if callable(self.calls) else self.calls


def needs(owner: object, name: str) -> str:
    """For `lacking`: empty where `owner` has `name`."""
    if hasattr(owner, name):
        return ""
    where = getattr(owner, "__name__", str(owner))
    return f"torch {torch.__version__} has no {where}.{name}"


def each_step(**calls: int) -> Calls:
    """The calls of a training run that makes `calls` in each of its steps."""
    return {op: count * STEPS for op, count in calls.items()}


class Meter:
    """Counts what the backend does inside a `with` block; `used` is there once it is left."""

    def __init__(self) -> None:
        self.used: Traffic | None = None
        self._before: Traffic | None = None

    def __enter__(self) -> Meter:
        self._before = traffic()
        return self

    def __exit__(self, *_: object) -> None:
        after = traffic()
        if after is not None and self._before is not None:
            self.used = after.since(self._before)


def digest_of(tensors: Tensors) -> str:
    """Of names, shapes, dtypes and every bit."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def greatest_difference(found: Tensors, wanted: Tensors) -> float:
    """Over all elements; infinite where one is not a number, zero only if all values are equal."""
    assert found.keys() == wanted.keys(), (sorted(found), sorted(wanted))
    greatest = 0.0
    for name, value in found.items():
        target = wanted[name]
        assert value.shape == target.shape, (name, value.shape, target.shape)
        if value.numel():
            gap = (value.detach().double() - target.detach().double()).abs().max()
            greatest = max(greatest, float("inf") if gap.isnan() else float(gap))
    return greatest


def compare(found: Tensors, wanted: Tensors, used: Traffic | None) -> Outcome:
    return Outcome(greatest_difference(found, wanted), digest_of(found), used)


def local_shards(full: Tensors, shards: int, index: int) -> Tensors:
    """The part of each parameter that `fully_shard` leaves on one rank (torch.chunk of dim 0)."""
    parts = {}
    for name, value in full.items():
        chunks = torch.chunk(value, shards, dim=0)
        parts[name] = (
            chunks[index] if index < len(chunks) else value.new_empty((0, *value.shape[1:]))
        )
    return parts


def local_parameters(model: nn.Module) -> Tensors:
    """This rank's parts of a `fully_shard` model; nothing is communicated."""
    found = {}
    for name, value in model.named_parameters():
        assert isinstance(value, DTensor), name
        found[name] = value.to_local().detach()
    return found
