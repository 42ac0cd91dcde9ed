"""The checks of chapter 14: a real model's weights, attention, heads and vectors. The model is loaded when a check needs it."""

import copy
import functools
import importlib.util
from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib import real_model
from mha_lib.attention import attention
from mha_lib.checks import read
from mha_lib.checks.case import Fresh, Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, as_tensor, one_tensor, output_and_weights, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.exercises.transfers import COMMON, ORDERS, ROLES, copies, load_and_run
from mha_lib.checks.inputs import normal
from mha_lib.checks.result import NOT_ATTEMPTED, Result
from mha_lib.experiments.training import seeded
from mha_lib.multi_head import MultiHeadAttention


class RealExercise(Exercise):
    """An exercise that needs the real model: without it the check says how to get it."""

    def judge(self, answer: object) -> Result:
        missing = _missing()
        return Result(self.name, NOT_ATTEMPTED, f"This check needs the real model. {missing}") if missing else super().judge(answer)


def _missing() -> str:
    if importlib.util.find_spec("transformers") is None:
        return "The library transformers is not installed: run make env."
    try:
        real_model.folder()
    except real_model.ModelMissing as missing:
        return str(missing)
    return ""


@functools.cache
def _loaded() -> tuple:
    return real_model.load()


def _batch(*sentences: str):
    return _loaded()[1](list(sentences), padding=True, return_tensors="pt")


@functools.cache
def _small_bert():
    from transformers import BertConfig, BertModel

    def make():
        sizes = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32}
        model = BertModel(BertConfig(**sizes, max_position_embeddings=16, attn_implementation="eager"))
        with torch.no_grad():
            for parameter in model.encoder.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return model.eval()

    return seeded(make, 15)


def _copy_of(load: Callable, words: str) -> Fresh:
    """Return a module that is copied anew for every call; what costs most, and no exercise changes, is shared."""

    def make():
        module = load()
        shared = [m.config for m in module.modules() if hasattr(m, "config")] + [getattr(module, "embeddings", None)]
        return copy.deepcopy(module, {id(part): part for part in shared})

    return Fresh(make, words)


TIRED = "The animal didn't cross the street because it was too tired."
ORANGE = "Orange is my favorite fruit."


# -- the weights


@functools.cache
def _layer(*sizes: int) -> MultiHeadAttention:
    return seeded(lambda: MultiHeadAttention(*sizes), 12).eval()


def _to_fill(*sizes: int) -> Fresh:
    return _copy_of(lambda: _layer(*sizes), f"MultiHeadAttention{sizes}")


def _of_the_model(number: int) -> Fresh:
    return _copy_of(lambda: _loaded()[0].encoder.layer[number].attention, f"the attention of the model's layer {number}")


_OF_THE_SMALL = _copy_of(lambda: _small_bert().encoder.layer[1].attention, "the attention of a small BERT")
_STATES = (normal(2, 5, 384, seed=181, scale=0.5),) * 3
_NARROW = (normal(3, 7, 24, seed=182),) * 3

load_real_weights = RealExercise(
    "load_real_weights",
    signature="layer bert_attention query key value",
    expects="nothing to return: afterwards layer(x, x, x) must give what bert_attention computes before its residual and norm.",
    reference=copies(),
    parts=one_tensor("output of layer"),
    apply=load_and_run,
    read=read.REAL_LAYER,
    probes=[
        Probe("a small model", (_to_fill(24, 4), _OF_THE_SMALL, *_NARROW)),
        Probe("the first layer of the real model", (_to_fill(384, 12), _of_the_model(0), *_STATES)),
        Probe("its last layer", (_to_fill(384, 12), _of_the_model(5), *_STATES)),
    ],
    mistakes=[
        Mistake(
            "real_wrong_order",
            "Each linear was copied once, but not all into the place of their role.",
            *(copies(order) for order in ORDERS),
        ),
        Mistake(
            "real_bias_forgotten",
            "The weights are those of the model, its biases are not. In a trained model they are not 0.",
            copies(biases=""),
            copies(zeroed=ROLES),
            *(copies(biases=some) for some in ("o", "qkv", "qko", "kvo", "q", "v")),
            *(copies(zeroed=some) for some in ("o", "qkv", "v", "q")),
        ),
        Mistake(
            "real_output_forgotten",
            "The last linear of your layer keeps its random weights. The model's own stands in `output`, apart from the other three.",
            copies(weights="qkv", biases="qkv"),
            copies(weights="qkv"),
        ),
        *COMMON,
    ],
)


# -- attention inside the model


def _fill(scores: Tensor, mask: Tensor, lowest: float | None = None) -> Tensor:
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min if lowest is None else lowest)


def _adapter(
    *,
    repeat=lambda x, n: x.repeat_interleave(n, 1),
    causal=lambda module, query, key: bool(module.is_causal) and query.size(2) > 1,
    hide=_fill,
    hide_future=_fill,
    factor=lambda query, scaling: scaling,
    place=lambda output: output.transpose(1, 2),
    give=lambda weights: weights,
):
    """Return an attention function as transformers calls it, with some steps replaced."""

    def attend(module, query, key, value, attention_mask, scaling=None, **options):
        groups = query.size(1) // key.size(1)
        if groups > 1:
            key, value = repeat(key, groups), repeat(value, groups)
        scores = query @ key.transpose(-2, -1) * factor(query, scaling or query.size(-1) ** -0.5)
        if attention_mask is None and causal(module, query, key):
            scores = hide_future(scores, torch.ones(query.size(2), key.size(2), dtype=torch.bool).tril())
        if attention_mask is not None:
            scores = hide(scores, attention_mask)
        weights = scores.softmax(-1)
        return place(weights @ value), give(weights)

    return attend


def _both_masks(hide: Callable) -> tuple:
    """Return a mistake with the mask that is given, and the same with the one that is made as well."""
    return _adapter(hide=hide), _adapter(hide=hide, hide_future=hide)


def _call_inside(function, module, *arguments):
    """Call an attention function as transformers does: alone, or in every layer of the real model."""
    if arguments:
        return function(module, *arguments, dropout=0.0, scaling=arguments[0].size(-1) ** -0.5)
    batch = _batch(TIRED, ORANGE)
    real_model.register(module, lambda *args, **options: _pair(function(*args, **options)))
    try:
        with torch.no_grad():
            result = module(**batch, output_attentions=True)
    finally:
        module.set_attn_implementation("eager")
    return result.last_hidden_state[batch.attention_mask.bool()], torch.stack(result.attentions)


def _pair(result: object) -> tuple:
    parts = output_and_weights(result)
    return parts["output"], parts["weights"]


def _merged(value: object) -> dict[str, Tensor]:
    """Read (output, weights), the heads of the output side by side or merged: a model takes both."""
    parts = output_and_weights(value)
    return parts | {"output": parts["output"].flatten(2) if parts["output"].dim() == 4 else parts["output"]}


def _inputs(batch, heads, kv_heads, queries, keys, width, seed):
    return (
        normal(batch, heads, queries, width, seed=seed),
        normal(batch, kv_heads, keys, width, seed=seed + 1),
        normal(batch, kv_heads, keys, width, seed=seed + 2),
    )


def _may(batch, queries, keys, causal=False):
    mask = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    for row in range(batch):
        mask[row, ..., keys - row :] = False
    return mask.tril() if causal else mask


def _module(is_causal: bool) -> Fresh:
    return Fresh(lambda: SimpleNamespace(is_causal=is_causal, training=False), f"a layer with is_causal {is_causal}")


def _only_grouped_fail(trials):
    wrong = [t for t in trials if t.is_wrong]
    return bool(wrong) and all(t.seen.error is not None and "fewer" in t.probe.label for t in wrong)


_ENCODER, _CAUSAL = _module(False), _module(True)

my_attention = RealExercise(
    "my_attention",
    signature="module query key value attention_mask",
    expects="a pair (output, weights): output (B, T_q, h, d_k), the heads behind the tokens, and weights (B, h, T_q, T_k).",
    reference=_adapter(),
    parts=_merged,
    apply=_call_inside,
    read=read.REAL_INSIDE,
    probes=[
        Probe("an encoder without a mask", (_ENCODER, *_inputs(2, 6, 6, 5, 5, 8, 191), None)),
        Probe("an encoder with padding", (_ENCODER, *_inputs(3, 6, 6, 5, 5, 8, 194), _may(3, 5, 5))),
        Probe("a causal model without a mask", (_CAUSAL, *_inputs(2, 6, 6, 5, 5, 8, 197), None)),
        Probe("a causal model with a mask", (_CAUSAL, *_inputs(3, 6, 6, 5, 5, 8, 200), _may(3, 5, 5, causal=True))),
        Probe("one new token over seven keys", (_CAUSAL, *_inputs(2, 6, 6, 1, 7, 8, 203), None)),
        Probe("fewer key heads than query heads", (_CAUSAL, *_inputs(3, 6, 2, 5, 5, 8, 206), _may(3, 5, 5, causal=True))),
        Probe("as many sentences as heads", (_ENCODER, *_inputs(4, 4, 4, 5, 5, 8, 209), _may(4, 5, 5))),
        Probe("inside the model", (Fresh(lambda: _loaded()[0], "the real model, which reads two sentences"),), tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "real_mask_added",
            "You add the mask to the scores. It holds True and False: as numbers 1 and 0, they block nothing.",
            *_both_masks(lambda scores, mask: scores + mask),
            *_both_masks(lambda scores, mask: scores + ~mask),
        ),
        Mistake(
            "real_mask_inverted",
            "You block where the mask says True. Here True means may attend, as in the course.",
            *_both_masks(lambda scores, mask: _fill(scores, ~mask)),
            *_both_masks(lambda scores, mask: _fill(scores, ~mask, -torch.inf)),
        ),
        Mistake("real_mask_ignored", "The mask that you are given changes nothing.", *_both_masks(lambda scores, mask: scores)),
        Mistake(
            "real_not_causal",
            "In a causal model no mask means causal. Your tokens see those after them.",
            _adapter(causal=lambda module, query, key: False),
        ),
        Mistake(
            "real_always_causal",
            "You hide the future in an encoder too, where every token may see every other.",
            _adapter(causal=lambda module, query, key: query.size(2) > 1),
            _adapter(causal=lambda module, query, key: True),
        ),
        Mistake(
            "real_one_query_sees_one_key",
            "A single new token sees the first key alone. The triangle stands at the top left; the newest token may see every key.",
            _adapter(causal=lambda module, query, key: bool(module.is_causal)),
        ),
        Mistake(
            "real_heads_in_front",
            "Your output has the heads in front of the tokens. The model merges the last two axes as they come, so each token "
            "would get features of other tokens, and nothing would complain.",
            _adapter(place=lambda output: output),
            _adapter(place=lambda output: output.reshape(output.size(0), output.size(2), -1)),
        ),
        Mistake(
            "real_repeat_order",
            "The copies of the key heads stand in the wrong order: neighbouring query heads share one key head.",
            _adapter(repeat=lambda x, n: x.repeat(1, n, 1, 1)),
        ),
        Mistake(
            "real_groups_forgotten",
            "A model may have fewer key heads than query heads. Each of them then serves several queries.",
            Sign(_only_grouped_fail),
        ),
        Mistake(
            "real_scaled_twice",
            "Your scores are divided by the root of the width twice: once by scaling, once by your attention.",
            _adapter(factor=lambda query, scaling: scaling**2),
        ),
        Mistake("real_not_scaled", "Your scores are not divided by the root of the width.", _adapter(factor=lambda query, scaling: 1.0)),
        Mistake(
            "real_weights_averaged",
            "Your weights are the mean over the heads. Asked for is one table for each head.",
            _adapter(give=lambda weights: weights.mean(1)),
            _adapter(give=lambda weights: weights.mean(1, keepdim=True)),
        ),
    ],
)


# -- which head is it?


def _back(maps: Tensor, first: int = 2, last: int = -1, shift: int = -1) -> Tensor:
    """Average over queries the weight that goes some places on; shape (layers, heads)."""
    queries = torch.arange(first, maps.size(-1) + last)
    return maps[:, :, queries, queries + shift].mean(-1)


def _find_with(back=_back, pair=lambda maps, query, key: maps[:, :, query, key], best=torch.argmax, place=lambda flat, maps: divmod(flat, maps.size(1))):
    def find_head(maps, what):
        table = back(maps) if isinstance(what, str) else pair(maps, *what)
        return place(int(best(table)), maps)

    return find_head


def _head(value: object) -> dict[str, Tensor]:
    refuse_none(value)
    if isinstance(value, Tensor) and value.numel() == 2:
        value = value.flatten().tolist()
    try:
        layer, head = (int(x) for x in value)
    except (TypeError, ValueError):
        shown = f"the number {int(value)}" if isinstance(value, (int, Tensor)) and getattr(value, "numel", int)() in (0, 1) else "no pair"
        raise Unfit("not_a_head", f"You returned {shown}. Asked for is the pair (layer, head).") from None
    return {"head": torch.tensor([layer, head])}


def _random_maps(seed: int, tokens: int = 9) -> Tensor:
    return (2.5 * normal(3, 5, tokens, tokens, seed=seed)).softmax(-1)


def _biased_maps(seed: int) -> Tensor:
    """Return maps in which the first and last tokens draw much weight, as in a real model."""
    scores = 2 * normal(3, 5, 9, 9, seed=seed)
    scores[..., 0] += 2 * normal(3, 5, 1, seed=seed + 1) + 2
    scores[:, :, -1] *= 2
    return scores.softmax(-1)


@torch.no_grad()
def _real_maps(sentence: str) -> Tensor:
    return torch.cat(_loaded()[0](**_batch(sentence), output_attentions=True).attentions)


find_head = RealExercise(
    "find_head",
    signature="maps what",
    expects="a pair (layer, head): the head whose weight there is the largest.",
    reference=_find_with(),
    parts=_head,
    read=read.REAL_CENSUS,
    probes=[
        Probe("one back", (_random_maps(220), "back")),
        Probe("one back where [CLS] draws much", (_biased_maps(223), "back")),
        Probe("one back in other maps", (_biased_maps(225), "back")),
        Probe("one back in longer maps", (_random_maps(227, tokens=11), "back")),
        Probe("from one token to another", (_random_maps(221), (6, 2))),
        Probe("from a token to a later one", (_random_maps(222), (3, 5))),
        Probe("one back in the real model", (Fresh(lambda: _real_maps(ORANGE), f"the maps of “{ORANGE}”"), "back")),
        Probe("from it to animal in the real model", (Fresh(lambda: _real_maps(TIRED), f"the maps of “{TIRED}”"), (10, 2))),
    ],
    mistakes=[
        Mistake(
            "find_query_and_key_swapped",
            "Rows are queries, columns are keys. You look from the second token to the first.",
            _find_with(pair=lambda maps, query, key: maps[:, :, key, query]),
            _find_with(pair=lambda maps, query, key: maps[:, :, key, query], back=lambda maps: _back(maps.transpose(-2, -1))),
        ),
        Mistake(
            "find_one_ahead",
            "You follow the weight one token ahead. Back is the token before the query: its number is smaller by one.",
            *(_find_with(back=lambda maps, f=f, l=l: _back(maps, f, l, 1)) for f, l in ((2, -1), (1, -1), (1, -2), (0, -1))),
        ),
        Mistake(
            "find_special_tokens_counted",
            "Special tokens take part in your mean. From the first word, one back is [CLS], and [SEP] is no word.",
            *(_find_with(back=lambda maps, f=f, l=l: _back(maps, f, l)) for f, l in ((1, 0), (1, -1), (2, 0))),
        ),
        Mistake(
            "find_shifted_by_one",
            "You count words, not tokens: your numbers are off by the one that [CLS] takes.",
            _find_with(pair=lambda maps, query, key: maps[:, :, query + 1, key + 1]),
            _find_with(pair=lambda maps, query, key: maps[:, :, query - 1, key - 1]),
            _find_with(pair=lambda maps, query, key: maps[:, :, 1:-1, 1:-1][:, :, query, key]),
        ),
        Mistake(
            "find_head_before_layer",
            "You give the head first and the layer second.",
            _find_with(place=lambda flat, maps: divmod(flat, maps.size(1))[::-1]),
        ),
        Mistake(
            "find_counted_by_layers",
            "Your number of a head is taken apart by the number of layers. Behind each layer stand all its heads.",
            _find_with(place=lambda flat, maps: divmod(flat, maps.size(0))),
        ),
        Mistake(
            "find_twelve_heads",
            "Your number of a head is taken apart by 12. MiniLM has twelve heads in a layer; these maps have another number.",
            _find_with(place=lambda flat, maps: divmod(flat, 12)),
        ),
        Mistake(
            "find_heads_averaged",
            "You average over heads or layers before you look for the largest. The mean of twelve heads shows none of them.",
            _find_with(best=lambda table: table.mean(1).argmax() * table.size(1) + table.mean(0).argmax()),
            _find_with(best=lambda table: table.mean(1).argmax() * table.size(1) + table[table.mean(1).argmax()].argmax()),
        ),
        Mistake("find_smallest", "You give the head with the smallest weight there.", _find_with(best=torch.argmin)),
        Mistake(
            "find_one_cell",
            "You take the largest single weight. One token may look back by chance: asked for is the mean over the words.",
            _find_with(back=lambda maps: maps.diagonal(-1, -2, -1)[..., 1:-1].amax(-1)),
            _find_with(back=lambda maps: maps.diagonal(-1, -2, -1).amax(-1)),
            _find_with(back=lambda maps: maps[:, :, 2, 1]),
            _find_with(back=lambda maps: maps[:, :, 1, 0]),
        ),
        Mistake(
            "find_cls",
            "You found the head that rests on [CLS].",
            _find_with(back=lambda maps: maps[..., 0].mean(-1)),
            _find_with(back=lambda maps: maps[:, :, 2:-1, 0].mean(-1)),
            _find_with(back=lambda maps: maps[:, :, 1:-1, 0].mean(-1)),
        ),
        Mistake(
            "find_largest_anywhere",
            "You look for the largest weight anywhere in the maps, wherever it goes.",
            _find_with(back=lambda maps: maps.amax((-2, -1)), pair=lambda maps, query, key: maps.amax((-2, -1))),
            _find_with(back=lambda maps: maps.amax((-2, -1))),
        ),
    ],
)


# -- heads switched off


_SMALL = _copy_of(_small_bert, "a small model: 3 layers, 4 heads of 6")
_IDS = torch.tensor([[3, 17, 29, 5, 8], [22, 4, 31, 11, 2]])


def _heads_list(*heads) -> Fresh:
    return Fresh(lambda: list(heads), str(list(heads)))


def _prune_and_run(function, model, heads):
    function(model, heads)
    with torch.no_grad():
        if model.config.hidden_size == 24:
            return model.eval()(_IDS).last_hidden_state
        return model.eval()(**_batch(ORANGE)).last_hidden_state


def _prunes(*cuts, heads=lambda heads: heads, part=lambda layer: layer.attention):
    """Return a way to switch heads off: each cut gets a part of a layer, the block of a head, and the head."""

    def prune(model, wanted):
        width = model.config.hidden_size // model.config.num_attention_heads
        with torch.no_grad():
            for layer, head in heads(list(wanted)):
                for cut in cuts:
                    cut(part(model.encoder.layer[layer]), slice(head * width, (head + 1) * width), head)

    return prune


def _columns(bert, block, head):
    bert.output.dense.weight[:, block] = 0


def _rows(linear_of, bias=False):
    def cut(bert, block, head):
        linear_of(bert).weight[block] = 0
        if bias:
            linear_of(bert).bias[block] = 0

    return cut


def _of_output(bert):
    return bert.output.dense


def _of_value(bert):
    return bert.self.value


def _of_query(bert):
    return bert.self.query


def _of_key(bert):
    return bert.self.key


def _fixed_width(bert, block, head):
    bert.output.dense.weight[:, 32 * head : 32 * head + 32] = 0


def _whole(bert, block, head):
    bert.output.dense.weight.zero_()


def _one_column(bert, block, head):
    bert.output.dense.weight[:, head] = 0


def _biases(bert, block, head):
    bert.output.dense.bias.zero_()


def _bias_block(bert, block, head):
    bert.output.dense.bias[block] = 0


def _grad_mode(trials):
    return all("leaf Variable that requires grad" in str(t.seen.error) for t in trials if t.is_wrong)


prune = RealExercise(
    "prune",
    signature="model heads",
    expects="nothing to return: afterwards the model gives what it gives without the terms of these heads, and everything else is as before.",
    reference=_prunes(_columns),
    parts=one_tensor("output of the model"),
    apply=_prune_and_run,
    read=read.REAL_OFF,
    probes=[
        Probe("one head", (_SMALL, _heads_list((1, 2)))),
        Probe("heads of two layers", (_SMALL, _heads_list((0, 1), (2, 0)))),
        Probe("two heads of one layer", (_SMALL, _heads_list((2, 3), (2, 1)))),
        Probe("no head at all", (_SMALL, _heads_list())),
        Probe("the real model", (_copy_of(lambda: _loaded()[0], "the real model"), _heads_list((5, 2), (3, 1), (0, 0))), tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "prune_rows",
            "You cut rows of the last linear: features of the output. A head comes in through columns.",
            _prunes(_rows(_of_output)),
            _prunes(_rows(_of_output, bias=True)),
        ),
        Mistake(
            "prune_value_bias_left",
            "The value's weights of the head are 0, its bias still flows.",
            _prunes(_rows(_of_value)),
        ),
        Mistake(
            "prune_looks_everywhere",
            "You changed the head's queries or keys. It looks elsewhere now, and still moves values.",
            *(_prunes(_rows(of, bias)) for of in (_of_query, _of_key) for bias in (False, True)),
            _prunes(_rows(_of_query, True), _rows(_of_key, True)),
        ),
        Mistake(
            "prune_width_fixed",
            "You cut blocks of 32 features. That is the width of MiniLM's heads; the model here has narrower ones.",
            _prunes(_fixed_width),
        ),
        Mistake("prune_one_column", "You cut one column for each head. A head has as many columns as it has features.", _prunes(_one_column)),
        Mistake(
            "prune_feed_forward",
            "You cut the linear of the feed-forward part, which is called the same. That of the attention stands inside `attention`.",
            _prunes(_columns, part=lambda layer: layer),
        ),
        Mistake("prune_whole_layer", "You switch off the whole layer's attention, not one head of it.", _prunes(_whole)),
        Mistake(
            "prune_bias_too",
            "The bias of the last linear is changed as well. It belongs to no head.",
            _prunes(_columns, _biases),
            _prunes(_columns, _bias_block),
        ),
        Mistake(
            "prune_head_before_layer",
            "You read a pair as (head, layer). It is (layer, head).",
            _prunes(_columns, heads=lambda heads: [(h, l) for l, h in heads]),
        ),
        Mistake(
            "prune_one_of_them",
            "Only one of the heads of the list is switched off.",
            _prunes(_columns, heads=lambda heads: heads[:1]),
            _prunes(_columns, heads=lambda heads: heads[-1:]),
        ),
        Mistake(
            "prune_shifted_by_one",
            "You count heads or layers from 1: the one beside is switched off.",
            _prunes(_columns, heads=lambda heads: [(l, h - 1) for l, h in heads]),
            _prunes(_columns, heads=lambda heads: [(l - 1, h) for l, h in heads]),
            _prunes(_columns, heads=lambda heads: [(l - 1, h - 1) for l, h in heads]),
        ),
        Mistake("prune_nothing", "The model is as it was: your changes went into a copy, or nowhere.", _prunes()),
        Mistake(
            "prune_grad_mode",
            "A parameter is written to while autograd watches. Switching a head off is no part of a computation.",
            Sign(_grad_mode),
        ),
    ],
)


# -- the most similar sentence

TEN = (
    "A man is eating a piece of bread.",
    "The weather will be fine tomorrow, with a light wind from the south.",
    "Someone is playing the violin.",
    "Stock prices fell sharply on Monday.",
    "She sold her old bicycle to a neighbour.",
    "How many moons does Jupiter have?",
    "The children built a castle out of sand on the beach.",
    "A cook cuts onions in the kitchen of a small restaurant.",
    "He forgot the password of his computer again, and nobody could help him that evening.",
    "It rains.",
)


def _similar_with(pool=None, compare=None, attend=attention, first=None):
    def most_similar(model, tokenizer, sentence, others):
        if attend is not None:
            real_model.use_attention(model, attend)
        result, batch = _read_with(attend, sentence, *others)
        vectors = (pool or _mean)(result, batch)
        cosines = (compare or _cosines)(vectors)
        return int(cosines.argmax()) if first is None else first(cosines), cosines

    return most_similar


@functools.cache
@torch.no_grad()
def _read_with(attend, *sentences):
    """Run the model once; the reference and the mimics differ in what they do with the result."""
    model, batch = _loaded()[0], _batch(*sentences)
    return model(**batch), batch


def _mean(result, batch):
    real = batch["attention_mask"].unsqueeze(-1)
    return (result.last_hidden_state * real).sum(1) / real.sum(1)


def _words_alone(result, batch):
    real = batch["attention_mask"].clone()
    last = real.sum(1) - 1
    real[:, 0] = 0
    real[torch.arange(len(real)), last] = 0
    return (result.last_hidden_state * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True)


def _cosines(vectors):
    return F.cosine_similarity(vectors[:1], vectors[1:])


def _unmasked(query, key, value, mask=None):
    return attention(query, key, value)


def _run_similar(function, model, tokenizer, sentence, others):
    model.set_attn_implementation("eager")
    try:
        result = function(model, tokenizer, sentence, others)
        return result, model.config._attn_implementation != "eager"
    finally:
        model.set_attn_implementation("eager")


def _found(value: object) -> dict[str, Tensor]:
    result, own = value
    refuse_none(result)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Unfit("not_a_pair", "Asked for is a pair: the number of the most similar sentence, and the cosines of all.")
    index, cosines = result
    cosines = as_tensor(cosines if isinstance(cosines, Tensor) else torch.tensor(cosines), "cosines").detach()
    return {"cosines": cosines, "number": torch.tensor(int(index)), "own attention": torch.tensor(float(own))}


def _own_unused(trials):
    return all(
        t.seen.error is None and not t.seen.parts["own attention"] and torch.allclose(t.seen.parts["cosines"], t.want.parts["cosines"], atol=1e-4)
        for t in trials
        if t.seen.error is not None or t.seen.parts["cosines"].shape == t.want.parts["cosines"].shape
    ) and all(t.is_wrong for t in trials)


def _question(sentence: str, others: tuple = TEN) -> tuple:
    return (
        Fresh(lambda: _loaded()[0], "the real model"),
        Fresh(lambda: _loaded()[1], "its tokenizer"),
        sentence,
        Fresh(lambda: list(others), f"{len(others)} sentences"),
    )


most_similar = RealExercise(
    "most_similar",
    signature="model tokenizer sentence others",
    expects="a pair (number, cosines): the number of the most similar of the others, counted from 0, and a tensor with the cosine of each.",
    reference=_similar_with(),
    parts=_found,
    apply=_run_similar,
    read=read.REAL_OFF,
    probes=[
        Probe("a long sentence", _question("In the back room of the inn, a woman is chopping vegetables for the soup of the evening."), tolerance=1e-4),
        Probe("a short one", _question("Music."), tolerance=1e-4),
        Probe("a question among five", _question("Is Saturn larger than Mars?", TEN[3:8]), tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "similar_cls",
            "You take the vector at [CLS] for the sentence. This model was trained to carry its meaning in the mean of all tokens.",
            _similar_with(pool=lambda result, batch: result.last_hidden_state[:, 0]),
            _similar_with(pool=lambda result, batch: result.pooler_output),
        ),
        Mistake(
            "similar_padding_counted",
            "Your mean runs over the padding too, so a short sentence drowns in it.",
            _similar_with(pool=lambda result, batch: result.last_hidden_state.mean(1)),
            _similar_with(pool=lambda result, batch: (result.last_hidden_state * batch["attention_mask"].unsqueeze(-1)).mean(1), compare=lambda v: v[1:] @ v[0]),
        ),
        Mistake(
            "similar_special_tokens_left_out",
            "Your mean leaves out [CLS] and [SEP]. Here they count: only padding does not.",
            _similar_with(pool=_words_alone),
        ),
        Mistake(
            "similar_dot_products",
            "You compare dot products. A cosine divides them by both lengths.",
            _similar_with(compare=lambda v: v[1:] @ v[0]),
        ),
        Mistake(
            "similar_distance",
            "You measure distances: they are small where sentences are alike.",
            _similar_with(compare=lambda v: torch.cdist(v[:1], v[1:])[0]),
            _similar_with(compare=lambda v: torch.cdist(v[:1], v[1:])[0], first=lambda d: int(d.argmin())),
            _similar_with(compare=lambda v: -torch.cdist(v[:1], v[1:])[0]),
        ),
        Mistake(
            "similar_itself",
            "The sentence is compared with itself too: its cosine is 1, and every number is off by one.",
            _similar_with(compare=lambda v: F.cosine_similarity(v[:1], v)),
            _similar_with(first=lambda cosines: int(cosines.argmax()) + 1),
        ),
        Mistake(
            "similar_least",
            "You give the number of the least similar sentence.",
            _similar_with(first=lambda cosines: int(cosines.argmin())),
        ),
        Mistake(
            "similar_mask_ignored",
            "The attention that you put into the model ignores its mask: words attend to padding.",
            _similar_with(attend=_unmasked),
        ),
        Mistake(
            "similar_own_unused",
            "The numbers are right, but the model ran with its own attention. Yours was never called.",
            _similar_with(attend=None),
            Sign(_own_unused),
            read=read.REAL_INSIDE,
        ),
    ],
)
