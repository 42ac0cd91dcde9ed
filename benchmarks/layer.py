"""The layer beside PyTorch's own and beside the bare floor, in one process, in interleaved rounds.

    python -m benchmarks.layer             self-attention, without the longest text
    python -m benchmarks.layer --cross     cross-attention: three different inputs
    python -m benchmarks.layer --quick     the two small sizes only
    python -m benchmarks.layer --dtype bfloat16

Prints a Markdown table of medians as ratios.
"""

import argparse
import multiprocessing
import platform
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.timing import medians
from mha_lib import MultiHeadAttention
from mha_lib.cost import peak_mib
from mha_lib.spellings import BertStyle, ClonedLinears, SplitCombine

D_MODEL, HEADS = 512, 8
SIZES = ((8, 128), (4, 512), (1, 2048))
LONGEST = (1, 8192)
LONGEST_TABLE = 2048  # longer texts run without weights only
MODES = ("forward", "forward and backward", "inference")


class Floor(nn.Module):
    """Four linears and the fused kernel: nothing that computes this layer can do with less."""

    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(D_MODEL, D_MODEL) for _ in range(4))

    def forward(self, query, key, value):
        q, k, v = (
            F.linear(x, f.weight, f.bias).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for f, x in zip(self.linears, (query, key, value))
        )
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return F.linear(out, self.linears[3].weight, self.linears[3].bias)


def ways(device, dtype):
    """Return the named calls that are compared; each takes (query, key, value)."""
    make = lambda layer: layer.to(device, dtype)
    floor, ours = make(Floor()), make(MultiHeadAttention(D_MODEL, HEADS))
    theirs = make(nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True))
    cloned, split, bert = make(ClonedLinears(HEADS, D_MODEL)), make(SplitCombine(D_MODEL, HEADS)), make(BertStyle(D_MODEL, HEADS))
    return {
        "floor": (floor, floor),
        "mha_lib, without weights": (ours, lambda q, k, v: ours(q, k, v, need_weights=False)),
        "PyTorch, without weights": (theirs, lambda q, k, v: theirs(q, k, v, need_weights=False)[0]),
        "mha_lib, with weights": (ours, lambda q, k, v: ours(q, k, v)),
        "PyTorch, with weights": (theirs, lambda q, k, v: theirs(q, k, v, average_attn_weights=False)[0]),
        "cloned linears": (cloned, cloned),
        "split and combine": (split, split),
        "BERT style": (bert, lambda q, k, v: bert(q)),
    }


def keeps_table(name: str) -> bool:
    return name not in ("floor", "mha_lib, without weights", "PyTorch, without weights")


def step(mode, layer, way, inputs):
    """Run one pass in a mode."""
    if mode == "inference":
        with torch.inference_mode():
            return way(*inputs)
    output = way(*inputs)
    if mode == "forward and backward":
        output.sum().backward()
        layer.zero_grad(set_to_none=True)
    return output


def rounds_for(length, rounds):
    """Return more rounds for short texts, whose times spread more, and few for the longest."""
    if length > LONGEST_TABLE:
        return min(rounds, 5)
    return rounds * {128: 6, 512: 2}.get(length, 1)


def measure(sizes, rounds, device, dtype, cross):
    """Return {(mode, size): {name: median seconds}}, measured in interleaved rounds."""
    found = {}
    calls = ways(device, dtype)
    for batch, length in sizes:
        query = torch.randn(batch, length, D_MODEL, device=device, dtype=dtype)
        inputs = (query, *(torch.randn_like(query) for _ in range(2))) if cross else (query,) * 3
        chosen = {n: c for n, c in calls.items() if not (keeps_table(n) and length > LONGEST_TABLE) and not (cross and n == "BERT style")}
        for mode in MODES:
            def call(layer, way):
                layer.train(mode != "inference")
                return step(mode, layer, way, inputs)

            found[mode, (batch, length)] = medians({name: partial(call, *c) for name, c in chosen.items()}, rounds_for(length, rounds))
    return found


def small_table(found) -> str:
    """Return what a reader of README wants to know: how much longer than need be, and than PyTorch's."""
    sizes = list(dict.fromkeys(size for _, size in found))
    lines = ["| the layer | mode | " + " | ".join(f"B, T = {b}, {t}" for b, t in sizes) + " |", "|---|---|" + "---:|" * len(sizes)]
    for name, other, words in (
        ("mha_lib, without weights", "floor", "without weights, to the floor"),
        ("mha_lib, without weights", "PyTorch, without weights", "without weights, to PyTorch's"),
        ("mha_lib, with weights", "PyTorch, with weights", "with weights, to PyTorch's"),
    ):
        for mode in MODES:
            times = [found[mode, size] for size in sizes]
            cells = [f"{t[name] / t[other]:.2f}" if name in t else "" for t in times]
            lines.append(f"| {words} | {mode} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table(found) -> str:
    lines = ["| mode | B, T | layer | ms | to the floor | to PyTorch alike |", "|---|---|---|---:|---:|---:|"]
    for (mode, (batch, length)), times in found.items():
        for name, seconds in times.items():
            alike = "PyTorch, with weights" if keeps_table(name) else "PyTorch, without weights"
            other = f"{seconds / times[alike]:.2f}" if alike in times else ""
            lines.append(f"| {mode} | {batch}, {length} | {name} | {1000 * seconds:.1f} | {seconds / times['floor']:.2f} | {other} |")
    return "\n".join(lines)


def _peak_in_child(name, length, masked, results):
    torch.manual_seed(0)
    layer, way = ways("cpu", torch.float32)[name]
    x = torch.randn(1, length, D_MODEL)
    if masked:
        mask = torch.ones(1, 1, length, dtype=torch.bool)
        way = lambda q, k, v: layer(q, k, v, mask, need_weights=False)
    with torch.inference_mode():
        results.put(peak_mib(lambda: way(x, x, x)))


def peak(name, length, masked=False) -> float:
    """Return the peak of memory in MiB that a forward pass adds in a process of its own."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_peak_in_child, args=(name, length, masked, results))
    child.start()
    value = results.get()
    child.join()
    return value


def memory_table(lengths) -> str:
    lines = ["| layer | " + " | ".join(f"T = {n}" for n in lengths) + " |", "|---|" + "---:|" * len(lengths)]
    rows = [("floor", False), ("mha_lib, without weights", False), ("mha_lib, without weights", True), ("PyTorch, without weights", False), ("mha_lib, with weights", False)]
    for name, masked in rows:
        cells = ["" if keeps_table(name) and n > LONGEST_TABLE else f"{peak(name, n, masked):.0f} MiB" for n in lengths]
        lines.append(f"| {name}{', bool mask' if masked else ''} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(found, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from mha_lib.plots import BLUE, GREEN, ORANGE, STYLE

    names = ("mha_lib, without weights", "PyTorch, without weights", "mha_lib, with weights", "PyTorch, with weights")
    sizes = list(dict.fromkeys(size for _, size in found))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(MODES), figsize=(4 * len(MODES), 3.4), sharey=True, layout="constrained")
        for axis, mode in zip(axes, MODES):
            for name, color, dash, mark in zip(names, (BLUE, ORANGE, BLUE, ORANGE), ("-", "-", ":", ":"), "osos"):
                points = [(i, found[mode, s][name] / found[mode, s]["floor"]) for i, s in enumerate(sizes) if name in found[mode, s]]
                axis.plot(*zip(*points), color=color, linestyle=dash, marker=mark, label=name)
            axis.axhline(1, color=GREEN, linewidth=1)
            axis.set(title=mode, xticks=range(len(sizes)), xticklabels=[f"{b}, {t}" for b, t in sizes], xlabel="B, T", ylim=(0, None))
        axes[0].set_ylabel("time, in floors")
        axes[0].legend(frameon=False, fontsize=8)
        figure.savefig(path)


def machine(dtype: str = "float32") -> str:
    """Return what the numbers hold for."""
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()}, {torch.get_num_threads()} threads"
    return f"torch {torch.__version__}, {where}, {dtype}, d_model {D_MODEL}, {HEADS} heads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the two small sizes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cross", action="store_true", help="cross-attention: three different inputs")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{machine(options.dtype)}\n")
    print(table(measure(SIZES[:2] if options.quick else SIZES, options.rounds, device, getattr(torch, options.dtype), options.cross)))


if __name__ == "__main__":
    main()
