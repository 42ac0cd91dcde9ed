"""The checks of chapter 10 about the cache: one step with it, and its bytes."""

import numbers

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib.attention import attention
from mha_lib.checks import read
from mha_lib.checks.case import Fresh, Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, a, as_tensor, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.cache_bytes import BYTES, bytes_of
from mha_lib.checks.recipe import Recipe
from mha_lib.experiments.training import seeded
from mha_lib.grouped import GroupedQueryAttention
from mha_lib.heads import merge_heads, split_heads
from mha_lib.positions import rotate

# -- one step

ROOM = 3  # places that stay empty


def _layer(d_model, num_heads, seed):
    def make():
        layer = GroupedQueryAttention(d_model, num_heads, num_heads, bias=True, rotary_base=10_000.0)
        return layer.requires_grad_(False).eval()

    return Fresh(
        lambda: seeded(make, seed),
        f"GroupedQueryAttention({d_model}, {num_heads}, {num_heads}, bias=True, rotary_base=10_000.0)",
    )


def _one_step(steps, note, layer, x, cache):
    n = cache["length"]
    q, k, v = (split_heads(linear(x), layer.num_heads) for linear in (layer.w_q, layer.w_k, layer.w_v))
    here = torch.tensor([steps.place(n)])
    q, k, v = steps.turn_query(q, here), steps.turn_key(k, here), steps.turn_value(v, here)
    steps.write(cache, n, k, v)
    keys, values = steps.seen(cache, n, k, v)
    heads = steps.attend(q, steps.use(keys, n), values)
    steps.after(cache, n, heads)
    cache["length"] = steps.count(n)
    return steps.output(layer, merge_heads(heads))


def _write(cache, n, k, v):
    cache["keys"][:, :, n : n + 1], cache["values"][:, :, n : n + 1] = k, v


def _write_at(slot):
    return lambda cache, n, k, v: _write(cache, slot(n), k, v)


def _seen_to(end):
    return lambda cache, n, k, v: (cache["keys"][:, :, : end(cache, n)], cache["values"][:, :, : end(cache, n)])


def _beside(cache, n, k, v):
    """Read the kept tokens and the new one without writing anything."""
    return torch.cat((cache["keys"][:, :, :n], k), 2), torch.cat((cache["values"][:, :, :n], v), 2)


def _behind_the_room(cache, n, k, v):
    cache["keys"], cache["values"] = torch.cat((cache["keys"], k), 2), torch.cat((cache["values"], v), 2)


def _all_of(cache, n, k, v):
    return cache["keys"], cache["values"]


def _length_off(trials):
    """The length is wrong where output, keys and values may be right or not."""
    told = [t for t in trials if t.is_wrong and t.seen.error is None]
    return bool(told) and all(float(t.seen.parts["length"]) != float(t.want.parts["length"]) for t in told)


def _left(x, place):
    return x


def _turn_all(keys, n):
    return rotate(keys, torch.arange(keys.size(2)))


def _turn_all_for_good(cache, n, k, v):
    _write(cache, n, k, v)
    cache["keys"][:, :, : n + 1] = rotate(cache["keys"][:, :, : n + 1], torch.arange(n + 1))


def _without_itself(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    scores[..., -1] = -torch.inf
    return scores.softmax(-1) @ v


def _keep_the_output(cache, n, heads):
    cache["values"][:, :, n : n + 1] = heads


def _turned_before_the_split(x, place):
    """Return the heads of tokens that were turned over their whole width."""
    return split_heads(rotate(merge_heads(x), place), x.size(1))


step_with = Recipe(
    _one_step,
    place=lambda n: n,
    turn_query=rotate,
    turn_key=rotate,
    turn_value=_left,
    write=_write,
    seen=_seen_to(lambda cache, n: n + 1),
    use=lambda keys, n: keys,
    attend=lambda q, k, v: attention(q, k, v)[0],
    after=lambda cache, n, heads: None,
    count=lambda n: n + 1,
    output=lambda layer, merged: layer.w_o(merged),
)
_reference_step = step_with()


def _take_steps(function, layer, x, kept):
    """Fill a cache with the first tokens, give the others to the function one by one, and return what came of it."""
    B, T, d_model = x.shape
    shape = (B, layer.num_heads, T + ROOM, layer.d_k)
    cache = {"keys": torch.zeros(shape), "values": torch.zeros(shape), "length": 0}
    for t in range(kept):
        _reference_step(layer, x[:, t : t + 1], cache)
    outputs = []
    for t in range(kept, T):
        output = function(layer, x[:, t : t + 1].clone(), cache)
        refuse_none(output)
        outputs.append(as_tensor(output, "output"))
    return torch.cat(outputs, 1), cache, T


def _step_parts(value) -> dict[str, Tensor]:
    output, cache, T = value
    if not all(name in cache for name in ("keys", "values", "length")):
        raise Unfit("cache_broken", "The cache has lost one of its entries: keys, values or length.")
    length = cache["length"]
    if isinstance(length, bool) or not isinstance(length, (int, Tensor)):
        raise Unfit("cache_broken", f"The length in the cache is {a(length)}; asked for is a whole number.")
    keys, values = (as_tensor(cache[name], name)[:, :, :T] for name in ("keys", "values"))
    return {"output": output, "kept keys": keys, "kept values": values, "length": torch.as_tensor(length).double()}


step = Exercise(
    "step",
    signature="layer x kept",
    expects="the output (B, 1, d_model) of the new token; its key and value stand in the cache afterwards, and the "
    "length is one more.",
    reference=_reference_step,
    parts=_step_parts,
    apply=_take_steps,
    read=read.ROW,
    probes=[
        Probe("two tokens after three", (_layer(12, 3, 21), normal(2, 5, 12, seed=401), 3), tolerance=1e-4),
        Probe("four tokens from an empty cache", (_layer(16, 2, 22), normal(3, 4, 16, seed=402), 0), tolerance=1e-4),
        Probe("as many texts as heads", (_layer(18, 3, 23), normal(3, 6, 18, seed=403), 4), tolerance=1e-4),
        Probe("one token after six", (_layer(24, 4, 24), normal(2, 7, 24, seed=404), 6), tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "step_from_zero",
            "The new token is turned as if it stood at place 0, or not at all. It stands behind those that are kept.",
            step_with(place=lambda n: 0),
            read=read.GO_ON,
        ),
        Mistake(
            "step_one_too_far",
            "The place of the new token is off by one. The first token stands at 0, so the next one's place is the "
            "length before it.",
            step_with(place=lambda n: n + 1),
            step_with(place=lambda n: max(n - 1, 0)),
            read=read.GO_ON,
        ),
        Mistake(
            "step_query_not_turned",
            "The query is not turned. Keys are, so their scores are not those of a distance.",
            step_with(turn_query=_left),
            read=read.GO_ON,
        ),
        Mistake(
            "step_key_not_turned",
            "The new key is kept as it came from its linear. The keys in the cache are turned, each by its own place.",
            step_with(turn_key=_left),
            read=read.GO_ON,
        ),
        Mistake(
            "step_value_turned",
            "The value is turned too. What a token gives has nothing to do with its place.",
            step_with(turn_value=rotate),
            read=read.WHO_TURNS,
        ),
        Mistake(
            "step_turned_again",
            "The kept keys are turned again at each step. They were turned before they were kept, once and for all.",
            step_with(turn_key=_left, use=_turn_all),
            step_with(use=_turn_all),
            step_with(turn_key=_left, write=_turn_all_for_good),
            step_with(write=_turn_all_for_good),
            read=read.GO_ON,
        ),
        Mistake(
            "step_empty_places_seen",
            "The query also sees the places that nothing was written to. Their scores are 0, and a score of 0 is an "
            "ordinary score.",
            step_with(seen=_seen_to(lambda cache, n: cache["keys"].size(2))),
        ),
        Mistake(
            "step_one_empty_place_seen",
            "The query sees one place too many: the first that nothing was written to.",
            step_with(seen=_seen_to(lambda cache, n: n + 2)),
        ),
        Mistake(
            "step_itself_not_seen",
            "The new token sees the earlier ones and not itself. Its own key and value belong to those it attends to.",
            step_with(seen=_seen_to(lambda cache, n: n)),
            step_with(attend=_without_itself),
        ),
        Mistake(
            "step_new_alone",
            "The new token sees itself alone. It should attend to all tokens so far.",
            step_with(seen=lambda cache, n, k, v: (k, v)),
        ),
        Mistake(
            "step_length_not_counted",
            "The length in the cache stays as it was, so the next token is written over this one.",
            step_with(count=lambda n: n),
        ),
        Mistake(
            "step_not_written",
            "The new key and value are used and not kept: the next token will not find them.",
            step_with(write=lambda cache, n, k, v: None, seen=_beside),
            step_with(write=lambda cache, n, k, v: None, seen=_beside, count=lambda n: n),
        ),
        Mistake(
            "step_keys_not_written",
            "Only one of the two is kept, the key or the value. The next token needs both.",
            step_with(write=lambda cache, n, k, v: cache["values"][:, :, n : n + 1].copy_(v)),
            step_with(write=lambda cache, n, k, v: cache["keys"][:, :, n : n + 1].copy_(k)),
            step_with(write=lambda cache, n, k, v: cache["values"][:, :, n : n + 1].copy_(v), seen=_beside),
            step_with(write=lambda cache, n, k, v: cache["keys"][:, :, n : n + 1].copy_(k), seen=_beside),
        ),
        Mistake(
            "step_turned_before_the_split",
            "You turn before the heads are split. Then the partner of a feature lies in another head.",
            step_with(turn_query=_turned_before_the_split, turn_key=_turned_before_the_split),
            read=read.WHO_TURNS,
        ),
        Mistake(
            "step_counted_too_early",
            "You count the new token before you use the length: it is turned and written one place too far, and "
            "an empty place stays before it.",
            step_with(place=lambda n: n + 1, write=_write_at(lambda n: n + 1), seen=_seen_to(lambda cache, n: n + 2)),
            step_with(place=lambda n: n + 1, write=_write_at(lambda n: n + 1)),
        ),
        Mistake(
            "step_wrong_slot",
            "Key and value are written to another place than the first empty one.",
            step_with(write=_write_at(lambda n: n + 1)),
            step_with(write=_write_at(lambda n: 0)),
            step_with(write=_write_at(lambda n: max(n - 1, 0))),
            step_with(write=_write_at(lambda n: n + 1), seen=_seen_to(lambda cache, n: n + 2)),
        ),
        Mistake(
            "step_behind_the_room",
            "Key and value are put behind the empty places. The new token belongs into the first of them, at the "
            "place of the length.",
            step_with(write=_behind_the_room, seen=_all_of),
            step_with(write=_behind_the_room),
        ),
        Mistake(
            "step_one_in_both",
            "The same tensor is written as key and as value. What a token is asked by and what it gives come from two "
            "linears.",
            step_with(write=lambda cache, n, k, v: _write(cache, n, k, k)),
            step_with(write=lambda cache, n, k, v: _write(cache, n, v, v)),
        ),
        Mistake(
            "step_at_the_front",
            "The new token is put in front of the others. The order of what is kept is that of the text.",
            step_with(write=lambda cache, n, k, v: _push(cache, n, k, v)),
        ),
        Mistake(
            "step_on_the_head_axis",
            "Key and value are put on the axis of the heads. New tokens go on the axis of the tokens.",
            step_with(
                seen=lambda cache, n, k, v: (
                    torch.cat((cache["keys"][:, :, :n], k), 1),
                    torch.cat((cache["values"][:, :, :n], v), 1),
                )
            ),
            step_with(
                write=lambda cache, n, k, v: (
                    cache["keys"][:, n].copy_(k.squeeze(2)),
                    cache["values"][:, n].copy_(v.squeeze(2)),
                )
            ),
            step_with(
                write=lambda cache, n, k, v: (
                    cache["keys"].__setitem__((slice(None), n), k),
                    cache["values"].__setitem__((slice(None), n), v),
                )
            ),
        ),
        Mistake(
            "step_output_kept",
            "You keep the output of the heads in place of the value. Later tokens mix values, not what this one has "
            "mixed.",
            step_with(after=_keep_the_output),
        ),
        Mistake(
            "step_keys_and_values_exchanged",
            "Keys and values are exchanged in the cache.",
            step_with(write=lambda cache, n, k, v: _write(cache, n, v, k)),
        ),
        Mistake(
            "step_top_left",
            "The new token sees the first key alone: its output is what value 0 gives. The triangle stands at the top "
            "left, where the first query of a text would be.",
            step_with(attend=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
            read=read.CHUNK,
        ),
        Mistake(
            "step_not_divided",
            "The scores are not divided by the root of d_k.",
            step_with(attend=lambda q, k, v: (q @ k.transpose(-2, -1)).softmax(-1) @ v),
            read=read.SCALE,
        ),
        Mistake(
            "step_divided_by_width",
            "The scores are divided by another number than the root of d_k, the width of a head.",
            step_with(
                attend=lambda q, k, v: (q @ k.transpose(-2, -1) / (q.size(1) * q.size(3)) ** 0.5).softmax(-1) @ v
            ),
            step_with(attend=lambda q, k, v: (q @ k.transpose(-2, -1) / q.size(3)).softmax(-1) @ v),
            read=read.SCALE,
        ),
        Mistake(
            "step_length_counted_otherwise",
            "After a step the length in the cache is not one more than before. It counts the tokens.",
            step_with(count=lambda n: n + 2),
            Sign(_length_off),
        ),
        Mistake(
            "step_without_w_o",
            "The heads stand side by side and the layer's last linear is missing.",
            step_with(output=lambda layer, merged: merged),
            read=read.MIX,
        ),
    ],
)


def _push(cache, n, k, v):
    for name, new in (("keys", k), ("values", v)):
        cache[name][:, :, : n + 1] = torch.cat((new, cache[name][:, :, :n]), 2)


# -- bytes


def _number(value: object) -> dict[str, Tensor]:
    refuse_none(value)
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Unfit("not_a_number", f"You returned {a(value)}; asked for is a number of bytes.")
    return {"number of bytes": torch.tensor(float(value), dtype=torch.float64)}


_SIZES = ((3, 50, 4, 16, 5, 2), (1, 4096, 32, 128, 24, 2), (7, 11, 3, 5, 2, 4), (2, 9, 6, 10, 1, 8))


cache_bytes = Exercise(
    "cache_bytes",
    signature="batch length num_heads d_k num_layers bytes_per_number",
    expects="a number: the bytes of all keys and values.",
    reference=bytes_of,
    parts=_number,
    read=read.WEIGHS,
    probes=[
        Probe(f"{layers} layers of {h} heads" if layers > 1 else f"one layer of {h} heads", (b, t, h, d, layers, n))
        for b, t, h, d, layers, n in _SIZES
    ],
    mistakes=BYTES,
)
