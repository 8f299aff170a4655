"""Times the contenders of one request, in turn within every round; a process of its own.

python -m tidegate.cli.optimizer_benchmark.measure REQUEST, started by `tidegate bench optimizer`.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Iterable

import torch

from tidegate.cli.optimizer_benchmark import agreement, contenders
from tidegate.cli.optimizer_benchmark.contenders import Contender, Skip
from tidegate.cli.optimizer_benchmark.request import TORCH, Found, Measured, Request, elements

#: Compared after so many steps, all of which warm up, and again at the end.
FIRST_STEPS = 3
#: A turn has as many steps as fill this, so that the clock and a wake-up weigh little.
TURN_SECONDS = 0.02
MOST_STEPS_A_TURN = 10
#: Threads of a pool spin for a while after their work: they are asleep when the next one begins.
SETTLING_SECONDS = 0.01

_GRADIENT = 0.01  # standard deviation; a norm above MAX_NORM from 64 Ki elements on


def main(text: str) -> int:
    request = Request.loads(text)
    # What libraries print must not get between the lines that are read.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(measure(request).dumps(), file=lines, flush=True)
    return 0


def measure(request: Request) -> Found:
    torch.set_num_threads(request.threads)
    start, gradients = _values(request)
    measured = {name: Measured() for name in contenders.names(request)}
    made: dict[str, Contender] = {}
    for name, one in measured.items():
        try:
            made[name] = contenders.make(name, start, request)
        except Skip as reason:
            one.skipped = str(reason)
    feed = _Feed(gradients)
    _begin(made, measured, feed)
    for _ in range(1, FIRST_STEPS):
        feed.step(made.values())
    _compare(made, measured, start, feed.steps)
    calls = _calls(made[TORCH], feed)
    feed.step(one for name, one in made.items() if name != TORCH)

    order = list(made)
    shuffle = random.Random(0).shuffle
    gc.collect()
    gc.disable()
    for _ in range(request.rounds):
        shuffle(order)
        before = feed.steps
        for name in order:
            feed.steps = before
            measured[name].seconds.append(_turn(made[name], feed, calls))
    gc.enable()
    _compare(made, measured, start, feed.steps)

    return Found(request, measured, _environment(made), _working_set(request), calls)


def _begin(made: dict[str, Contender], measured: dict[str, Measured], feed: _Feed) -> None:
    """The first step, in which states are made; without those that cannot make theirs."""
    for name, one in list(made.items()):
        try:
            feed.give(one)
            one.step()
        except (NotImplementedError, MemoryError) as reason:
            measured[name].skipped = str(reason)
            del made[name]
    feed.next()


def _turn(one: Contender, feed: _Feed, calls: int) -> float:
    """Seconds of a step; gradients are made anew before each, outside of the time."""
    seconds = 0.0
    for _ in range(calls):
        feed.give(one)
        time.sleep(SETTLING_SECONDS)
        begin = time.perf_counter()
        one.step()
        seconds += time.perf_counter() - begin
        feed.next()
    return seconds / calls


def _calls(reference: Contender, feed: _Feed) -> int:
    """How many steps fill a turn, by one of the reference, which is a step ahead then."""
    feed.give(reference)
    begin = time.perf_counter()
    reference.step()
    seconds = time.perf_counter() - begin
    return max(1, min(MOST_STEPS_A_TURN, round(TURN_SECONDS / seconds)))


class _Feed:
    """The gradients of each step: those of the first, times a factor that changes.

    The same for every contender. With equal ones, Adam's steps would depend on nothing but signs.
    """

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        self._gradients = gradients
        self.steps = 0

    def give(self, one: Contender) -> None:
        # Of a power of two and few bits, so that no type rounds.
        factor = (1.0, -0.5, 1.5, 0.75, 1.25)[self.steps % 5]
        for gradient, base in zip(one.gradients, self._gradients, strict=True):
            torch.mul(base, factor * one.scale, out=gradient)

    def step(self, contenders: Iterable[Contender]) -> None:
        """One step of each."""
        for one in contenders:
            self.give(one)
            one.step()
        self.next()

    def next(self) -> None:
        self.steps += 1


def _values(request: Request) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Parameters, so far from zero that relative differences mean something, and gradients."""
    dtype = contenders.dtype_of(request)
    generator = torch.Generator().manual_seed(1)
    start, gradients = [], []
    for shape in request.shapes:
        values = torch.rand(shape, generator=generator).sub_(0.5)
        start.append(torch.where(values < 0, values - 0.25, values + 0.25).to(dtype))
        gradients.append(torch.randn(shape, generator=generator).mul_(_GRADIENT).to(dtype))
    return start, gradients


def _compare(
    made: dict[str, Contender],
    measured: dict[str, Measured],
    start: list[torch.Tensor],
    steps: int,
) -> None:
    for name, one in made.items():
        found = measured[name]
        found.compared_with = one.compared_with if name != one.compared_with else ""
        other = made.get(one.compared_with)
        if other is None or other is one or name.startswith(TORCH + " ") or found.wrong:
            continue
        agreement.compare(name, one, other, start, steps, found)


def _working_set(request: Request) -> int:
    """Bytes of parameters, gradients, masters and fp32 states of one contender."""
    width = contenders.dtype_of(request).itemsize
    states = {"adamw": 2, "adam": 2, "sgd": 1, "adagrad": 1}[request.optimizer]
    return elements(request.shapes) * int(2 * width + (4 if width < 4 else 0) + 4 * states)


def _environment(made: dict[str, Contender]) -> dict[str, str]:
    found = {TORCH: f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"}
    found |= {name: one.version for name, one in made.items() if one.version}
    shown = ("OMP_", "KMP_", "TIDEGATE_")
    return found | {name: os.environ[name] for name in sorted(os.environ) if name.startswith(shown)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
