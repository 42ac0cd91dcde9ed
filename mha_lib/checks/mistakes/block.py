"""The known mistakes in a block: attention and feed-forward, norms and sums."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib.checks import read
from mha_lib.checks.case import ALWAYS, Law, Mistake
from mha_lib.checks.compare import a
from mha_lib.checks.inputs import normal
from mha_lib.checks.recipe import Recipe
from mha_lib.masks import causal_mask


def _through(steps, note, parts_of, d_model, num_heads, x, mask=None):
    parts = parts_of(d_model, num_heads)
    normed = note("the normed input", steps.norm_1(parts, x))
    said = note("what attention says", steps.attend(parts, normed, mask))
    x = note("the sum after attention", steps.add_1(parts, x, said, normed))
    normed = note("the normed sum", steps.norm_2(parts, x))
    fed = note("what the feed-forward says", steps.feed(parts, normed))
    return steps.add_2(parts, x, fed, normed)


block_with = Recipe(
    _through,
    norm_1=lambda parts, x: parts.norm_1(x),
    attend=lambda parts, n, mask: parts.attention(n, n, n, mask),
    add_1=lambda parts, x, said, normed: x + said,
    norm_2=lambda parts, x: parts.norm_2(x),
    feed=lambda parts, n: parts.feed_forward(n),
    add_2=lambda parts, x, fed, normed: x + fed,
)


def _post_norm(parts_of, d_model, num_heads, x, mask=None):
    parts = parts_of(d_model, num_heads)
    x = parts.norm_1(x + parts.attention(x, x, x, mask))
    return parts.norm_2(x + parts.feed_forward(x))


def _side_by_side(parts_of, d_model, num_heads, x, mask=None):
    parts = parts_of(d_model, num_heads)
    n = parts.norm_1(x)
    return x + parts.attention(n, n, n, mask) + parts.feed_forward(parts.norm_2(x))


def _feed_first(parts_of, d_model, num_heads, x, mask=None):
    parts = parts_of(d_model, num_heads)
    x = x + parts.feed_forward(parts.norm_1(x))
    n = parts.norm_2(x)
    return x + parts.attention(n, n, n, mask)


def _to_the_input(norm_2_reads_the_sum):
    """Return a block whose second sum begins from the input of the block again."""

    def through(parts_of, d_model, num_heads, x, mask=None):
        parts = parts_of(d_model, num_heads)
        n = parts.norm_1(x)
        said = parts.attention(n, n, n, mask)
        return x + parts.feed_forward(parts.norm_2(x + said if norm_2_reads_the_sum else said))

    return through


def _second_norm_behind(parts_of, d_model, num_heads, x, mask=None):
    parts = parts_of(d_model, num_heads)
    n = parts.norm_1(x)
    x = x + parts.attention(n, n, n, mask)
    return parts.norm_2(x + parts.feed_forward(x))


def _norms_on_what_is_said(first, second):
    """Return a block whose norms stand behind attention or feed-forward, on what is added."""

    def through(parts_of, d_model, num_heads, x, mask=None):
        parts = parts_of(d_model, num_heads)
        n = x if first else parts.norm_1(x)
        said = parts.attention(n, n, n, mask)
        x = x + (parts.norm_1(said) if first else said)
        return x + (parts.norm_2(parts.feed_forward(x)) if second else parts.feed_forward(parts.norm_2(x)))

    return through


def _causal_always(parts, n, mask):
    return parts.attention(n, n, n, causal_mask(n.size(1)) if mask is None else mask)


def _is_no_layer_norm(specimen):
    """A layer norm gives the same for a token that is moved and stretched as a whole, whatever the others are."""
    module = specimen.build(12, 4)
    if module is None:
        return None
    x = normal(3, 5, 12, seed=513)

    def moved(norm):
        with torch.no_grad():
            return float((norm(3 * x + 2) - norm(x)).abs().max()), float(
                (norm(x[:1, :2]) - norm(x)[:1, :2]).abs().max()
            )

    for name in ("norm_1", "norm_2"):
        call = specimen.guard.call(moved, getattr(module, name))
        if call.error is not None or max(call.value) > 0.01:
            return {"yours": f"{name} is {a(getattr(module, name))}"}
    return None


def _over_tokens(x: Tensor) -> Tensor:
    return F.layer_norm(x.mT, (x.size(1),)).mT


def _is_shared(specimen):
    module = specimen.build(12, 4)
    if module is None or module.norm_1 is not module.norm_2:
        return None
    return {"yours": "norm_1 and norm_2 are one object"}


def _is_linear(specimen):
    module = specimen.build(12, 4)
    if module is None:
        return None
    a, b, zero = normal(2, 3, 12, seed=511), normal(2, 3, 12, seed=512), torch.zeros(2, 3, 12)

    def bend():
        with torch.no_grad():
            f = module.feed_forward
            return float((f(a + b) + f(zero) - f(a) - f(b)).abs().max())

    call = specimen.guard.call(bend)
    return (
        {"seen on": "feed_forward of a sum, and the sum of both"}
        if call.error is None and call.value < 1e-5
        else None
    )


def _fed(specimen, probe):
    """Return what the learner's own feed-forward makes of something, or None."""
    module = specimen.build(12, 4)
    if module is None:
        return None

    def feed():
        with torch.no_grad():
            return probe(module.feed_forward)

    call = specimen.guard.call(feed)
    return call.value if call.error is None else None


def _ends_with_an_activation(specimen):
    """ReLU and its kin have a floor: large inputs are let through on one side alone."""
    out = _fed(specimen, lambda feed: feed(200 * normal(8, 16, 12, seed=514)))
    if out is None or out.min() < -0.5 or out.max() < 2:
        return None
    return {
        "seen on": "feed_forward of 128 large tokens",
        "yours": f"all between {out.min():.2f} and {out.max():.2f}",
    }


def _keeps_features_apart(specimen):
    x = normal(1, 1, 12, seed=515)
    changed = x.clone()
    changed[..., 0] += 1
    moved = _fed(specimen, lambda feed: (feed(changed) - feed(x)).abs()[0, 0] > 1e-6)
    if moved is None or moved.size(-1) != 12 or moved[1:].any():
        return None
    return {"seen on": "feed_forward of a token in which feature 0 is changed", "yours": "no other feature changes"}


def _other_heads(specimen):
    module = specimen.build(12, 4)
    heads = getattr(getattr(module, "attention", None), "num_heads", 4)
    return (
        None
        if heads == 4
        else {"seen on": "d_model = 12, num_heads = 4", "yours": f"attention with num_heads = {heads}"}
    )


def _mixed(parts, x, mask, normed):
    n = parts.norm_1(x)
    x = x + parts.attention(*(n if role in normed else x for role in "qkv"), mask)
    return x + parts.feed_forward(parts.norm_2(x))


BLOCK = (
    Mistake(
        "block_post_norm",
        "You normalise the sums, or one of them. Here the norm stands in front: attention and feed-forward read "
        "it, and the sum stays as it is.",
        _post_norm,
        _second_norm_behind,
        read=read.NORM,
    ),
    Mistake(
        "block_norm_behind",
        "A norm stands behind attention or feed-forward, on what is added. It belongs in front, on what they read.",
        _norms_on_what_is_said(True, True),
        _norms_on_what_is_said(True, False),
        _norms_on_what_is_said(False, True),
        read=read.NORM,
    ),
    Mistake(
        "block_first_sum_lost",
        "The second sum begins from the input of the block again, so what attention said is not in it.",
        _to_the_input(True),
        _to_the_input(False),
        read=read.KEEP,
    ),
    Mistake(
        "block_sum_doubled",
        "What was there is added twice.",
        block_with(add_1=lambda p, x, said, n: 2 * x + said),
        block_with(add_2=lambda p, x, fed, n: 2 * x + fed),
        block_with(add_1=lambda p, x, said, n: x + n + said),
        block_with(add_2=lambda p, x, fed, n: x + n + fed),
        read=read.KEEP,
    ),
    Mistake(
        "block_always_causal",
        "You block the future even where no mask is given.",
        block_with(attend=_causal_always),
        read=read.CAUSAL,
    ),
    Mistake(
        "block_no_layer_norm",
        "A norm of yours is no layer norm, which looks at the features of one token alone: moved and stretched it "
        "stays the same.",
        Law(_is_no_layer_norm, ALWAYS),
        read=read.NORM,
    ),
    Mistake(
        "block_no_residual",
        "A sum is missing: what attention or feed-forward says takes the place of the token, instead of being "
        "added to it.",
        block_with(add_1=lambda p, x, said, n: said),
        block_with(add_2=lambda p, x, fed, n: fed),
        block_with(add_1=lambda p, x, said, n: said, add_2=lambda p, x, fed, n: fed),
        read=read.KEEP,
    ),
    Mistake(
        "block_adds_the_normed",
        "You add to the normed tokens. What was there is added as it was, before the norm.",
        block_with(add_1=lambda p, x, said, n: n + said),
        block_with(add_2=lambda p, x, fed, n: n + fed),
        block_with(add_1=lambda p, x, said, n: n + said, add_2=lambda p, x, fed, n: n + fed),
        read=read.KEEP,
    ),
    Mistake(
        "block_shared_norm",
        "One norm serves in both places. Each learns a scale of its own.",
        block_with(norm_2=lambda p, x: p.norm_1(x)),
        block_with(norm_1=lambda p, x: p.norm_2(x)),
        Law(_is_shared, ALWAYS),
        read=read.NORM,
    ),
    Mistake(
        "block_norms_exchanged",
        "The two norms stand in each other's places.",
        block_with(norm_1=lambda p, x: p.norm_2(x), norm_2=lambda p, x: p.norm_1(x)),
        read=read.NORM,
    ),
    Mistake(
        "block_norm_missing",
        "Attention or feed-forward reads its input without a norm.",
        block_with(norm_1=lambda p, x: x),
        block_with(norm_2=lambda p, x: x),
        block_with(norm_1=lambda p, x: x, norm_2=lambda p, x: x),
        read=read.NORM,
    ),
    Mistake(
        "block_norm_over_tokens",
        "You normalise over the tokens. A layer norm looks at the features of one token.",
        block_with(norm_1=lambda p, x: _over_tokens(x)),
        block_with(norm_2=lambda p, x: _over_tokens(x)),
        block_with(norm_1=lambda p, x: _over_tokens(x), norm_2=lambda p, x: _over_tokens(x)),
        read=read.NORM,
    ),
    Mistake(
        "block_side_by_side",
        "The feed-forward reads the input of the block. It reads the sum that attention left.",
        _side_by_side,
    ),
    Mistake("block_feed_first", "The feed-forward comes before attention. Here attention comes first.", _feed_first),
    Mistake(
        "block_mask_lost",
        "The mask changes nothing: it does not reach the attention.",
        block_with(attend=lambda p, n, mask: p.attention(n, n, n)),
    ),
    Mistake(
        "block_query_normed_alone",
        "Not all of query, key and value are normed. In self-attention all three are the same normed tokens.",
        *(
            lambda parts_of, d, h, x, mask=None, which=which: _mixed(parts_of(d, h), x, mask, which)
            for which in ("q", "kv", "qk", "v", "k", "qv")
        ),
    ),
    Mistake(
        "block_part_unused",
        "Attention or feed-forward takes no part.",
        block_with(add_1=lambda p, x, said, n: x),
        block_with(add_2=lambda p, x, fed, n: x),
    ),
    Mistake(
        "block_first_sentence",
        "You take the first of what the attention returns, and that is the first sentence. The course's layer returns "
        "one tensor, no pair.",
        block_with(attend=lambda p, n, mask: p.attention(n, n, n, mask)[0]),
    ),
    Mistake(
        "block_other_heads",
        "The attention is not made with the number of heads that is asked for.",
        Law(_other_heads, ALWAYS),
    ),
    Mistake(
        "block_feed_forward_without_linears",
        "Your feed-forward works on every feature by itself: it has no linear, which mixes them.",
        Law(_keeps_features_apart, ALWAYS),
    ),
    Mistake(
        "block_feed_forward_ends_bent",
        "Your feed-forward ends with an activation. It stands between the two linears.",
        Law(_ends_with_an_activation, ALWAYS),
    ),
    Mistake(
        "block_feed_forward_linear",
        "Your feed-forward is linear: without a bend between its two linears they are one.",
        Law(_is_linear, ALWAYS),
    ),
)
