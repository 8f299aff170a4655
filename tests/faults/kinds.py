"""All kinds of fault, and how often each is run in the two sizes of the suite."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.faults import (
    aborts,
    endurance,
    exits,
    forks,
    kills,
    mismatches,
    ordering,
    product_rank,
    stalls,
    works,
)
from tests.faults.outcome import Context, Driver, Outcome
from tests.support.processes import ForkServer

_MODULES = (
    *(aborts, endurance, exits, forks, kills, mismatches, ordering, product_rank, stalls, works),
)


@dataclass(frozen=True)
class Kind:
    name: str
    driver: Driver
    few: int  # runs in `make test`
    many: int  # runs in `make test-all`
    promises_notice: bool = (
        False  # the median over the runs is held to the limit that the project promises
    )


KINDS = (
    Kind("kill", kills.run, 8, 50, promises_notice=True),
    Kind("stop", stalls.stop, 2, 20),
    Kind("missing", stalls.missing, 3, 20),
    Kind("mismatch", mismatches.run, 5, 20),
    Kind("abort", aborts.run, 3, 20, promises_notice=True),
    Kind("exception", exits.early("exception"), 2, 20),
    Kind("os_exit", exits.early("os_exit"), 2, 20, promises_notice=True),
    Kind("sys_exit", exits.early("sys_exit"), 2, 20),
    Kind("sys_exit_amid_work", exits.early("sys_exit", in_flight=True), 2, 20),
    Kind("destroy_early", exits.early("destroy"), 2, 20),
    Kind("undestroyed", exits.undestroyed, 2, 20),
    Kind("ctrl_c", exits.interrupted, 2, 20),
    Kind("ctrl_c_all", exits.all_interrupted, 2, 20),
    Kind("fork", forks.run, 2, 20),
    Kind("data_loader", forks.data_loader, 1, 20),
    Kind("kill_all", exits.massacre, 3, 20),
    Kind("wait_timeout", works.wait_timeout, 2, 20),
    Kind("buffers", works.buffers, 2, 20),
    Kind("opposite_groups", ordering.opposite_groups, 2, 20),
    Kind("crossed_sends", ordering.crossed_sends, 2, 20),
    Kind("cycles", endurance.cycles, 1, 1),
    Kind("creation", endurance.creation, 1, 1),
    Kind("live_groups", endurance.live, 1, 1),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def default_seed() -> int:
    return int(os.environ.get("TIDEGATE_TEST_SEED", "1"))


def start_server() -> ForkServer:
    return ForkServer(preload=[module.__name__ for module in _MODULES])


def run_once(server: ForkServer, kind: Kind, seed: int, index: int) -> Outcome:
    """One run; (kind, seed, index) determine everything in it but the timing."""
    outcome = Outcome(kind.name, "")
    try:
        kind.driver(Context(server, Random(f"{kind.name}/{seed}/{index}"), index), outcome)
    except Exception:
        outcome.problems.append(f"the driver failed:\n{traceback.format_exc()}")
    return outcome


def repeat_command(kind: Kind, seed: int, index: int) -> str:
    return (
        f"python -m tests.faults.campaign --kinds {kind.name} --seed {seed} --run {index} --verbose"
    )


def runs(kind: Kind, many: bool) -> Sequence[int]:
    return range(kind.many if many else kind.few)
