"""The checks of chapter 10: masks of the last queries, writing with a cache, and a hunt."""

import torch
from torch import Tensor

from mha_lib.attention import attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Fresh, Law, Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, as_tensor, one_tensor, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.recipe import Recipe
from mha_lib.experiments.training import seeded
from mha_lib.experiments.writer import Writer
from mha_lib.masks import causal_mask

# -- the mask of the last queries


def _mask(value: object) -> dict[str, Tensor]:
    refuse_none(value)
    mask = as_tensor(value, "mask")
    if mask.dtype != torch.bool:
        raise Unfit("mask_not_bool", f"Your mask holds {mask.dtype}. Asked for is True and False.")
    return {"mask": (mask.unsqueeze(0) if mask.dim() == 2 else mask).double()}


def _a_triangle(trials) -> bool:
    """Say whether every mask has the right shape and is a triangle at the bottom left."""
    masks = [t.seen.parts.get("mask") for t in trials]
    if any(m is None or m.shape != t.want.parts["mask"].shape for m, t in zip(masks, trials)):
        return False
    return all(
        any(torch.equal(m, torch.ones_like(m).tril(d)) for d in range(-m.size(-2), m.size(-1) + 1)) for m in masks
    )


def _ones(queries, keys):
    return torch.ones(1, queries, keys, dtype=torch.bool)


offset_causal_mask = Exercise(
    "offset_causal_mask",
    signature="queries keys",
    expects="a mask of True and False, (1, queries, keys) or (queries, keys); the last query sees every key.",
    reference=lambda queries, keys: causal_mask(queries, keys=keys),
    parts=_mask,
    read=read.CHUNK,
    probes=[Probe(f"{q} × {k}", (q, k)) for q, k in ((3, 8), (2, 3), (5, 9), (1, 6), (4, 4), (1, 1))],
    mistakes=[
        Mistake(
            "offset_top_left",
            "Your triangle stands at the top left: the first of the new tokens sees key 0 alone. It stands behind all "
            "the earlier keys.",
            lambda q, k: _ones(q, k).tril(),
        ),
        Mistake(
            "offset_square",
            "Your mask has as many columns as rows. There is a column for every key, the kept ones too.",
            lambda q, k: _ones(q, q).tril(),
        ),
        Mistake(
            "offset_row_for_every_key",
            "Your mask has a row for every token. Its rows are the queries alone, and they are the last tokens.",
            lambda q, k: _ones(k, k).tril(),
        ),
        Mistake(
            "offset_all_allowed",
            "Your mask blocks nothing. One query alone may see all; of several, the earlier ones would see the later "
            "ones.",
            lambda q, k: _ones(q, k),
        ),
        Mistake(
            "offset_excludes_self",
            "Every query is one place short: it does not see itself.",
            lambda q, k: _ones(q, k).tril(k - q - 1),
        ),
        Mistake(
            "offset_sees_next",
            "Every query sees one place too far: the token behind it.",
            lambda q, k: _ones(q, k).tril(k - q + 1),
        ),
        Mistake(
            "offset_inverted",
            "True and False are exchanged: yours marks what is blocked.",
            lambda q, k: _ones(q, k).triu(k - q + 1),
            read=read.MEANING,
        ),
        Mistake(
            "offset_upper",
            "Your triangle is the other one: every query sees itself and the future, never the past.",
            lambda q, k: _ones(q, k).triu(k - q),
        ),
        Mistake(
            "offset_wrong_way",
            "The triangle is moved the wrong way, away from the later keys.",
            lambda q, k: _ones(q, k).tril(q - k),
        ),
        Mistake(
            "offset_new_only",
            "The kept keys are blocked: the new tokens see each other alone.",
            lambda q, k: _ones(q, k).tril(k - q) & (torch.arange(k) >= k - q),
        ),
        Mistake(
            "offset_kept_only",
            "The new keys are blocked: the new tokens see neither themselves nor each other.",
            lambda q, k: _ones(q, k) & (torch.arange(k) < k - q),
        ),
        Mistake(
            "offset_window",
            "Your queries see a window that moves with them, and lose the first keys.",
            lambda q, k: _ones(q, k).tril(k - q).triu(),
        ),
        Mistake(
            "offset_transposed",
            "Queries and keys are exchanged: a row belongs to a query, a column to a key.",
            lambda q, k: _ones(q, k).tril(k - q).transpose(-2, -1),
            lambda q, k: _ones(k, q).tril(k - q),
            lambda q, k: _ones(k, q).tril(),
            lambda q, k: _ones(k, k).tril()[..., k - q :],
        ),
        Mistake(
            "offset_flipped",
            "The triangle is flipped: the first query sees most, and the last one least.",
            lambda q, k: _ones(q, k).tril(k - q).flip(-2),
            lambda q, k: _ones(q, k).tril(k - q).flip(-1),
        ),
        Mistake(
            "offset_from_behind",
            "Your queries see the last keys and not the first: the first query sees one key, the last one. What may "
            "be seen begins at key 0.",
            lambda q, k: _ones(q, k).tril().flip(-1),
        ),
        Mistake(
            "offset_moved_otherwise",
            "Your triangle is moved, but not by as many places as there are earlier keys. The last query sees every "
            "key, each one before it one less.",
            Sign(_a_triangle),
        ),
    ],
)

# -- writing


def _writer(seed):
    def make():
        model = Writer().requires_grad_(False)
        for weight in model.layers.parameters():
            weight.mul_(3)  # so that what a token sees decides what comes next
        return model

    return Fresh(lambda: seeded(make, seed), "a Writer")


def _generate(steps, note, model, prompt, count, text=None):
    caches, tokens, new = steps.caches(model), prompt if text is None else text, prompt
    for i in range(count):
        scores = model(new, steps.mask(new, caches), steps.given(caches, i))
        picked = steps.pick(scores)
        tokens = steps.join(tokens, picked)
        caches = steps.go_on(caches, model)
        new = steps.next(tokens, picked, prompt, i)
    return steps.give(tokens, prompt)


def _growing(new, caches):
    return causal_mask(new.size(1), keys=len(caches[0]) + new.size(1))


def _of_the_prompt(new, caches):
    return None if len(caches[0]) else causal_mask(new.size(1))


def _upside_down(new, caches):
    return None if len(caches[0]) else ~causal_mask(new.size(1))


def _top_left(new, caches):
    return torch.ones(new.size(1), len(caches[0]) + new.size(1), dtype=torch.bool).tril()


generate_with = Recipe(
    _generate,
    caches=lambda model: model.new_caches(),
    mask=_growing,
    given=lambda caches, i: caches,
    pick=lambda scores: scores[:, -1].argmax(-1, keepdim=True),
    join=lambda tokens, picked: torch.cat((tokens, picked), 1),
    go_on=lambda caches, model: caches,
    next=lambda tokens, picked, prompt, i: picked,
    give=lambda tokens, prompt: tokens,
)


def _passes(specimen):
    """Run the answer on a model that notes how many tokens it is given at each pass."""
    model, prompt = _writer(31).make(), torch.tensor([[7, 30, 12, 5, 21]])
    lengths = []
    model.embed.register_forward_hook(lambda module, given, output: lengths.append(given[0].size(-1)))
    return lengths if specimen.guard.call(specimen.answer, model, prompt, 6).error is None else []


def _reads_again(specimen):
    lengths = _passes(specimen)
    if sum(lengths) <= 11:
        return None
    return {
        "yours": f"tokens that went through the model, pass by pass: {', '.join(map(str, lengths))}",
        "expected": "the prompt once, then one token a pass",
    }


def _reads_one_by_one(specimen):
    lengths = _passes(specimen)
    if not lengths or lengths[0] > 1:
        return None
    return {
        "yours": f"tokens that went through the model, pass by pass: {', '.join(map(str, lengths[:8]))}",
        "expected": "5, the whole prompt, in the first",
    }


_PROMPT = torch.tensor([[3, 17, 8, 25], [30, 2, 11, 6]])

generate = Exercise(
    "generate",
    signature="model prompt count",
    expects="the tokens (B, T + count): the prompt, and count tokens written after it.",
    reference=generate_with(),
    parts=one_tensor("tokens"),
    read=read.PREFILL,
    probes=[
        Probe("two texts, five tokens", (_writer(32), _PROMPT, 5)),
        Probe("the same once more", (_writer(32), _PROMPT, 5)),
        Probe("one text", (_writer(33), torch.tensor([[9, 1, 33, 4, 28, 19]]), 8)),
        Probe("a prompt of one token", (_writer(34), torch.tensor([[5], [21], [14]]), 4)),
        Probe("one token to write", (_writer(35), torch.tensor([[12, 7, 3], [1, 38, 22], [6, 6, 9]]), 1)),
    ],
    mistakes=[
        Mistake(
            "gen_reads_again",
            "The tokens are right, but the model reads the whole text again at every step. The cache is there so that "
            "it need not.",
            Law(_reads_again),
        ),
        Mistake(
            "gen_prompt_one_by_one",
            "The tokens are right, but the prompt goes through the model token by token. It is all there: one pass "
            "fills the caches.",
            Law(_reads_one_by_one),
        ),
        Mistake(
            "gen_whole_text_into_cache",
            "Every step gives the whole text to a cache that holds most of it already, so tokens are kept twice.",
            generate_with(next=lambda tokens, picked, prompt, i: tokens),
            generate_with(next=lambda tokens, picked, prompt, i: tokens, mask=lambda new, caches: None),
        ),
        Mistake(
            "gen_prompt_without_mask",
            "The prompt goes through the model without a mask: its tokens see what comes after them, and what the "
            "second layer keeps is not what it would be.",
            generate_with(mask=lambda new, caches: None),
            read=read.KEPT,
        ),
        Mistake(
            "gen_top_left",
            "At each step your mask stands at the top left: the new token sees the first key alone.",
            generate_with(mask=_top_left),
            read=read.CHUNK,
        ),
        Mistake(
            "gen_square_mask",
            "Your mask is square at every step. A new token's row has a column for each key, the kept ones too.",
            generate_with(mask=lambda new, caches: causal_mask(new.size(1))),
            read=read.CHUNK,
        ),
        Mistake(
            "gen_fresh_caches",
            "Every step begins with empty caches: the new token finds nothing of the text.",
            generate_with(go_on=lambda caches, model: model.new_caches()),
            generate_with(given=lambda caches, i: None, mask=lambda new, caches: causal_mask(new.size(1))),
            lambda model, prompt, count: generate_with(go_on=lambda caches, model: model.new_caches())(
                model, prompt[:, -1:], count, prompt
            ),
        ),
        Mistake(
            "gen_mask_inverted",
            "The mask of the prompt is turned over: its tokens see what comes after them, and nothing before. True "
            "means may attend.",
            generate_with(mask=_upside_down),
            read=read.MEANING,
        ),
        Mistake(
            "gen_old_token_again",
            "After the first step the model gets a token that it has read already. What must go in is the newest one.",
            generate_with(next=lambda tokens, picked, prompt, i: prompt[:, -1:]),
            generate_with(next=lambda tokens, picked, prompt, i: tokens[:, -2:-1]),
            generate_with(next=lambda tokens, picked, prompt, i: prompt, mask=_of_the_prompt),
            generate_with(next=lambda tokens, picked, prompt, i: prompt),
            generate_with(next=lambda tokens, picked, prompt, i: prompt, mask=lambda new, caches: None),
        ),
        Mistake(
            "gen_prompt_not_kept",
            "The pass over the prompt does not fill the caches: what follows knows nothing of it.",
            generate_with(given=lambda caches, i: caches if i else None),
        ),
        Mistake(
            "gen_last_of_prompt_twice",
            "After the prompt its last token goes through the model once more, and is kept twice.",
            lambda model, prompt, count: _twice(model, prompt, count),
        ),
        Mistake(
            "gen_one_too_few",
            "One token is missing at the end: the last one written is dropped, or never written.",
            generate_with(give=lambda tokens, prompt: tokens[:, :-1]),
        ),
        Mistake(
            "gen_one_too_many",
            "There is one token too many at the end.",
            lambda model, prompt, count: generate_with()(model, prompt, count + 1),
        ),
        Mistake(
            "gen_without_prompt",
            "You return the new tokens alone. The prompt belongs in front of them.",
            generate_with(give=lambda tokens, prompt: tokens[:, prompt.size(1) :]),
        ),
        Mistake(
            "gen_count_is_the_total",
            "You stop when the whole text is `count` tokens long. Asked for are `count` tokens behind the prompt.",
            lambda model, prompt, count: generate_with()(model, prompt, max(count - prompt.size(1), 0)),
        ),
        Mistake(
            "gen_every_row",
            "You take a token from every row of the scores. Only the last row tells what comes after the text.",
            generate_with(pick=lambda scores: scores.argmax(-1)),
            generate_with(pick=lambda scores: scores.argmax(-1), mask=_of_the_prompt),
            generate_with(pick=lambda scores: scores.argmax(-1), mask=lambda new, caches: None),
        ),
        Mistake(
            "gen_largest_of_another_axis",
            "You look for the largest along another axis than that of the vocabulary, so what comes out is the number "
            "of a row or a text.",
            *(
                generate_with(pick=pick, mask=mask)
                for pick in (lambda scores: scores[:, -1:].argmax(1), lambda scores: scores.argmax(1))
                for mask in (_of_the_prompt, _growing)
            ),
        ),
        Mistake(
            "gen_drawn",
            "You draw the next token at random. Asked for is always the one with the highest score.",
            generate_with(pick=lambda scores: torch.multinomial(scores[:, -1].softmax(-1), 1)),
        ),
        Mistake(
            "gen_first_row",
            "You read the next token off the first row of the scores. The last row belongs to the last token.",
            generate_with(pick=lambda scores: scores[:, 0].argmax(-1, keepdim=True)),
        ),
        Mistake(
            "gen_one_text_for_all",
            "All texts go on with the token of the first one.",
            generate_with(pick=lambda scores: scores[:1, -1].argmax(-1, keepdim=True).expand(scores.size(0), 1)),
        ),
        Mistake(
            "gen_least_likely",
            "You take the token with the lowest score.",
            generate_with(pick=lambda scores: scores[:, -1].argmin(-1, keepdim=True)),
        ),
        Mistake(
            "gen_written_in_front",
            "New tokens are put in front of the text.",
            generate_with(join=lambda tokens, picked: torch.cat((picked, tokens), 1)),
        ),
        Mistake(
            "gen_one_cache_for_all_layers",
            "All layers share one cache, so each finds the keys of the other. Every layer has its own.",
            generate_with(caches=lambda model: [model.new_caches()[0]] * len(model.layers)),
        ),
        Mistake(
            "gen_caches_of_another_text",
            "The first call is right and the second is not: the caches of one text are still there when the next one "
            "begins.",
            Sign(lambda trials: len(trials) > 1 and trials[0].agrees and not trials[1].agrees),
        ),
    ],
)


def _twice(model, prompt, count):
    caches = model.new_caches()
    model(prompt, causal_mask(prompt.size(1)), caches)
    tokens, new = prompt, prompt[:, -1:]
    for _ in range(count):
        new = model(new, None, caches)[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, new), 1)
    return tokens


# -- a planted bug


def _right_attention(query, key, value):
    return attention(query, key, value, causal_mask(query.size(-2), keys=key.size(-2))[0])[0]


bug_decoding = BugHunt(
    "bug_decoding",
    signature="query key value",
    expects="the arguments (query, key, value) of a call on which the output is wrong: (B, T_q, d_k), and (B, T_k, "
    "d_k) twice, T_q at most T_k.",
    reference=_right_attention,
    buggy=planted.attention_cached,
    read=read.CHUNK,
    lucky=(
        Lucky(
            "shows_more_queries",
            "Here are more queries than keys. Each query is a token whose key is among the keys, so there are at "
            "least as many keys.",
            lambda query, key, value: query.size(-2) > key.size(-2),
        ),
        Lucky(
            "hidden_by_one_query",
            "One query alone may see every key, and here it does.",
            lambda query, key, value: query.size(-2) == 1,
        ),
        Lucky(
            "hidden_by_an_empty_cache",
            "Here there are as many queries as keys. In a square, top left and bottom right are the same.",
            lambda query, key, value: query.size(-2) == key.size(-2),
        ),
        Lucky(
            "hidden_by_equal_values",
            "All values are alike here, so every mixture of them is the same.",
            lambda query, key, value: float(value.max(-2).values.sub(value.min(-2).values).max()) < 1e-3,
        ),
    ),
)
