"""TORCH_DISTRIBUTED_DEBUG=DETAIL: torch wraps the backend and compares the calls of all ranks.

At more ranks: the rows `debug_detail_*` of the table.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.detailed import MISTAKES, assert_named, assert_wrapped, launch
from tests.integration.models import STEPS, UNITS

RANKS = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(tmp_path_factory.mktemp("detail"), RANKS)


@pytest.mark.timeout(300)
def test_training_is_right_under_the_wrapper(found: list[dict[str, Any]]) -> None:
    assert_wrapped(found)
    for one in found:
        # FSDP2's and those of the plain operations, which the wrapper hands on.
        assert one["calls"]["reduce_scatter"] == STEPS * UNITS + 2
        assert one["calls"]["all_reduce"] == STEPS + 2


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_on_both_sides_at_once(name: str, found: list[dict[str, Any]]) -> None:
    assert_named(name, found)
