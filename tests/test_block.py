"""The block around attention."""

import pytest
import torch
from torch import nn

from mha_lib import causal_mask
from mha_lib.block import Block
from tests.conftest import seeded_randn


def test_it_adds_what_attention_and_feed_forward_say_of_normed_tokens():
    block, x = Block(12, 4).eval(), seeded_randn(2, 5, 12, seed=0)
    normed = block.norm_1(x)
    after = x + block.attention(normed, normed, normed, causal_mask(5))
    assert torch.allclose(block(x, causal_mask(5)), after + block.feed_forward(block.norm_2(after)), atol=1e-6)


def test_it_equals_pytorchs_own_layer_with_the_norm_in_front():
    block, theirs = Block(12, 4, hidden=20), nn.TransformerEncoderLayer(12, 4, 20, 0.0, "gelu", batch_first=True, norm_first=True)
    from mha_lib.spellings import transfer

    transfer(block.attention, theirs.self_attn)
    for mine, its in ((block.norm_1, theirs.norm1), (block.norm_2, theirs.norm2), (block.feed_forward[0], theirs.linear1), (block.feed_forward[2], theirs.linear2)):
        its.load_state_dict(mine.state_dict())
    x = seeded_randn(2, 5, 12, seed=1)
    assert torch.allclose(block.train()(x), theirs.train()(x), atol=1e-5)
    assert torch.allclose(block(x, causal_mask(5)), theirs(x, src_mask=~causal_mask(5)[0]), atol=1e-5)


@pytest.mark.parametrize("arguments, words", [((10, 4), "cannot be cut"), ((12, 4, 0), "hidden must be at least 1; got 0")])
def test_bad_sizes_are_refused_with_their_numbers(arguments, words):
    with pytest.raises(ValueError, match=words):
        Block(*arguments)
