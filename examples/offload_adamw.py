"""Train a small byte-level GPT with FSDP2 whose parameters, gradients and states live on the CPU.

    torchrun --standalone --nproc-per-node 2 examples/offload_adamw.py
    torchrun --standalone --nproc-per-node 2 examples/offload_adamw.py --states 8bit --bf16
    python examples/offload_adamw.py --optimizer torch        # one process, torch's fused AdamW

The optimizer is the only line that differs from a script without tidegate's engine. At the end
each rank prints what a step took and where its states are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tidegate import offload
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

sys.path.insert(0, str(Path(__file__).parent))
from train_fsdp2 import Batches, ByteGPT, read_text


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank in a step")
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0, help="norm of all gradients together")
    parser.add_argument("--bf16", action="store_true", help="parameters and gradients of 16 bits")
    parser.add_argument("--master", default="auto", choices=("auto", "none", "fp32", "split"))
    parser.add_argument("--states", default="fp32", choices=("fp32", "bf16", "8bit"))
    parser.add_argument("--optimizer", default="tidegate", choices=("tidegate", "torch"))
    return parser.parse_args()


def build(args: argparse.Namespace, world: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = ByteGPT(args.d_model, args.layers, args.seq)
    if args.bf16:
        model.bfloat16()
    if world > 1:
        options = {
            "mesh": init_device_mesh("cpu", (world,)),
            "offload_policy": CPUOffloadPolicy(pin_memory=False),
        }
        for block in model.blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
    if args.optimizer == "torch":
        return model, torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    return model, offload.AdamW(
        model.parameters(),
        lr=args.lr,
        master=args.master,
        states=args.states,
        max_grad_norm=args.clip,
    )


def main() -> None:
    args = parse()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("tidegate")
    rank = dist.get_rank() if world > 1 else 0
    model, optimizer = build(args, world)
    batches = Batches(read_text(None), args.batch, args.seq, 0, rank, world)
    times: list[float] = []
    for step in range(args.steps):
        inputs, targets = batches[step]
        loss = F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        begin = time.perf_counter()
        if args.optimizer == "torch":
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        times.append(time.perf_counter() - begin)
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1:4d}  loss {loss.item():.3f}", flush=True)
    line = f"rank {rank}: {1e3 * statistics.median(times):.2f} ms for clipping and step"
    if args.optimizer == "tidegate":
        arena = offload.stats()["arena"]
        line += f", {arena['requested_bytes'] / 2**20:.2f} MiB of states ({arena['pinning']})"
    print(line, flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
