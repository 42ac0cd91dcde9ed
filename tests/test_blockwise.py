"""blockwise_attention beside the table, forward, backward and in memory; merge over any cut of the keys."""

import math

import pytest
import torch
import torch.nn.functional as F

from mha_lib import attention, causal_mask
from mha_lib.blockwise import blocks_to_visit, blockwise_attention, merge
from mha_lib.cost import peak_mib
from tests.conftest import relative, seeded_randn

D_K, D_V = 16, 12
LENGTHS = [(50, 70), (70, 70), (70, 50), (1, 9), (9, 1)]


def inputs(queries, keys, dtype=torch.float32, batch=(2, 3)):
    q = seeded_randn(*batch, queries, D_K, seed=0).to(dtype)
    k = seeded_randn(*batch, keys, D_K, seed=1).to(dtype)
    return q, k, seeded_randn(*batch, keys, D_V, seed=2).to(dtype)


def table_of(query, key, value, causal):
    mask = causal_mask(query.size(-2), keys=key.size(-2)) if causal and query.size(-2) <= key.size(-2) else None
    if causal and mask is None:  # more queries than keys: the first see nothing
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).tril(key.size(-2) - query.size(-2))
    return attention(query, key, value, mask)[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [1, 7, 16, 64, 200])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_equals_the_table(lengths, block, causal):
    q, k, v = inputs(*lengths)
    output, log_sum_exp = blockwise_attention(q, k, v, block=block, causal=causal)
    assert output.shape == (2, 3, lengths[0], D_V) and log_sum_exp.shape == (2, 3, lengths[0])
    assert relative(output, table_of(q, k, v, causal)) <= 1e-6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", [4, 1000])
def test_equals_the_table_on_a_long_text_and_large_scores(reach, causal):
    q, k, v = inputs(2048, 2048, batch=(1, 2))
    q = q * reach / (q @ k.mT / math.sqrt(D_K)).abs().max()
    assert relative(blockwise_attention(q, k, v, causal=causal)[0], table_of(q, k, v, causal)) <= 1e-6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [16, 128])
def test_gradients_equal_the_tables(block, causal):
    gradients = []
    for f in (lambda *x: blockwise_attention(*x, block=block, causal=causal)[0], lambda *x: table_of(*x, causal)):
        given = [x.requires_grad_() for x in inputs(200, 200)]
        f(*given).mul(seeded_randn(2, 3, 200, D_V, seed=3)).sum().backward()
        gradients.append([x.grad for x in given])
    for mine, theirs in zip(*gradients):
        assert relative(mine, theirs) <= 5e-6


def test_the_gradient_of_the_log_sum_exp_is_the_weights_times_the_keys():
    q, k, v = inputs(6, 9)
    q.requires_grad_()
    blockwise_attention(q, k, v, block=4)[1].sum().backward()
    weights = attention(q, k, v)[1]
    assert relative(q.grad, weights @ k / math.sqrt(D_K)) <= 5e-6


@pytest.mark.parametrize("block", [1, 5, 64])
def test_log_sum_exp_is_that_of_the_scaled_scores(block):
    q, k, v = inputs(13, 11)
    scores = q @ k.mT / math.sqrt(D_K)
    assert relative(blockwise_attention(q, k, v, block=block)[1], scores.logsumexp(-1)) <= 1e-6


@pytest.mark.parametrize("block", [1, 4, 64])
def test_queries_that_see_no_key_get_0_and_finite_gradients(block):
    q, k, v = (x.requires_grad_() for x in inputs(8, 3))
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        output, log_sum_exp = blockwise_attention(q, k, v, block=block, causal=True)
        output.sum().backward()
    assert (output[..., :5, :] == 0).all() and (log_sum_exp[..., :5] == -math.inf).all()
    assert (output[..., 5:, :] != 0).all() and log_sum_exp[..., 5:].isfinite().all()
    for x in (q, k, v):
        assert x.grad.isfinite().all()


def test_no_keys_at_all_give_0():
    output, log_sum_exp = blockwise_attention(*inputs(4, 0))
    assert (output == 0).all() and (log_sum_exp == -math.inf).all()


def test_no_queries_give_nothing():
    output, log_sum_exp = blockwise_attention(*inputs(0, 4))
    assert output.shape == (2, 3, 0, D_V) and log_sum_exp.shape == (2, 3, 0)


@pytest.mark.parametrize("dtype, within", [(torch.float64, 1e-13), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_other_dtypes(dtype, within):
    q, k, v = inputs(40, 40, dtype)
    output, log_sum_exp = blockwise_attention(q, k, v, block=16, causal=True)
    assert output.dtype == log_sum_exp.dtype == dtype
    assert relative(output.double(), table_of(q.double(), k.double(), v.double(), True)) <= within


def test_leading_axes_broadcast_as_in_attention():
    q, k, v = seeded_randn(2, 1, 5, D_K, seed=0), seeded_randn(3, 7, D_K, seed=1), seeded_randn(7, D_V, seed=2)
    output, _ = blockwise_attention(q, k, v, block=3)
    assert output.shape == (2, 3, 5, D_V)
    assert relative(output, attention(q, k, v)[0]) <= 1e-6


def test_equals_the_fused_kernel():
    q, k, v = inputs(100, 100)
    assert relative(blockwise_attention(q, k, v, block=32, causal=True)[0], F.scaled_dot_product_attention(q, k, v, is_causal=True)) <= 1e-6


def test_peak_memory_is_a_twentieth_of_the_tables():
    x = seeded_randn(1, 8, 4096, 64, seed=0)
    with torch.no_grad():
        table = peak_mib(lambda: attention(x, x, x)[0])
        blocks = peak_mib(lambda: blockwise_attention(x, x, x)[0])
    assert blocks <= table / 20, (blocks, table)


@pytest.mark.parametrize(
    "queries, keys, block, causal, visited, of",
    [(2048, 2048, 128, True, 136, 256), (2048, 2048, 128, False, 256, 256), (1024, 1024, 128, True, 36, 64),
     (1, 1000, 100, True, 10, 10), (70, 50, 16, True, 10, 20), (3, 5, 2, True, 5, 6)],
)  # fmt: skip
def test_blocks_visited(queries, keys, block, causal, visited, of):
    assert -(-queries // block) * -(-keys // block) == of
    assert len(blocks_to_visit(queries, keys, block, causal=causal)) == visited


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("block", [1, 7, 16])
def test_the_blocks_visited_are_those_with_a_cell_that_is_seen(lengths, block, causal):
    queries, keys = lengths
    seen = torch.ones(queries, keys, dtype=torch.bool)
    seen = seen.tril(keys - queries) if causal else seen
    wanted = {(row // block, column // block) for row, column in seen.nonzero().tolist()}
    assert blocks_to_visit(queries, keys, block, causal=causal) == sorted(wanted)


@pytest.mark.parametrize("causal, visited", [(True, 136), (False, 256)])
def test_the_function_visits_as_many_blocks_as_it_says(causal, visited, monkeypatch):
    """Every block takes one maximum of its scores."""
    calls, amax = [], torch.Tensor.amax
    monkeypatch.setattr(torch.Tensor, "amax", lambda self, *args: calls.append(self.shape) or amax(self, *args))
    q, k, v = inputs(2048, 2048, batch=())
    blockwise_attention(q, k, v, causal=causal)
    assert calls == [torch.Size([128, 128])] * visited


@pytest.mark.parametrize("cuts", [(1,), (35,), (69,), (10, 20, 65)], ids=str)
def test_merged_pieces_equal_the_whole_in_any_order(cuts):
    q, k, v = inputs(50, 70)
    places = [0, *cuts, 70]
    pieces = [blockwise_attention(q, k[..., a:b, :], v[..., a:b, :], block=16) for a, b in zip(places, places[1:])]
    whole = blockwise_attention(q, k, v)
    for order in (pieces, pieces[::-1]):
        joined = order[0]
        for piece in order[1:]:
            joined = merge(joined, piece)
        assert relative(joined[0], whole[0]) <= 1e-6 and relative(joined[1], whole[1]) <= 1e-6


def test_merge_of_large_scores_is_as_exact_as_their_log_sum_exp():
    """In float32 a log-sum-exp of a thousand is known to 6e-5, and so is the share that it gives."""
    q, k, v = inputs(6, 40)
    q = q * 1000 / (q @ k.mT / math.sqrt(D_K)).abs().max()
    joined = merge(*(blockwise_attention(q, k[..., part, :], v[..., part, :]) for part in (slice(0, 10), slice(10, 40))))
    assert relative(joined[0], attention(q, k, v)[0]) <= 1e-4


def test_merge_with_a_piece_that_nobody_sees_changes_nothing():
    q, k, v = inputs(5, 9)
    nothing = blockwise_attention(q, k[..., :0, :], v[..., :0, :])
    something = blockwise_attention(q, k, v)
    for pair in ((nothing, something), (something, nothing)):
        joined = merge(*pair)
        assert torch.equal(joined[0], something[0]) and torch.equal(joined[1], something[1])
    joined = merge(nothing, nothing)
    assert (joined[0] == 0).all() and (joined[1] == -math.inf).all()


@pytest.mark.parametrize("block", [0, -3, 2.0, "8", None, True, torch.tensor(4)], ids=repr)
def test_bad_block_sizes_are_named(block):
    with pytest.raises(ValueError, match="block must be a whole number from 1 on; got"):
        blockwise_attention(*inputs(4, 4), block=block)
    with pytest.raises(ValueError, match="block must be a whole number from 1 on; got"):
        blocks_to_visit(4, 4, block)


def test_shapes_that_do_not_fit_are_printed():
    q, k, v = inputs(4, 6)
    with pytest.raises(ValueError, match=r"\(2, 3, 6, 15\)"):
        blockwise_attention(q, k[..., 1:], v)
    with pytest.raises(ValueError, match=r"\(2, 3, 5, 12\)"):
        blockwise_attention(q, k, v[..., 1:, :])


def test_results_of_other_queries_are_refused():
    first, second = (blockwise_attention(*inputs(n, 6)) for n in (4, 5))
    with pytest.raises(ValueError, match=r"same queries.*\(2, 3, 4, 12\).*\(2, 3, 5, 12\)"):
        merge(first, second)
    with pytest.raises(ValueError, match=r"log_sum_exp \(2, 3, 4, 1\)"):
        merge(first, (first[0], first[1].unsqueeze(-1)))
