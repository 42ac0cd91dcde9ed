"""The checks of weight transfers: from one spelling of the layer into another (chapters 5 and 6)."""

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from mha_lib.checks import read
from mha_lib.checks.case import Fresh, Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, one_tensor
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.inputs import normal
from mha_lib.experiments.training import seeded
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.spellings import ClonedLinears, SplitCombine, parameters_by_role

ROLES = "qkvo"

_QUERY, _KEY, _VALUE = normal(3, 4, 12, seed=151), normal(3, 6, 12, seed=152), normal(3, 6, 12, seed=153)
_SELF = normal(2, 5, 12, seed=154)


def _fresh(words: str, make: Callable[[], nn.Module]) -> Fresh:
    """Return a module that is built anew for every call, always with the same random weights."""
    return Fresh(lambda: seeded(make, 12).eval(), words)


def _course(zero: str = "") -> Fresh:
    """Return a layer of the course with all biases filled, except those of some roles."""

    def make():
        layer = MultiHeadAttention(12, 4)
        with torch.no_grad():
            for i, role in enumerate(ROLES):
                getattr(layer, f"w_{role}").bias.copy_(normal(12, seed=160 + i) * (role not in zero))
        return layer

    words = "MultiHeadAttention(12, 4)" + (f", biases of {' and '.join(zero)} 0" if zero else "")
    return Fresh(lambda: seeded(make, 11).eval(), words)


def _torch(zero_bias: bool) -> Fresh:
    def make():
        layer = nn.MultiheadAttention(12, 4, batch_first=True)
        with torch.no_grad():
            if not zero_bias:
                layer.in_proj_bias.copy_(normal(36, seed=121))
                layer.out_proj.bias.copy_(normal(12, seed=122))
        return layer

    return Fresh(lambda: seeded(make, 5).eval(), "nn.MultiheadAttention(12, 4, batch_first=True)")


def copies(
    order: str = ROLES,
    *,
    weights: str = ROLES,
    biases: str = ROLES,
    bias_order: str = "",
    zeroed: str = "",
    turn: str = "",
    cut: Callable | None = None,
    blend: Callable = lambda own, given: given,
    blended: str = ROLES,
) -> Callable:
    """Return a transfer: which role each place gets, what is copied at all, which biases become 0, how q, k, v are cut.

    turn: the places whose weights are turned over.
    blend: what the numbers of a place become, from its own and those given, in the places blended.
    """

    def load(target, source):
        given, taken = parameters_by_role(source), parameters_by_role(target)
        if cut is not None:
            stacks = [cut(torch.cat([given[role][i] for role in "qkv"])) for i in (0, 1)]
            given = given | {role: (w, b) for role, w, b in zip("qkv", *stacks)}
        with torch.no_grad():
            for place, role, other in zip(ROLES, order, bias_order or order):
                if place in weights:
                    weight = given[role][0].T if place in turn else given[role][0]
                    taken[place][0].copy_(blend(taken[place][0], weight) if place in blended else weight)
                if taken[place][1] is not None and place in zeroed:
                    taken[place][1].zero_()
                elif taken[place][1] is not None and place in biases and given[other][1] is not None:
                    bias = given[other][1]
                    taken[place][1].copy_(blend(taken[place][1], bias) if place in blended else bias)

    return load


def load_and_run(function, target, source, query, key, value):
    before = [p.detach().clone() for p in source.parameters()]
    function(target, source)
    if not all(p.shape == b.shape and torch.equal(p, b) for p, b in zip(source.parameters(), before)):
        raise Unfit(
            "source_changed",
            "Your transfer writes into the layer it should only read: the copy went the other way, or both ways.",
        )
    return target.eval()(query, key, value)


def _apart_and_run(function, target, source, query, key, value):
    output = load_and_run(function, target, source, query, key, value)
    own = {id(m) for m in source.modules()}
    if any(id(m) in own for m in target.modules()):
        raise Unfit(
            "modules_shared",
            "One and the same linear is now part of both layers: training one would change the other. Asked for is a "
            "copy.",
        )
    return output


def _transfer(name: str, signature: str, pairs: dict[str, tuple[Fresh, Fresh]], apply=load_and_run, **rest) -> Exercise:
    """Return the check of a function of (target, source), judged by the output of the target afterwards."""
    target, source = signature.split()
    inputs = {"self-attention": (_SELF,) * 3}
    return Exercise(
        name,
        signature=f"{signature} query key value",
        expects=f"nothing to return: afterwards {target}(query, key, value) must give "
        f"what {source}(query, key, value) gives.",
        reference=copies(),
        parts=one_tensor(f"output of {target}"),
        apply=apply,
        probes=[Probe(label, (*pair, *inputs.get(label, (_QUERY, _KEY, _VALUE)))) for label, pair in pairs.items()],
        **rest,
    )


_SOME = ["".join(s) for n in (1, 2, 3) for s in itertools.combinations(ROLES, n) if not set("qkv") <= set(s)]

BIASES_ELSEWHERE = Mistake(
    "copy_biases_elsewhere",
    "The weights stand in the right places, their biases do not.",
    *(
        copies(bias_order="".join(order) + "o")
        for order in itertools.product("qkv", repeat=3)
        if (order[0], order[2]) != ("q", "v")  # the bias of the keys shows nowhere
    ),
)
COMMON = (
    Mistake(
        "copy_transposed",
        "Your weights are turned over. Both sides store them as (out, in).",
        *(copies(turn=places) for places in (ROLES, "qkv", "o")),
    ),
    Mistake(
        "copy_nothing",
        "The target has its own weights still: nothing was copied into it.",
        lambda target, source: None,
    ),
    Mistake(
        "copy_one_for_all",
        "All linears got the same weights.",
        *(copies(role * 3 + last) for role in ROLES for last in {role, "o"}),
    ),
    Mistake(
        "copy_half",
        "Some of the linears were copied, others keep their random weights.",
        *(copies(weights=some, biases=some) for some in _SOME),
    ),
    BIASES_ELSEWHERE,
    Mistake(
        "copy_added",
        "The target's own random numbers still take part: you add to them, or average. They must be replaced.",
        *(
            copies(blend=blend, blended=blended)
            for blend in (torch.add, lambda own, given: (own + given) / 2)
            for blended in (ROLES, "qkv", "o")
        ),
    ),
    Mistake(
        "copy_grad_mode",
        "A parameter is written to while autograd watches. Copying is no part of a computation.",
        Sign(lambda trials: all("leaf Variable that requires grad" in str(t.seen.error) for t in trials)),
    ),
)
ORDERS = ["".join(o) for o in itertools.permutations(ROLES) if "".join(o) != ROLES]


def _by_head(stacked):
    rest = stacked.shape[1:]
    return [t.reshape(-1, *rest) for t in stacked.reshape(4, 3, -1, *rest).unbind(1)]


_OWN = _fresh("MultiHeadAttention(12, 4)", lambda: MultiHeadAttention(12, 4))

load_torch_weights = _transfer(
    "load_torch_weights",
    "mine torch_mha",
    {
        "cross-attention": (_OWN, _torch(False)),
        "self-attention": (_OWN, _torch(False)),
        "biases that are 0": (_OWN, _torch(True)),
    },
    read=read.TORCH,
    mistakes=[
        Mistake(
            "par_per_head_qkv_layout",
            "You read in_proj_weight head by head. PyTorch stacks all of q, then all of k, then all of v.",
            copies(cut=_by_head),
            copies(cut=lambda stacked: [stacked[i::3] for i in range(3)]),
        ),
        Mistake(
            "par_order_kqv",
            "The three parts of in_proj_weight are not in the order you read them in.",
            *(copies(order) for order in ORDERS if order[3] == "o"),
        ),
        Mistake(
            "par_out_proj_forgotten",
            "The last linear keeps its random weights: the weight of out_proj was not copied.",
            *(copies(weights=w, biases=b) for w, b in (("qkv", "qkv"), ("qkv", ROLES))),
        ),
        Mistake(
            "par_out_bias_forgotten",
            "The bias of the last linear is not that of out_proj. Its weight was copied, its bias was not.",
            copies(biases="qkv"),
            copies(biases="qkv", zeroed="o"),
        ),
        Mistake(
            "par_split_by_count",
            "Your pieces have 3 rows each. split takes the size of a piece, and chunk how many pieces there are.",
            copies(cut=lambda stacked: stacked.split(3)[:3]),
        ),
        Mistake(
            "par_cut_along_inputs",
            "You cut in_proj_weight along its inputs. The three weights stand below each other: cut its rows.",
            copies(cut=lambda stacked: stacked.chunk(3, -1)),
        ),
        Mistake(
            "par_slices_overlap",
            "Your slices begin one row after the other. Each begins where the one before ends.",
            copies(cut=lambda stacked: [stacked[i : i + 12] for i in range(3)]),
        ),
        Mistake(
            "par_bias_forgotten",
            "The weights are right, the biases are not PyTorch's. Its biases start at 0, which hides a forgotten one.",
            copies(zeroed=ROLES),
            copies(zeroed="qkv"),
            *(copies(biases=some) for some in ("", "o", "kvo", "qko", "vo")),
        ),
        *COMMON,
    ],
)

_CLONED = _fresh("ClonedLinears(4, 12)", lambda: ClonedLinears(4, 12))

load_cloned = _transfer(
    "load_cloned",
    "cloned layer",
    {"cross-attention": (_CLONED, _course()), "self-attention": (_CLONED, _course())},
    apply=_apart_and_run,
    read=read.FOUR,
    mistakes=[
        Mistake(
            "cloned_last_forgotten",
            "The last linear of the list keeps its random weights. It is W_O, used apart from the other three.",
            *(copies(weights=w, biases=b) for w, b in (("qkv", "qkv"), ("qkv", ROLES), (ROLES, "qkv"))),
        ),
        Mistake(
            "cloned_wrong_order",
            "The linears of the list do not stand in the order you filled them in.",
            *(copies(order) for order in ORDERS),
        ),
        Mistake(
            "cloned_biases_forgotten",
            "The weights are right, the biases are not those of the layer.",
            copies(biases=""),
            copies(biases="o"),
        ),
        *COMMON,
    ],
)


def _key_bias_in_output(target, layer):
    copies()(target, layer)
    target.W_o.bias.data.add_(layer.w_k.bias.data)


def _key_bias_in_weight(target, layer, axis=0):
    copies()(target, layer)
    target.W_k.weight.data.add_(layer.w_k.bias.data.unsqueeze(axis))


def _key_bias_in(target, layer, name, axis):
    copies()(target, layer)
    getattr(target, name).weight.data.add_(layer.w_k.bias.data.unsqueeze(axis))


def _key_bias_through(target, layer, role):
    """Add to the last bias what a weight makes of the bias of the keys."""
    copies()(target, layer)
    target.W_o.bias.data.add_(getattr(layer, f"w_{role}").weight.data @ layer.w_k.bias.data)


_UNBIASED = _fresh("SplitCombine(12, 4)", lambda: SplitCombine(12, 4))

load_without_bias = _transfer(
    "load_without_bias",
    "target layer",
    {"cross-attention": (_UNBIASED, _course("qv")), "self-attention": (_UNBIASED, _course("qv"))},
    read=read.KEY,
    mistakes=[
        Mistake(
            "bias_has_no_place",
            "The first three linears of this spelling have no bias to copy into: it is None.",
            Sign(
                lambda trials: all(
                    isinstance(t.seen.error, (AttributeError, TypeError)) and "None" in str(t.seen.error)
                    for t in trials
                )
            ),
        ),
        Mistake(
            "bias_folded_elsewhere",
            "You put the bias of the keys somewhere else. It has no effect on the output, so it needs no place.",
            _key_bias_in_output,
            _key_bias_in_weight,
            lambda target, layer: _key_bias_in_weight(target, layer, 1),
            *(partial(_key_bias_in, name=name, axis=axis) for name in ("W_q", "W_v") for axis in (0, 1)),
            *(partial(_key_bias_through, role=role) for role in ROLES),
        ),
        Mistake(
            "output_bias_forgotten",
            "The bias of the last linear is not that of the layer. This one has a place, and an effect.",
            copies(biases=""),
            copies(zeroed="o"),
            read=read.STEPS,
        ),
        Mistake(
            "output_forgotten",
            "The last linear keeps its random weights.",
            copies(weights="qkv", biases=""),
            copies(weights="qkv"),
            read=read.STEPS,
        ),
        Mistake(
            "weights_in_wrong_places",
            "The weights do not stand in the places of their roles.",
            *(copies(order) for order in ORDERS),
            read=read.STEPS,
        ),
        *(mistake.at(read.STEPS) for mistake in COMMON if mistake is not BIASES_ELSEWHERE),
    ],
)
