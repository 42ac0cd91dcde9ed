"""The numbers that chapter 3 shows."""

import math

import pytest
import torch
from torch import nn

from mha_lib import attention, causal_mask, decoder_mask, window_mask
from mha_lib.experiments import next_token


def x():
    return torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))


def test_fifteen_cells_allowed_and_ten_weights_zero():
    assert int(causal_mask(5).sum()) == 15
    assert int((attention(x(), x(), x(), causal_mask(5))[1] == 0).sum()) == 10


def test_masking_after_the_softmax_loses_weight():
    weights = attention(x(), x(), x())[1] * causal_mask(5)
    assert (weights.sum(-1)[0, :-1] < 1 - 1e-3).all()


def test_zero_as_a_fill_gives_weight():
    scores = x() @ x().transpose(-2, -1) / 8**0.5
    assert (scores * causal_mask(5)).softmax(-1)[~causal_mask(5)].max() > 0.01


def test_a_finite_fill_can_be_beaten():
    scores = x() @ x().transpose(-2, -1) / 8**0.5
    leak = [(scores + s).masked_fill(~causal_mask(5), -10.0).softmax(-1)[~causal_mask(5)].max() for s in (0.0, -20.0)]
    assert 0 < leak[0] < 1e-3 and leak[1] > 0.5


def test_minus_1e9_does_not_fit_16_bits():
    with pytest.raises(RuntimeError, match="overflow"):
        torch.zeros(1).half().masked_fill(torch.ones(1, dtype=torch.bool), -1e9)
    assert torch.zeros(1).bfloat16().masked_fill(torch.ones(1, dtype=torch.bool), -1e9) < -9e8


def test_changing_token_5_moves_nothing_before_it():
    tokens = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[0, 5] *= -1
    before, after = (attention(t, t, t, causal_mask(8))[0] for t in (tokens, other))
    moved = (before - after)[0].abs().amax(-1)
    assert torch.equal(moved[:5], torch.zeros(5)) and (moved[5:] > 1e-6).all()


def test_influence_is_lower_triangular():
    tokens = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(1))
    jacobian = torch.autograd.functional.jacobian(lambda t: attention(t, t, t, causal_mask(8))[0], tokens)
    influence = jacobian[0, :, :, 0].norm(dim=(1, 3))
    assert not influence.triu(1).any() and (influence.diagonal() > 0).all()


def test_cheating_without_a_mask():
    for seed in (5, 6):
        honest = sum(next_token.train(True, seed=seed)[-20:]) / 20
        cheat = sum(next_token.train(False, seed=seed)[-20:]) / 20
        assert abs(honest - math.log(16)) < 0.02 and cheat < 0.01


def test_a_row_without_keys_in_five_implementations():
    allowed = causal_mask(5)[0].clone()
    allowed[2] = False
    scores = x() @ x().transpose(-2, -1) / 8**0.5
    assert scores.masked_fill(~allowed, -math.inf).softmax(-1)[0, 2].isnan().all()
    assert torch.allclose(scores.masked_fill(~allowed, -1e9).softmax(-1)[0, 2], torch.full((5,), 0.2))
    assert not nn.functional.scaled_dot_product_attention(x(), x(), x(), attn_mask=allowed)[0, 2].any()
    assert not attention(x(), x(), x(), allowed)[0][0, 2].any()
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    for training in (True, False):
        assert layer.train(training)(x(), x(), x(), attn_mask=~allowed)[0][0, 2].isnan().all()


def test_masking_after_and_dividing_again_is_masking_before_until_a_blocked_score_is_large():
    def after(scores, allowed):
        weights = scores.softmax(-1) * allowed
        return weights / weights.sum(-1, keepdim=True)

    for seed in range(3):
        scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(seed))
        before = scores.masked_fill(~causal_mask(5)[0], -math.inf).softmax(-1)
        assert torch.allclose(after(scores, causal_mask(5)[0]), before, atol=1e-6)
    assert after(torch.tensor([0.0, 1.0, 200.0]), torch.tensor([True, True, False])).isnan().all()


def test_under_a_causal_mask_order_matters():
    order = [4, 2, 0, 3, 1]
    shuffled = x()[:, order]
    plain = attention(x(), x(), x(), causal_mask(5))[0][:, order]
    assert (attention(shuffled, shuffled, shuffled, causal_mask(5))[0] - plain).abs().max() > 0.1


def test_a_window_of_3_reaches_two_tokens_further_with_each_layer():
    step, reach, found = window_mask(12, 3)[0].float(), torch.eye(12), []
    for _ in range(4):
        reach = reach @ step
        found.append(int((reach[-1] > 0).sum()))
    assert found == [3, 5, 7, 9]


def test_padding_in_front_leaves_rows_without_keys_under_a_causal_mask():
    assert decoder_mask(torch.tensor([[0, 0, 7, 4, 9]]), 0)[0].sum(-1).tolist() == [0, 0, 1, 2, 3]


def test_both_fills_end_right_but_only_the_finite_one_never_makes_a_nan():
    allowed = causal_mask(5)[0].clone()
    allowed[2] = False
    for fill, nans in ((-math.inf, 5), (torch.finfo(torch.float32).min, 0)):
        scores = (x() @ x().transpose(-2, -1)).requires_grad_()
        weights = scores.masked_fill(~allowed, fill).softmax(-1)
        assert int(weights.isnan().sum()) == nans
        weights.masked_fill(~allowed, 0.0).square().sum().backward()
        assert scores.grad.isfinite().all()


def test_the_layer_of_pytorch_reads_true_as_blocked():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    allowed = causal_mask(5)[0]
    added = torch.zeros(5, 5).masked_fill(~allowed, -math.inf)
    want = layer(x(), x(), x(), attn_mask=added)[0]
    assert torch.allclose(layer(x(), x(), x(), attn_mask=~allowed)[0], want, atol=1e-6)
    assert not torch.allclose(layer(x(), x(), x(), attn_mask=allowed)[0], want, atol=1e-6)
    padding = torch.tensor([[False, False, False, True, True]])
    assert not layer(x(), x(), x(), key_padding_mask=padding)[1][..., 3:].any()
