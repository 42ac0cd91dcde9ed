"""What attention costs: multiplications and bytes by formula, and the peak of memory as measured."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch


def multiplications(batch: int, length: int, d_model: int) -> dict[str, int]:
    """Return the multiplications of one forward pass of self-attention; the number of heads plays no part.

    Shapes: input (batch, length, d_model). Keys: projections (four linears), tables (scores and mixture).
    """
    return {"projections": 4 * batch * length * d_model**2, "tables": 2 * batch * length**2 * d_model}


def table_bytes(batch: int, num_heads: int, length: int, bytes_per_number: int = 4) -> int:
    """Return the bytes of one table of scores or weights (batch, num_heads, length, length)."""
    return batch * num_heads * length**2 * bytes_per_number


def peak_mib(function: Callable[[], object], device: torch.device | str = "cpu") -> float:
    """Run a function and return the most memory in MiB that its tensors held at once, beyond what was held before."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _silent_stderr(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    steps = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    held = peak = 0
    for _, change in steps:
        held += change
        peak = max(peak, held)
    return peak / 2**20


@contextlib.contextmanager
def _silent_stderr():
    """Keep away what the profiler writes past Python, straight to the file of stderr."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
