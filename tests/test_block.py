"""Block: against PyTorch's own pre-norm layer, and the two sums that it is made of."""

import pytest
import torch
from torch import nn

from mha_lib import causal_mask
from mha_lib.block import Block
from mha_lib.spellings import transfer
from tests.conftest import relative, seeded_randn

D_MODEL, HEADS, HIDDEN = 24, 4, 40


@pytest.fixture
def block():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Block(D_MODEL, HEADS, HIDDEN)
        for norm in (made.norm_1, made.norm_2):  # new norms are all ones and zeros: no one could tell them apart
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    return made


def torchs_own(block):
    """Return PyTorch's own pre-norm layer with the weights of a block."""
    theirs = nn.TransformerEncoderLayer(D_MODEL, HEADS, HIDDEN, 0.0, activation="gelu", batch_first=True, norm_first=True)
    transfer(block.attention, theirs.self_attn)
    for mine, other in (
        (block.norm_1, theirs.norm1), (block.norm_2, theirs.norm2),
        (block.feed_forward[0], theirs.linear1), (block.feed_forward[2], theirs.linear2),
    ):
        other.load_state_dict(mine.state_dict())
    return theirs


@pytest.mark.parametrize("causal", [False, True])
def test_equals_torchs_own_forward_and_backward(block, causal):
    theirs, mask = torchs_own(block), causal_mask(5) if causal else None
    x, y = (seeded_randn(2, 5, D_MODEL, seed=1).requires_grad_() for _ in range(2))
    mine, other = block(x, mask), theirs(y, None if mask is None else ~mask[0])
    assert relative(mine, other) <= 1e-6
    mine.square().sum().backward()
    other.square().sum().backward()
    assert relative(x.grad, y.grad) <= 5e-6
    assert relative(block.norm_1.weight.grad, theirs.norm1.weight.grad) <= 5e-6
    assert relative(block.attention.w_o.weight.grad, theirs.self_attn.out_proj.weight.grad) <= 5e-6


def test_what_is_silent_leaves_the_input_as_it_is(block):
    x = seeded_randn(2, 5, D_MODEL, seed=1)
    for linear in (block.attention.w_o, block.feed_forward[2]):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    assert torch.equal(block(x), x)


def test_each_part_stands_in_its_own_residual_sum(block):
    x = seeded_randn(2, 5, D_MODEL, seed=1)
    middle = x + block.attention(*[block.norm_1(x)] * 3)
    assert torch.equal(block(x), middle + block.feed_forward(block.norm_2(middle)))


def test_a_causal_block_sees_no_later_token(block):
    x = seeded_randn(2, 6, D_MODEL, seed=1)
    moved = x.clone()
    moved[:, 4:] += 1
    before, after = block(x, causal_mask(6)), block(moved, causal_mask(6))
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.allclose(before[:, 4:], after[:, 4:])


def test_widths():
    assert Block(D_MODEL, HEADS).feed_forward[0].out_features == 4 * D_MODEL
    assert sum(p.numel() for p in Block(512, 8).parameters()) == 12 * 512**2 + 13 * 512


def test_dropout_reaches_the_weights_and_stops_in_eval():
    dropping, x = Block(D_MODEL, HEADS, dropout=0.5), seeded_randn(2, 5, D_MODEL, seed=1)
    assert not torch.equal(dropping(x), dropping(x))
    dropping.eval()
    assert torch.equal(dropping(x), dropping(x))


@pytest.mark.parametrize("hidden", [0, -1])
def test_a_bad_width_is_named(hidden):
    with pytest.raises(ValueError, match=rf"hidden must be at least 1; got {hidden}"):
        Block(D_MODEL, HEADS, hidden)


def test_heads_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="d_model=24 cannot be cut into num_heads=5"):
        Block(D_MODEL, 5)
