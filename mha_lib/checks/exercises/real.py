"""The checks of chapter 14 about the whole model: its weights and its attention. It is loaded when a check needs it."""

import copy
import functools
import importlib.util
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from mha_lib import real_model
from mha_lib.checks import read
from mha_lib.checks.case import Fresh, Law, Mistake, Probe
from mha_lib.checks.compare import one_tensor, output_and_weights
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.exercises.transfers import COMMON, ORDERS, ROLES, copies, load_and_run
from mha_lib.checks.guard import Guard
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.real_attention import REAL_ATTENTION, adapter
from mha_lib.checks.result import NOT_ATTEMPTED, Result
from mha_lib.checks.words import listed
from mha_lib.experiments.training import seeded
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.spellings import parameters_by_role


class RealExercise(Exercise):
    """An exercise that needs the real model: without it the check says how to get it."""

    def judge(self, answer: object) -> Result:
        missing = _missing()
        return (
            Result(self.name, NOT_ATTEMPTED, f"This check needs the real model. {missing}")
            if missing
            else super().judge(answer)
        )


def _missing() -> str:
    if importlib.util.find_spec("transformers") is None:
        return "The library transformers is not installed: run make env."
    try:
        real_model.folder()
    except real_model.ModelMissing as missing:
        return str(missing)
    return ""


@functools.cache
def loaded() -> tuple:
    return real_model.load()


def tokens_of(*sentences: str):
    return loaded()[1](list(sentences), padding=True, return_tensors="pt")


@functools.cache
def small_bert():
    from transformers import BertConfig, BertModel

    def make():
        sizes = {
            "vocab_size": 40,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 32,
        }
        model = BertModel(BertConfig(**sizes, max_position_embeddings=16, attn_implementation="eager"))
        with torch.no_grad():
            for parameter in model.encoder.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return model.eval()

    return seeded(make, 15)


def copy_of(load: Callable, words: str) -> Fresh:
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
    return copy_of(lambda: _layer(*sizes), f"MultiHeadAttention{sizes}")


def _of_the_model(number: int) -> Fresh:
    return copy_of(lambda: loaded()[0].encoder.layer[number].attention, f"the attention of the model's layer {number}")


_OF_THE_SMALL = copy_of(lambda: small_bert().encoder.layer[1].attention, "the attention of a small BERT")
_STATES = (normal(2, 5, 384, seed=181, scale=0.5),) * 3
_NARROW = (normal(3, 7, 24, seed=182),) * 3

_NAMES = {
    "q": ("w_q", "self.query"),
    "k": ("w_k", "self.key"),
    "v": ("w_v", "self.value"),
    "o": ("w_o", "output.dense"),
}


def _filled(call: Callable, probe: Probe, guard: Guard) -> tuple[nn.Module, nn.Module, list] | None:
    """Fill a layer anew; return it, the model's attention and what the layer held before."""
    layer, theirs = probe.args[0].make(), probe.args[1].make()
    before = [[x.detach().clone() for x in parameters_by_role(layer)[role]] for role in _NAMES]
    return (layer, theirs, before) if guard.call(call, layer, theirs).error is None else None


def _held(layer: nn.Module, theirs: nn.Module, before: list) -> dict[str, str]:
    """Say of every parameter that holds other numbers than it should what it holds."""
    taken, given = parameters_by_role(layer), parameters_by_role(theirs)
    found = {}
    for (role, (mine, _)), old in zip(_NAMES.items(), before):
        for i, kind in enumerate(("weight", "bias")):
            x = taken[role][i].detach()
            known = {f"the {kind} of {name}": given[r][i] for r, (_, name) in _NAMES.items()}
            known |= {"what it held before": old[i], "0 everywhere": torch.zeros_like(x)}
            known |= {f"the {kind} of {name}, turned over": given[r][i].mT for r, (_, name) in _NAMES.items() if i == 0}
            if not torch.equal(x, given[role][i]):
                found[f"{mine}.{kind}"] = next(
                    (w for w, y in known.items() if x.shape == y.shape and torch.equal(x, y)), "other numbers"
                )
    return found


def _shares_memory(specimen) -> dict[str, str] | None:
    filled = _filled(specimen.answer, specimen.exercise.probes[0], specimen.guard)
    if filled is None:
        return None
    places = {p.data_ptr(): name for name, p in filled[1].named_parameters()}
    shared = {name: places[p.data_ptr()] for name, p in filled[0].named_parameters() if p.data_ptr() in places}
    return {name: f"is the model's own {theirs}" for name, theirs in shared.items()} or None


class LoadExercise(RealExercise):
    """The check of a copy: what fits no known mistake is told which parameters hold what."""

    def _unnamed(self, trial, trials, binding, guard):
        filled = _filled(binding.call, trial.probe, guard) if trial.seen.error is None else None
        held = _held(*filled) if filled is not None else {}
        if not held:
            return super()._unnamed(trial, trials, binding, guard)
        return "real_other_parameters", f"Not every parameter holds what it should: {listed(list(held))}.", held


load_real_weights = LoadExercise(
    "load_real_weights",
    signature="layer bert_attention query key value",
    expects="nothing to return: afterwards layer(x, x, x) must give what bert_attention computes before its residual "
    "and norm.",
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
            "The last linear of your layer keeps its random weights. The model's own stands in `output`, apart from "
            "the other three.",
            copies(weights="qkv", biases="qkv"),
            copies(weights="qkv"),
        ),
        Mistake(
            "real_shared",
            "Your layer holds the model's own parameters, not copies: training one would change the other.",
            Law(_shares_memory),
        ),
        *COMMON,
    ],
)


# -- attention inside the model


def _call_inside(function, module, *arguments):
    """Call an attention function as transformers does: alone, or in every layer of the real model."""
    if arguments:
        return function(module, *arguments, dropout=0.0, scaling=arguments[0].size(-1) ** -0.5)
    batch = tokens_of(TIRED, ORANGE)
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
    output, weights = parts.values()
    side_by_side = output.dim() == 4 == weights.dim() and output.shape[1:3] == (weights.size(2), weights.size(1))
    return parts | {"output": output.flatten(2) if side_by_side else output}


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


_ENCODER, _CAUSAL = _module(False), _module(True)

my_attention = RealExercise(
    "my_attention",
    signature="module query key value attention_mask",
    expects="a pair (output, weights): output (B, T_q, h, d_k), the heads behind the tokens, and weights (B, h, T_q, "
    "T_k).",
    reference=adapter(),
    parts=_merged,
    apply=_call_inside,
    read=read.REAL_INSIDE,
    probes=[
        Probe("an encoder without a mask", (_ENCODER, *_inputs(2, 6, 6, 5, 5, 8, 191), None)),
        Probe("an encoder with padding", (_ENCODER, *_inputs(3, 6, 6, 5, 5, 8, 194), _may(3, 5, 5))),
        Probe("a causal model without a mask", (_CAUSAL, *_inputs(2, 6, 6, 5, 5, 8, 197), None)),
        Probe("a causal model with a mask", (_CAUSAL, *_inputs(3, 6, 6, 5, 5, 8, 200), _may(3, 5, 5, causal=True))),
        Probe("one new token over seven keys", (_CAUSAL, *_inputs(2, 6, 6, 1, 7, 8, 203), None)),
        Probe(
            "fewer key heads than query heads", (_CAUSAL, *_inputs(3, 6, 2, 5, 5, 8, 206), _may(3, 5, 5, causal=True))
        ),
        Probe("as many sentences as heads", (_ENCODER, *_inputs(4, 4, 4, 5, 5, 8, 209), _may(4, 5, 5))),
        Probe(
            "inside the model",
            (Fresh(lambda: loaded()[0], "the real model, which reads two sentences"),),
            tolerance=1e-4,
        ),
    ],
    mistakes=REAL_ATTENTION,
)
