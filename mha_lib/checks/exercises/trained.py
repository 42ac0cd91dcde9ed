"""The checks of chapter 8: reading trained heads, switching them off, and training a layer of one's own."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Fresh, Law, Mistake, Probe
from mha_lib.checks.compare import Unfit, a, one_tensor, refuse_none
from mha_lib.checks.exercise import Exercise, Specimen
from mha_lib.checks.explain import explain, is_stub, its_words
from mha_lib.checks.guard import Guard, TimeUp
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.trained import (
    LOOKS_BACK,
    SWITCH_OFF,
    WITHOUT,
    accuracy_off,
    around,
    columns,
    diagonal,
    zeroed,
)
from mha_lib.checks.result import NOT_ATTEMPTED, PASSED, Result
from mha_lib.experiments import lookups
from mha_lib.experiments.training import seeded
from mha_lib.multi_head import MultiHeadAttention


def _weights(batch, heads, length, seed):
    return normal(batch, heads, length, length, seed=seed, scale=2.0).softmax(-1)


looks_back = Exercise(
    "looks_back",
    signature="weights back",
    expects="one tensor (h,): for each head the mean weight on the token that stands back places before the query.",
    reference=lambda weights, back: diagonal(weights, back).mean(dim=(0, -1)),
    parts=one_tensor("score"),
    read=read.LOOKS,
    probes=[
        Probe("one back", (_weights(2, 3, 5, 801), 1)),
        Probe("two back", (_weights(2, 3, 5, 802), 2)),
        Probe("the token itself", (_weights(2, 3, 6, 803), 0)),
        Probe("as many sentences as heads", (_weights(4, 4, 6, 804), 2)),
        Probe("one sentence", (_weights(1, 5, 7, 805), 3)),
        Probe("one query alone looks so far back", (_weights(3, 2, 5, 806), 4)),
    ],
    mistakes=LOOKS_BACK,
)


def _course(d_model, num_heads):
    return seeded(lambda: MultiHeadAttention(d_model, num_heads), 21)


def _layer(d_model, num_heads):
    return Fresh(partial(_course, d_model, num_heads), f"MultiHeadAttention({d_model}, {num_heads})")


def _run_off(function, layer, head, query, key, value):
    returned = function(layer, head)
    if (
        isinstance(returned, nn.Module)
        and returned is not layer
        and torch.equal(layer(query, key, value), _course(layer.d_model, layer.num_heads)(query, key, value))
    ):
        raise Unfit(
            "off_in_a_copy",
            "You return a layer in which the head is off; the one that was given is as before. Change that one.",
        )
    return layer(query, key, value)


def _off_inputs(d_model, seed):
    return tuple(normal(2, length, d_model, seed=seed + i) for i, length in enumerate((3, 5, 5)))


switch_off = Exercise(
    "switch_off",
    signature="layer head query key value",
    expects="nothing to return: afterwards layer(query, key, value) is the output without that head's term.",
    reference=zeroed(columns),
    parts=one_tensor("output of the layer afterwards"),
    apply=_run_off,
    read=read.SUM,
    probes=[
        Probe("a head in the middle", (_layer(12, 3), 1, *_off_inputs(12, 811))),
        Probe("the first head", (_layer(12, 3), 0, *_off_inputs(12, 811))),
        Probe("the last head", (_layer(12, 3), 2, *_off_inputs(12, 811))),
        Probe("narrower heads", (_layer(12, 4), 2, *_off_inputs(12, 814))),
        Probe("as many features in a head as heads", (_layer(16, 4), 3, *_off_inputs(16, 817))),
    ],
    mistakes=SWITCH_OFF,
)


def _by_hand(num_heads: int) -> lookups.Lookups:
    """Return a model with weights set by hand: head 0 looks one back, head 1 two; three kinds of token are lost."""
    vocab, length, d_k = lookups.VOCAB, lookups.LENGTH, lookups.VOCAB
    model = seeded(lambda: lookups.Lookups(d_k * num_heads, num_heads), 22)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        tokens, places = torch.eye(vocab), torch.eye(length)
        known = tokens * (torch.arange(vocab) < vocab - 3)
        model.tokens.weight[:, :vocab] = tokens
        model.positions.weight[:, vocab : vocab + length] = places
        layer = model.attention
        for head, back in enumerate(lookups.LOOK_BACK):
            rows = slice(head * d_k, head * d_k + length)
            layer.w_k.weight[rows, vocab : vocab + length] = places
            layer.w_q.weight[rows, vocab : vocab + length] = 60 * places.roll(-back, dims=0)
            layer.w_v.weight[head * d_k : (head + 1) * d_k, :vocab] = known
            model.read_outs[head].weight[:, head * d_k : (head + 1) * d_k] = tokens
        # The last linear lets the features of the heads take turns, and the read-outs undo it: its rows are no head's.
        turns = torch.arange(d_k * num_heads).view(num_heads, d_k).T.flatten()
        layer.w_o.weight.copy_(torch.eye(d_k * num_heads)[turns])
        for read_out in model.read_outs:
            read_out.weight.copy_(read_out.weight[:, turns])
    return model


def _model(num_heads):
    return Fresh(partial(_by_hand, num_heads), f"a model with {num_heads} heads that answers both questions, mostly")


def _shares(value: object) -> dict[str, Tensor]:
    refuse_none(value)
    if isinstance(value, (int, float)):
        raise Unfit("one_share", f"You returned one number, {value:.3g}; asked for are two, one for each question.")
    try:
        shares = value if isinstance(value, Tensor) else torch.tensor([float(v) for v in value])
    except (TypeError, ValueError):
        raise Unfit(
            "wrong_type", f"You returned {a(value)}; asked for are two numbers, one for each question."
        ) from None
    return {"shares": shares.detach().float().cpu()}


def _hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def _and_put_back(function, model, head):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = [(m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()]
    attention, hooks = model.attention, _hooks(model)
    shares = function(model, head)
    after = model.state_dict()
    if (
        after.keys() != before.keys()
        or not all(torch.equal(after[name], before[name]) for name in before)
        or model.attention is not attention
    ):
        raise Unfit(
            "not_put_back",
            "Afterwards the model is not as before: the weight that you changed has not its old numbers again.",
        )
    if _hooks(model) != hooks:
        raise Unfit("hook_left", "Afterwards a hook of yours still hangs on the model, and changes every later call.")
    if state != [(m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()]:
        raise Unfit(
            "mode_left", "Afterwards the model is in another state: its mode, or which of its parameters learn."
        )
    return shares


accuracy_without = Exercise(
    "accuracy_without",
    signature="model head",
    expects="two numbers: the share recalled rightly without that head, one back and two back; the model is as before.",
    reference=accuracy_off,
    parts=_shares,
    apply=_and_put_back,
    read=read.OFF,
    probes=[
        Probe("the head that looks one back", (_model(2), 0), tolerance=0.03),
        Probe("the head that looks two back", (_model(2), 1), tolerance=0.03),
        Probe("a head that does nothing", (_model(4), 2), tolerance=0.03),
        Probe("one of four heads", (_model(4), 1), tolerance=0.03),
    ],
    mistakes=WITHOUT,
)


def _strongest(query, key):
    return reference_attention(query, key, key)[1].amax(dim=(1, 3))


def _alike(query, key):
    return bool(torch.allclose(query, query[:, :1].expand_as(query)) and torch.allclose(key, key[:, :1].expand_as(key)))


def _even(query, key):
    weights = reference_attention(query, key, key)[1]
    return bool(torch.allclose(weights, weights[:, :1].expand_as(weights), atol=1e-3))


bug_averaging = BugHunt(
    "bug_averaging",
    signature="query key",
    expects="(query, key), each (B, h, T, d_k), on which the function gives a wrong output.",
    reference=_strongest,
    buggy=lambda query, key: planted.strongest_look(query, key),
    read=read.LOOKS,
    lucky=(
        Lucky("hidden_by_one_head", "The mean over one head is that head.", lambda query, key: query.size(1) == 1),
        Lucky(
            "hidden_by_one_key", "With one key every head gives it everything.", lambda query, key: key.size(-2) == 1
        ),
        Lucky("hidden_by_equal_heads", "All heads hold the same here, and so does their mean.", _alike),
        Lucky("hidden_by_equal_weights", "All heads end with the same weights here, and so does their mean.", _even),
    ),
)


class _Trained(Specimen):
    """A trained model under the eyes of the laws: what it answers, and where its heads look."""

    def __init__(self, exercise: Exercise, model: nn.Module, guard: Guard):
        super().__init__(exercise, model, guard)
        tokens = lookups.draw(256, torch.Generator().manual_seed(31))
        call = guard.call(self._look, model, tokens)
        if call.error is not None:
            raise call.error
        self.shares, self.weights = call.value
        self.is_table = (
            isinstance(self.weights, Tensor) and self.weights.dim() == 4 and self.weights.shape[-2:] == (12, 12)
        )

    @staticmethod
    def _look(model, tokens):
        with torch.no_grad():
            scores = model(tokens)
        if not isinstance(scores, Tensor) or scores.shape != (256, lookups.LENGTH, 2, lookups.VOCAB):
            raise Unfit(
                "not_the_model",
                "Called with tokens, what you returned does not give scores (B, T, 2, 16). Asked for is a "
                "lookups.Lookups.",
            )
        shares = (scores.argmax(-1) == lookups.targets(tokens)).float().mean(dim=(0, 1)).tolist()
        return shares, getattr(getattr(model, "attention", None), "attn", None)

    def looks(self) -> Tensor:
        """Return (heads, questions): the mean weight on the place of each question."""
        mean = self.weights.detach().float().mean(dim=0)
        return torch.stack([around(mean, back).mean(-1) for back in lookups.LOOK_BACK], dim=1)

    def shown(self) -> dict[str, str]:
        found = {"one back, two back": ", ".join(f"{s:.2f}" for s in self.shares)}
        if self.is_table:
            found["weight there"] = "; ".join(
                f"head {i} {one:.2f}, {two:.2f}" for i, (one, two) in enumerate(self.looks().tolist())
            )
        return found


def _if(breaks: Callable[[_Trained], bool]) -> Law:
    return Law(lambda trained: trained.shown() if breaks(trained) else None)


class TrainedModel(Exercise):
    """A check of a function without arguments that returns a trained model, judged by laws alone."""

    def __init__(self, name: str, **rest):
        super().__init__(name, signature="", reference=lambda: None, parts=one_tensor("output"), probes=(), **rest)

    def _judge(self, answer: object, guard: Guard) -> Result:
        call = guard.call(answer)
        if is_stub(call.error):
            return Result(self.name, NOT_ATTEMPTED, f"The result must be: {self.expects}")
        if isinstance(call.error, TimeUp):
            return self.failed(
                "too_slow",
                "Your training did not finish within a few seconds and was stopped. Stop it once the loss is near 0.",
            )
        try:
            if call.error is not None:
                raise call.error
            if isinstance(call.value, type) or not isinstance(call.value, nn.Module):
                raise Unfit("not_a_model", f"You returned {a(call.value)}; asked for is the trained model.")
            trained = _Trained(self, call.value, guard)
        except Unfit as error:
            return self.failed(error.id, error.says)
        except (Exception, TimeUp) as error:
            explained = explain(error)
            return self.failed(explained.id, explained.says, {"yours": its_words(error)} | explained.facts)
        broken = self._broken(trained, "always")
        return broken or Result(
            self.name, PASSED, "Your own layer learned the task: one of its heads looks one back, the other two."
        )


def _spread(trained):
    return trained.looks().amax(dim=1).min().item()


two_diagonals = TrainedModel(
    "two_diagonals",
    expects="a trained lookups.Lookups whose attention is your own class, with the weights of its last call in .attn.",
    read=read.LOOKS,
    mistakes=[
        Mistake(
            "course_layer",
            "The attention inside is the course's layer. Put your own class there.",
            _if(lambda t: isinstance(getattr(t.answer, "attention", None), MultiHeadAttention)),
        ),
        Mistake(
            "weights_not_kept",
            "Your layer keeps no weights: after a call .attn holds none.",
            _if(lambda t: not isinstance(t.weights, Tensor)),
        ),
        Mistake(
            "weights_averaged",
            "The weights in .attn are not one table (T, T) for each sentence and head.",
            _if(lambda t: not t.is_table),
        ),
        Mistake(
            "weights_of_another_call",
            "The weights in .attn are not those of the last call: they belong to another number of sentences.",
            _if(lambda t: t.weights.size(0) != 256),
        ),
        Mistake(
            "not_two_heads", "The number of heads is not two.", _if(lambda t: t.weights.size(1) != 2), read=read.TWO
        ),
        Mistake(
            "scores_kept",
            "What stands in .attn are no weights: its rows do not sum to 1.",
            _if(lambda t: not torch.allclose(t.weights.sum(-1), torch.ones(()), atol=1e-3)),
        ),
        Mistake(
            "not_trained",
            "The model answers as if it had learned nothing. Does the optimiser hold its parameters, also those of "
            "your layer, does it take steps of a fitting size, and are the gradients set to 0 before each?",
            _if(lambda t: max(t.shares) < 0.3),
            read=read.TASK,
        ),
        Mistake(
            "got_stuck",
            "One question is answered and the other is not. Either the loss asks for one alone, or this run got "
            "stuck, and another seed begins elsewhere.",
            _if(lambda t: max(t.shares) > 0.9 and min(t.shares) < 0.6),
            read=read.TWO,
        ),
        Mistake(
            "stopped_early",
            "The training has begun to work, and stopped too early.",
            _if(lambda t: min(t.shares) < 0.97),
            read=read.TWO,
        ),
        Mistake(
            "no_diagonals",
            "Both questions are answered, but the heads do not look at one place each. Train on until the loss is "
            "near 0. Or was your class put in only after the optimiser got the parameters? Then your layer never "
            "learns.",
            _if(lambda t: sorted(t.looks().argmax(dim=1).tolist()) != [0, 1] or _spread(t) < 0.9),
        ),
    ],
)
