"""Parameters gathered ahead of use, by FSDP2's public unshard(async_op=True), under limits."""

from __future__ import annotations

from typing import Any

from bench.prefetch import measure

RANKS, BLOCKS, WIDTH, AHEAD = 4, 6, 96, 4
BLOCK_BYTES = 2 * (WIDTH + 1) * WIDTH * 4  # its parameters, before FSDP pads shards
LIMITS: list[dict[str, Any]] = [
    {},
    {"max_bytes": "auto", "wait": "block"},
    {"max_bytes": "auto", "wait": "queue"},
    {"max_ops": 1, "wait": "block"},
    {"max_bytes": 3 * BLOCK_BYTES + 4096, "wait": "block"},
]


def test_prefetched_parameters_stay_within_the_budget_and_change_no_loss() -> None:
    everybody = measure(
        {
            **{"ranks": RANKS, "rounds": 2, "steps": 4, "limits": LIMITS},
            **{"blocks": BLOCKS, "width": WIDTH, "ahead": AHEAD},
        }
    )
    assert len(everybody) == RANKS
    for rounds in everybody:
        for free, *limited in rounds:
            for found in (free, *limited):
                assert found["losses"] == free["losses"]
                # Two lanes of 2 MiB for each of the ranks, whatever is in flight, and words.
                assert 0 < found["staged_bytes"] <= RANKS * 2 * (2 << 20) + (1 << 20)
            auto_block, auto_queue, one, by_bytes = limited
            for found, ops in ((auto_block, 2), (auto_queue, 2), (one, 1), (by_bytes, 3)):
                assert 0 < found["high_water_ops"] <= ops + found["promotions"], found
            assert (
                by_bytes["high_water_bytes"]
                <= LIMITS[4]["max_bytes"] + BLOCK_BYTES * 1.1 * (by_bytes["promotions"])
            )
        # Losses differ from step to step, so that equality says something.
        assert len(set(rounds[0][0]["losses"])) > 1
