"""The product that the campaign draws its runs from: which fault, when, in which operation.

A run is determined by the campaign's seed and its index alone, whatever the number of runs: index i
of a seed is the same run in a campaign of 50 and in one of 500.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from random import Random

# fault -> the ways in which it comes about
FAULTS: dict[str, tuple[str, ...]] = {
    "kill": ("sigkill",),
    "stop": ("resume", "kill"),  # what happens to the stopped rank once the others have failed
    "mismatch": ("other_lane", "count", "dtype"),
    "abort": ("group", "backend"),
    "exception": ("raise",),
    "exit": ("os_exit", "sys_exit"),
    "timeout": ("absent",),
}

FIRST = "first"  # before the group's first operation
INSIDE = "inside"  # in the middle of a large operation
BETWEEN = "between"  # between operations
ASYNC = "async"  # with asynchronous operations in flight
P2P = "p2p"  # in sends and receives with the victim
SHUTDOWN = "shutdown"  # while the others destroy the group with work in flight
PHASES = (FIRST, INSIDE, BETWEEN, ASYNC, P2P, SHUTDOWN)

COLLECTIVES = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "coalesced",
    "broadcast",
    "all_to_all",
    "all_gather_list",
    "reduce",
    "gather",
    "scatter",
    "coalesced_scatter",
    "barrier",
)
EXCHANGE = "exchange"  # sends and receives between all pairs, as one batch
TRANSFERS = ("recv", "send", "recv_any", EXCHANGE)
OPERATIONS = (*COLLECTIVES, EXCHANGE)

SIZES = (2, 3, 4, 2, 3, 5, 2, 4, 3, 8)


@dataclass(frozen=True)
class Case:
    """One run. The victim is the rank that the fault happens to, or that commits it."""

    seed: int
    index: int
    fault: str
    way: str
    phase: str
    operation: str
    ranks: int
    victim: int
    count: int  # elements of one shard, float32
    joined: int  # ASYNC: how many of the operations in flight the victim is part of, of three
    rounds: int  # INSIDE: operations before the one that the victim misses or gets wrong
    delay: float  # seconds from when all are at work to the fault
    store: str

    def __str__(self) -> str:
        fields = asdict(self)
        what = [fields.pop(key) for key in ("fault", "way", "phase", "operation")]
        return f"{'/'.join(what)} {fields}"


def operations_of(phase: str) -> tuple[str, ...]:
    if phase == P2P:
        return TRANSFERS
    if phase == INSIDE:  # a barrier has no middle
        return tuple(name for name in OPERATIONS if name != "barrier")
    return OPERATIONS


def case(seed: int, index: int) -> Case:
    """Run `index` of the campaign `seed`.

    Each 42 runs go once through all pairs of fault and phase, in an order of their own; each
    pair goes through its operations in an order of its own.
    """
    pairs = [(fault, phase) for fault in FAULTS for phase in PHASES]
    lap, place = divmod(index, len(pairs))
    Random(f"order/{seed}/{lap}").shuffle(pairs)
    fault, phase = pairs[place]
    operations = list(operations_of(phase))
    Random(f"operations/{seed}/{fault}/{phase}").shuffle(operations)
    operation = operations[lap % len(operations)]

    random = Random(f"case/{seed}/{index}")
    way = random.choice(FAULTS[fault])
    if way == "other_lane" and operation in TRANSFERS:
        way = "count"  # a transfer and a collective are not numbered together: no contradiction
    ranks = random.choice(SIZES)
    # Who waits for anybody learns of one that is late or has left only when it is the only one.
    if operation == "recv_any" and (fault in ("stop", "timeout", "exception") or way == "sys_exit"):
        ranks = 2
    victim = random.randrange(ranks)
    if phase == INSIDE:
        # Where the deadline is short, an operation must be far from it on a busy machine, too.
        total = 1 << (18 if fault in ("stop", "timeout") else random.choice((20, 22)))
    else:
        total = random.choice((1 << 8, 1 << 14))
    return Case(
        seed=seed,
        index=index,
        fault=fault,
        way=way,
        phase=phase,
        operation=operation,
        ranks=ranks,
        victim=victim,
        count=max(3, total // ranks),
        joined=random.randrange(3),
        rounds=random.randrange(1, 6),
        delay=random.uniform(0, 0.05),
        # A TCP store ends with the rank that holds it.
        store="tcp" if victim != 0 and random.random() < 0.25 else "file",
    )
