"""The checks of other spellings (chapters 5 and 6): calling PyTorch's layer, telling spellings apart, their masks."""

from functools import partial

import torch
from torch import Tensor, nn

from mha_lib.checks import read
from mha_lib.checks.case import Fresh, Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, a, one_tensor, output_and_weights, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.inputs import normal, padding
from mha_lib.experiments.training import seeded
from mha_lib.masks import causal_mask, to_torch_mask
from mha_lib.spellings import BertStyle, ClonedLinears, SplitCombine

_CAUSAL = causal_mask(5).expand(3, 5, 5)


def _with_dropout(dropout=0.0):
    layer = seeded(lambda: nn.MultiheadAttention(12, 4, dropout=dropout, batch_first=True), 3)
    with torch.no_grad():
        layer.in_proj_bias.copy_(normal(36, seed=71))
        layer.out_proj.bias.copy_(normal(12, seed=72))
    return layer


def _layer(dropout=0.0):
    words = "nn.MultiheadAttention(12, 4, batch_first=True" + (f", dropout={dropout})" if dropout else ")")
    return Fresh(partial(_with_dropout, dropout), words)


def _call_with(blocked, train=False, average=False, **options):
    """Return a call of the layer whose attn_mask is blocked(allowed (B, T_q, T_k), heads)."""

    def call(layer, query, key, value, mask):
        layer.train(train)
        attn_mask = None
        if mask is not None:
            attn_mask = blocked(mask.bool().expand(query.size(0), query.size(1), key.size(1)), layer.num_heads)
        given = {"attn_mask": attn_mask, "need_weights": True, "average_attn_weights": average} | options
        return layer(query, key, value, **given)

    return call


def _per_head(m, h):
    return (~m).repeat_interleave(h, 0)


def _blocked(layer, query, key, mask):
    return None if mask is None else to_torch_mask(mask, query, key, layer.num_heads)


def _tokens_first(layer, query, key, value, mask):
    turned = (x.transpose(0, 1) for x in (query, key, value))
    output, weights = layer.eval()(*turned, attn_mask=_blocked(layer, query, key, mask), average_attn_weights=False)
    return output.transpose(0, 1), weights


def _reference_call(layer, query, key, value, mask):
    layer.eval()
    return layer(query, key, value, attn_mask=_blocked(layer, query, key, mask), average_attn_weights=False)


def _call_inputs(batch, query_len, key_len, self_attention=False):
    query = normal(batch, query_len, 12, seed=73)
    if self_attention:
        return query, query, query
    return query, normal(batch, key_len, 12, seed=74), normal(batch, key_len, 12, seed=75)


def _only_dropout_disagrees(trials):
    wrong = [t for t in trials if t.probe.judged and not t.agrees]
    return bool(wrong) and all("dropout" in str(t.probe.args[0]) for t in wrong)


call_torch = Exercise(
    "call_torch",
    signature="torch_mha query key value mask",
    expects="a pair (output, weights): output (B, T_q, d_model) and weights (B, h, T_q, T_k), one table for each head.",
    reference=_reference_call,
    parts=output_and_weights,
    read=read.TORCH,
    probes=[
        Probe("no mask", (_layer(), *_call_inputs(3, 4, 6), None)),
        Probe("a padding mask", (_layer(), *_call_inputs(3, 4, 6), padding(3, 6))),
        Probe("a causal mask", (_layer(), *_call_inputs(3, 5, 5, True), _CAUSAL)),
        Probe("as many sentences as heads", (_layer(), *_call_inputs(4, 4, 6), padding(4, 6))),
        Probe("a layer with dropout", (_layer(0.5), *_call_inputs(3, 4, 6), padding(3, 6))),
        Probe("a mask that blocks nothing", (_layer(), *_call_inputs(3, 4, 6), torch.ones(3, 4, 6, dtype=torch.bool))),
    ],
    mistakes=[
        Mistake(
            "par_mask_not_inverted",
            "The mask goes in as it is. In this layer True means blocked, the opposite of the course.",
            _call_with(lambda m, h: m.repeat_interleave(h, 0)),
            _call_with(lambda m, h: m.float().repeat_interleave(h, 0) * -1e9),
            _call_with(lambda m, h: torch.zeros(m.shape).masked_fill(m, -torch.inf).repeat_interleave(h, 0)),
        ),
        Mistake(
            "par_float_mask_added",
            "Your mask arrives as the numbers 0 and 1. The layer adds numbers to the scores: nothing is blocked.",
            _call_with(lambda m, h: (~m).float().repeat_interleave(h, 0)),
            _call_with(lambda m, h: m.float().repeat_interleave(h, 0)),
        ),
        Mistake(
            "par_mask_batch_only",
            "Your mask has one table for each sentence. The layer wants one for each sentence and head.",
            _call_with(lambda m, h: ~m),
            _call_with(lambda m, h: m),
        ),
        Mistake(
            "par_mask_axes",
            "Your mask has a number of axes that this layer does not take. It wants three, with sentences and heads "
            "in one axis. (Without an axis to work on, repeat_interleave flattens first.)",
            _call_with(lambda m, h: (~m).unsqueeze(1)),
            _call_with(lambda m, h: (~m).repeat_interleave(h)),
        ),
        Mistake(
            "par_mask_repeat_order",
            "The copies stand in the wrong order: all sentences for head 0, then for head 1. "
            "The layer wants all heads of sentence 0 first.",
            _call_with(lambda m, h: (~m).repeat(h, 1, 1)),
        ),
        Mistake(
            "par_train_mode",
            "The layer is in training mode: its dropout is at work, and the same call gives other numbers each time.",
            _call_with(_per_head, train=True),
            Sign(_only_dropout_disagrees),
        ),
        Mistake(
            "par_weights_averaged",
            "Your weights are the mean over the heads, or their sum. Asked for is one table for each head.",
            _call_with(_per_head, average=True),
            lambda *given: ((right := _reference_call(*given))[0], right[1].sum(1)),
        ),
        Mistake(
            "par_no_weights", "The layer was told not to return its weights.", _call_with(_per_head, need_weights=False)
        ),
        Mistake(
            "par_mask_ignored", "The mask changes nothing: it does not reach the layer.", _call_with(lambda m, h: None)
        ),
        Mistake(
            "par_first_sentence_only", "The mask of the first sentence is used for all.", _call_with(lambda m, h: ~m[0])
        ),
        Mistake(
            "par_first_query_only",
            "What the first query may see is used for all queries of its sentence.",
            _call_with(lambda m, h: _per_head(m[:, :1].expand_as(m), h)),
        ),
        Mistake(
            "par_mask_as_padding",
            "Your mask arrives as key_padding_mask, the fourth argument, which takes one row for each sentence. Name "
            "attn_mask.",
            lambda layer, q, k, v, m: layer.eval()(q, k, v, _blocked(layer, q, k, m), average_attn_weights=False),
        ),
        Mistake(
            "par_mask_repeated_along_queries",
            "You copy the rows of your mask along the queries. The copies for the heads stand on axis 0, with the "
            "sentences.",
            _call_with(lambda m, h: (~m).repeat_interleave(h, 1)),
        ),
        Mistake(
            "par_mask_copies_by_width",
            "You make as many copies as a head has features. One for each head is wanted.",
            _call_with(lambda m, h: (~m).repeat_interleave(12 // h, 0)),
        ),
        Mistake(
            "par_tokens_first",
            "You turn sentences and tokens around. This layer was made with the sentences first.",
            _tokens_first,
        ),
        Mistake(
            "par_is_causal",
            "The layer blocks the future whatever your mask says.",
            _call_with(lambda m, h: torch.ones(m.shape[1:], dtype=torch.bool).triu(1)),
        ),
        Mistake(
            "par_inputs_mixed_up",
            "Query, key and value do not arrive in their places.",
            lambda l, q, k, v, m: _reference_call(l, q, v, k, m),
            lambda l, q, k, v, m: _reference_call(l, q, k, k, m),
            lambda l, q, k, v, m: _reference_call(l, q, v, v, m),
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
    if not isinstance(value, str) or value not in SPELLINGS:
        raise Unfit(
            "not_a_spelling",
            f"You returned {repr(value)[:60] if isinstance(value, str) else a(value)}; asked for is one of "
            f"{', '.join(map(repr, SPELLINGS))}.",
        )
    return {"word": torch.tensor(float(list(SPELLINGS).index(value)))}


def _new(make):
    return lambda: seeded(make, 12).eval()


def _disguised(make):
    """Return a layer of a class that does not tell by its name."""
    layer = make()
    layer.__class__ = type("Layer", (type(layer),), {})
    return layer


def _two_for_each_other(trials) -> bool:
    wrong = [t for t in trials if not t.agrees and RENAMED not in t.probe.label]
    return 1 <= len(wrong) <= 2 and all(t.seen.error is None for t in wrong)


which_spelling = Exercise(
    "which_spelling",
    signature="layer",
    expects=f"one of the words {', '.join(map(repr, SPELLINGS))}.",
    reference=lambda layer: next(name for name, make in SPELLINGS.items() if isinstance(layer, type(make()))),
    parts=_word,
    show=lambda place: repr(list(SPELLINGS)[int(place)]),
    read=read.DIFFERS,
    probes=[Probe(name, (Fresh(_new(make), f"a layer of the spelling {name!r}"),)) for name, make in SPELLINGS.items()]
    + [
        Probe(
            f"{name} {RENAMED}",
            (Fresh(lambda make=make: _disguised(_new(make)), f"a layer of the spelling {name!r}, its class renamed"),),
        )
        for name, make in SPELLINGS.items()
    ],
    mistakes=[
        Mistake("always_the_same", "You give one answer for every layer.", *(lambda layer, n=n: n for n in SPELLINGS)),
        Mistake(
            "by_class_name",
            "You go by the name of the class. Look at what the layer is made of: its parts and their names.",
            Sign(lambda trials: all(t.agrees or RENAMED in t.probe.label for t in trials)),
        ),
        Mistake(
            "two_mixed_up",
            "Two of the spellings are taken for each other.",
            Sign(_two_for_each_other),
        ),
    ],
)


def _mask_for(spelling, mask, num_heads):
    if spelling == "cloned":
        return mask
    if spelling == "split_combine":
        return mask.unsqueeze(1)
    return _for_torch(mask, num_heads)


def _for_torch(mask, num_heads):
    return (~mask).repeat_interleave(num_heads, dim=0)


def _changed(**other):
    """Return a translation in which some spellings are translated otherwise."""
    return lambda spelling, mask, num_heads: other.get(spelling, lambda m, h: _mask_for(spelling, m, h))(
        mask, num_heads
    )


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
    read=read.DIFFERS,
    probes=[Probe(spelling, (spelling, _MASK, 3)) for spelling in ("cloned", "split_combine", "torch")]
    + [Probe("as many sentences as heads", ("torch", _MASK, 2))],
    mistakes=[
        Mistake(
            "torch_for_all",
            "What PyTorch's layer takes is returned for another spelling as well. Does an else belong to the last if "
            "alone?",
            _changed(cloned=_for_torch),
            _changed(split_combine=_for_torch),
            _changed(cloned=_for_torch, split_combine=_for_torch),
        ),
        Mistake(
            "torch_flattened",
            "Without an axis to work on, repeat_interleave flattens the mask first.",
            _changed(torch=lambda m, h: (~m).repeat_interleave(h)),
            _changed(torch=lambda m, h: m.repeat_interleave(h)),
        ),
        Mistake(
            "torch_copies_along_queries",
            "The copies for the heads stand along the queries. They belong on axis 0, with the sentences.",
            _changed(torch=lambda m, h: (~m).repeat_interleave(h, 1)),
            _changed(torch=lambda m, h: (~m).repeat(1, h, 1)),
        ),
        Mistake(
            "torch_not_folded",
            "Your heads have an axis of their own. PyTorch's layer wants sentences and heads in one.",
            _changed(torch=lambda m, h: (~m).unsqueeze(1).repeat(1, h, 1, 1)),
            _changed(torch=lambda m, h: (~m).repeat(h, 1, 1, 1)),
        ),
        Mistake(
            "cloned_repeated",
            "Only PyTorch's layer wants copies for the heads.",
            _changed(cloned=lambda m, h: m.repeat_interleave(h, 0)),
            _changed(cloned=lambda m, h: m.unsqueeze(1).repeat(1, h, 1, 1)),
            _changed(split_combine=lambda m, h: m.unsqueeze(1).repeat(1, h, 1, 1)),
            _changed(split_combine=lambda m, h: m.repeat_interleave(h, 0)),
        ),
        Mistake(
            "split_combine_axis_elsewhere",
            "The axis of the heads stands in another place. It comes right behind the sentences.",
            _changed(split_combine=lambda m, h: m.unsqueeze(2)),
            _changed(split_combine=lambda m, h: m.unsqueeze(-1)),
        ),
        Mistake(
            "torch_not_inverted",
            "In PyTorch's layer True means blocked. Yours says may attend.",
            _changed(torch=lambda m, h: m.repeat_interleave(h, 0)),
        ),
        Mistake(
            "torch_repeat_order",
            "The copies for the heads stand in the wrong order: all heads of sentence 0 come first.",
            _changed(torch=lambda m, h: (~m).repeat(h, 1, 1)),
            _changed(torch=lambda m, h: m.repeat(h, 1, 1)),
        ),
        Mistake(
            "torch_without_heads",
            "PyTorch's layer wants one table for each sentence and head.",
            _changed(torch=lambda m, h: ~m),
            _changed(torch=lambda m, h: m),
            _changed(torch=lambda m, h: (~m).unsqueeze(1)),
        ),
        Mistake(
            "cloned_head_axis_twice",
            "This spelling puts in the head axis itself. With yours there are two.",
            _changed(cloned=lambda m, h: m.unsqueeze(1)),
        ),
        Mistake(
            "split_combine_without_head_axis",
            "This spelling takes the mask as it is, so the head axis must be there.",
            _changed(split_combine=lambda m, h: m),
            _changed(split_combine=lambda m, h: m.unsqueeze(0)),
        ),
        Mistake(
            "others_inverted",
            "Only PyTorch's layer turns the meaning around.",
            _changed(cloned=lambda m, h: ~m),
            _changed(split_combine=lambda m, h: (~m).unsqueeze(1)),
            _changed(cloned=lambda m, h: ~m, split_combine=lambda m, h: (~m).unsqueeze(1)),
        ),
        Mistake(
            "mask_untouched",
            "You give the mask back as it came, for every spelling.",
            lambda spelling, mask, num_heads: mask,
        ),
    ],
)
