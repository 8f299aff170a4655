"""Tensors at awkward offsets inside larger blocks, so that a stray write is noticed."""

from __future__ import annotations

import numpy as np
import torch

from tests.conformance import data

CANARY = 0xA5
MARGIN = 64


class Buffers:
    """Makes the tensors of one case and remembers which bytes around them must not change."""

    def __init__(self, dtype: str, offset: int) -> None:
        self._dtype = dtype
        self._lead = MARGIN + offset * data.itemsize(dtype)
        self._blocks: list[tuple[torch.Tensor, int, int]] = []
        self._constants: list[tuple[torch.Tensor, np.ndarray]] = []

    def output(self, count: int) -> torch.Tensor:
        """A tensor of `count` elements filled with the canary pattern."""
        size = count * data.itemsize(self._dtype)
        raw = torch.full((self._lead + size + MARGIN,), CANARY, dtype=torch.uint8)
        self._blocks.append((raw, self._lead, self._lead + size))
        return raw[self._lead : self._lead + size].view(data.torch_dtype(self._dtype))

    def filled(self, values: np.ndarray) -> torch.Tensor:
        """A tensor the operation may overwrite, holding `values`."""
        tensor = self.output(len(values))
        tensor.view(torch.uint8).copy_(torch.from_numpy(values.view(np.uint8).copy()))
        return tensor

    def constant(self, values: np.ndarray) -> torch.Tensor:
        """An input: a tensor holding `values` that the operation must leave alone."""
        tensor = self.filled(values)
        self._constants.append((tensor, values))
        return tensor

    def violations(self) -> list[str]:
        """What was written that should not have been."""
        found = []
        for raw, start, stop in self._blocks:
            edges = torch.cat((raw[:start], raw[stop:]))
            if not bool((edges == CANARY).all()):
                found.append("bytes outside a buffer were written")
        for tensor, values in self._constants:
            if not np.array_equal(tensor.view(torch.uint8).numpy(), values.view(np.uint8)):
                found.append("an input was modified")
        return found
