"""The campaign's choice of runs: the same for the same seed, and evenly over the product."""

from __future__ import annotations

from collections import Counter

from tests.faults.operations import IN_MESSAGES, Operations
from tests.faults.product import FAULTS, OPERATIONS, P2P, PHASES, TRANSFERS, case, operations_of

LAP = len(FAULTS) * len(PHASES)


def test_a_run_depends_on_its_seed_and_index_alone() -> None:
    assert case(7, 137) == case(7, 137)
    assert [case(7, i) for i in range(LAP)] != [case(8, i) for i in range(LAP)]


def test_a_lap_goes_once_through_all_pairs_of_fault_and_phase() -> None:
    for lap in (0, 5):
        pairs = Counter(
            (one.fault, one.phase) for one in (case(1, lap * LAP + i) for i in range(LAP))
        )
        assert len(pairs) == LAP
        assert set(pairs.values()) == {1}


def test_500_runs_take_each_pair_through_nearly_all_its_operations() -> None:
    triples = {(one.fault, one.phase, one.operation) for one in (case(1, i) for i in range(500))}
    possible = sum(len(operations_of(phase)) for phase in PHASES) * len(FAULTS)
    assert len(triples) > 0.9 * possible
    assert {operation for _, _, operation in triples} == {*OPERATIONS, *TRANSFERS}


def test_every_run_can_be_made_and_judged() -> None:
    for one in (case(3, i) for i in range(1000)):
        assert one.way in FAULTS[one.fault]
        assert 0 <= one.victim < one.ranks <= 8
        assert one.operation in IN_MESSAGES
        assert one.phase == P2P or hasattr(Operations, one.operation)
