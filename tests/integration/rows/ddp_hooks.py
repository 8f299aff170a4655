"""Communication hooks of DDP: futures of operations, chained."""

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.integration import models
from tests.integration.models import STEPS, Reduce
from tests.integration.rows.base import Meter, Outcome, Row, compare
from tests.integration.rows.ddp import replicas
from tests.support.workers import RankContext

FP16, BF16 = torch.float16, torch.bfloat16
Hook = Callable[..., torch.futures.Future]


def _loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    x, y = models.batch(step, rank, torch.float32)
    return models.loss_of(model(x), y)


def _with_hook(hook: Hook, reduce: Callable[[int], Reduce], state=lambda: None, **options):
    """`reduce`: for a world size, what the hook makes of the ranks' gradients."""

    def run(context: RankContext) -> Outcome:
        model = DistributedDataParallel(models.build(), **options)
        buckets = 0

        @functools.wraps(hook)  # torch refuses some by name
        def counted(given, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            nonlocal buckets
            buckets += 1
            return hook(given, bucket)

        model.register_comm_hook(state(), counted)
        with Meter() as meter:
            models.train(model, context.rank)
        assert buckets == STEPS, buckets  # all parameters are in one
        wanted = models.rank_by_rank(context.world_size, _loss, reduce(context.world_size))
        return compare(replicas(model), wanted, meter.used)

    return run


def _divided_sum(ranks: int) -> Reduce:
    return models.scaled_sum(ranks, 1)


def _in(dtype: torch.dtype) -> Callable[[int], Reduce]:
    """Each gradient is rounded to `dtype` and divided there; the sum is rounded once."""

    def of(ranks: int) -> Reduce:
        def reduce(parts: list[torch.Tensor]) -> torch.Tensor:
            return models.scaled_sum(ranks, 1)([part.to(dtype) for part in parts]).float()

        return reduce

    return of


def _power_sgd(warm_start: bool):
    """Of full rank, so that nothing is lost but rounding; from the third step on.

    In one bucket: the hook starts collectives in callbacks, those of several buckets race, and then
    ranks call them in different orders (see docs/features.md).
    """

    def state() -> powerSGD_hook.PowerSGDState:
        return powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=64,
            start_powerSGD_iter=2,
            min_compression_rate=1e-3,
            warm_start=warm_start,
        )

    return state


def _chaining_hook(state, bucket):
    """A hook of the user's: a chain of two operations, the second started by the first."""
    gathered = [torch.empty_like(bucket.buffer()) for _ in range(state.size())]
    first = dist.all_gather(gathered, bucket.buffer(), group=state, async_op=True).get_future()

    def then_sum(future: torch.futures.Future) -> torch.Tensor:
        assert future.done()
        mean = torch.stack(gathered).sum(0) / state.size() ** 2
        work = dist.all_reduce(mean, group=state, async_op=True)
        work.wait()
        return mean

    return first.then(then_sum)


# --- local SGD ------------------------------------------------------------------------------------

WARMUP = 2


def _post_local_sgd(context: RankContext) -> Outcome:
    """Gradients over all ranks for 2 steps, then in pairs; parameters every second step."""
    n = context.world_size
    pairs = [dist.new_group([first, first + 1]) for first in range(0, n, 2)]
    state = post_localSGD_hook.PostLocalSGDState(None, pairs[context.rank // 2], WARMUP)
    model = DistributedDataParallel(models.build())
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=WARMUP)
    optimizer = PostLocalSGDOptimizer(models.sgd(model), averager)
    with Meter() as meter:
        models.train(model, context.rank, optimizer=optimizer)
    wanted = _local_sgd_oracle(n)[context.rank // 2]
    return compare(replicas(model), wanted, meter.used)


def _local_sgd_oracle(n: int) -> list[dict[str, torch.Tensor]]:
    """Parameters of each pair."""
    pairs = [models.build() for _ in range(n // 2)]
    optimizers = [models.sgd(model) for model in pairs]
    for step in range(STEPS):
        gradients = []
        for rank in range(n):
            model = pairs[rank // 2]
            model.zero_grad()
            _loss(model, step, rank).backward()
            gradients.append([value.grad for value in model.parameters()])
        for index, model in enumerate(pairs):
            members = gradients if step < WARMUP else gradients[2 * index : 2 * index + 2]
            for value, parts in zip(model.parameters(), zip(*members, strict=True), strict=True):
                value.grad = models.average(list(parts))
            optimizers[index].step()
        if step >= WARMUP and (step - WARMUP) % 2 == 0:
            with torch.no_grad():
                for values in zip(*(model.parameters() for model in pairs), strict=True):
                    mean = models.average([value.detach() for value in values])
                    for value in values:
                        value.copy_(mean)
    return [{k: v.detach() for k, v in model.named_parameters()} for model in pairs]


_CALLS = {"all_reduce": STEPS, "broadcast": 2}
# Two steps of plain all-reduces, then three each.
_POWER_CALLS = {"all_reduce": 2 + (STEPS - 2) * 3, "broadcast": 2}
_POWER_BESIDE_CUDA = "torch's powerSGD_hook synchronises the gradients' device as one of CUDA"

ROWS = (
    Row(
        "ddp_allreduce_hook",
        3,
        _with_hook(default_hooks.allreduce_hook, _divided_sum),
        "allreduce_hook",
        _CALLS,
    ),
    Row(
        "ddp_fp16_hook",
        3,
        _with_hook(default_hooks.fp16_compress_hook, _in(FP16)),
        "fp16_compress_hook",
        _CALLS,
        tolerance=0.0,
    ),
    Row(
        "ddp_bf16_hook",
        3,
        _with_hook(default_hooks.bf16_compress_hook, _in(BF16)),
        "bf16_compress_hook",
        _CALLS,
        tolerance=0.0,
        lacking="" if torch.version.cuda else "only a torch built for CUDA takes the hook",
    ),
    Row(
        "ddp_fp16_wrapper",
        2,
        _with_hook(
            default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
            _in(FP16),
        ),
        "fp16_compress_wrapper around allreduce_hook",
        _CALLS,
        tolerance=0.0,
    ),
    Row(
        "ddp_power_sgd",
        3,
        _with_hook(powerSGD_hook.powerSGD_hook, _divided_sum, _power_sgd(True)),
        "powerSGD_hook of full rank: three chained all-reduces",
        _POWER_CALLS,
        tolerance=2e-5,
        beside_cuda=_POWER_BESIDE_CUDA,
    ),
    Row(
        "ddp_power_sgd_cold",
        2,
        _with_hook(powerSGD_hook.powerSGD_hook, _divided_sum, _power_sgd(False)),
        "powerSGD_hook without warm start",
        _POWER_CALLS,
        tolerance=2e-5,
        beside_cuda=_POWER_BESIDE_CUDA,
    ),
    Row(
        "ddp_own_hook",
        3,
        _with_hook(_chaining_hook, _divided_sum, lambda: dist.group.WORLD),
        "a hook whose callback starts an operation and waits for it",
        {**_CALLS, "all_gather": STEPS},
    ),
    Row(
        "ddp_post_local_sgd",
        4,
        _post_local_sgd,
        "post_localSGD_hook in pairs, PeriodicModelAverager",
        {"all_reduce": STEPS + 2, "broadcast": 2},
    ),
)
