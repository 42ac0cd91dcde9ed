"""masks.py and heads.py: what they build, and what bad input is told."""

import pytest
import torch

from mha_lib import causal_mask, decoder_mask, merge_heads, padding_mask, split_heads, to_torch_mask

TOKENS = torch.tensor([[7, 4, 9, 0, 0], [3, 8, 5, 6, 0]])


def test_masks_say_true_for_may_attend():
    assert causal_mask(3).tolist() == [[[True, False, False], [True, True, False], [True, True, True]]]
    assert padding_mask(TOKENS, 0).int().tolist() == [[[1, 1, 1, 0, 0]], [[1, 1, 1, 1, 0]]]
    assert torch.equal(decoder_mask(TOKENS, 0), padding_mask(TOKENS, 0) & causal_mask(5))


def test_masks_lie_where_the_tokens_lie():
    tokens = TOKENS.to("meta")
    assert padding_mask(tokens, 0).device.type == decoder_mask(tokens, 0).device.type == "meta"
    assert causal_mask(3, "meta").device.type == "meta"
    assert causal_mask(0).shape == (1, 0, 0)


@pytest.mark.parametrize("build", [padding_mask, decoder_mask])
def test_tokens_of_another_shape(build):
    with pytest.raises(ValueError, match=r"tokens must be \(B, T\); got \(5,\)"):
        build(TOKENS[0], 0)


def test_torch_mask_is_turned_around_and_batch_major():
    x = torch.zeros(2, 5, 12)
    mask = to_torch_mask(padding_mask(TOKENS, 0), x, x, 3)
    assert mask.shape == (6, 5, 5)
    for row in range(6):
        assert torch.equal(mask[row], ~padding_mask(TOKENS, 0)[row // 3].expand(5, 5))


@pytest.mark.parametrize("shape", [(5, 6), (3, 1, 5), (2, 4, 5), (2, 2, 5, 5), (5,), (1, 1, 1, 1, 5)])
def test_a_mask_that_fits_no_layer(shape):
    x = torch.zeros(2, 5, 12)
    with pytest.raises(ValueError) as caught:
        to_torch_mask(torch.ones(shape, dtype=torch.bool), x, x, 3)
    for words in (str(tuple(shape)), "B=2", "h=3", "T_q=5", "T_k=5"):
        assert words in str(caught.value)


def test_split_gives_each_head_its_block_and_moves_nothing():
    x = torch.arange(2 * 10 * 512.0).reshape(2, 10, 512)
    heads = split_heads(x, 8)
    assert heads.shape == (2, 8, 10, 64) and heads.stride() == (5120, 64, 512, 1)
    assert heads.data_ptr() == x.data_ptr()
    assert all(torch.equal(heads[:, i], x[:, :, 64 * i : 64 * (i + 1)]) for i in range(8))


def test_merge_undoes_split_whatever_lies_in_memory():
    x = torch.randn(2, 3, 12)
    for heads in (split_heads(x, 4), split_heads(x, 4).contiguous(), split_heads(x.transpose(0, 1).contiguous().transpose(0, 1), 4)):
        assert torch.equal(merge_heads(heads), x)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: split_heads(torch.zeros(2, 3), 1), r"\(B, T, d_model\); got \(2, 3\)"),
        (lambda: merge_heads(torch.zeros(2, 3, 4)), r"\(B, h, T, d_k\); got \(2, 3, 4\)"),
        (lambda: split_heads(torch.zeros(1, 2, 10), 4), r"d_model=10.*num_heads=4.*1, 2, 5, 10"),
        (lambda: split_heads(torch.zeros(1, 2, 10), 0), r"at least 1; got 0"),
        (lambda: split_heads(torch.zeros(1, 2, 10), -2), r"at least 1; got -2"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()
