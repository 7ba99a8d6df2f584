"""Cost of subnormal numbers in AdamW on a CPU: one step over BERT's word embeddings with zero, normal or subnormal moments.

    python benchmarks/subnormal_moments.py              # torch's default
    python benchmarks/subnormal_moments.py --flush      # the setting of run_mirror.py

A rare word has no gradient in most steps of a long run. Its first moment then decays by a tenth per step to a few of the smallest
representable numbers, and rounding keeps it there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.side_by_side import markdown, spread
from benchmarks.stand_in import VOCABULARY, machine


MOMENTS = {"zero": 0.0, "normal": 1e-3, "subnormal": 5.6e-45}
STEPS = 15


def step_seconds(moment: float) -> list[float]:
    """Seconds of each of `STEPS` steps with a zero gradient, with all first moments set to `moment` before each step."""
    table = torch.nn.Parameter(torch.randn(VOCABULARY, 768))
    optimizer = torch.optim.AdamW([table], fused=True)
    table.grad = torch.zeros_like(table)
    optimizer.step()
    seconds = []
    for _ in range(STEPS):
        optimizer.state[table]["exp_avg"].fill_(moment)
        optimizer.state[table]["exp_avg_sq"].fill_(1e-6)
        start = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--flush", action="store_true", help="flush subnormal numbers to zero, as training on a CPU does"
    )
    torch.set_flush_denormal(parser.parse_args().flush)
    rows = [(name, spread([1000 * value for value in step_seconds(moment)])) for name, moment in MOMENTS.items()]
    print(f"{machine()}; {STEPS} steps over {VOCABULARY:,} x 768 weights, median (min-max)\n")
    print(markdown(("first moments", "ms per step"), rows))


if __name__ == "__main__":
    main()
