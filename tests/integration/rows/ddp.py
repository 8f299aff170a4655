"""DistributedDataParallel."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from tests.integration import models
from tests.integration.models import STEPS
from tests.integration.rows.base import Meter, Outcome, Row, compare
from tests.support.workers import RankContext


def _ddp(context: RankContext) -> Outcome:
    model = DistributedDataParallel(models.build())
    with Meter() as meter:
        models.train(model, context.rank)
    found = {name: value.detach() for name, value in model.module.named_parameters()}
    return compare(found, models.union_oracle(context.world_size), meter.used)


# The second forward rebuilds the buckets, whose layout is broadcast in two calls.
_CALLS = {"all_reduce": STEPS, "broadcast": 2}

ROWS = (
    Row("ddp_w2", 2, _ddp, "gradients averaged in buckets", _CALLS),
    Row("ddp_w4", 4, _ddp, "the same, 4 ranks", _CALLS),
)
