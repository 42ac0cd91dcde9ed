"""Times of several calls beside each other."""

import statistics
from collections.abc import Callable

import torch
from torch.utils.benchmark import Timer


def medians(calls: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call, measured in interleaved rounds."""
    timers = {name: Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads()) for name, call in calls.items()}
    samples = {name: [] for name in timers}
    for timer in timers.values():
        timer.timeit(1)
    for turn in range(rounds):
        # Another one begins each round: what ran before warms or cools the caches.
        names = list(timers)[turn % len(timers) :] + list(timers)[: turn % len(timers)]
        for name in names:
            samples[name].append(timers[name].timeit(1).median)
    return {name: statistics.median(s) for name, s in samples.items()}
