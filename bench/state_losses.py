"""Loss after training with compressed optimizer states beside that with float32 states.

    python -m bench.state_losses [--steps 2000] [--seeds 3] [--bf16]

Trains the demo's byte-level GPT in one process, on the demo's text, once for each layout of states
and seed, and takes the loss on windows that none has trained on. Exit status 1 if the mean of a
layout is off that of float32 by more than the seeds of float32 are apart.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch
import torch.nn.functional as F
from tidegate import offload

from examples.train_fsdp2 import Batches, ByteGPT, read_text

STATES = ("fp32", "bf16", "8bit")
SEQ, BATCH, HELD_OUT = 64, 8, 40_000


def loss_of(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())


def train(states: str, seed: int, steps: int, bf16: bool) -> float:
    """The loss on the held-out end of the text."""
    torch.manual_seed(seed)
    model = ByteGPT(64, 2, SEQ)
    if bf16:
        model.bfloat16()
    text = read_text(None)
    batches = Batches(text[:-HELD_OUT], BATCH, SEQ, seed, 0, 1)
    optimizer = offload.AdamW(
        model.parameters(), lr=2e-3, states=states, master="split" if bf16 else "auto"
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batches[step]).backward()
        optimizer.step()
        schedule.step()
    unseen = Batches(text[-HELD_OUT:], 64, SEQ, 0, 0, 1)
    with torch.no_grad():
        return statistics.fmean(float(loss_of(model, *unseen[window])) for window in range(8))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3, choices=range(2, 100), metavar="N")
    parser.add_argument("--bf16", action="store_true", help="16-bit parameters, split masters")
    arguments = parser.parse_args()
    print("| states | losses | mean | off fp32 | fp32's seeds are apart |\n|---|---|---|---|---|")
    reference: list[float] = []
    worst = 0.0
    for states in STATES:
        losses = [
            train(states, seed, arguments.steps, arguments.bf16) for seed in range(arguments.seeds)
        ]
        reference = reference or losses
        spread = max(reference) - min(reference)
        off = statistics.fmean(losses) - statistics.fmean(reference)
        worst = max(worst, off / spread)
        texts = ", ".join(f"{loss:.4f}" for loss in losses)
        print(
            f"| {states} | {texts} | {statistics.fmean(losses):.4f} | {off:+.4f} | {spread:.4f} |",
            flush=True,
        )
    return int(worst > 1)


if __name__ == "__main__":
    sys.exit(main())
