"""Signs that several tables share: what is seen of a mistake that comes in many numbers."""

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
    return bool(sums) and all((total < 1 - 1e-6).all() for total in sums)
