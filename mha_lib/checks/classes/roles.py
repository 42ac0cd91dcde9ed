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


def assignments(module: nn.Module, shapes: dict[str, tuple[int, int]], heads: int = 1) -> list[Weights]:
    """Return the ways in which a module's parameters can play the roles of those shapes, likeliest first."""
    named = _by_name(module, shapes)
    if named is not None:
        return [named]
    found: list[Weights] = []
    out, into = next(iter(shapes.values()))
    for matrices in _arrangements(module, out, into, len(shapes), heads):
        for order in itertools.permutations(range(len(shapes))):
            chosen = [matrices[i] for i in order]
            if all(tuple(w.shape) == shape for (w, _), shape in zip(chosen, shapes.values())):
                found.append(dict(zip(shapes, chosen)))
    return found


def is_plain(module: nn.Module, shapes: dict[str, tuple[int, int]]) -> bool:
    """Say whether a module is made of one linear for each role and nothing else, whatever their names."""
    linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
    held = sum(p.numel() for linear in linears for p in linear.parameters())
    sizes = sorted(tuple(linear.weight.shape) for linear in linears)
    return sizes == sorted(shapes.values()) and held == sum(p.numel() for p in module.parameters())


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


def _arrangements(module: nn.Module, out: int, into: int, count: int, heads: int) -> list[list[Matrix]]:
    """Return lists of as many matrices as there are roles, one for each layout that the parameters allow.

    How many there are depends on the kinds of the parameters, not on their sizes, so that one
    layout has one place in the list whatever the size of the module.
    """
    groups = list(_groups(module))
    square_raw = any(raw and tuple(w.shape) == (out, into) for w, _, raw in groups)
    fused = any(_flat(w, out, into, heads, raw, False).size(0) == 3 * out for w, _, raw in groups)
    found = []
    for turn in (False, True)[: 1 + square_raw]:
        flat = [(_flat(w, out, into, heads, raw, turn), b) for w, b, raw in groups]
        for by_head in (False, True)[: 1 + fused]:
            cut = [piece for matrix in flat for piece in _cut(matrix, out, heads, by_head)]
            if len(cut) == count:
                found.append(cut)
    small = [(w, b) for w, b, _ in groups if w.dim() == 2 and w.size(1) == into and w.size(0) * heads == out]
    whole = [(w, b) for w, b, _ in groups if tuple(w.shape) == (out, into)]
    if heads > 1 and len(small) == 3 * heads and len(whole) == count - 3:
        found.append([*(_stacked(small[i * heads : (i + 1) * heads]) for i in range(3)), *whole])
        found.append([*(_stacked(small[i::3]) for i in range(3)), *whole])
    return found


def _flat(weight: Tensor, out: int, into: int, heads: int, raw: bool, turn: bool) -> Tensor:
    """Return a weight as a matrix (n * out, in), from the ways in which plain parameters store it."""
    while weight.dim() > 2 and weight.size(-1) == 1:  # a convolution of width 1
        weight, raw = weight.squeeze(-1), False
    width = out // heads
    if tuple(weight.shape) == (heads, into, width):
        return weight.permute(0, 2, 1).reshape(out, into)
    if tuple(weight.shape) == (into, heads, width):
        return weight.permute(1, 2, 0).reshape(out, into)
    if tuple(weight.shape) == (heads, width, into):  # from the heads to the output
        return weight.permute(2, 0, 1).reshape(out, into)
    if (
        weight.dim() == 2
        and raw
        and (turn or (weight.size(0) == into and weight.size(1) >= out and tuple(weight.shape) != (out, into)))
    ):
        return weight.T
    return weight


def _cut(matrix: Matrix, out: int, heads: int, by_head: bool) -> list[Matrix]:
    """Cut a stack of several linears; by_head reads three of them as (h, 3, d_k) instead of (3, h, d_k)."""
    weight, bias = matrix
    if weight.dim() != 2 or weight.size(0) % out:
        return [matrix]
    parts = weight.size(0) // out
    if by_head and parts == 3:
        weight = weight.reshape(heads, 3, out // heads, -1).transpose(0, 1).reshape(3 * out, -1)
        bias = None if bias is None else bias.reshape(heads, 3, -1).transpose(0, 1).flatten()
    biases = [None] * parts if bias is None or bias.numel() != parts * out else bias.chunk(parts)
    return list(zip(weight.chunk(parts), biases))


def _of(layer: nn.Linear) -> Matrix:
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def _stacked(parts: list[Matrix]) -> Matrix:
    weights, biases = zip(*parts)
    return torch.cat(weights), None if any(b is None for b in biases) else torch.cat(biases)


def _groups(module: nn.Module):
    """Yield (weight, bias, raw) for every weight, in the order in which the module holds them."""
    layers = [m for m in module.modules() if isinstance(m, (nn.Linear, nn.Conv1d))]
    owned = {id(p) for layer in layers for p in layer.parameters(recurse=False)}
    loose = [p.detach() for p in module.parameters() if id(p) not in owned]
    tables = [p for p in loose if p.dim() > 1]
    vectors = [p for p in loose if p.dim() == 1]
    for i, table in enumerate(tables):
        # nn.MultiheadAttention keeps its stack of three as a parameter, used like that of a linear.
        yield table, vectors[i] if len(vectors) == len(tables) else None, True
    for layer in layers:
        yield *_of(layer), False
