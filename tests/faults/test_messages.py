"""What the fault tests accept as an error message: a lax check would pass bad messages."""

from __future__ import annotations

from tests.faults.operations import IN_MESSAGES
from tests.faults.outcome import describes_call, names_culprit, names_missing

DIED = (
    "rank 2 (pid 4711, host a) died in all_gather seq 18 of group 0 [4 ranks]; "
    "look at its output for the cause"
)
GLOO = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:24"


def test_culprit_is_accepted_only_with_its_own_rank_and_pid() -> None:
    assert names_culprit(DIED, 2, 4711)
    assert not names_culprit(DIED, 1, 4711)
    assert not names_culprit(DIED, 2, 471)
    assert not names_culprit(GLOO, 2, 4711)


def test_call_needs_operation_sequence_number_group_and_advice() -> None:
    assert describes_call(DIED, IN_MESSAGES["all_gather"]) == []
    assert len(describes_call(DIED, IN_MESSAGES["reduce_scatter"])) == 1
    assert len(describes_call(GLOO, IN_MESSAGES["all_gather"])) == 4
    assert describes_call(DIED.partition(";")[0], IN_MESSAGES["all_gather"]) == ["what to do"]


def test_missing_ranks_are_accepted_only_complete() -> None:
    for text in (
        "all_reduce seq 3 of group 0 timed out after 1.5 s, missing rank(s) 1, 3; see their stacks",
        "timed out waiting for ranks 1, 3; see their stacks",
        "missing rank 1 (pid 7, host a), rank 3 (pid 8, host a)",
        "missing ranks 1 and 3",
    ):
        assert names_missing(text, [1, 3]), text
        assert not names_missing(text, [1]), text
        assert not names_missing(text, [1, 2]), text
    assert names_missing("rank 0: waiting for rank 1 (pid 7); see its stack on rank 1", [1])
    assert not names_missing("timed out on rank 1", [1])
