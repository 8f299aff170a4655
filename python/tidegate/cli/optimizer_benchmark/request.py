"""What is asked for, what is found, and the scenarios: data without torch."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

TORCH, FOREACH, DEEPSPEED, TIDEGATE = "torch", "torch-foreach", "deepspeed", "tidegate"
RIVALS = (TORCH, FOREACH, DEEPSPEED)
#: Beside those that were asked for, where a scenario compares them.
UNCLIPPED, TORCH_UNCLIPPED, FP32 = "tidegate unclipped", "torch unclipped", "tidegate fp32"
#: Clips by a norm that is summed in double: torch's own is 0.6% too small of 64 Mi fp32 elements.
TORCH_EXACT = "torch exact norm"
#: What memory allows, without and with software prefetches.
CEILINGS = {"ceiling": 0, "ceiling prefetched": 256}  #: Elements ahead.
#: One pass that unscales the gradient, has its norm and looks for what is not finite.
FUSED = "tidegate fused"
OPTIMIZERS = ("adamw", "adam", "sgd", "adagrad")
DTYPES = ("fp32", "bf16", "fp16")

#: A tensor of the scenario many, in parts of --size: 16 Ki of 64 Mi.
_MANY, _PART = 2000, 4096

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Scenario:
    """`mixed`: gradients and parameters have 16 bits. `clip`: the norm is clipped."""

    meaning: str
    clip: bool = False
    mixed: bool = False


SCENARIOS = {
    "one": Scenario("one tensor"),
    "many": Scenario("2,000 tensors of a 4096th each: 16 Ki of 64M"),
    "gpt2": Scenario("the 148 parameters of GPT-2, 124 M"),
    "clip": Scenario("one tensor, the gradient clipped to a norm", clip=True),
    "clip-many": Scenario("2,000 tensors, the gradients clipped to a norm", clip=True),
    "mixed": Scenario("one tensor, 16-bit gradient, fp32 master, 16-bit parameter", mixed=True),
}


def shapes(scenario: str, size: int) -> list[Shape]:
    if scenario == "gpt2":
        return gpt2_shapes()
    if scenario.endswith("many"):
        return [(max(1, size // _PART),)] * _MANY
    return [(size,)]


def gpt2_shapes(width: int = 768, layers: int = 12) -> list[Shape]:
    """GPT-2's parameters in the order of the model, output projection tied to the embedding."""
    block: list[Shape] = [
        *((width,), (width,)),
        *((width, 3 * width), (3 * width,), (width, width), (width,)),
        *((width,), (width,)),
        *((width, 4 * width), (4 * width,), (4 * width, width), (width,)),
    ]
    return [(50257, width), (1024, width), *(block * layers), (width,), (width,)]


def elements(tensors: Sequence[Shape]) -> int:
    return sum(math.prod(shape) for shape in tensors)


@dataclass(frozen=True)
class Request:
    """One scenario at one number of threads."""

    scenario: str
    threads: int
    size: int
    dtype: str
    optimizer: str
    master: str
    states: str
    rivals: list[str]
    rounds: int
    cpus: list[int]  #: That the process may use.
    ceiling: str = ""  #: Path of the library of bench/offload/ceiling.cc; empty: without.

    @property
    def shapes(self) -> list[Shape]:
        return shapes(self.scenario, self.size)

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Request:
        return Request(**json.loads(text))


@dataclass
class Measured:
    """A contender: its times, or why it has none."""

    seconds: list[float] = field(default_factory=list)  #: Of a step, by round.
    skipped: str = ""
    compared_with: str = ""
    difference: float = 0.0  #: Greatest one, as `unit` has it.
    unit: str = ""
    wrong: str = ""

    @property
    def counts(self) -> bool:
        return bool(self.seconds) and not self.wrong

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Found:
    """The answer to a Request."""

    request: Request
    contenders: dict[str, Measured]
    environment: dict[str, str]  #: Versions, instruction sets, compiler flags.
    working_set: int  #: Bytes that a step passes over.
    calls: int  #: In a turn.

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Found:
        known: dict[str, Any] = json.loads(text)
        known["request"] = Request(**known["request"])
        known["contenders"] = {name: Measured(**one) for name, one in known["contenders"].items()}
        return Found(**known)

    def ratios(self, above: str, below: str) -> list[float]:
        """Of the times of two contenders, within each round; empty where one does not count."""
        over, under = self.contenders.get(above), self.contenders.get(below)
        if over is None or under is None or not (over.counts and under.counts):
            return []
        return [a / b for a, b in zip(over.seconds, under.seconds, strict=True)]

    def shares_of_ceiling(self, name: str) -> list[float]:
        """Of the speed that memory allows, the faster ceiling of each round; empty without."""
        faster = [self.ratios(one, name) for one in CEILINGS]
        return [min(round_) for round_ in zip(*faster, strict=True)] if all(faster) else []

    def why_not(self, *names: str) -> str:
        """Why there are no ratios of these contenders; empty if there are."""
        for name in names:
            one = self.contenders.get(name)
            if one is None:
                return f"{name} was not asked for"
            if not one.counts:
                return one.skipped or f"{name}: {one.wrong}"
        return ""
