"""The numbers that chapter 10 shows. The cache and the layer themselves are tested in test_cache.py and test_grouped.py."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mha_lib import GroupedQueryAttention, KeyValueCache, attention, causal_mask, cost, decoder_mask, merge_heads, split_heads
from mha_lib.positions import rotate

D_MODEL, HEADS, D_K = 64, 4, 16


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return GroupedQueryAttention(D_MODEL, HEADS, HEADS, rotary_base=10_000.0).requires_grad_(False)


def texts(length, batch=2):
    return torch.randn(batch, length, D_MODEL, generator=torch.Generator().manual_seed(1))


def full_pass(layer, x):
    return layer(x, causal_mask(x.size(1)))


def row_by_row(layer, x, place):
    keys, values, rows = [], [], []
    for t in range(x.size(1)):
        q, k, v = (split_heads(linear(x[:, t : t + 1]), HEADS) for linear in (layer.w_q, layer.w_k, layer.w_v))
        keys.append(rotate(k, torch.tensor([place(t)])))
        values.append(v)
        q = rotate(q, torch.tensor([place(t)]))
        rows.append(layer.w_o(merge_heads(attention(q, torch.cat(keys, 2), torch.cat(values, 2))[0])))
    return torch.cat(rows, 1)


def test_outputs_stay_when_a_token_is_added_only_under_a_causal_mask(layer):
    x = texts(8)
    assert torch.allclose(full_pass(layer, x)[:, :5], full_pass(layer, x[:, :5]), atol=1e-6)
    assert not torch.allclose(layer(x)[:, :5], layer(x[:, :5]), atol=1e-3)


def test_rows_by_hand_and_steps_with_a_cache_equal_the_full_pass(layer):
    x, cache = texts(40), KeyValueCache()
    full = full_pass(layer, x)
    steps = torch.cat([layer(x[:, t : t + 1], cache=cache) for t in range(40)], 1)
    assert (steps - full).abs().max() <= 5e-7
    assert (row_by_row(layer, x, lambda t: t) - full).abs().max() <= 5e-7


def test_prefill_then_steps_equals_the_full_pass(layer):
    x, cache = texts(12), KeyValueCache()
    parts = [layer(x[:, :5], causal_mask(5), cache=cache)]
    parts += [layer(x[:, t : t + 1], cache=cache) for t in range(5, 12)]
    assert torch.allclose(torch.cat(parts, 1), full_pass(layer, x), atol=1e-6)


def test_a_cache_of_another_text_changes_what_follows_until_reset(layer):
    x, cache = texts(6), KeyValueCache()
    layer(texts(3) + 1, causal_mask(3), cache=cache)
    wrong = layer(x, causal_mask(6, keys=9), cache=cache)
    assert not torch.allclose(wrong, full_pass(layer, x), atol=1e-3)
    cache.reset()
    assert torch.equal(layer(x, causal_mask(6), cache=cache), full_pass(layer, x))


@pytest.mark.parametrize(
    "mask, right",
    [
        (causal_mask(3, keys=8), [True, True, True]),
        (torch.ones(1, 3, 8, dtype=torch.bool).tril(), [False, False, False]),
        (None, [False, False, True]),
    ],
    ids=["bottom right", "top left", "none"],
)
def test_a_chunk_of_three_under_three_masks(layer, mask, right):
    x, cache = texts(8), KeyValueCache()
    layer(x[:, :5], causal_mask(5), cache=cache)
    chunk, full = layer(x[:, 5:], mask, cache=cache), full_pass(layer, x)
    assert [torch.allclose(chunk[:, i], full[:, 5 + i], atol=1e-6) for i in range(3)] == right


def test_a_square_mask_on_a_chunk_is_refused(layer):
    x, cache = texts(8), KeyValueCache()
    layer(x[:, :5], causal_mask(5), cache=cache)
    with pytest.raises(ValueError, match=r"T_q=3, T_k=8"):
        layer(x[:, 5:], causal_mask(3), cache=cache)
    assert len(cache) == 5


def test_is_causal_on_one_query_returns_value_0():
    q = torch.randn(2, 4, 1, D_K, generator=torch.Generator().manual_seed(2))
    k, v = torch.randn(2, 2, 4, 5, D_K, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(F.scaled_dot_product_attention(q, k, v, is_causal=True), v[:, :, :1], atol=1e-6)
    assert torch.allclose(F.scaled_dot_product_attention(q, k, v), attention(q, k, v)[0], atol=1e-6)


def test_places_that_start_at_0_spoil_every_row_but_the_first_and_a_common_shift_none(layer):
    x = texts(8)
    full = full_pass(layer, x)
    from_zero, moved = row_by_row(layer, x, lambda t: 0), row_by_row(layer, x, lambda t: t + 100)
    assert [torch.allclose(from_zero[:, t], full[:, t], atol=1e-5) for t in range(8)] == [True] + 7 * [False]
    assert torch.allclose(moved, full, atol=1e-4)


@torch.no_grad()
def counted(layer, length, cache=None):
    y = torch.randn(1, length, layer.d_model)
    with FlopCounterMode(display=False) as counter:
        for t in range(length):
            layer(y[:, : t + 1] if cache is None else y[:, t : t + 1], cache=cache, need_weights=True)
    return counter.get_total_flops() // 2


def by_formula(length, d):
    without = sum(sum(cost.multiplications(1, t, d).values()) for t in range(1, length + 1))
    return without, sum(4 * d * d + 2 * t * d for t in range(1, length + 1))


def test_multiplications_are_those_that_torch_counts():
    layer = GroupedQueryAttention(256, 4, 4)
    assert (counted(layer, 64), counted(layer, 64, KeyValueCache())) == by_formula(64, 256)


def test_a_cache_saves_33_to_285_times_the_multiplications():
    ratios = [without / with_cache for without, with_cache in (by_formula(n, 256) for n in (64, 128, 256, 512))]
    assert [round(r) for r in ratios] == [33, 67, 137, 285]


def test_bytes_by_formula_and_measured(layer):
    cache = KeyValueCache()
    layer(texts(20), causal_mask(20), cache=cache)
    layer(texts(3), causal_mask(3, keys=23), cache=cache)
    assert cache.bytes == 2 * 2 * 23 * HEADS * D_K * 4
    assert 2 * 32 * 16 * 4096 * 32 * 128 * 2 == 32 * 2**30


def test_a_cache_of_100_tokens_grows_seven_times():
    cache, rooms = KeyValueCache(), []
    for _ in range(100):
        cache.append(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
        rooms.append(cache.room)
    assert sorted(set(rooms)) == [1, 2, 4, 8, 16, 32, 64, 128]


def test_padding_in_front_keeps_the_last_column_and_behind_does_not(layer):
    torch.manual_seed(1)
    embed = nn.Embedding(50, D_MODEL).requires_grad_(False)
    alone = full_pass(layer, embed(torch.tensor([[9, 3, 7]])))[:, -1]
    for tokens, right in (([[0, 0, 9, 3, 7]], True), ([[9, 3, 7, 0, 0]], False)):
        tokens = torch.tensor(tokens)
        last = layer(embed(tokens), decoder_mask(tokens, pad_id=0))[:, -1]
        assert torch.allclose(last, alone, atol=1e-6) == right


@pytest.mark.parametrize("remember", [True, False])
def test_a_batch_padded_in_front_goes_on_as_if_each_text_were_alone(layer, remember):
    """A step after the prefill: the mask must still hide the padding."""
    torch.manual_seed(1)
    embed, cache = nn.Embedding(50, D_MODEL).requires_grad_(False), KeyValueCache()
    tokens = torch.tensor([[0, 0, 9, 3, 7, 11], [5, 8, 2, 6, 4, 12]])
    mask = decoder_mask(tokens, pad_id=0)
    layer(embed(tokens[:, :5]), mask[:, :5, :5], cache=cache)
    step = layer(embed(tokens[:, 5:]), mask[:, 5:] if remember else None, cache=cache)[:, 0]
    alone = [full_pass(layer, embed(t))[0, -1] for t in (tokens[:1, 2:], tokens[1:])]
    assert [torch.allclose(a, b, atol=1e-6) for a, b in zip(step, alone)] == [remember, True]
