"""Where the layer's time goes beside PyTorch's, with weights; writes its table into benchmarks/README.md.

    python -m benchmarks.profile        a minute; leave the machine alone meanwhile
"""

from collections import Counter
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import layer
from tools.pages import write

OURS, THEIRS = "mha_lib, with weights", "PyTorch, with weights"
SIZE = (8, 128)
RUNS = 100
# PyTorch's operators, by what they do here.
KINDS = {
    "products of matrices": ("addmm", "mm", "bmm", "addbmm", "baddbmm"),
    "softmax": ("_softmax", "softmax"),
    "copies into another layout": ("copy_", "clone", "contiguous", "_to_copy"),
    "scale, biases": ("mul", "div", "add", "add_", "mul_", "div_"),
}


def by_kind(name: str, calls: dict, mode: str) -> Counter:
    """Return the milliseconds of one pass of a layer, by kind of work; the rest is Python, views and calls."""
    model, way = calls[name]
    x = torch.randn(*SIZE, layer.D_MODEL)
    one_pass = lambda: layer.step(mode, model, way, (x, x, x))
    for _ in range(RUNS):
        one_pass()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(RUNS):
            one_pass()
    kinds = {f"aten::{operator}": kind for kind, operators in KINDS.items() for operator in operators}
    found = Counter()
    for event in seen.key_averages():
        found[kinds.get(event.key, "the rest")] += event.self_cpu_time_total / RUNS / 1000
    return found


def table() -> str:
    calls = layer.ways("cpu", torch.float32)
    lines = ["| mode | work | mha_lib, ms | PyTorch, ms |", "|---|---|---:|---:|"]
    for mode in ("forward", "inference"):
        ours, theirs = (by_kind(name, calls, mode) for name in (OURS, THEIRS))
        lines += [f"| {mode} | {kind} | {ours[kind]:.2f} | {theirs[kind]:.2f} |" for kind in (*KINDS, "the rest")]
    return "\n".join(lines)


if __name__ == "__main__":
    torch.manual_seed(0)
    text = table()
    print(text)
    write(Path(__file__).parent / "README.md", "profile", text, "python -m benchmarks.profile")
