"""torch's own errors, where it refuses something on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.integration.refusals import ALLOWED, REFUSED, attempt
from tests.support.pools import PoolKeeper


@pytest.mark.skipif(torch.accelerator.is_available(), reason="torch has an accelerator to use")
@pytest.mark.parametrize("name", REFUSED)
def test_torch_refuses(name: str, pools: PoolKeeper) -> None:
    _, kind, text = REFUSED[name] if name not in ALLOWED else (None, "", "")
    for found_kind, found_text in pools.get(2).run(attempt, name):
        assert (found_kind, text in found_text) == (kind, True), (found_kind, found_text)
