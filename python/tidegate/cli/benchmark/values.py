"""Data that tells a wrong result from a right one, and the count of wrong elements.

Small integers, different on every rank, that repeat after a prime number of elements, so that a
block in the wrong place shows. Their sums and products are exact in every type and in any order.
"""

from __future__ import annotations

from typing import Any

import torch

TYPES = {
    **{"int8": torch.int8, "uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64},
    **{"half": torch.float16, "float": torch.float32, "double": torch.float64},
    "bfloat16": torch.bfloat16,
}
PERIOD = 4093
_MOST = 120  # below the greatest int8, and exact in bfloat16
_MOST_FACTORS = 6  # 2**6 is the greatest product


class Values:
    """The data of every rank and its reduction by `op` ("none": no reduction), as periods."""

    def __init__(self, type_name: str, op: str, ranks: int) -> None:
        self.dtype: Any = TYPES[type_name]
        self._op = op
        self._ranks = ranks

    def of(self, rank: int) -> Any:
        """One period of the data of a rank."""
        return self._exact(rank).to(self.dtype)

    def reduced(self) -> Any:
        every = torch.stack([self._exact(rank) for rank in range(self._ranks)])
        if self._op == "avg":
            total = every.sum(0)
            if self.dtype.is_floating_point:
                return (total.double() / self._ranks).to(self.dtype)
            return (total // self._ranks).to(self.dtype)
        reduce = {"sum": every.sum, "prod": every.prod, "max": every.amax, "min": every.amin}
        return reduce[self._op](0).to(self.dtype)

    @property
    def tolerance(self) -> float:
        """Relative. Times 1/3 is not always divided by 3; all else is exact."""
        inexact = self._op == "avg" and self._ranks & (self._ranks - 1) != 0
        exact_type = not self.dtype.is_floating_point
        return 0.0 if exact_type or not inexact else float(torch.finfo(self.dtype).eps)

    @property
    def poison(self) -> float:
        """What no right result contains."""
        if self.dtype.is_floating_point:
            return float("nan")
        return int(torch.iinfo(self.dtype).max)

    def _exact(self, rank: int) -> Any:
        index = torch.arange(PERIOD, dtype=torch.int64)
        mixed = (31 * index * index + (7 + rank) * index + 131 * rank) % 8191
        if self._op == "prod":
            # Of each element so many ranks have a 2, and the others a 1.
            twos = mixed.new_tensor(range(PERIOD)) % (_MOST_FACTORS + 1)
            return 1 + ((rank + index // 7) % self._ranks < twos).to(torch.int64)
        if self._op == "avg":
            # The rank's share moves, its sum over the ranks does not.
            shares = (index + rank) % self._ranks
            rest = (_MOST - self._ranks * (self._ranks - 1) // 2) // self._ranks
            common = (31 * index * index + 7 * index) % 8191
            return common % (max(0, rest) + 1) + shares
        most = _MOST // self._ranks if self._op == "sum" else _MOST
        return mixed % (most + 1)


def tile(target: Any, period: Any, start: int) -> None:
    """Fills a vector with the period, from its element `start` on."""
    turned = period.roll(-(start % PERIOD))
    whole = target.numel() // PERIOD * PERIOD
    target[:whole].view(-1, PERIOD).copy_(turned)
    target[whole:].copy_(turned[: target.numel() - whole])


def count_wrong(actual: Any, period: Any, start: int, tolerance: float = 0.0) -> int:
    """How many elements differ from what `tile` would have put there."""
    turned = period.roll(-(start % PERIOD))
    whole = actual.numel() // PERIOD * PERIOD
    pairs = (
        (actual[:whole].view(-1, PERIOD), turned),
        (actual[whole:], turned[: actual.numel() - whole]),
    )
    wrong = 0
    for found, expected in pairs:
        if tolerance:
            wrong += int((~torch.isclose(found, expected, rtol=tolerance, atol=0)).sum())
        else:
            wrong += int((found != expected).sum())
    return wrong
