"""Signs that several tables share: what is seen of a mistake that comes in many numbers."""

import math

import torch


def errs_with(trials, *words) -> bool:
    """Say whether every error that was seen has one of the words in its text, and there is one."""
    texts = [str(t.seen.error) for t in trials if t.seen.error is not None]
    return bool(texts) and all(any(word in text for word in words) for text in texts)


def changes(trials, name) -> bool:
    """Say whether an input was written to."""
    return any(name in t.seen.changed for t in trials)


def only_gradients_missing(trials) -> bool:
    """Say whether nothing but the way back is wrong."""
    wrong = [t for t in trials if not t.agrees]
    return bool(wrong) and all(t.probe.gradient and not t.seen.error and None in t.seen.parts.values() for t in wrong)


def rows_fall_short(trials) -> bool:
    """Say whether every row of the weights sums to less than 1 with the right proportions."""
    sums = []
    for trial in trials:
        weights, want = trial.seen.parts.get("weights"), trial.want.parts.get("weights")
        if weights is None or want is None or weights.shape != want.shape:
            continue
        total = weights.detach().double().sum(-1, keepdim=True)
        if not torch.allclose(weights.double() / total, want.double(), atol=1e-4):
            return False
        sums.append(total)
    return bool(sums) and all(((total < 1 - 1e-6) & (total > 0)).all() for total in sums)


def has_one_more_factor(trials) -> bool:
    """Say whether the weights come from the divided scores times one number, the same on every input."""
    factors = []
    for trial in trials:
        weights = trial.seen.parts.get("weights")
        query, key = trial.probe.args[:2]
        if trial.probe.gradient or weights is None or weights.shape != trial.want.parts["weights"].shape:
            continue
        if not torch.allclose(weights.detach().double().sum(-1), torch.ones((), dtype=torch.float64), atol=1e-4):
            return False
        log = weights.detach().double().log()
        scores = (query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))).double()
        told = (log > -15).all(-1) & (scores.abs().amax(-1) < 1e3)
        if not told.any() or weights.size(-1) < 2:
            continue
        a, b = (log - log.mean(-1, keepdim=True))[told], (scores - scores.mean(-1, keepdim=True))[told]
        factor = float((a * b).sum() / (b * b).sum())
        if not torch.allclose(a, factor * b, atol=1e-3):
            return False
        factors.append(factor)
    return len(factors) > 1 and max(factors) - min(factors) < 1e-3 and abs(factors[0] - 1) > 1e-3
