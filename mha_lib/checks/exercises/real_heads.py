"""The checks of chapter 14 about the heads of a real model: which one it is, and what is left without some."""

from numbers import Real

import torch
from torch import Tensor

from mha_lib.checks import read
from mha_lib.checks.case import Fresh, Mistake, Probe
from mha_lib.checks.compare import Unfit, a, one_tensor, refuse_none
from mha_lib.checks.exercises.real import ORANGE, TIRED, RealExercise, copy_of, loaded, small_bert, tokens_of
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.pruning import PRUNE, cut_columns, prunes

# -- which head is it?


def _back(maps: Tensor, first: int = 2, last: int = -1, shift: int = -1) -> Tensor:
    """Average over queries the weight that goes some places on; shape (layers, heads)."""
    queries = torch.arange(first, maps.size(-1) + last)
    return maps[:, :, queries, queries + shift].mean(-1)


def _find_with(
    back=_back,
    pair=lambda maps, query, key: maps[:, :, query, key],
    best=torch.argmax,
    place=lambda flat, maps: divmod(flat, maps.size(1)),
):
    def find_head(maps, what):
        table = back(maps) if isinstance(what, str) else pair(maps, *what)
        return place(int(best(table)), maps)

    return find_head


def _head(value: object) -> dict[str, Tensor]:
    refuse_none(value)
    if isinstance(value, Tensor) and value.numel() == 2:
        value = value.flatten().tolist()
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        count = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
        shown = f"the number {int(value)}" if isinstance(value, int) else a(value) + count
        raise Unfit("not_a_head", f"You returned {shown}. Asked for is the pair (layer, head).")
    numbers = [x.item() if isinstance(x, Tensor) and x.numel() == 1 else x for x in value]
    for name, x in zip(("layer", "head"), numbers):
        if not isinstance(x, Real) or x != int(x):
            shown = f"{x:.4g}" if isinstance(x, Real) else a(x)
            raise Unfit("not_a_head", f"Your {name} is {shown}. Asked for is a pair of whole numbers, (layer, head).")
    return {"head": torch.tensor([int(x) for x in numbers])}


def _other_diagonal(maps: Tensor) -> Tensor:
    """A diagonal of the first two axes, the layers and the heads."""
    return maps.diagonal(-1)


def _of_table(flat, maps):
    return divmod(flat, maps.size(-1))


def _triangles():
    """Return ways to add up whole triangles where one diagonal is asked for."""
    for first, last in ((0, None), (1, -1), (2, -1), (1, None)):
        for side in (torch.tril, torch.triu):
            for k in range(-2, 3):
                yield lambda maps, f=first, l=last, side=side, k=k: side(maps[:, :, f:l], k).sum((-2, -1))
                yield lambda maps, f=first, l=last, side=side, k=k: side(maps, k)[:, :, f:l].sum((-2, -1))


def _every_pair(maps: Tensor) -> Tensor:
    queries = torch.arange(2, maps.size(-1) - 1)
    return maps[:, :, queries][..., queries - 1].mean((-2, -1))


class FindExercise(RealExercise):
    """The check of a search: the verdict shows what was found, and how much weight it has."""

    def facts(self, trial):
        found = super().facts(trial)
        if trial.seen.error is None and "yours" in found:
            maps, what = (x.make() if isinstance(x, Fresh) else x for x in trial.probe.args)
            table = _back(maps) if isinstance(what, str) else maps[:, :, what[0], what[1]]
            found["seen on"] = found["seen on"].split(", at head[")[0]
            found["yours"], found["expected"] = (
                _with_weight(side.parts["head"], table) for side in (trial.seen, trial.want)
            )
        return found

    def _unnamed(self, trial, trials, binding, guard):
        id, says, more = super()._unnamed(trial, trials, binding, guard)
        if trial.seen.error is None and id != "wrong_dtype":
            return "find_other_head", "There is a head that sends more weight there than the one you give.", more
        return id, says, more


def _with_weight(pair: Tensor, table: Tensor) -> str:
    layer, head = pair.tolist()
    if not (0 <= layer < table.size(0) and 0 <= head < table.size(1)):
        return f"({layer}, {head}), and there are {table.size(0)} layers of {table.size(1)} heads"
    return f"({layer}, {head}), where the weight is {float(table[layer, head]):.3f}"


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
    return torch.cat(loaded()[0](**tokens_of(sentence), output_attentions=True).attentions)


find_head = FindExercise(
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
        Probe(
            "from it to animal in the real model",
            (Fresh(lambda: _real_maps(TIRED), f"the maps of “{TIRED}”"), (10, 2)),
        ),
    ],
    mistakes=[
        Mistake(
            "find_query_and_key_swapped",
            "Rows are queries, columns are keys. You look from the second token to the first.",
            _find_with(pair=lambda maps, query, key: maps[:, :, key, query]),
            _find_with(
                pair=lambda maps, query, key: maps[:, :, key, query], back=lambda maps: _back(maps.transpose(-2, -1))
            ),
        ),
        Mistake(
            "find_one_ahead",
            "You follow the weight one token ahead. Back is the token before the query: its number is smaller by one.",
            *(
                _find_with(back=lambda maps, f=f, l=l: _back(maps, f, l, 1))
                for f, l in ((2, -1), (1, -1), (1, -2), (0, -1))
            ),
        ),
        Mistake(
            "find_special_tokens_counted",
            "Special tokens take part in your mean. From the first word, one back is [CLS], and [SEP] is no word.",
            *(_find_with(back=lambda maps, f=f, l=l: _back(maps, f, l)) for f, l in ((1, 0), (1, -1), (2, 0))),
        ),
        Mistake(
            "find_word_left_out",
            "Your mean leaves out a word. It runs from the second word to the last one.",
            *(
                _find_with(back=lambda maps, f=f, l=l: _back(maps, f, l))
                for f, l in ((3, -1), (2, -2), (3, -2), (1, -2))
            ),
        ),
        Mistake(
            "find_another_distance",
            "You follow the weight to another place than one token back: the query itself, or two back.",
            *(_find_with(back=lambda maps, f=f, n=n: _back(maps, f, -1, n)) for f in (2, 1, 3) for n in (-2, 0)),
            *(_find_with(back=lambda maps, n=n: maps.diagonal(n, -2, -1).mean(-1)) for n in (-2, 0)),
        ),
        Mistake(
            "find_other_diagonal",
            "Your diagonal runs through layers and heads, the first two axes. Asked for is the one through queries "
            "and keys.",
            *(
                _find_with(back=back, place=place)
                for back in (
                    lambda maps: _other_diagonal(maps)[..., 1:-1].mean(-1),
                    lambda maps: _other_diagonal(maps).mean(-1),
                )
                for place in (_of_table, lambda flat, maps: divmod(flat, maps.size(1)))
            ),
        ),
        Mistake(
            "find_triangle",
            "You add up a whole triangle of the maps. One token back is a single diagonal of it.",
            *(_find_with(back=back) for back in _triangles()),
        ),
        Mistake(
            "find_every_pair",
            "Your mean runs over every pair of those queries and keys. Each query has one key that is one back.",
            _find_with(back=_every_pair),
        ),
        Mistake(
            "find_pair_as_two_queries",
            "Your pair picks two queries with all their keys. Its first number is a query, its second a key.",
            _find_with(pair=lambda maps, query, key: maps[:, :, [query, key]]),
            _find_with(pair=lambda maps, query, key: maps[:, :, [query, key]].mean((-2, -1))),
        ),
        Mistake(
            "find_always_back",
            "You look one token back whatever is asked for.",
            _find_with(pair=lambda maps, query, key: _back(maps)),
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
            "find_counted_from_one",
            "Layers and heads are counted from 0. Yours begin at 1.",
            _find_with(place=lambda flat, maps: tuple(n + 1 for n in divmod(flat, maps.size(1)))),
        ),
        Mistake(
            "find_number_not_taken_apart",
            "Your head is the number that counts through all heads of all layers. Take off it what the layers in "
            "front hold.",
            _find_with(place=lambda flat, maps: (flat // maps.size(1), flat)),
        ),
        Mistake(
            "find_always_the_last",
            "You give the same head whatever the maps hold: the best so far is not kept, or not compared with.",
            _find_with(place=lambda flat, maps: (maps.size(0) - 1, maps.size(1) - 1)),
            _find_with(place=lambda flat, maps: (0, 0)),
        ),
        Mistake(
            "find_counted_by_layers",
            "Your number of a head is taken apart by the number of layers. Behind each layer stand all its heads.",
            _find_with(place=lambda flat, maps: divmod(flat, maps.size(0))),
        ),
        Mistake(
            "find_twelve_heads",
            "Your number of a head is taken apart by 12. MiniLM has twelve heads in a layer; these maps have another "
            "number.",
            _find_with(place=lambda flat, maps: divmod(flat, 12)),
        ),
        Mistake(
            "find_heads_averaged",
            "You average over heads or layers before you look for the largest. The mean of twelve heads shows none of "
            "them.",
            _find_with(best=lambda table: table.mean(1).argmax() * table.size(1) + table.mean(0).argmax()),
            _find_with(
                best=lambda table: table.mean(1).argmax() * table.size(1) + table[table.mean(1).argmax()].argmax()
            ),
        ),
        Mistake("find_smallest", "You give the head with the smallest weight there.", _find_with(best=torch.argmin)),
        Mistake(
            "find_one_cell",
            "You take the largest single weight. One token may look back by chance: asked for is the mean over the "
            "words.",
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


_SMALL = copy_of(small_bert, "a small model: 3 layers, 4 heads of 6")
_IDS = torch.tensor([[3, 17, 29, 5, 8], [22, 4, 31, 11, 2]])


def _heads_list(*heads) -> Fresh:
    return Fresh(lambda: list(heads), str(list(heads)))


def _prune_and_run(function, model, heads):
    function(model, heads)
    with torch.no_grad():
        if model.config.hidden_size == 24:
            return model.eval()(_IDS).last_hidden_state
        return model.eval()(**tokens_of(ORANGE)).last_hidden_state


def _changed_cells(before: Tensor, after: Tensor) -> str:
    """Say which rows and columns of a weight, or which places of a bias, hold other numbers than before."""
    cells = after != before
    now = "0 now" if not bool(after[cells].any()) else "other numbers now"
    if cells.dim() != 2:
        return f"{_ranges(cells)}: {now}"
    rows, columns = cells.any(1), cells.any(0)
    if rows.all() and columns.all():
        return f"all of it: {now}"
    named = [f"{name} {_ranges(x)}" for name, x in (("rows", rows), ("columns", columns)) if not x.all()]
    return f"{' and '.join(named)}: {now}"


def _ranges(told: Tensor) -> str:
    """Write places as ranges: 0–5, 12."""
    places = told.nonzero().flatten().tolist()
    starts = [p for p in places if p - 1 not in places]
    ends = [p for p in places if p + 1 not in places]
    return ", ".join(str(i) if i == j else f"{i}–{j}" for i, j in zip(starts[:6], ends)) + (
        ", …" if len(starts) > 6 else ""
    )


class PruneExercise(RealExercise):
    """The check of heads switched off: what fits no known mistake is told which cells it changed."""

    def _unnamed(self, trial, trials, binding, guard):
        model, heads = (x.make() for x in trial.probe.args)
        before = {name: x.clone() for name, x in model.state_dict().items()}
        if trial.seen.error is not None or guard.call(binding.call, model, list(heads)).error is not None:
            return super()._unnamed(trial, trials, binding, guard)
        after = model.state_dict()
        changed = {
            n: _changed_cells(x, after[n]) for n, x in before.items() if n in after and not torch.equal(x, after[n])
        }
        if not changed:
            return super()._unnamed(trial, trials, binding, guard)
        width = model.config.hidden_size // model.config.num_attention_heads
        wanted = "; ".join(
            f"layer.{i}.attention.output.dense.weight, columns {h * width}–{(h + 1) * width - 1}" for i, h in heads
        )
        shown = {
            "you changed": "\n".join(
                f"{n.removeprefix('encoder.')}, {words}" for n, words in list(changed.items())[:6]
            )
        }
        says = "What you changed does not switch off these heads and nothing else."
        return "prune_other_cells", says, shown | {"enough is": f"0 in {wanted or 'no cell at all'}"}


prune = PruneExercise(
    "prune",
    signature="model heads",
    expects="nothing to return: afterwards the model gives what it gives without the terms of these heads, and "
    "everything else is as before.",
    reference=prunes(cut_columns),
    parts=one_tensor("output of the model"),
    apply=_prune_and_run,
    read=read.REAL_OFF,
    probes=[
        Probe("one head", (_SMALL, _heads_list((1, 2)))),
        Probe("heads of two layers", (_SMALL, _heads_list((0, 1), (2, 0)))),
        Probe("two heads of one layer", (_SMALL, _heads_list((2, 3), (2, 1)))),
        Probe("no head at all", (_SMALL, _heads_list())),
        Probe(
            "the real model",
            (copy_of(lambda: loaded()[0], "the real model"), _heads_list((5, 2), (3, 1), (0, 0))),
            tolerance=1e-4,
        ),
    ],
    mistakes=PRUNE,
)
