"""The numbers that chapters 4 and 5 show. Parity with PyTorch's layer stands in test_multi_head.py."""

import pytest
import torch
from torch import nn

from mha_lib import attention, merge_heads, padding_mask, split_heads


def test_the_cut_of_0_to_7():
    x = torch.arange(8).reshape(1, 2, 4)
    assert split_heads(x, 2)[0, 0].tolist() == [[0, 1], [4, 5]]
    assert x.view(1, 2, 2, 2)[0, 0].tolist() == [[0, 1], [2, 3]]
    assert x.view(1, 2, 2, 2).shape == split_heads(x, 2).shape


def test_shapes_and_strides():
    x = torch.randn(2, 10, 512)
    cut = x.view(2, 10, 8, 64)
    assert cut.stride() == (5120, 512, 64, 1) and cut.transpose(1, 2).stride() == (5120, 64, 512, 1)
    attended = attention(*[split_heads(x, 8)] * 3)[0]
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        attended.transpose(1, 2).view(2, 10, 512)
    assert torch.equal(merge_heads(attended), attended.transpose(1, 2).contiguous().view(2, 10, 512))


def test_heads_behind_the_tokens_attend_to_heads():
    cut = torch.randn(2, 10, 8, 64)
    assert (cut @ cut.transpose(-2, -1)).shape == (2, 10, 8, 8)


def test_two_heads_return_what_one_averages():
    keys, values = torch.tensor([[6.0, 0.0], [0.0, 6.0], [0.0, 0.0]]), torch.tensor([[1.0], [3.0], [9.0]])
    assert float(attention(torch.tensor([[1.0, 1.0]]), keys, values)[0]) == pytest.approx(2.05, abs=0.02)
    for query, value in (([2.0, 0.0], 1.0), ([0.0, 2.0], 3.0)):
        assert float(attention(torch.tensor([query]), keys, values)[0]) == pytest.approx(value, abs=0.01)


def test_a_mask_without_head_axis_blocks_24_cells_and_3_rightly():
    ids = torch.ones(8, 10, dtype=torch.long)
    ids[0, 7:] = 0
    mask = padding_mask(ids, 0)
    row = torch.zeros(8, 8, 10, 10)
    careless = row.masked_fill(~mask, -1)[:, :, 0] == -1
    careful = row.masked_fill(~mask.unsqueeze(1), -1)[:, :, 0] == -1
    assert int(careless.sum()) == 24 and int((careless & careful).sum()) == 3


def heads_of(seed=0):
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(seed))
    return attention(*[split_heads(x, 4)] * 3)[0]


def test_merged_heads_reach_their_own_features_alone():
    heads = heads_of()
    jacobian = torch.autograd.functional.jacobian(lambda h: merge_heads(h)[0, 0], heads)[:, 0, :, 0].norm(dim=-1)
    reach = jacobian.T
    assert int((reach == 0).sum()) == 48
    assert all((reach[i, 4 * i : 4 * i + 4] > 0).all() for i in range(4))
    torch.manual_seed(0)
    w_o = nn.Linear(16, 16)
    mixed = torch.autograd.functional.jacobian(lambda h: w_o(merge_heads(h))[0, 0], heads)[:, 0, :, 0].norm(dim=-1)
    assert (mixed > 0).all()


def test_the_output_is_a_sum_over_heads():
    heads = heads_of()
    torch.manual_seed(0)
    w_o = nn.Linear(16, 16)
    blocks = w_o.weight.detach().T.split(4)
    terms = [heads[:, i] @ block for i, block in enumerate(blocks)]
    assert (merge_heads(heads) @ w_o.weight.T - sum(terms)).abs().max() < 1e-6
    without_head_2 = sum(terms) - terms[2] + w_o.bias
    with torch.no_grad():
        w_o.weight[:, 8:12] = 0
    assert torch.allclose(w_o(merge_heads(heads)), without_head_2, atol=1e-6)
