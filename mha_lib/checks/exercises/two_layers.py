"""The checks of chapter 13: the block, the score of an induction head, what depends on it, and a hunt."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib.checks import planted, read
from mha_lib.checks.case import Binding, Fresh, Mistake, Probe, Sign
from mha_lib.checks.classes.exercise import ClassExercise
from mha_lib.checks.compare import Seen, Unfit, a, first_of, one_tensor, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.explain import explain
from mha_lib.checks.guard import Guard
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal, padding
from mha_lib.checks.mistakes.block import BLOCK, block_with
from mha_lib.checks.words import listed
from mha_lib.experiments import induction
from mha_lib.experiments.training import seeded
from mha_lib.masks import causal_mask

PARTS = ("norm_1", "attention", "norm_2", "feed_forward")


class PartFails(Exception):
    """A part of the learner's own cannot do what is asked of it."""


class PartsExercise(ClassExercise):
    """A check of a class made of given parts: the reference joins the learner's own parts in the right way.

    The reference and the mimics get a function parts_of(*constructor arguments) first.
    """

    def bind(self, answer: type, guard: Guard) -> list[Binding]:
        (binding,) = super().bind(answer, guard)
        modules: dict[tuple, nn.Module] = {}

        def parts_of(*config) -> nn.Module:
            if config not in modules:
                modules[config] = self.prepare(answer, config)
            return modules[config]

        return [Binding(binding.call, (parts_of,))]

    def _judge(self, answer: type, guard: Guard):
        config = self.probes[0].args[: len(self.build_with)]
        module = guard.call(self.prepare, answer, config).value
        missing = [
            name for name in self.roles if module is not None and not isinstance(getattr(module, name, None), nn.Module)
        ]
        if missing:
            held = ", ".join(name for name, _ in module.named_children()) or "none"
            shown = {"yours": held, "expected": ", ".join(self.roles)}
            plain = [name for name in missing if hasattr(module, name)]
            if plain:
                kind = a(getattr(module, plain[0]))
                says = f"{plain[0]} is {kind}, and no module: its weights are invisible to an optimiser."
                return self.failed("part_is_no_module", says, shown)
            return self.failed("parts_missing", f"Your class has no part of the name {' or '.join(missing)}.", shown)
        return super()._judge(answer, guard)

    def _given(self, make, binding: Binding, probe: Probe) -> Seen:
        """Return what the reference gives; where a part of the learner's raises, that is no right answer."""
        seen = super()._given(make, binding, probe)
        if make is self.reference and seen.error is not None:
            seen.error = PartFails(str(seen.error))
        return seen

    def _assignments(self, module: nn.Module, config: tuple) -> list:
        return []

    def _name(self, trials, binding, guard, answer):
        first = next(t for t in trials if t.is_wrong)
        if isinstance(first.want.error, PartFails) and first.seen.error is not None:
            explained = explain(first.seen.error)
            return self.failed(explained.id, explained.says, self.facts(first))
        return Exercise._name(self, trials, binding, guard, answer)


_X, _X_HEADS = normal(3, 5, 12, seed=501), normal(4, 6, 12, seed=502)
_CAUSAL = causal_mask(5).expand(3, 5, 5)

block = PartsExercise(
    "block",
    signature="d_model num_heads x mask",
    build_with="d_model num_heads",
    roles={name: ("d_model", "d_model") for name in PARTS},
    expects="a class Block(d_model, num_heads) with the parts norm_1, attention, norm_2 and feed_forward, whose call "
    "(x, mask=None) gives (B, T, d_model).",
    reference=block_with,
    parts=first_of("output"),
    read=read.BLOCK,
    probes=[
        Probe("no mask", (12, 4, _X, None)),
        Probe("a causal mask", (12, 4, _X, _CAUSAL)),
        Probe("as many sentences as heads, with padding", (12, 4, _X_HEADS, padding(4, 6))),
        Probe("another width", (8, 2, normal(2, 4, 8, seed=503), None)),
        Probe("large inputs", (12, 4, 20 * _X, None), tolerance=1e-4),
        Probe("gradients", (12, 4, _X, None), gradient=True, tolerance=1e-4),
    ],
    mistakes=BLOCK,
)


def _score(weights, period):
    return weights.diagonal(1 - period, dim1=-2, dim2=-1)[..., 1:].mean(dim=(0, -1))


def _looks(*shape, seed):
    return normal(*shape, seed=seed).softmax(-1)


def _shifted(by, first=1):
    """Return a score that looks by places beside the right one, from the first-th such place on."""
    return lambda w, p: w.diagonal(1 - p + by, dim1=-2, dim2=-1)[..., first:].mean(dim=(0, -1))


def _not_a_number(trials):
    told = [t.seen.parts["scores"] for t in trials if t.is_wrong and t.seen.error is None and not t.probe.gradient]
    return bool(told) and bool(told[0].isnan().all())


def _at(weights, period, step):
    """Pick by index, where a place before the first one counts from the end."""
    rows = torch.arange(period, weights.size(-1))
    return weights[:, :, rows, rows + step].mean(dim=(0, -1))


induction_score = Exercise(
    "induction_score",
    signature="weights period",
    expects="one tensor (h,): for each head the mean weight on the token that followed one period ago.",
    reference=_score,
    parts=one_tensor("scores"),
    read=read.TWO_HEADS,
    probes=[
        Probe("a period of 5", (_looks(2, 3, 12, 12, seed=521), 5)),
        Probe("a period of 3", (_looks(2, 4, 10, 10, seed=522), 3)),
        Probe("as many sentences as heads", (_looks(3, 3, 11, 11, seed=523), 4)),
        Probe("one sentence", (_looks(1, 2, 9, 9, seed=524), 4)),
        Probe("a period of 1", (_looks(2, 3, 7, 7, seed=525), 1)),
        Probe("gradients", (_looks(2, 3, 12, 12, seed=521), 5), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "induction_one_too_far",
            "You look at the token itself one period ago. Asked for is the token after it.",
            _shifted(-1, 0),
        ),
        Mistake(
            "induction_too_far_back",
            "You look at the token in front of the one a period ago: plus and minus are exchanged.",
            _shifted(-2, 0),
            lambda w, p: _at(w, p, -p - 1),
            lambda w, p: _at(w, p, p - 1),
        ),
        Mistake(
            "induction_begins_late",
            "You begin one place too late, or end too early: every place from `period` on counts.",
            _shifted(0, 2),
            lambda w, p: w.diagonal(1 - p, dim1=-2, dim2=-1)[..., 1:-1].mean(dim=(0, -1)),
        ),
        Mistake(
            "induction_all_pairs",
            "Your mean runs over every pair of those rows and columns. Each row has one column of its own.",
            lambda w, p: w[:, :, p:, 1 : w.size(-1) - p + 1].mean(dim=(0, -2, -1)),
            lambda w, p: w[:, :, p:, : w.size(-1) - p + 1].mean(dim=(0, -2, -1)),
        ),
        Mistake(
            "induction_axes_of_the_diagonal",
            "Your diagonal runs through sentences and heads, the first two axes. Asked for is the one through queries "
            "and keys.",
            lambda w, p: w.diagonal(1 - p).mean(-1).mean(0),
            lambda w, p: w.diagonal(1 - p)[..., 1:].mean(-1).mean(0),
            lambda w, p: w.diagonal(1 - p)[..., 1:].mean(dim=(0, -1)),
            lambda w, p: w.diagonal(1 - p).mean(-1),
        ),
        Mistake(
            "induction_too_near",
            "You look one place too far to the right: at the second token after it.",
            _shifted(1, 2),
            _shifted(1, 1),
            _shifted(1, 0),
            lambda w, p: w.diagonal(2 - p, dim1=-2, dim2=-1)[..., 2:].mean(dim=(0, -1)),
            lambda w, p: w.diagonal(2 - p, dim1=-2, dim2=-1)[..., 2 if p > 1 else 1 :][..., : w.size(-1) - 1 - p].mean(
                dim=(0, -1)
            ),
        ),
        Mistake(
            "induction_first_period",
            "You score places of the first period too, where nothing has come before.",
            _shifted(0, 0),
        ),
        Mistake(
            "induction_heads_averaged",
            "The heads are averaged. Asked for is one number for each head.",
            lambda w, p: _score(w, p).mean(),
            lambda w, p: _score(w, p).mean().expand(w.size(1)),
            lambda w, p: w.diagonal(1 - p, dim1=-2, dim2=-1)[..., 1:].mean(dim=(1, -1)),
        ),
        Mistake(
            "induction_batch_kept",
            "The sentences stand side by side. Asked for is the mean over them.",
            lambda w, p: w.diagonal(1 - p, dim1=-2, dim2=-1)[..., 1:].mean(-1),
        ),
        Mistake(
            "induction_summed",
            "You add the weights up. Asked for is their mean.",
            lambda w, p: w.diagonal(1 - p, dim1=-2, dim2=-1)[..., 1:].sum(dim=(0, -1)),
            lambda w, p: w.diagonal(1 - p, dim1=-2, dim2=-1)[..., 1:].mean(0).sum(-1),
            lambda w, p: w.diagonal(1 - p, dim1=-2, dim2=-1)[..., 1:].mean(-1).sum(0),
        ),
        Mistake(
            "induction_divided_by_all",
            "You divide by the number of all places. The first period has none to score.",
            lambda w, p: w.diagonal(1 - p, dim1=-2, dim2=-1)[..., 1:].sum(-1).mean(0) / w.size(-1),
        ),
        Mistake(
            "induction_transposed",
            "Rows and columns are exchanged: you score what is looked at from there, ahead in the text.",
            lambda w, p: _score(w.mT, p),
        ),
        Mistake(
            "induction_largest",
            "You take the largest weight, or the one in the middle. Asked for is the mean over all places.",
            lambda w, p: w.diagonal(1 - p, dim1=-2, dim2=-1)[..., 1:].amax(dim=(0, -1)),
            lambda w, p: w.diagonal(1 - p, dim1=-2, dim2=-1)[..., 1:].median(-1).values.mean(0),
        ),
        Mistake(
            "induction_nothing_picked",
            "Your scores are NaN: the mean of no weights at all. Which places do you pick?",
            Sign(_not_a_number),
        ),
        Mistake(
            "induction_previous_token",
            "That is the score of looking one place back.",
            lambda w, p: w.diagonal(-1, dim1=-2, dim2=-1).mean(dim=(0, -1)),
        ),
    ],
)


def _small_model() -> Fresh:
    return Fresh(lambda: seeded(lambda: induction.Repeats(2, 16, 2), 7), "a model of two layers of two heads")


_TEXTS = induction.draw(64, torch.Generator().manual_seed(8))[0]


def _answer(model) -> float:
    """The number that is measured: the mean of the model's largest scores."""
    return float(model(_TEXTS).amax(-1).mean())


def _without(model, number, head, measure, change=None):
    layer = model.layers[number]
    kept = [x.w_o.weight.detach().clone() for x in model.layers]
    before = measure(model)
    with torch.no_grad():
        (change or _columns)(model, layer, head)
    after = measure(model)
    with torch.no_grad():
        for x, weight in zip(model.layers, kept):
            x.w_o.weight.copy_(weight)
    return before, after


def _columns(model, layer, head):
    layer.w_o.weight[:, head * layer.d_k : (head + 1) * layer.d_k] = 0


def _changing(change):
    return lambda model, number, head, measure: _without(model, number, head, measure, change)


def _two_numbers(value: object) -> dict[str, Tensor]:
    refuse_none(value)
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise Unfit(
            "not_two_numbers", "Asked for are two numbers: what was measured before, and what without the head."
        )
    try:
        return {"numbers": torch.tensor([float(x) for x in value])}
    except (TypeError, ValueError, RuntimeError):
        raise Unfit("not_two_numbers", "Asked for are two numbers, and one of yours is no number.") from None


def _and_put_back(function, model, number, head, measure):
    before = {name: x.clone() for name, x in model.state_dict().items()}
    numbers = function(model, number, head, measure)
    if any(not torch.equal(x, before[name]) for name, x in model.state_dict().items()):
        changed = [name for name, x in model.state_dict().items() if not torch.equal(x, before[name])]
        has = "has" if len(changed) == 1 else "have"
        says = f"Afterwards the model is not as before: {listed(changed)} {has} not the old numbers again."
        raise Unfit("not_put_back", says)
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        raise Unfit("hook_left", "Afterwards a hook of yours still hangs on the model, and changes every later call.")
    return numbers


def _second_is_off(trials):
    told = [
        t.seen.parts["numbers"] - t.want.parts["numbers"]
        for t in trials
        if t.seen.error is None and t.want.error is None
    ]
    return (
        len(told) == len(trials)
        and all(abs(float(gap[0])) < 1e-5 for gap in told)
        and any(abs(float(gap[1])) > 1e-5 for gap in told)
    )


_MEASURE = Fresh(lambda: _answer, "measure")

switch_off_and_see = Exercise(
    "switch_off_and_see",
    signature="model number head measure",
    expects="a pair of numbers: measure(model) with all heads, and without that head; the model is as before.",
    reference=_without,
    parts=_two_numbers,
    apply=_and_put_back,
    read=read.ONE_OFF,
    probes=[
        Probe("layer 0, head 1", (_small_model(), 0, 1, _MEASURE)),
        Probe("layer 1, head 0", (_small_model(), 1, 0, _MEASURE)),
        Probe("layer 0, head 0", (_small_model(), 0, 0, _MEASURE)),
        Probe("layer 1, head 1", (_small_model(), 1, 1, _MEASURE)),
    ],
    mistakes=[
        Mistake(
            "off_not_at_all",
            "Both numbers are those of the whole model: when you measured the second, the head was on.",
            lambda m, n, h, f: (f(m), f(m)),
        ),
        Mistake(
            "off_both_times",
            "Both numbers were measured without the head. The first is the one before.",
            lambda m, n, h, f: (_without(m, n, h, f)[1],) * 2,
        ),
        Mistake(
            "off_in_wrong_order",
            "The two numbers stand in the wrong order: first with all heads, then without.",
            lambda m, n, h, f: _without(m, n, h, f)[::-1],
        ),
        Mistake(
            "off_difference",
            "One of your numbers is a difference. Asked for are both measurements.",
            lambda m, n, h, f: ((p := _without(m, n, h, f))[0], p[0] - p[1]),
            lambda m, n, h, f: ((p := _without(m, n, h, f))[0], p[1] - p[0]),
        ),
        Mistake(
            "off_whole_layer",
            "You switched off all heads of the layer.",
            _changing(lambda m, layer, h: layer.w_o.weight.zero_()),
        ),
        Mistake(
            "off_both_layers",
            "You switched the head off in every layer.",
            _changing(lambda m, layer, h: [_columns(m, x, h) for x in m.layers]),
        ),
        Mistake(
            "off_other_head",
            "You switched off another head of that layer.",
            _changing(lambda m, layer, h: _columns(m, layer, 1 - h)),
            _changing(lambda m, layer, h: _columns(m, layer, 0)),
            _changing(lambda m, layer, h: _columns(m, layer, 1)),
        ),
        Mistake(
            "off_other_layer",
            "You switched the head off in another layer.",
            *(
                _changing(lambda m, layer, h, f=f: _columns(m, m.layers[f(m, layer)], h))
                for f in (lambda m, layer: int(layer is m.layers[0]), lambda m, layer: 0, lambda m, layer: 1)
            ),
        ),
        Mistake(
            "off_rows",
            "You cleared rows of the weight, which are outputs. A head comes in through columns of its own.",
            _changing(lambda m, layer, h: layer.w_o.weight[h * layer.d_k : (h + 1) * layer.d_k].zero_()),
        ),
        Mistake(
            "off_other_columns",
            "You changed other columns than those of the head, or more. Head 0 has the first d_k, and each next head "
            "the d_k behind them.",
            _changing(lambda m, layer, h: layer.w_o.weight[:, h : h + layer.d_k].zero_()),
            _changing(lambda m, layer, h: layer.w_o.weight[:, (h + 1) * layer.d_k :].zero_()),
            _changing(lambda m, layer, h: layer.w_o.weight[:, : (h + 1) * layer.d_k].zero_()),
            _changing(lambda m, layer, h: layer.w_o.weight[:, h * layer.d_k :].zero_()),
            _changing(lambda m, layer, h: layer.w_o.weight[:, : h * layer.d_k].zero_()),
            _changing(lambda m, layer, h: layer.w_o.weight[:, h :: layer.num_heads].zero_()),
            _changing(lambda m, layer, h: layer.w_o.weight[:, (h + 1) * layer.d_k : (h + 2) * layer.d_k].zero_()),
        ),
        Mistake(
            "off_other_numbers",
            "The head's columns hold other numbers than 0. Only with 0 it adds nothing.",
            *(
                _changing(
                    lambda m, layer, h, f=f: layer.w_o.weight[:, h * layer.d_k : (h + 1) * layer.d_k].mul_(0).add_(f)
                )
                for f in (1.0, -1.0, 1e-3)
            ),
            _changing(lambda m, layer, h: layer.w_o.weight[:, h * layer.d_k : (h + 1) * layer.d_k].neg_()),
        ),
        Mistake(
            "off_second_number",
            "The first number is right, the second is not that of the model without this head and with everything "
            "else.",
            Sign(_second_is_off),
        ),
        Mistake(
            "off_one_column",
            "You cleared one column. A head has d_k of them.",
            _changing(lambda m, layer, h: layer.w_o.weight[:, h].zero_()),
            _changing(lambda m, layer, h: layer.w_o.weight[:, h * layer.d_k].zero_()),
        ),
    ],
)


def _residual_right(x):
    layer = planted.pre_norm_block(x.size(-1))
    return layer(x)


bug_block = BugHunt(
    "bug_block",
    signature="x",
    expects="one input (x,) of the shape (B, T, 8) on which the function gives a wrong output.",
    reference=_residual_right,
    buggy=planted.block_with_a_bug,
    read=read.NORM,
    lucky=(
        Lucky("shows_another_width", "The function is made for 8 features.", lambda x: x.size(-1) != 8),
        Lucky(
            "hidden_by_normed_tokens",
            "Your tokens are as a norm leaves them. It changes nothing in them.",
            lambda x: bool(torch.allclose(F.layer_norm(x, x.shape[-1:]), x, atol=1e-3)),
        ),
    ),
)
