"""Torch's own distributed suite: tidegate passes what gloo passes.

A slice of it, drawn with TIDEGATE_TEST_SEED; all of it, at 3 and 4 ranks, with TIDEGATE_TEST_ALL=1.
The same by hand: `python -m tests.upstream.suite`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conformance.cases import base_seed, run_all
from tests.upstream.loader import test_names
from tests.upstream.suite import BACKENDS, RANKS, Run, compare, details, falls_short, table
from tests.upstream.verdict import Class

SLICE = 20
# Most of what is named so is skipped where there is no accelerator.
NEEDS_MORE = ("cuda", "nccl", "gpu", "device")


def draw() -> tuple[list[int], list[str]]:
    """The world sizes and tests of this run."""
    tests = test_names()
    if run_all():
        return list(RANKS), tests
    rng = random.Random(base_seed())
    likely = [test for test in tests if not any(word in test for word in NEEDS_MORE)]
    return [rng.choice(RANKS)], rng.sample(likely, SLICE)


@pytest.mark.timeout(3600)
def test_passes_what_gloo_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks, tests = draw()
    run = Run(tmp_path / "results")
    run.run(BACKENDS, ranks, tests)
    by_ranks = {size: compare(run, size, tests) for size in ranks}
    report = "\n".join(
        [
            *(line for size in ranks for line in details(run, size, by_ranks[size])),
            table(by_ranks),
        ]
    )
    with capsys.disabled():
        print(f"\n{report}")
    assert falls_short(by_ranks) == []
    assert all(classes[Class.BOTH] for classes in by_ranks.values()), "no test ran"
