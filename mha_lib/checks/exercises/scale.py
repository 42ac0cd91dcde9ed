"""The checks of chapter 2: how scores spread, the division, and a softmax that does not overflow."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import REMARK, Law, Mistake, Probe
from mha_lib.checks.compare import Unfit, a, one_tensor, output_and_weights, refuse_none
from mha_lib.checks.exercise import Exercise, Specimen
from mha_lib.checks.exercises.attention import ATTENTION_PROBES
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.mistakes.softmax import STABLE_SOFTMAX
from mha_lib.checks.mistakes.spread import DIVISOR, SCORE_STD
from mha_lib.checks.recipe import attention_with


def _one_number(name: str) -> Callable[[object], dict[str, Tensor]]:
    """Return a reader for results that are one number, drawn or calculated."""

    def read_it(value: object) -> dict[str, Tensor]:
        refuse_none(value)
        try:
            return {name: torch.tensor(float(value), dtype=torch.float64)}
        except (TypeError, ValueError, RuntimeError):
            raise Unfit("wrong_type", f"You returned {a(value)}; asked for is one number.") from None

    return read_it


def _measured(d_k: int) -> float:
    return math.sqrt(d_k)


score_std = Exercise(
    "score_std",
    signature="d_k",
    expects="one number: how wide the scores of random vectors with d_k features spread.",
    reference=_measured,
    parts=_one_number("spread"),
    read=read.GROWS,
    probes=[Probe(f"d_k = {d}", (d,), tolerance=0.05) for d in (64, 9, 512, 100, 1, 2)],
    mistakes=SCORE_STD,
)


def _right_divisor(d_k: int, spread_query: float, spread_key: float) -> float:
    return spread_query * spread_key * math.sqrt(d_k)


divisor = Exercise(
    "divisor",
    signature="d_k spread_query spread_key",
    expects="one number: what the scores must be divided by, so that they spread 1.",
    reference=_right_divisor,
    parts=_one_number("divisor"),
    read=read.GROWS,
    probes=[
        Probe(f"d_k = {d}, spreads {a} and {b}", (d, a, b), tolerance=0.05)
        for d, a, b in (
            (16, 2.0, 3.0),
            (64, 1.0, 1.0),
            (100, 0.5, 0.7),
            (9, 4.0, 0.25),
            (512, 0.58, 0.58),
            (25, 1.0, 6.0),
        )
    ],
    mistakes=DIVISOR,
)

_WATCHED = (normal(2, 4, 8, seed=46), normal(2, 5, 8, seed=47), normal(2, 5, 6, seed=48))


class _Undivided(TorchDispatchMode):
    """Watches what is computed: is there a tensor of undivided scores, whole, in rows or in columns?"""

    def __init__(self, query: Tensor, key: Tensor):
        super().__init__()
        table = query @ key.transpose(-2, -1)
        self.rows = [table.flatten(0, -2), table.transpose(-2, -1).flatten(0, -2)]
        self.found: tuple[int, ...] | None = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if (
                isinstance(tensor, Tensor)
                and tensor.is_floating_point()
                and any(self._holds(tensor, rows) for rows in self.rows)
            ):
                self.found = self.found or tuple(tensor.shape)
        return result

    @staticmethod
    def _holds(tensor: Tensor, rows: Tensor) -> bool:
        if tensor.dim() == 0 or tensor.size(-1) != rows.size(-1):
            return False
        gaps = (tensor.reshape(-1, 1, rows.size(-1)).double() - rows.double()).abs().amax(-1)
        return bool((gaps.amin(-1) < 1e-4).all())


def _undivided(specimen: Specimen):
    inputs = [x.clone() for x in _WATCHED]

    def run():
        with torch.no_grad(), watch:
            specimen.answer(*inputs)

    watch = _Undivided(*inputs[:2])
    specimen.guard.call(run)
    if watch.found is None:
        return None
    return {
        "seen on": ", ".join(f"{n} {tuple(x.shape)}" for n, x in zip(("query", "key", "value"), _WATCHED)),
        "yours": f"a tensor {watch.found} that holds undivided scores",
    }


def _scaled_way(query, key, value):
    way = attention_with.way(query, key, value)
    del way["the dot products"]
    return {"the divided queries": query / math.sqrt(query.size(-1))} | way


scaling = Exercise(
    "scaling",
    signature="query key value",
    expects="a pair (output, weights): output (..., T_q, d_v) and weights (..., T_q, T_k).",
    reference=attention_with,
    parts=output_and_weights,
    read=read.SCALE,
    probes=ATTENTION_PROBES,
    way=_scaled_way,
    mistakes=[
        *SCALING,
        *ATTENTION,
        Mistake(
            "scaling_after_the_product",
            "But you divide the scores once they are there. Asked for is a way on which no undivided score ever exists: "
            "divide what goes into the product.",
            Law(_undivided, REMARK),
        ),
    ],
)

_LARGE_ROWS = torch.tensor([[[100.0, 0.0, -5.0, 99.0], [-300.0, -301.0, -302.0, -303.0], [1.0, 2.0, 3.0, 4.0]]])
_THOUSANDS = torch.tensor([[[9000.0, 2.0, 8999.0], [3.0, 7000.0, 1.0], [-5.0, 2.0, -8000.0], [5000.0, -1.0, 0.0]]])


stable_softmax = Exercise(
    "stable_softmax",
    signature="scores",
    expects="one tensor of the shape of the scores, in which every row sums to 1, however large the scores.",
    reference=lambda scores: scores.softmax(-1),
    way=lambda scores: {"the weights": scores.softmax(-1)},
    parts=one_tensor("weights"),
    read=read.STABLE,
    probes=[
        Probe("ordinary scores", (normal(2, 3, 5, seed=41),)),
        Probe("large scores and rows far apart", (_LARGE_ROWS,)),
        Probe("very low scores", (normal(2, 3, 5, seed=42) - 500.0,)),
        Probe("scores of thousands, the first one largest", (_THOUSANDS,), tolerance=1e-3),
        Probe("a head axis in front", (normal(2, 3, 4, 6, seed=43, scale=60.0),)),
        Probe("a square table", (normal(4, 4, seed=44, scale=60.0),)),
        Probe("gradients", (normal(2, 3, 5, seed=45),), gradient=True, tolerance=1e-4),
    ],
    mistakes=STABLE_SOFTMAX,
)


def _plain(function):
    return lambda *args: function(*args)[0]


bug_scaling = BugHunt(
    "bug_scaling",
    signature="query key value",
    expects="the arguments (query, key, value) of a call on which the function gives a wrong output.",
    reference=_plain(reference_attention),
    buggy=planted.attention_scaled,
    read=read.SCALE,
    lucky=(
        Lucky(
            "hidden_by_equal_sizes",
            "Here there are as many keys as features. Two sizes that happen to be equal hide every mix-up of the two.",
            lambda query, key, value: key.size(-2) == key.size(-1),
        ),
        Lucky(
            "hidden_by_one_key",
            "With a single key its weight is 1, whatever the score.",
            lambda query, key, value: key.size(-2) == 1,
        ),
        Lucky(
            "hidden_by_equal_scores",
            "Here all keys get nearly the same score, and a softmax of equal numbers is flat at any scale.",
            lambda query, key, value: (
                float((s := query @ key.transpose(-2, -1)).max(-1).values.sub(s.min(-1).values).max()) < 1e-3
            ),
        ),
        Lucky(
            "hidden_by_equal_values",
            "All values are alike here, so every mixture of them is the same.",
            lambda query, key, value: float(value.max(-2).values.sub(value.min(-2).values).max()) < 1e-3,
        ),
        Lucky(
            "hidden_by_saturation",
            "The scores are so large that one key takes everything, at either scale.",
            lambda query, key, value: float((query @ key.transpose(-2, -1)).abs().max()) > 50,
        ),
    ),
)
