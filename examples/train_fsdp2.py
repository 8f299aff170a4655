"""Train a small byte-level GPT with FSDP2 on one machine's CPU cores.

    torchrun --standalone --nproc-per-node 2 examples/train_fsdp2.py --backend gloo

Every rank reads its own share of each batch; the parameters, gradients and optimizer state are
sharded over the ranks by `fully_shard`. Started without torchrun, the same script trains the same
model in one process with no process group at all; with `--batch` multiplied by the number of
ranks it then sees exactly the union of their batches, so the two runs must end with the same
parameters up to rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

VOCABULARY = 256  # one token a byte: no tokenizer to download


class Block(nn.Module):
    """One pre-norm transformer block: causal self-attention, then a two-layer MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ByteGPT(nn.Module):
    """Decoder-only transformer over bytes. Input [batch, seq] int64, output [.., 256] logits."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 32)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class CommunicationClock:
    """Adds up the wall time this rank spends inside collectives while the context is open.

    It replaces the functions of `torch.distributed` that FSDP2 and this script call by timed
    ones. On CPU FSDP2 calls them synchronously, so the time of a call is the time the training
    loop stood still for it: moving the data plus waiting for a rank that arrives later.
    """

    NAMES = (
        "all_gather_single",
        "all_gather_into_tensor",  # all_gather_single before torch 2.13
        "reduce_scatter_single",
        "reduce_scatter_tensor",  # reduce_scatter_single before torch 2.13
        "all_reduce",
    )

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: Counter[str] = Counter()
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> CommunicationClock:
        for name in self.NAMES:
            if hasattr(dist, name):
                self._originals[name] = getattr(dist, name)
                setattr(dist, name, self._timed(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(dist, name, original)

    def _timed(self, name: str) -> Any:
        original = self._originals[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start
                self.calls[name] += 1

        return call


class Batches:
    """Random windows of one text. Which windows step `s` uses depends on the seed and `s` alone.

    The windows of a step are drawn for all ranks together and each rank takes its slice, so
    W ranks with batch B and one rank with batch W * B train on the same windows.
    """

    def __init__(self, text: bytes, batch: int, length: int, seed: int, rank: int, world: int):
        if len(text) <= length + 1:
            raise SystemExit(f"the text has {len(text)} bytes; --seq {length} needs more")
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.batch, self.length, self.seed = batch, length, seed
        self.rank, self.world = rank, world

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of this rank at `step`, both [batch, seq] int64."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        limit = self.bytes.numel() - self.length
        starts = torch.randint(limit, (self.batch * self.world,), generator=generator)
        mine = starts[self.rank * self.batch : (self.rank + 1) * self.batch]
        windows = self.bytes[mine[:, None] + torch.arange(self.length + 1)]
        return windows[:, :-1], windows[:, 1:]


def read_text(path: Path | None) -> bytes:
    """The training text: a file, or the language reference that ships inside CPython."""
    if path is not None:
        return path.read_bytes()
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


def build(args: argparse.Namespace, seed: int, world: int) -> tuple[nn.Module, Any]:
    """Model and optimizer. Every rank draws the same full parameters before they are sharded."""
    torch.manual_seed(seed)
    model = ByteGPT(args.d_model, args.layers, args.seq)
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if args.optimizer == "sgd":
        return model, torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    return model, torch.optim.AdamW(model.parameters(), lr=args.lr)


def train(
    args: argparse.Namespace, model: nn.Module, optimizer: Any, rank: int, world: int
) -> dict[str, Any]:
    """Runs the steps; returns the losses (mean over all ranks) and the timings of this rank."""
    batches = Batches(read_text(args.text), args.batch, args.seq, args.seed, rank, world)
    losses = torch.zeros(args.steps)
    times: list[float] = []
    shown_step, shown_time, shown_communication = 0, time.perf_counter(), 0.0
    begin = shown_time
    with CommunicationClock() as clock:
        for step in range(args.steps):
            start = time.perf_counter()
            inputs, targets = batches[step]
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[step] = loss.detach()
            times.append(time.perf_counter() - start)
            if (step + 1) % args.log_every and step + 1 < args.steps:
                continue
            fresh = losses[shown_step : step + 1]
            if world > 1:
                dist.all_reduce(fresh)
                fresh /= world
            if not fresh.isfinite().all():  # the mean over all ranks, so they all stop here
                raise SystemExit(f"the loss was not finite by step {step + 1}; lower --lr")
            now = time.perf_counter()
            count, elapsed = step + 1 - shown_step, now - shown_time
            if rank == 0 and not args.quiet:
                share = (clock.seconds - shown_communication) / elapsed
                tokens = count * args.batch * args.seq * world / elapsed
                print(
                    f"step {step + 1:4d}/{args.steps}  loss {fresh[-1]:.3f}  "
                    f"{tokens:8,.0f} tokens/s  {share:5.1%} in communication",
                    flush=True,
                )
            shown_step, shown_time, shown_communication = step + 1, now, clock.seconds
    total = time.perf_counter() - begin
    return {
        "backend": args.backend if world > 1 else None,
        "world_size": world,
        "losses": losses.tolist(),
        # The median leaves out the first steps, which set up buffers and connections.
        "step_seconds": statistics.median(times),
        "tokens_per_second": args.steps * args.batch * args.seq * world / total,
        "communication_share": clock.seconds / total,
        "collective_calls": dict(clock.calls),
    }


def local_tensors(tree: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of a nested state dict by its path, DTensors as this rank's shard."""
    if isinstance(tree, DTensor):
        return {path: tree.to_local()}
    if isinstance(tree, torch.Tensor):
        return {path: tree}
    if not isinstance(tree, dict | list | tuple):
        return {}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found: dict[str, torch.Tensor] = {}
    for key, value in items:
        found.update(local_tensors(value, f"{path}/{key}"))
    return found


def checkpoint(args: argparse.Namespace, model: nn.Module, optimizer: Any, world: int) -> int:
    """Saves, loads into a differently initialised model, compares; returns the tensors checked."""
    saved = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(saved, checkpoint_id=args.checkpoint, no_dist=world == 1)

    other_model, other_optimizer = build(args, args.seed + 1, world)
    loaded = dict(
        zip(("model", "optimizer"), get_state_dict(other_model, other_optimizer), strict=True)
    )
    dcp.load(loaded, checkpoint_id=args.checkpoint, no_dist=world == 1)
    set_state_dict(
        other_model,
        other_optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    expected = local_tensors(get_state_dict(model, optimizer))
    actual = local_tensors(get_state_dict(other_model, other_optimizer))
    same = len(expected) > 0 and expected.keys() == actual.keys()
    same = same and all(torch.equal(expected[name], actual[name]) for name in expected)
    verdict = torch.tensor([int(same)])
    if world > 1:
        dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    if not verdict.item():
        raise SystemExit(f"checkpoint {args.checkpoint}: what was loaded is not what was saved")
    return len(expected)


def write_svg(path: Path, losses: list[float], title: str) -> None:
    """Draws the loss curve: pale line for each step, strong line for the running mean."""
    width, height, left, right, top, bottom = 720, 360, 56, 16, 40, 44
    low, high = int(min(losses)), int(max(losses)) + 1

    def x(step: float) -> float:
        return left + (width - left - right) * step / max(1, len(losses) - 1)

    def y(loss: float) -> float:
        return top + (height - top - bottom) * (high - loss) / (high - low)

    def line(values: list[float], style: str) -> str:
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values))
        return f'<polyline points="{points}" fill="none" {style}/>'

    smooth = [losses[0]]
    for loss in losses[1:]:
        smooth.append(0.8 * smooth[-1] + 0.2 * loss)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="24" font-size="14">{title}</text>',
    ]
    for loss in range(low, high + 1):
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" '
            f'stroke="#ddd"/><text x="{left - 8}" y="{y(loss) + 4:.1f}" '
            f'text-anchor="end">{loss}</text>'
        )
    for tick in range(5):
        step = (len(losses) - 1) * tick / 4
        parts.append(
            f'<text x="{x(step):.1f}" y="{height - bottom + 18}" '
            f'text-anchor="middle">{round(step) + 1}</text>'
        )
    parts += [
        line(losses, 'stroke="#9ec5e8" stroke-width="1"'),
        line(smooth, 'stroke="#1f5f99" stroke-width="2"'),
        f'<text x="{(left + width) / 2:.0f}" y="{height - 8}" text-anchor="middle">step</text>',
        f'<text x="14" y="{height / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {height / 2:.0f})">loss (nats a byte)</text>',
        "</svg>\n",
    ]
    path.write_text("\n".join(parts))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--backend", default="tidegate", help="c10d backend of the process group")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--lr", type=float, help="default: 0.03 for sgd, 0.001 for adamw")
    parser.add_argument("--text", type=Path, help="training text (default: pydoc_data.topics)")
    parser.add_argument("--batch", type=int, default=8, help="windows per rank and step")
    parser.add_argument("--seq", type=int, default=128, help="bytes in a window")
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, help="steps between progress lines")
    parser.add_argument("--checkpoint", type=Path, help="save, reload and verify a DCP checkpoint")
    parser.add_argument("--svg", type=Path, help="draw the loss curve")
    parser.add_argument("--dump", type=Path, help="write the final full parameters (torch.save)")
    parser.add_argument("--report", type=Path, help="write losses and timings as JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    args = parser.parse_args()
    for name in ("steps", "batch", "seq", "d_model", "layers", "log_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.d_model % max(1, args.d_model // 32):
        parser.error("--d-model must be below 64 or a multiple of its number of heads (d/32)")
    if args.lr is None:
        args.lr = 0.03 if args.optimizer == "sgd" else 0.001
    return args


def main() -> None:
    args = parse_arguments()
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # More threads than cores would make the ranks fight each other inside every matmul.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world))

    def say(text: str) -> None:
        if rank == 0 and not args.quiet:
            print(text, flush=True)

    if world > 1:
        dist.init_process_group(args.backend)
    model, optimizer = build(args, args.seed, world)
    parameters = sum(p.numel() for p in model.parameters())
    where = f"{world} ranks on {dist.get_backend()}" if world > 1 else "one process"
    say(
        f"{parameters:,} parameters, {args.batch * world} x {args.seq} bytes a step, "
        f"{args.optimizer} lr {args.lr:g}, {where}"
    )
    result = train(args, model, optimizer, rank, world)
    if args.checkpoint is not None:
        start = time.perf_counter()
        count = checkpoint(args, model, optimizer, world)
        say(
            f"checkpoint {args.checkpoint}: saved, reloaded into a fresh model, {count} tensors "
            f"equal bit for bit ({time.perf_counter() - start:.1f} s)"
        )
    if args.dump is not None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        full = get_model_state_dict(model, options=options)  # a collective: every rank calls it
        if rank == 0:
            torch.save(full, args.dump)
    if rank == 0 and args.svg is not None:
        write_svg(args.svg, result["losses"], f"byte GPT, {parameters:,} parameters, {where}")
        say(f"loss curve: {args.svg}")
    if rank == 0 and args.report is not None:
        args.report.write_text(json.dumps(result, indent=1) + "\n")
    if world > 1:
        dist.barrier()  # no rank tears its connections down while another still reports
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
