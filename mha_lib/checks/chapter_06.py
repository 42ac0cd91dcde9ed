"""The checks of chapter 6."""

import torch
from torch import Tensor, nn

from mha_lib.checks.engine import Exercise, Fresh, Mistake, Probe, Unfit, one_tensor, refuse_none
from mha_lib.checks.inputs import normal
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.spellings import ROLES, BertStyle, ClonedLinears, SplitCombine, parameters_by_role
from mha_lib.experiments.training import seeded

FOUR = "notebook 06, “One list of four”"
STEPS = "notebook 06, “A method for each step”"
KEY = "notebook 06, “The key bias does nothing”"
MASKS = "notebook 06, “What differs”"

_INPUTS = (normal(3, 4, 12, seed=151), normal(3, 6, 12, seed=152), normal(3, 6, 12, seed=153))


def _course(zero: str = "") -> MultiHeadAttention:
    """Return a layer of the course with all biases filled, except those of some roles."""
    layer = seeded(lambda: MultiHeadAttention(12, 4), 11)
    with torch.no_grad():
        for i, role in enumerate(ROLES):
            getattr(layer, f"w_{role}").bias.copy_(normal(12, seed=160 + i) * (role not in zero))
    return layer.eval()


def _new(make):
    return lambda: seeded(make, 12).eval()


def _load_and_run(function, target, layer, query, key, value):
    function(target, layer)
    return target.eval()(query, key, value)


def _copies(order=ROLES, *, weights=ROLES, biases=ROLES, turn=False):
    """Return a transfer from the course's layer: the role that each place gets, and what is copied at all."""

    def load(target, layer):
        given, taken = parameters_by_role(layer), parameters_by_role(target)
        with torch.no_grad():
            for place, role in zip(ROLES, order):
                if place in weights:
                    taken[place][0].copy_(given[role][0].T if turn else given[role][0])
                if place in biases and taken[place][1] is not None:
                    taken[place][1].copy_(given[role][1])

    return load


load_cloned = Exercise(
    "load_cloned",
    signature="cloned layer query key value",
    expects="nothing to return: afterwards cloned(query, key, value) must equal layer(query, key, value).",
    reference=_copies(),
    parts=one_tensor("output of cloned"),
    read=FOUR,
    apply=_load_and_run,
    probes=[
        Probe(label, (Fresh(_new(lambda: ClonedLinears(4, 12)), "ClonedLinears(4, 12)"), Fresh(_course, "MultiHeadAttention(12, 4)"), *inputs))
        for label, inputs in (("cross-attention", _INPUTS), ("self-attention", (normal(2, 5, 12, seed=154),) * 3))
    ],
    mistakes=[
        Mistake(
            "cloned_last_forgotten",
            "The last linear of the list keeps its random weights. It is W_O, used apart from the other three.",
            FOUR,
            (_copies(weights="qkv", biases="qkv"), _copies(weights="qkv"), _copies(biases="qkv")),
        ),
        Mistake(
            "cloned_wrong_order",
            "The linears of the list do not stand in the order you filled them in.",
            FOUR,
            tuple(_copies(order) for order in ("kqvo", "oqkv", "qvko", "vkqo", "okvq", "vqko", "kvqo")),
        ),
        Mistake(
            "cloned_biases_forgotten",
            "The weights are right, the biases are not those of the layer.",
            FOUR,
            (_copies(biases=""), _copies(biases="o")),
        ),
        Mistake("cloned_transposed", "Your weights are turned over. Both sides store them as (out, in).", FOUR, (_copies(turn=True),)),
        Mistake(
            "cloned_nothing",
            "The list has its own weights still: nothing was copied into it, or the copy went the other way.",
            FOUR,
            (lambda target, layer: None,),
        ),
        Mistake(
            "cloned_one_for_all",
            "All linears of the list got the same weights.",
            FOUR,
            tuple(_copies(role * 4) for role in ROLES),
        ),
        Mistake(
            "cloned_grad_mode",
            "A parameter is written to while autograd watches. Copying is no part of a computation.",
            FOUR,
            sign=lambda trials: all("leaf Variable that requires grad" in str(t.seen.error) for t in trials),
        ),
    ],
)

load_without_bias = Exercise(
    "load_without_bias",
    signature="target layer query key value",
    expects="nothing to return: afterwards target(query, key, value) must equal layer(query, key, value).",
    reference=_copies(),
    parts=one_tensor("output of target"),
    read=KEY,
    apply=_load_and_run,
    probes=[
        Probe(label, (Fresh(_new(lambda: SplitCombine(12, 4)), "SplitCombine(12, 4)"), Fresh(lambda: _course("qv"), "MultiHeadAttention(12, 4), biases of q and v 0"), *inputs))
        for label, inputs in (("cross-attention", _INPUTS), ("self-attention", (normal(2, 5, 12, seed=155),) * 3))
    ],
    mistakes=[
        Mistake(
            "bias_has_no_place",
            "The first three linears of this spelling have no bias to copy into: it is None.",
            KEY,
            sign=lambda trials: all(isinstance(t.seen.error, (AttributeError, TypeError)) and "None" in str(t.seen.error) for t in trials),
        ),
        Mistake(
            "bias_folded_into_o",
            "You put the bias of the keys somewhere else. It has no effect on the output, so it needs no place.",
            KEY,
            (lambda target, layer: (_copies()(target, layer), target.W_o.bias.data.add_(layer.w_k.bias.data)),),
        ),
        Mistake(
            "output_bias_forgotten",
            "The bias of the last linear is not that of the layer. This one has a place, and an effect.",
            STEPS,
            (_copies(biases=""), lambda target, layer: (_copies()(target, layer), target.W_o.bias.data.zero_())),
        ),
        Mistake(
            "output_forgotten",
            "The last linear keeps its random weights.",
            STEPS,
            (_copies(weights="qkv", biases=""), _copies(weights="qkv")),
        ),
        Mistake(
            "weights_in_wrong_places",
            "The weights do not stand in the places of their roles.",
            STEPS,
            tuple(_copies(order) for order in ("kqvo", "qvko", "vkqo", "oqkv", "vqko", "kvqo")),
        ),
        Mistake("weights_transposed", "Your weights are turned over. Both sides store them as (out, in).", STEPS, (_copies(turn=True),)),
        Mistake("nothing_copied", "Nothing was copied: the target has its own weights still.", STEPS, (lambda target, layer: None,)),
        Mistake(
            "copy_in_grad_mode",
            "A parameter is written to while autograd watches. Copying is no part of a computation.",
            STEPS,
            sign=lambda trials: all("leaf Variable that requires grad" in str(t.seen.error) for t in trials),
        ),
    ],
)

SPELLINGS = {
    "cloned": lambda: ClonedLinears(4, 12),
    "split_combine": lambda: SplitCombine(12, 4),
    "bert": lambda: BertStyle(12, 4),
    "torch": lambda: nn.MultiheadAttention(12, 4, batch_first=True),
}

RENAMED = "under another name"


def _word(value: object) -> dict[str, Tensor]:
    refuse_none(value)
    if value not in SPELLINGS:
        raise Unfit("not_a_spelling", f"You returned {value!r}; asked for is one of {', '.join(map(repr, SPELLINGS))}.")
    return {"place in the list": torch.tensor(float(list(SPELLINGS).index(value)))}


def _disguised(make):
    """Return a layer of a class that does not tell by its name."""
    layer = make()
    layer.__class__ = type("Layer", (type(layer),), {})
    return layer


which_spelling = Exercise(
    "which_spelling",
    signature="layer",
    expects=f"one of the words {', '.join(map(repr, SPELLINGS))}.",
    reference=lambda layer: next(name for name, make in SPELLINGS.items() if isinstance(layer, type(make()))),
    parts=_word,
    read=MASKS,
    probes=[
        Probe(name, (Fresh(_new(make), f"a layer of the spelling {name!r}"),)) for name, make in SPELLINGS.items()
    ]
    + [
        Probe(f"{name} {RENAMED}", (Fresh(lambda make=make: _disguised(_new(make)), f"a layer of the spelling {name!r}, its class renamed"),))
        for name, make in SPELLINGS.items()
    ],
    mistakes=[
        Mistake(
            "always_the_same",
            "You give one answer for every layer.",
            MASKS,
            tuple(lambda layer, n=n: n for n in SPELLINGS),
        ),
        Mistake(
            "by_class_name",
            "You go by the name of the class. Look at what the layer is made of: its parts and their names.",
            MASKS,
            sign=lambda trials: all(t.agrees != (RENAMED in t.probe.label) for t in trials),
        ),
        Mistake(
            "two_mixed_up",
            "Two of the spellings are taken for each other.",
            MASKS,
            sign=lambda trials: 1 <= sum(not t.agrees for t in trials if RENAMED not in t.probe.label) <= 2,
        ),
    ],
)


def _mask_for(spelling, mask, num_heads):
    if spelling == "cloned":
        return mask
    if spelling == "split_combine":
        return mask.unsqueeze(1)
    return (~mask).repeat_interleave(num_heads, dim=0)


def _changed(**other):
    """Return a translation in which some spellings are translated otherwise."""
    return lambda spelling, mask, num_heads: other.get(spelling, lambda m, h: _mask_for(spelling, m, h))(mask, num_heads)


def _mask_values(value: object) -> dict[str, Tensor]:
    if isinstance(value, Tensor) and value.is_floating_point():
        raise Unfit("mask_not_bool", f"Your mask holds {value.dtype}. Asked for is True and False.")
    return {name: (tensor != 0).double() for name, tensor in one_tensor("mask")(value).items()}


_MASK = torch.tensor(
    [[[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]], [[1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]]], dtype=torch.bool
)

mask_for = Exercise(
    "mask_for",
    signature="spelling mask num_heads",
    expects="the mask as that spelling takes it: 'cloned' (B, T_q, T_k), 'split_combine' (B, 1, T_q, T_k), "
    "'torch' (B * h, T_q, T_k) with True = blocked.",
    reference=_mask_for,
    parts=_mask_values,
    read=MASKS,
    probes=[Probe(spelling, (spelling, _MASK, 3)) for spelling in ("cloned", "split_combine", "torch")]
    + [Probe("as many sentences as heads", ("torch", _MASK, 2))],
    mistakes=[
        Mistake(
            "torch_not_inverted",
            "In PyTorch's layer True means blocked. Yours says may attend.",
            MASKS,
            (_changed(torch=lambda m, h: m.repeat_interleave(h, 0)),),
        ),
        Mistake(
            "torch_repeat_order",
            "The copies for the heads stand in the wrong order: all heads of sentence 0 come first.",
            MASKS,
            (_changed(torch=lambda m, h: (~m).repeat(h, 1, 1)), _changed(torch=lambda m, h: m.repeat(h, 1, 1))),
        ),
        Mistake(
            "torch_without_heads",
            "PyTorch's layer wants one table for each sentence and head.",
            MASKS,
            (_changed(torch=lambda m, h: ~m), _changed(torch=lambda m, h: m), _changed(torch=lambda m, h: (~m).unsqueeze(1))),
        ),
        Mistake(
            "cloned_head_axis_twice",
            "This spelling puts in the head axis itself. With yours there are two.",
            MASKS,
            (_changed(cloned=lambda m, h: m.unsqueeze(1)),),
        ),
        Mistake(
            "split_combine_without_head_axis",
            "This spelling takes the mask as it is, so the head axis must be there.",
            MASKS,
            (_changed(split_combine=lambda m, h: m), _changed(split_combine=lambda m, h: m.unsqueeze(0))),
        ),
        Mistake(
            "others_inverted",
            "Only PyTorch's layer turns the meaning around.",
            MASKS,
            (
                _changed(cloned=lambda m, h: ~m),
                _changed(split_combine=lambda m, h: (~m).unsqueeze(1)),
                _changed(cloned=lambda m, h: ~m, split_combine=lambda m, h: (~m).unsqueeze(1)),
            ),
        ),
        Mistake(
            "mask_untouched",
            "You give the mask back as it came, for every spelling.",
            MASKS,
            (lambda spelling, mask, num_heads: mask,),
        ),
    ],
)
