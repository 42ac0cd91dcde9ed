"""What must hold of every multi-head attention layer, whatever its weights and their names."""

import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from mha_lib.checks.case import ALWAYS, REMARK, UNREAD, WRONG, Law
from mha_lib.checks.classes.exercise import ClassSpecimen
from mha_lib.checks.inputs import normal, padding
from mha_lib.masks import causal_mask
from mha_lib.multi_head import MultiHeadAttention

D_MODEL, HEADS, D_K = 12, 4, 3
TOLERANCE = 1e-4


def _output(value: object) -> Tensor:
    return value[0] if isinstance(value, (tuple, list)) else value


def _far(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().nan_to_num(nan=float("inf")).max() > TOLERANCE)


# -- parts of a wrong module that show a mistake


def _part(holds: Callable[[nn.Module, list[tuple]], bool], when: str = WRONG) -> Law:
    """Return a law about the parts of a module: holds(module, the shapes of its matrices) means broken."""

    def test(specimen: ClassSpecimen):
        module = specimen.build(D_MODEL, HEADS)
        if module is None:
            return None
        shapes = [tuple(p.shape) for p in module.parameters() if p.dim() == 2]
        return {} if holds(module, shapes) else None

    return Law(test, when)


def _linears(module: nn.Module) -> list[nn.Module]:
    """Return the linears held, counting one that is held twice twice."""
    return [m for _, m in module.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)]


def _is_one_matrix(module: nn.Module, shapes: list[tuple]) -> bool:
    return shapes == [(D_MODEL, D_MODEL)] and sum(p.numel() for p in module.parameters()) < 2 * D_MODEL**2


no_parameters = _part(lambda module, shapes: not list(module.parameters()))
_WIDE, _BACK = (HEADS * D_MODEL, D_MODEL), (D_MODEL, HEADS * D_MODEL)
full_width = _part(
    lambda module, shapes: (
        [s for s in shapes if HEADS * D_MODEL in s] in ([_WIDE] * 3 + [_BACK], [_WIDE] * 3, [_BACK] * 3)
    )
)
norm_inside = _part(lambda module, shapes: any(isinstance(m, nn.LayerNorm) for m in module.modules()))
small_linear = _part(lambda module, shapes: (D_K, D_K) in shapes)
one_key_head = _part(lambda module, shapes: shapes.count((D_K, D_MODEL)) == 2 and shapes.count((D_MODEL, D_MODEL)) == 2)
shared_linear = _part(lambda module, shapes: _is_one_matrix(module, shapes) and len(_linears(module)) > 1)
one_linear_only = _part(lambda module, shapes: _is_one_matrix(module, shapes) and len(_linears(module)) == 1)


def _input_lost(specimen: ClassSpecimen):
    """In a loop over heads with linears of their own the first head works and the second does not."""
    module = specimen.build(D_MODEL, HEADS)
    if module is None or [tuple(p.shape) for p in module.parameters()].count((D_K, D_MODEL)) < 3 * HEADS:
        return None
    x = normal(2, 3, D_MODEL, seed=131)
    error = specimen.guard.call(module, x, x, x).error
    return {} if isinstance(error, RuntimeError) and "shapes cannot be multiplied" in str(error) else None


rebinds_in_loop = Law(_input_lost, WRONG)


def _sizes_that_work(specimen: ClassSpecimen) -> str:
    """Tell a layer that knows one batch size or one length from one that works: "batch", "length" or ""."""
    batches, lengths = (1, 2, 3, 4, 5, 8), (2, 3, 4, 5, 6, 7, 8, 10, 16)
    module, works = specimen.build(D_MODEL, HEADS), set()
    if module is None:
        return ""
    for batch in batches:
        for length in lengths:
            x = torch.zeros(batch, length, D_MODEL)
            value = specimen.guard.call(module, x, x, x).value
            if isinstance(value, (tuple, list)) and not value:
                continue
            if isinstance(_output(value), Tensor) and _output(value).shape == x.shape:
                works.add((batch, length))
    if not works or len(works) == len(batches) * len(lengths):
        return ""
    if len({batch for batch, _ in works}) == 1:
        return "batch"
    longest = max(length for _, length in works)
    is_short = works == {(b, n) for b in batches for n in lengths if n <= longest}
    return "length" if is_short or len({length for _, length in works}) == 1 else ""


def _size(word: str) -> Law:
    return Law(lambda specimen: {} if specimen.once(_sizes_that_work) == word else None, WRONG)


one_batch_size, one_length = _size("batch"), _size("length")


own_layer_inside = _part(
    lambda module, shapes: any(isinstance(m, MultiHeadAttention) for m in module.modules()), ALWAYS
)


def _remembers(specimen: ClassSpecimen):
    """In eval mode the same input must give the same, whatever came before."""
    module = specimen.guard.call(specimen.exercise.prepare, specimen.answer, (D_MODEL, HEADS)).value
    if module is None:
        return None
    x, other = normal(2, 5, D_MODEL, seed=178), normal(2, 5, D_MODEL, seed=179)

    def again():
        with torch.no_grad():
            first, _, second = (_output(module(y, y, y)) for y in (x, other, x))
        return first.shape != second.shape or _far(first, second)

    shown = {"seen on": "the same input before and after another one, in eval mode"}
    return shown if specimen.guard.call(again).value else None


keeps_state = Law(_remembers, WRONG)


# -- rules: also a layer with the right numbers must keep them


class _Drops(TorchFunctionMode):
    """Notes what is dropped from: the tensors that F.dropout gets, and whether SDPA gets a rate."""

    def __init__(self):
        super().__init__()
        self.given: list[Tensor] = []
        self.by_sdpa = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            self.by_sdpa |= rate > 0
        if function in (F.dropout, torch.dropout) and (args or "input" in kwargs):
            self.given.append((args[0] if args else kwargs["input"]).detach())
        return function(*args, **kwargs)


@contextlib.contextmanager
def _watch_dropout_modules(found: list[nn.Module]):
    def note(module, given):
        if isinstance(module, nn.Dropout):
            found.append(module)

    handle = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


def _drop_in_eval(specimen: ClassSpecimen) -> str:
    """Say by what a layer is random in eval mode: "sdpa", "new", "function", "module", "drawn", or "" if it is not."""
    module = specimen.build(D_MODEL, HEADS, 0.5)
    if module is None:
        return ""
    x, called, drops = normal(3, 5, D_MODEL, seed=132), [], _Drops()

    def two_passes():
        with torch.no_grad(), _watch_dropout_modules(called), drops:
            return _output(module(x, x, x)), _output(module(x, x, x))

    outputs = specimen.guard.call(two_passes).value
    if outputs is None or torch.equal(*outputs):
        return ""
    if drops.by_sdpa:
        return "sdpa"
    own = {id(m) for m in module.modules()}
    if any(id(m) not in own for m in called):
        return "new"
    return "module" if any(m.training for m in called) else "function" if drops.given else "drawn"


def _eval_drop(word: str) -> Law:
    shown = {"seen on": "dropout = 0.5, in eval mode, the same input twice"}
    return Law(lambda specimen: shown if specimen.once(_drop_in_eval) == word else None)


dropped_in_eval_by_sdpa, dropped_in_eval_by_new = _eval_drop("sdpa"), _eval_drop("new")
dropped_in_eval, left_in_training, drawn_anew = _eval_drop("function"), _eval_drop("module"), _eval_drop("drawn")


def _drop_in_training(specimen: ClassSpecimen) -> str:
    """Say what a layer drops from in training: "weights", another place, "two", "never", "once", "" if unknown."""
    module = specimen.guard.call(specimen.exercise.prepare, specimen.answer, (D_MODEL, HEADS, 0.5)).value
    if module is None:
        return ""
    q, k = normal(3, 4, D_MODEL, seed=132), normal(3, 5, D_MODEL, seed=133)

    def passes() -> bool:
        with torch.no_grad():
            return not torch.equal(_output(module(q, k, k)), _output(module(q, k, k)))

    def look() -> str:
        module.train()
        before = passes()
        module.eval()
        module(q, k, k)
        module.train()
        if not before or not passes():
            return "once" if before else "never"
        drops = _Drops()
        with torch.no_grad(), drops:
            module(q, k, k)
        if not drops.given:
            return "weights"
        place = _dropped_from(drops.given)
        return "two" if drops.by_sdpa and place == "wide" else place

    return specimen.guard.call(look).value or ""


def _dropped_from(given: list[Tensor]) -> str:
    """Name the place of the dropout from what it got: 3 sentences, 4 queries, 5 keys, 4 heads of 3, width 12."""
    places = []
    for x in given:
        shape = tuple(x.shape)
        if shape[-2:] == (4, 5) or shape[-2:] == (5, 4):
            sums = (x.sum(-1), x.sum(-2))
            is_weights = bool(x.min() >= 0) and any(bool((s - 1).abs().max() < 1e-3) for s in sums)
            places.append("weights" if is_weights else "scores")
        elif shape[-1] in (D_MODEL, D_K):
            places.append("wide")
        else:
            places.append("weights")
    if "scores" in places:
        return "scores"
    return "wide" if "weights" not in places else "two" if "wide" in places else "weights"


def _training_drop(word: str, seen: str, when: str = ALWAYS) -> Law:
    return Law(lambda specimen: {"seen on": seen} if specimen.once(_drop_in_training) == word else None, when)


never_dropped = _training_drop("never", "dropout = 0.5, in training mode, the same input twice")
dropped_once = _training_drop("once", "dropout = 0.5, after eval() and train() again")
dropped_from_scores = _training_drop("scores", "dropout = 0.5, in training mode: what the dropout was given")
dropped_in_two_places = _training_drop("two", "dropout = 0.5, in training mode: what the dropout was given", REMARK)
dropped_elsewhere = _training_drop("wide", "dropout = 0.5, in training mode: what the dropout was given")


def _twice(specimen: ClassSpecimen):
    module = specimen.build(D_MODEL, HEADS)
    names: dict[int, list[str]] = {}
    for name, part in module.named_modules(remove_duplicate=False) if module is not None else ():
        if isinstance(part, nn.Linear):
            names.setdefault(id(part), []).append(name)
    shared = next((n for n in names.values() if len(n) > 1), None)
    return {"yours": f"{' and '.join(shared)} are one object"} if shared else None


linear_twice = Law(_twice)


def _without_dropout(specimen: ClassSpecimen):
    call = specimen.guard.call(lambda: specimen.answer(D_MODEL, HEADS, dropout=0.5))
    if call.error is None or specimen.build(D_MODEL, HEADS, 0.5) is not None:
        return None
    return {
        "seen on": "d_model = 12, num_heads = 4, dropout = 0.5",
        "yours": f"{type(call.error).__name__}: {call.error}"[:160],
    }


no_dropout_argument = Law(_without_dropout)


def _indivisible(specimen: ClassSpecimen):
    def build_and_run():
        x = normal(1, 3, 10, seed=133)
        return specimen.answer(10, 4)(x, x, x)

    return {"seen on": "d_model = 10, num_heads = 4"} if specimen.guard.call(build_and_run).error is None else None


indivisible_accepted = Law(_indivisible)


def _without_gradient(specimen: ClassSpecimen):
    module = specimen.build(D_MODEL, HEADS)
    if module is None:
        return None

    def back():
        inputs = (normal(2, 4, D_MODEL, seed=134), normal(2, 5, D_MODEL, seed=135), normal(2, 5, D_MODEL, seed=136))
        _output(module(*inputs)).pow(2).sum().backward()

    if specimen.guard.call(back).error is not None:
        return None
    lacking = [name for name, p in module.named_parameters() if p.grad is None]
    return {"seen on": ", ".join(lacking)} if lacking else None


no_gradient = Law(_without_gradient)


def _counts(specimen: ClassSpecimen):
    module = specimen.build(D_MODEL, HEADS)
    if module is None:
        return None
    count = sum(p.numel() for p in module.parameters())
    least, most = 4 * D_MODEL**2, 4 * D_MODEL**2 + 4 * D_MODEL
    if least <= count <= most:
        return None
    return {
        "seen on": f"d_model = {D_MODEL}, num_heads = {HEADS}",
        "yours": str(count),
        "expected": f"{least} without biases, {most} with all of them",
    }


parameter_count = Law(_counts)


# -- properties: they take the place of numbers where the weights cannot be read


def _property(broken: Callable[[Callable], bool]) -> Law:
    """Return a law from broken(f), where f runs the layer on (query, key, value, mask)."""

    def test(specimen: ClassSpecimen):
        module = specimen.build(D_MODEL, HEADS)
        if module is None:
            return None
        with torch.no_grad():
            call = specimen.guard.call(broken, lambda *args: _output(module(*args)))
        return {} if call.error is None and call.value else None

    return Law(test, UNREAD)


def _three(seed: int, batch: int = 2, queries: int = 4, keys: int = 5):
    return (
        normal(batch, queries, D_MODEL, seed=seed),
        normal(batch, keys, D_MODEL, seed=seed + 1),
        normal(batch, keys, D_MODEL, seed=seed + 2),
    )


_ORDER = torch.tensor([3, 0, 4, 1, 2])


@_property
def sentences_mixed(f):
    q, k, v = _three(140, batch=3)
    others = [torch.cat([x[:1], y[1:]]) for x, y in zip((q, k, v), _three(143, batch=3))]
    return _far(f(q, k, v)[:1], f(*others)[:1])


@_property
def mask_of_another(f):
    q, k, v = _three(146, batch=HEADS)
    mask = padding(HEADS, 5)
    whole = f(q, k, v, mask)
    alone = torch.cat([f(q[b : b + 1], k[b : b + 1], v[b : b + 1], mask[b : b + 1]) for b in range(HEADS)])
    return _far(whole, alone)


@_property
def order_of_queries(f):
    q, k, v = _three(149, queries=5)
    return _far(f(q[:, _ORDER], k, v), f(q, k, v)[:, _ORDER])


@_property
def order_of_keys(f):
    q, k, v = _three(152)
    return _far(f(q, k[:, _ORDER], v[:, _ORDER]), f(q, k, v))


@_property
def leaks_future(f):
    x = normal(2, 6, D_MODEL, seed=155)
    y = torch.cat([x[:, :3], normal(2, 3, D_MODEL, seed=156, scale=3.0)], 1)
    mask = causal_mask(6).expand(2, 6, 6)
    return _far(f(x, x, x, mask)[:, :3], f(y, y, y, mask)[:, :3])


@_property
def blind_to_past(f):
    x = normal(2, 6, D_MODEL, seed=157)
    y = torch.cat([x[:, :1] + 3.0, x[:, 1:]], 1)
    mask = causal_mask(6).expand(2, 6, 6)
    moved = (f(x, x, x, mask) - f(y, y, y, mask))[:, 1:].abs().amax((0, 2))
    return bool(moved.min() < 1e-5)


@_property
def sees_padding(f):
    q, k, v = _three(158, batch=3)
    mask = padding(3, 5)
    hidden = ~mask.transpose(1, 2)
    return _far(f(q, k, v, mask), f(q, k.masked_fill(hidden, 5.0), v.masked_fill(hidden, -7.0), mask))


@_property
def open_mask_changes(f):
    q, k, v = _three(161)
    return _far(f(q, k, v), f(q, k, v, torch.ones(2, 4, 5, dtype=torch.bool)))


@_property
def not_an_average(f):
    q, k, v = _three(164)
    v = v[:, :1].expand(-1, 5, -1)
    base = f(q, k, v)
    return (
        _far(base, f(q * -2.0, k, v))
        or _far(base, base[:, :1].expand_as(base))
        or _far(base, f(q, k, v, padding(2, 5).expand(2, 4, 5)))
    )


@_property
def not_linear_in_values(f):
    q, k, v = _three(167)
    w, zero = normal(2, 5, D_MODEL, seed=170), torch.zeros(2, 5, D_MODEL)
    return _far(f(q, k, v + w) + f(q, k, zero), f(q, k, v) + f(q, k, w))


@_property
def input_unused(f):
    q, k, v = _three(171)
    base = f(q, k, v)
    return any(not _far(base, f(*(x * -2.0 if i == j else x for j, x in enumerate((q, k, v))))) for i in range(3))


@_property
def always_causal(f):
    x = normal(1, 6, D_MODEL, seed=174)
    y = torch.cat([x[:, :5], x[:, 5:] + 3.0], 1)
    return not _far(f(x, x, x)[:, 0], f(y, y, y)[:, 0])


@_property
def holds_nan(f):
    q, k, v = _three(175, batch=3)
    return not f(q, k, v, padding(3, 5)).isfinite().all()
