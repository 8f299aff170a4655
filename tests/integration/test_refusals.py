"""torch's own errors, where it refuses something on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.integration.refusals import OF_CPU_BUILDS, REFUSED, attempt
from tests.support.pools import PoolKeeper


@pytest.mark.skipif(torch.accelerator.is_available(), reason="torch has an accelerator to use")
@pytest.mark.parametrize("name", REFUSED)
def test_torch_refuses(name: str, pools: PoolKeeper) -> None:
    if torch.version.cuda is not None and name in OF_CPU_BUILDS:
        pytest.skip("this torch is built for CUDA")
    _, kind, text = REFUSED[name]
    for found_kind, found_text in pools.get(2).run(attempt, name):
        assert (found_kind, text in found_text) == (kind, True), (found_kind, found_text)
