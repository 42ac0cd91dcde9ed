"""The checks of chapter 9, second part: scores that know the distance, weights for the other layout, and a hunt."""

import torch

from mha_lib import positions
from mha_lib.attention import attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Mistake, Probe, Sign
from mha_lib.checks.compare import one_tensor
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal, numbered
from mha_lib.checks.mistakes.rotary import interleaved, neighbours, rotate_with, turned
from mha_lib.checks.recipe import Recipe
from mha_lib.heads import split_heads

# -- scores that know the distance


def _relative(steps, note, query, key, num_heads):
    q, k = steps.prepare(query, query, key, num_heads), steps.prepare(key, query, key, num_heads)
    q = note("the turned queries", steps.turn_query(q, steps.query_places(query.size(1), key.size(1))))
    k = note("the turned keys", steps.turn_key(k, steps.key_places(query.size(1), key.size(1))))
    return steps.give(steps.scale(steps.dot(q, k), q.size(-1), query.size(-1)))


relative_with = Recipe(
    _relative,
    prepare=lambda x, query, key, num_heads: split_heads(x, num_heads),
    query_places=lambda new, all_: torch.arange(all_ - new, all_),
    key_places=lambda new, all_: torch.arange(all_),
    turn_query=positions.rotate,
    turn_key=positions.rotate,
    dot=lambda q, k: q @ k.transpose(-2, -1),
    scale=lambda scores, d_k, d_model: scores / d_k**0.5,
    give=lambda scores: scores,
)


def _left(x, places):
    return x


def _turned_before_the_split(query, key, num_heads):
    places = torch.arange(key.size(1))
    q, k = positions.rotate(query, places[-query.size(1) :]), positions.rotate(key, places)
    q, k = split_heads(q, num_heads), split_heads(k, num_heads)
    return q @ k.transpose(-2, -1) / q.size(-1) ** 0.5


relative_scores = Exercise(
    "relative_scores",
    signature="query key num_heads",
    expects="scores (B, h, T_q, T_k), divided by the root of d_k; the queries are the last T_q of the T_k tokens.",
    reference=relative_with,
    parts=one_tensor("scores"),
    read=read.WHO_TURNS,
    probes=[
        Probe("as many queries as keys", (normal(2, 5, 12, seed=311), normal(2, 5, 12, seed=312), 3), tolerance=1e-4),
        Probe(
            "the last two of seven tokens", (normal(3, 2, 16, seed=313), normal(3, 7, 16, seed=314), 4), tolerance=1e-4
        ),
        Probe("one query", (normal(2, 1, 24, seed=315), normal(2, 6, 24, seed=316), 4), tolerance=1e-4),
        Probe(
            "as many sentences as heads", (normal(3, 4, 18, seed=317), normal(3, 5, 18, seed=318), 3), tolerance=1e-4
        ),
        Probe("gradients", (normal(2, 2, 12, seed=319), normal(2, 5, 12, seed=320), 3), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "rel_turned_before_the_split",
            "You turn before the heads are split. Then the partner of a feature lies in another head, and the speeds "
            "are not those of a head.",
            _turned_before_the_split,
        ),
        Mistake(
            "rel_queries_from_zero",
            "Your queries are counted from 0. They are the last of the tokens: their places go on where the earlier "
            "ones end.",
            relative_with(query_places=lambda new, all_: torch.arange(new)),
            read=read.GO_ON,
        ),
        Mistake(
            "rel_queries_after_the_keys",
            "Your queries stand behind all the keys. The last query is the last key's own token.",
            relative_with(query_places=lambda new, all_: torch.arange(all_, all_ + new)),
            read=read.GO_ON,
        ),
        Mistake(
            "rel_off_by_one",
            "The places of the queries are off by one against those of the keys.",
            relative_with(query_places=lambda new, all_: torch.arange(all_ - new, all_) + 1),
            relative_with(query_places=lambda new, all_: torch.arange(all_ - new, all_) - 1 + (new == all_)),
            relative_with(key_places=lambda new, all_: torch.arange(1, all_ + 1)),
            read=read.GO_ON,
        ),
        Mistake(
            "rel_query_not_turned",
            "Only the keys are turned. Then a score depends on the place of the key, and not on the distance.",
            relative_with(turn_query=_left),
        ),
        Mistake(
            "rel_key_not_turned",
            "Only the queries are turned. Then a score depends on the place of the query, and not on the distance.",
            relative_with(turn_key=_left),
        ),
        Mistake(
            "rel_not_turned",
            "These scores know no places: nothing is turned, or all tokens of a head are turned alike, as when heads "
            "are counted.",
            relative_with(turn_query=_left, turn_key=_left),
        ),
        Mistake(
            "rel_turned_twice",
            "Keys or queries are turned twice: a token's angle is twice what its place says.",
            relative_with(turn_key=lambda x, p: positions.rotate(positions.rotate(x, p), p)),
            relative_with(turn_query=lambda x, p: positions.rotate(positions.rotate(x, p), p)),
            relative_with(
                turn_key=lambda x, p: positions.rotate(x, 2 * p), turn_query=lambda x, p: positions.rotate(x, 2 * p)
            ),
        ),
        Mistake(
            "rel_opposite_turns",
            "Queries and keys are turned in opposite directions: the angles add up, where their difference should be "
            "left.",
            relative_with(turn_key=lambda x, p: _turn_back(x, p)),
        ),
        Mistake(
            "rel_split_by_view",
            "The heads cut the sequence instead of the features, so a head does not hold all tokens.",
            relative_with(prepare=lambda x, q, k, h: x.reshape(x.size(0), h, x.size(1), -1)),
            read=read.CUT,
        ),
        Mistake(
            "rel_not_divided",
            "The scores are not divided by the root of d_k.",
            relative_with(scale=lambda s, d_k, d_model: s),
            read=read.SCALE,
        ),
        Mistake(
            "rel_divided_otherwise",
            "The scores are divided by another number than the root of d_k, the width of a head.",
            relative_with(scale=lambda s, d_k, d_model: s / d_model**0.5),
            relative_with(scale=lambda s, d_k, d_model: s / d_k),
            relative_with(scale=lambda s, d_k, d_model: s * d_k**0.5),
            relative_with(scale=lambda s, d_k, d_model: s / (d_model // d_k) ** 0.5),
            relative_with(scale=lambda s, d_k, d_model: s / d_model),
            read=read.SCALE,
        ),
        Mistake(
            "rel_weights",
            "You return weights: each row went through a softmax. Asked for are the scores.",
            relative_with(give=lambda s: s.softmax(-1)),
        ),
        Mistake(
            "rel_masked",
            "You block the future. Asked for are the scores alone: here nothing is blocked.",
            relative_with(give=lambda s: _without_the_future(s, -torch.inf)),
            relative_with(give=lambda s: _without_the_future(s, -1e9)),
            relative_with(give=lambda s: _without_the_future(s, torch.finfo(s.dtype).min)),
        ),
        Mistake(
            "rel_heads_averaged",
            "The heads are averaged or added up. Each head has a table of scores of its own.",
            relative_with(give=lambda s: s.mean(1)),
            relative_with(give=lambda s: s.sum(1)),
        ),
        Mistake(
            "rel_counted_backwards",
            "The places of the queries, or of the keys, run backwards: the first token has the largest.",
            relative_with(query_places=lambda new, all_: torch.arange(all_ - new, all_).flip(0)),
            relative_with(key_places=lambda new, all_: torch.arange(all_).flip(0)),
        ),
        Mistake(
            "rel_turned_by_distance",
            "You turn keys by a distance. A key has another distance to each query: turn each token by its own place, "
            "and the "
            "product leaves the distance.",
            lambda query, key, num_heads: _by_distance(query, key, num_heads),
        ),
        Mistake(
            "rel_transposed",
            "Queries and keys are exchanged: a row of the scores belongs to a query.",
            relative_with(give=lambda s: s.transpose(-2, -1)),
        ),
        Mistake(
            "rel_other_layout",
            "The heads are turned in the other layout, by neighbours. The scores of a trained layer would be others.",
            relative_with(
                turn_query=rotate_with(cut=neighbours, join=interleaved),
                turn_key=rotate_with(cut=neighbours, join=interleaved),
            ),
            read=read.LAYOUTS,
        ),
    ],
)


def _without_the_future(scores, lowest):
    may = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.size(-1) - scores.size(-2))
    return scores.masked_fill(~may, lowest)


def _by_distance(query, key, num_heads):
    q, k = split_heads(query, num_heads), split_heads(key, num_heads)
    places = torch.arange(key.size(1) - query.size(1), key.size(1)) - torch.arange(key.size(1))
    return q @ positions.rotate(k, places).transpose(-2, -1) / q.size(-1) ** 0.5


def _turn_back(x, places):
    return rotate_with(turn=lambda a, b, cos, sin: turned(a, b, cos, -sin))(x, places)


# -- weights from one layout to the other


def _rows_moved(steps, note, weight, num_heads):
    heads = steps.heads(weight, num_heads)  # (h, d_k, d_in)
    return steps.back(steps.order(heads), weight)


swap_with = Recipe(
    _rows_moved,
    heads=lambda weight, num_heads: weight.unflatten(0, (num_heads, -1)),
    order=lambda heads: torch.cat((heads[:, 0::2], heads[:, 1::2]), 1),
    back=lambda heads, weight: heads.flatten(0, 1),
)


def _first_half(rows):
    return torch.cat((rows, torch.zeros_like(rows)), 1)


def _second_half(rows):
    return torch.cat((torch.zeros_like(rows), rows), 1)


def _twice(rows):
    return torch.cat((rows, rows), 1)


def _first_head_only(weight, num_heads):
    d_k = weight.size(0) // num_heads
    return torch.cat((weight[:d_k][0::2], weight[:d_k][1::2], weight[d_k:]))


swap_layout = Exercise(
    "swap_layout",
    signature="weight num_heads",
    expects="a weight of the same shape: in each head first the rows 0, 2, 4, … and then 1, 3, 5, ….",
    reference=swap_with(),
    parts=one_tensor("weight"),
    read=read.LAYOUTS,
    probes=[
        Probe("three heads of 8", (numbered(24, 10), 3), cells=True),
        Probe("two heads of 6", (numbered(12, 7), 2), cells=True),
        Probe("as many columns as rows", (numbered(16, 16), 2), cells=True),
        Probe("one head", (numbered(10, 3), 1), cells=True),
        Probe("heads of 4", (numbered(20, 6), 5), cells=True),
        Probe("one pair in each head", (numbered(6, 5), 3), cells=True),
    ],
    mistakes=[
        Mistake(
            "swap_other_way",
            "This is the way back, from halves to neighbours.",
            swap_with(order=lambda heads: torch.stack(heads.chunk(2, 1), 2).flatten(1, 2)),
        ),
        Mistake(
            "swap_over_the_width",
            "You put the rows of the whole width in order. Pairs live inside a head, so each head has its own order.",
            lambda weight, num_heads: torch.cat((weight[0::2], weight[1::2])),
        ),
        Mistake(
            "swap_over_the_width_and_back",
            "You take the way back, from halves to neighbours, and over the whole width; pairs live inside a head.",
            lambda weight, num_heads: torch.stack(weight.chunk(2), 1).flatten(0, 1),
        ),
        Mistake(
            "swap_columns",
            "You move columns. They belong to the features that come in; the features of the heads are the rows.",
            lambda weight, num_heads: _of_columns(weight, num_heads),
            lambda weight, num_heads: torch.cat((weight[:, 0::2], weight[:, 1::2]), 1),
        ),
        Mistake("swap_nothing", "The weight comes back as it was.", lambda weight, num_heads: weight.clone()),
        Mistake(
            "swap_heads_and_features",
            "Heads and features are exchanged: the rows of a head stand together, head after head.",
            swap_with(
                heads=lambda weight, h: weight.unflatten(0, (-1, h)).transpose(0, 1),
                back=lambda heads, weight: heads.transpose(0, 1).flatten(0, 1),
            ),
            swap_with(heads=lambda weight, h: weight.unflatten(0, (-1, h))),
            swap_with(
                heads=lambda weight, h: weight.unflatten(0, (-1, h)).transpose(0, 1),
                back=lambda heads, weight: heads.flatten(0, 1),
            ),
        ),
        Mistake(
            "swap_halves_exchanged",
            "The two halves of each head are exchanged; nothing is sorted.",
            swap_with(order=lambda heads: torch.cat(heads.chunk(2, 1)[::-1], 1)),
        ),
        Mistake(
            "swap_odd_first",
            "The odd rows stand first. The first feature of a pair belongs into the first half.",
            swap_with(order=lambda heads: torch.cat((heads[:, 1::2], heads[:, 0::2]), 1)),
        ),
        Mistake(
            "swap_neighbours_exchanged",
            "The two features of each pair are exchanged and stay neighbours.",
            swap_with(order=lambda heads: torch.stack((heads[:, 1::2], heads[:, 0::2]), 2).flatten(1, 2)),
        ),
        Mistake(
            "swap_half_of_the_rows",
            "Half of the rows never arrive: only the first, or only the second, of each pair is there.",
            *(
                swap_with(order=lambda heads, i=i, put=put: put(heads[:, i::2]))
                for i in (0, 1)
                for put in (_first_half, _second_half, _twice)
            ),
        ),
        Mistake(
            "swap_first_head_only",
            "Only the first head is put in order; the others are as they were.",
            _first_head_only,
        ),
        Mistake(
            "swap_one_order_for_all",
            "Every head gets the rows of the first one: the order of its rows is not moved on from head to head.",
            swap_with(heads=lambda weight, h: (w := weight.unflatten(0, (h, -1)))[:1].expand_as(w)),
        ),
        Mistake(
            "swap_heads_not_joined",
            "The heads still stand on an axis of their own.",
            swap_with(back=lambda heads, weight: heads),
        ),
        Mistake(
            "swap_transposed",
            "Rows and columns are exchanged in what you return.",
            swap_with(back=lambda heads, weight: heads.flatten(0, 1).T),
        ),
        Mistake(
            "swap_changes_its_input",
            "Your code writes into the weight that is given.",
            Sign(lambda trials: any("weight" in t.seen.changed for t in trials)),
        ),
    ],
)


def _of_columns(weight, num_heads):
    return swap_with()(weight.T, num_heads).T


# -- a planted bug


def _right_attention(query, key, value):
    places = torch.arange(key.size(-2))
    return attention(positions.rotate(query, places), positions.rotate(key, places), value)[0]


bug_positions = BugHunt(
    "bug_positions",
    signature="query key value",
    expects="the arguments (query, key, value), each (B, T, d_k) with an even d_k, of a call on which the output is "
    "wrong.",
    reference=_right_attention,
    buggy=planted.attention_turned,
    read=read.WHO_TURNS,
    lucky=(
        Lucky(
            "hidden_by_one_token",
            "A single token stands at place 0, and there nothing is turned.",
            lambda query, key, value: key.size(-2) == 1,
        ),
        Lucky(
            "hidden_by_zeros", "All values are 0, and 0 turned is 0.", lambda query, key, value: not bool(value.any())
        ),
        Lucky(
            "hidden_by_the_first_place",
            "Only the value of the first token counts here, and place 0 is not turned.",
            lambda query, key, value: not bool(value[..., 1:, :].any()) or _first_takes_all(query, key, value),
        ),
    ),
)


def _first_takes_all(query, key, value):
    places = torch.arange(key.size(-2))
    weights = attention(positions.rotate(query, places), positions.rotate(key, places), value)[1]
    return float(weights[..., 1:].max()) < 1e-4
