"""Whether contenders compute the same, before their times count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from tidegate.cli.optimizer_benchmark.contenders import Contender, masters_of
from tidegate.cli.optimizer_benchmark.request import DEEPSPEED, Measured

#: Of a parameter in fp32, after a few steps and for each further one. Each of two optimizers may
#: round an element once more a step, by 6e-8.
RELATIVE, RELATIVE_A_STEP = 1e-6, 1e-7
#: A step, of DeepSpeed's, whose formula differs.
ULPS = 2
#: Of parameters in 16 bits those whose masters lie on either side of a tie.
SHARE_OF_16_BITS = 1e-3
#: Of the way that parameters have gone, with states in fewer bits.
NEARLY = 0.1
#: The same where parameters in 16 bits are all there is.
COARSELY = 1.0

_SLICE = 1 << 22  # elements compared at once, so that little memory is needed


def compare(
    name: str,
    one: Contender,
    other: Contender,
    start: Sequence[torch.Tensor],
    steps: int,
    into: Measured,
) -> None:
    """Writes what differs to `into`, and into.wrong if that is too much."""
    theirs = other.masters if one.with_masters and other.masters else other.parameters
    if not one.exact:
        # Of masters: steps of a 16-bit image are as large as the way itself.
        ways = (masters_of(one), masters_of(other), start)
        into.difference, into.unit = _way(*ways), "of the way"
        most = COARSELY if one.coarse else NEARLY
        limit = f"{most:g} of the way"
    elif one.parameters[0].dtype != torch.float32:
        into.difference, units = _sixteen_bits(one.parameters, theirs)
        into.unit = "of elements"
        most, limit = SHARE_OF_16_BITS, f"{SHARE_OF_16_BITS:g} of elements, a unit each"
        if units > 1:
            into.wrong = f"differs from {one.compared_with} by {units} units in the last place"
            return
    else:
        into.difference, into.unit = _relative(one.parameters, theirs), "relative"
        most = max(RELATIVE, RELATIVE_A_STEP * steps)
        limit = f"{most:g} relative"
    if name == DEEPSPEED and into.unit == "relative":
        into.difference, into.unit = _ulps(one.parameters, theirs), "ulp"
        most = ULPS * steps
        limit = f"{most:g} ulp"
    # Not-a-number is not "at most", either.
    if not into.difference <= most:
        into.wrong = (
            f"differs from {one.compared_with} by {into.difference:.3g} after {steps} steps,"
            f" allowed are {limit}"
        )


def _slices(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for one, other in zip(ours, theirs, strict=True):
        flat, its = one.detach().view(-1), other.detach().view(-1)
        for begin in range(0, flat.numel(), _SLICE):
            yield flat[begin : begin + _SLICE], its[begin : begin + _SLICE]


def _greatest(
    ours: Sequence[torch.Tensor],
    theirs: Sequence[torch.Tensor],
    difference: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> float:
    found = [float(difference(*pair).max()) for pair in _slices(ours, theirs)]
    return max(found) if all(value == value for value in found) else float("nan")


def _relative(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    return _greatest(ours, theirs, lambda one, other: (one - other).abs() / other.abs())


def _ulps(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """Parameters keep their signs, so that their bits are ordered as they are."""
    return _greatest(
        *(ours, theirs), lambda a, b: (a.view(torch.int32) - b.view(torch.int32)).abs()
    )


def _sixteen_bits(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]
) -> tuple[float, int]:
    """Share of elements that differ, and by how many units in the last place at most."""
    differing = count = units = 0
    for one, other in _slices(ours, theirs):
        distance = (one.view(torch.int16).int() - other.view(torch.int16).int()).abs()
        differing += int((distance != 0).sum())
        count += distance.numel()
        units = max(units, int(distance.max()))
    return differing / max(1, count), units


def _way(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], start: Sequence[torch.Tensor]
) -> float:
    """Distance of the ends of two ways, in lengths of the second."""
    apart = length = 0.0
    for (one, other), (begin, _) in zip(_slices(ours, theirs), _slices(start, start), strict=True):
        apart += float((one.double() - other.double()).square().sum())
        length += float((other.double() - begin.double()).square().sum())
    return float((apart / length) ** 0.5) if length else float("nan")
