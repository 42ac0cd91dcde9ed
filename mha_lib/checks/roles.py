"""Which parameters of a learner's module play which role.

A module that uses the names asked for has one arrangement. Any other is tried with every
arrangement that well-known code uses: linears under other names, one stacked linear, a list of
small ones for each head, plain parameters. What fits is found by what the module computes.
"""

import itertools

import torch
from torch import Tensor, nn

Weights = dict[str, tuple[Tensor, Tensor | None]]
Matrix = tuple[Tensor, Tensor | None]


def uses_names(module: nn.Module | None, roles: dict) -> bool:
    return module is not None and all(
        isinstance(getattr(module, role, None), (nn.Linear, nn.ModuleList)) for role in roles
    )


def assignments(module: nn.Module, shapes: dict[str, tuple[int, int]]) -> list[Weights]:
    """Return the ways in which a module's parameters can play the roles of those shapes, likeliest first."""
    named = _by_name(module, shapes)
    if named is not None:
        return [named]
    found: list[Weights] = []
    for matrices in _arrangements(module, shapes):
        for order in itertools.permutations(range(len(shapes))):
            chosen = [matrices[i] for i in order]
            if all(tuple(w.shape) == shape for (w, _), shape in zip(chosen, shapes.values())):
                found.append(dict(zip(shapes, chosen)))
    return found


def _by_name(module: nn.Module, shapes: dict[str, tuple[int, int]]) -> Weights | None:
    found: Weights = {}
    for role, shape in shapes.items():
        layer = getattr(module, role, None)
        if isinstance(layer, nn.ModuleList) and len(layer) and all(isinstance(x, nn.Linear) for x in layer):
            matrix = _stacked([_of(x) for x in layer])
        elif isinstance(layer, nn.Linear):
            matrix = _of(layer)
        else:
            return None
        if tuple(matrix[0].shape) != shape:
            return None
        found[role] = matrix
    return found


def _arrangements(module: nn.Module, shapes: dict[str, tuple[int, int]]):
    """Yield lists of as many matrices as there are roles."""
    count = len(shapes)
    out, into = next(iter(shapes.values()))
    matrices = _matrices(module)
    if len(matrices) == count:
        yield matrices
    plain = [(w.T, b) if raw else (w, b) for (w, b), raw in zip(matrices, _are_raw(module))]
    if len(matrices) == count and any(_are_raw(module)):
        yield plain  # used as x @ W, not as x @ W.T
    stacked = [m for m in matrices if tuple(m[0].shape) == (3 * out, into)]
    others = [m for m in matrices if tuple(m[0].shape) != (3 * out, into)]
    if len(stacked) == 1 and len(others) == count - 3:
        weight, bias = stacked[0]
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        yield [*zip(weight.chunk(3), biases), *others]
        for heads in (h for h in range(2, out + 1) if out % h == 0):  # (h, 3, d_k) instead of (3, h, d_k)
            parts = [p.reshape(out, into) for p in weight.reshape(heads, 3, out // heads, into).unbind(1)]
            cuts = (None,) * 3 if bias is None else [p.reshape(out) for p in bias.reshape(heads, 3, out // heads).unbind(1)]
            yield [*zip(parts, cuts), *others]
    small = [m for m in matrices if m[0].size(1) == into and m[0].size(0) < out and out % m[0].size(0) == 0]
    whole = [m for m in matrices if tuple(m[0].shape) == (out, into)]
    if small and len(small) % 3 == 0 and len(whole) == count - 3:
        heads = len(small) // 3
        if all(m[0].size(0) * heads == out for m in small):
            yield [*(_stacked(small[i * heads : (i + 1) * heads]) for i in range(3)), *whole]
            yield [*(_stacked(small[i::3]) for i in range(3)), *whole]


def _of(layer: nn.Linear) -> Matrix:
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def _stacked(parts: list[Matrix]) -> Matrix:
    weights, biases = zip(*parts)
    return torch.cat(weights), None if any(b is None for b in biases) else torch.cat(biases)


def _groups(module: nn.Module):
    """Yield (weight, bias, raw) for every matrix, in the order in which the module holds them."""
    linears = {id(p) for m in module.modules() if isinstance(m, nn.Linear) for p in m.parameters(recurse=False)}
    loose = [p.detach() for p in module.parameters() if id(p) not in linears]
    tables = [p for p in loose if p.dim() == 2]
    vectors = [p for p in loose if p.dim() == 1]
    for i, table in enumerate(tables):
        bias = vectors[i] if len(vectors) == len(tables) else None
        yield table, bias, True
    seen = set()
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and id(layer) not in seen:
            seen.add(id(layer))
            yield *_of(layer), False


def _matrices(module: nn.Module) -> list[Matrix]:
    return [(weight, bias) for weight, bias, _ in _groups(module)]


def _are_raw(module: nn.Module) -> list[bool]:
    return [raw for _, _, raw in _groups(module)]
