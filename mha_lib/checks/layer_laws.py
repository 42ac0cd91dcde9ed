"""What must hold of every multi-head attention layer, whatever its weights and their names."""

import contextlib
import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from mha_lib.checks.guard import Guard
from mha_lib.checks.inputs import normal, padding
from mha_lib.checks.modules import Law, ModuleExercise
from mha_lib.masks import causal_mask

D_MODEL, HEADS = 12, 4
TOLERANCE = 1e-4


def _output(value: object) -> Tensor:
    return value[0] if isinstance(value, (tuple, list)) else value


def _far(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().nan_to_num(nan=float("inf")).max() > TOLERANCE)


# -- parts of a module that show a mistake


def structure(exercise: ModuleExercise, answer: type, guard: Guard) -> str | None:
    """Name a mistake that shows in the parts of a module, or in the sizes on which it raises."""
    call = guard.call(exercise.prepare, answer, (D_MODEL, HEADS))
    if call.error is not None:
        return None
    module: nn.Module = call.value
    shapes = [tuple(p.shape) for p in module.parameters() if p.dim() == 2]
    d_k = D_MODEL // HEADS
    if not list(module.parameters()):
        return "mha_no_parameters"
    if any(HEADS * D_MODEL in shape for shape in shapes):
        return "mha_full_width_heads"
    if any(isinstance(m, nn.LayerNorm) for m in module.modules()):
        return "mha_residual_and_norm_inside"
    if (d_k, d_k) in shapes:
        return "mha_split_then_small_linear"
    if shapes.count((d_k, D_MODEL)) == 2 and shapes.count((D_MODEL, D_MODEL)) == 2:
        return "mha_one_head_for_k_and_v"
    if shapes.count((d_k, D_MODEL)) >= 3 * HEADS and _loop_breaks(module, guard):
        return "mha_rebinds_query_in_loop"
    if shapes == [(D_MODEL, D_MODEL)] and sum(p.numel() for p in module.parameters()) < 2 * D_MODEL**2:
        linears = [m for m in _attributes(module) if isinstance(m, nn.Linear)]
        return "mha_shared_linear" if len(linears) > 1 else "mha_no_projections"
    return _sizes(module, guard)


def _attributes(module: nn.Module) -> list[nn.Module]:
    """Return the modules held, counting one that is held twice twice."""
    return [m for _, m in module.named_modules(remove_duplicate=False)]


def _loop_breaks(module: nn.Module, guard: Guard) -> bool:
    x = normal(2, 3, D_MODEL, seed=131)
    error = guard.call(module, x, x, x).error
    return isinstance(error, RuntimeError) and "shapes cannot be multiplied" in str(error)


def _sizes(module: nn.Module, guard: Guard) -> str | None:
    """Tell a layer that knows one batch size or one length from one that works."""
    batches, lengths = (1, 2, 3, 4, 5, 8), (2, 3, 4, 5, 6, 7, 8, 10, 16)
    works = set()
    for batch in batches:
        for length in lengths:
            x = torch.zeros(batch, length, D_MODEL)
            value = guard.call(module, x, x, x).value
            if isinstance(_output(value), Tensor) and _output(value).shape == x.shape:
                works.add((batch, length))
    if not works or len(works) == len(batches) * len(lengths):
        return None
    if len({batch for batch, _ in works}) == 1:
        return "mha_batch_size_stored"
    if len({length for _, length in works}) == 1:
        return "mha_fixed_context_buffer"
    longest = max(length for _, length in works)
    if works == {(b, n) for b in batches for n in lengths if n <= longest}:
        return "mha_fixed_context_buffer"
    return None


# -- rules: also a layer with the right numbers must keep them


def _built(exercise: ModuleExercise, answer: type, guard: Guard, *config) -> nn.Module | None:
    return guard.call(exercise.prepare, answer, config or (D_MODEL, HEADS)).value


class _Drops(TorchFunctionMode):
    """Notes which functions drop while the layer is in eval mode."""

    def __init__(self):
        super().__init__()
        self.by_sdpa = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            self.by_sdpa |= rate > 0
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


def _dropout_in_eval(exercise: ModuleExercise, answer: type, guard: Guard):
    module = _built(exercise, answer, guard, D_MODEL, HEADS, 0.5)
    if module is None:
        return None
    x = normal(3, 5, D_MODEL, seed=132)
    called: list[nn.Module] = []

    def two_passes():
        with torch.no_grad(), _watch_dropout_modules(called), drops:
            return _output(module(x, x, x)), _output(module(x, x, x))

    drops = _Drops()
    outputs = guard.call(two_passes).value
    if outputs is None or torch.equal(*outputs):
        return None
    facts = {"seen on": "dropout = 0.5, in eval mode, the same input twice"}
    if drops.by_sdpa:
        return "mha_sdpa_dropout_in_eval", facts
    own = {id(m) for m in module.modules()}
    if any(id(m) not in own for m in called):
        return "mha_dropout_created_in_forward", facts
    return "mha_dropout_functional_always_on", facts


def _dropout_in_training(exercise: ModuleExercise, answer: type, guard: Guard):
    module = _built(exercise, answer, guard, D_MODEL, HEADS, 0.5)
    if module is None:
        return None
    x = normal(3, 5, D_MODEL, seed=132)

    def differ() -> bool:
        with torch.no_grad():
            return not torch.equal(_output(module(x, x, x)), _output(module(x, x, x)))

    def before_and_after() -> tuple[bool, bool]:
        module.train()
        before = differ()
        module.eval()
        module(x, x, x)
        module.train()
        return before, differ()

    seen = guard.call(before_and_after).value
    facts = {"seen on": "dropout = 0.5, in training mode, the same input twice"}
    if seen is None or seen == (True, True):
        return None
    if seen[0]:
        return "mha_dropout_zeroed_forever", {"seen on": "dropout = 0.5, after eval() and train() again"}
    return "mha_dropout_never", facts


def _indivisible(exercise: ModuleExercise, answer: type, guard: Guard):
    def build_and_run():
        x = normal(1, 3, 10, seed=133)
        return answer(10, 4)(x, x, x)

    if guard.call(build_and_run).error is None:
        return "mha_indivisible_accepted", {"seen on": "d_model = 10, num_heads = 4"}
    return None


def _gradients(exercise: ModuleExercise, answer: type, guard: Guard):
    module = _built(exercise, answer, guard)
    if module is None:
        return None

    def back():
        inputs = (normal(2, 4, D_MODEL, seed=134), normal(2, 5, D_MODEL, seed=135), normal(2, 5, D_MODEL, seed=136))
        _output(module(*inputs)).pow(2).sum().backward()

    if guard.call(back).error is not None:
        return None
    lacking = [name for name, p in module.named_parameters() if p.grad is None]
    return ("mha_no_gradient", {"seen on": ", ".join(lacking)}) if lacking else None


def _parameter_count(exercise: ModuleExercise, answer: type, guard: Guard):
    module = _built(exercise, answer, guard)
    if module is None:
        return None
    count = sum(p.numel() for p in module.parameters())
    least, most = 4 * D_MODEL**2, 4 * D_MODEL**2 + 4 * D_MODEL
    if least <= count <= most:
        return None
    return "mha_parameter_count", {
        "seen on": f"d_model = {D_MODEL}, num_heads = {HEADS}",
        "yours": str(count),
        "expected": f"{least} without biases, {most} with all of them",
    }


RULES = tuple(
    Law(test) for test in (_dropout_in_eval, _dropout_in_training, _indivisible, _gradients, _parameter_count)
)


# -- properties: they take the place of numbers where the weights cannot be read


def _property(id: str):
    """Turn holds(f) into a law; f runs the layer on (query, key, value, mask)."""

    def wrap(broken):
        @functools.wraps(broken)
        def test(exercise: ModuleExercise, answer: type, guard: Guard):
            module = _built(exercise, answer, guard)
            if module is None:
                return None

            def f(*args):
                return _output(module(*args))

            with torch.no_grad():
                call = guard.call(broken, f)
            return (id, {}) if call.error is None and call.value else None

        return Law(test)

    return wrap


def _three(seed: int, batch: int = 2, queries: int = 4, keys: int = 5):
    return (
        normal(batch, queries, D_MODEL, seed=seed),
        normal(batch, keys, D_MODEL, seed=seed + 1),
        normal(batch, keys, D_MODEL, seed=seed + 2),
    )


_ORDER = torch.tensor([3, 0, 4, 1, 2])


@_property("mha_sentences_mixed")
def _batch(f):
    q, k, v = _three(140, batch=3)
    others = [torch.cat([x[:1], y[1:]]) for x, y in zip((q, k, v), _three(143, batch=3))]
    return _far(f(q, k, v)[:1], f(*others)[:1])


@_property("mha_mask_without_head_axis")
def _mask_of_another(f):
    q, k, v = _three(146, batch=HEADS)
    mask = padding(HEADS, 5)
    whole = f(q, k, v, mask)
    alone = torch.cat([f(q[b : b + 1], k[b : b + 1], v[b : b + 1], mask[b : b + 1]) for b in range(HEADS)])
    return _far(whole, alone)


@_property("mha_order_of_queries")
def _queries(f):
    q, k, v = _three(149, queries=5)
    return _far(f(q[:, _ORDER], k, v), f(q, k, v)[:, _ORDER])


@_property("mha_order_of_keys")
def _keys(f):
    q, k, v = _three(152)
    return _far(f(q, k[:, _ORDER], v[:, _ORDER]), f(q, k, v))


@_property("mha_leaks_future")
def _future(f):
    x = normal(2, 6, D_MODEL, seed=155)
    y = torch.cat([x[:, :3], normal(2, 3, D_MODEL, seed=156, scale=3.0)], 1)
    return _far(f(x, x, x, causal_mask(6))[:, :3], f(y, y, y, causal_mask(6))[:, :3])


@_property("mha_blind_to_past")
def _past(f):
    x = normal(2, 6, D_MODEL, seed=157)
    y = torch.cat([x[:, :1] + 3.0, x[:, 1:]], 1)
    moved = (f(x, x, x, causal_mask(6)) - f(y, y, y, causal_mask(6)))[:, 1:].abs().amax((0, 2))
    return bool(moved.min() < 1e-5)


@_property("mha_sees_padding")
def _padding(f):
    q, k, v = _three(158, batch=3)
    mask = padding(3, 5)
    hidden = ~mask.transpose(1, 2)
    return _far(f(q, k, v, mask), f(q, k.masked_fill(hidden, 5.0), v.masked_fill(hidden, -7.0), mask))


@_property("mha_open_mask_changes")
def _open(f):
    q, k, v = _three(161)
    return _far(f(q, k, v), f(q, k, v, torch.ones(1, 4, 5, dtype=torch.bool)))


@_property("mha_not_an_average")
def _average(f):
    q, k, v = _three(164)
    v = v[:, :1].expand(-1, 5, -1)
    base = f(q, k, v)
    return (
        _far(base, f(q * -2.0, k, v))
        or _far(base, base[:, :1].expand_as(base))
        or _far(base, f(q, k, v, padding(2, 5).expand(2, 4, 5)))
    )


@_property("mha_not_linear_in_values")
def _linear(f):
    q, k, v = _three(167)
    w, zero = normal(2, 5, D_MODEL, seed=170), torch.zeros(2, 5, D_MODEL)
    return _far(f(q, k, v + w) + f(q, k, zero), f(q, k, v) + f(q, k, w))


@_property("mha_input_unused")
def _used(f):
    q, k, v = _three(171)
    base = f(q, k, v)
    return any(not _far(base, f(*(x * -2.0 if i == j else x for j, x in enumerate((q, k, v))))) for i in range(3))


@_property("mha_always_causal")
def _sees_all(f):
    x = normal(1, 6, D_MODEL, seed=174)
    y = torch.cat([x[:, :5], x[:, 5:] + 3.0], 1)
    return not _far(f(x, x, x)[:, 0], f(y, y, y)[:, 0])


@_property("mha_nan")
def _finite(f):
    q, k, v = _three(175, batch=3)
    return not f(q, k, v, padding(3, 5)).isfinite().all()


PROPERTIES = (
    _finite, _sees_all, _used, _batch, _mask_of_another, _open, _future, _past, _padding, _average, _linear, _queries, _keys,
)
