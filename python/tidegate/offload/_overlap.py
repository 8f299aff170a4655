"""Parameters that share memory, which one step would update at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

#: Of a tensor: where its memory begins, the end, and its place.
_Extent = tuple[int, int, int]


def first_overlap(tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """Places of two of ``tensors``, on the CPU, that have an element in the same memory."""
    for cluster in _clusters(tensors):
        found = _overlap_in(tensors, cluster)
        if found is not None:
            return found
    return None


def _clusters(tensors: Sequence[torch.Tensor]) -> Iterator[list[_Extent]]:
    """Those whose extents overlap: views with gaps may do so and share nothing."""
    extents: list[_Extent] = []
    for place, tensor in enumerate(tensors):
        if tensor.numel() > 0:
            begin = tensor.data_ptr()
            last = sum(
                (n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            extents.append((begin, begin + (last + 1) * tensor.element_size(), place))
    extents.sort()
    cluster: list[_Extent] = []
    end = 0
    for extent in extents:
        if extent[0] >= end:
            if len(cluster) > 1:
                yield cluster
            cluster = []
        cluster.append(extent)
        end = max(end, extent[1])
    if len(cluster) > 1:
        yield cluster


def _overlap_in(tensors: Sequence[torch.Tensor], cluster: list[_Extent]) -> tuple[int, int] | None:
    base, end = cluster[0][0], max(extent[1] for extent in cluster)
    unit = math.gcd(*(tensors[place].element_size() for _, _, place in cluster))
    taken = torch.zeros((end - base) // unit, dtype=torch.bool)

    def units_of(extent: _Extent) -> torch.Tensor:
        tensor = tensors[extent[2]]
        units = tensor.element_size() // unit
        return taken.as_strided(
            (*tensor.shape, units),
            (*(units * stride for stride in tensor.stride()), 1),
            (extent[0] - base) // unit,
        )

    for later in cluster:
        if units_of(later).any():
            taken.fill_(False)
            units_of(later).fill_(True)
            return next(earlier[2] for earlier in cluster if units_of(earlier).any()), later[2]
        units_of(later).fill_(True)
    return None
