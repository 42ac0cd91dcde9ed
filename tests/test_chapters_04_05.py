"""The numbers that chapters 4 and 5 show. Parity with PyTorch's layer stands in test_multi_head.py."""

import pytest
import torch
from torch import nn

from mha_lib import MultiHeadAttention, attention, clones, merge_heads, padding_mask, split_heads


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
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(seed))
    return attention(*[split_heads(x, 4)] * 3)[0]


def test_merged_heads_reach_their_own_features_alone():
    heads = heads_of()
    jacobian = torch.autograd.functional.jacobian(lambda h: merge_heads(h)[0, 0], heads)[:, 0, :, 0].norm(dim=-1)
    reach = jacobian.T
    assert int((reach == 0).sum()) == 72
    assert all((reach[i, 6 * i : 6 * i + 6] > 0).all() for i in range(4))
    torch.manual_seed(0)
    w_o = nn.Linear(24, 24)
    mixed = torch.autograd.functional.jacobian(lambda h: w_o(merge_heads(h))[0, 0], heads)[:, 0, :, 0].norm(dim=-1)
    assert (mixed > 0).all()


def missed_by_one_map(given, wanted):
    given = torch.cat([given, torch.ones(len(given), 1)], dim=1)
    rest = wanted - given @ torch.linalg.lstsq(given, wanted).solution
    return float(rest.norm() / (wanted - wanted.mean(dim=0)).norm())


@pytest.mark.parametrize("seed", range(5))
def test_the_next_linear_could_do_the_work_of_w_o_but_for_the_residual_sum(seed):
    torch.manual_seed(seed)
    stream, merged, mix, following = torch.randn(500, 24), torch.randn(500, 24), nn.Linear(24, 24), nn.Linear(24, 24)
    with torch.no_grad():
        assert missed_by_one_map(merged, following(mix(merged))) < 1e-4
        assert missed_by_one_map(stream + merged, following(stream + mix(merged))) > 0.5


@pytest.mark.parametrize("seed", range(5))
def test_the_output_is_a_sum_over_heads(seed):
    heads = heads_of(seed)
    torch.manual_seed(seed)
    w_o = nn.Linear(24, 24)
    blocks = w_o.weight.detach().T.split(6)
    terms = [heads[:, i] @ block for i, block in enumerate(blocks)]
    assert (merge_heads(heads) @ w_o.weight.T - sum(terms)).abs().max() < 1e-6
    without_head_2 = sum(terms) - terms[2] + w_o.bias
    with torch.no_grad():
        w_o.weight[:, 12:18] = 0
    assert torch.allclose(w_o(merge_heads(heads)), without_head_2, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_cloned_linears_make_scores_that_mirror_themselves_until_drawn_anew(seed):
    torch.manual_seed(seed)
    linears, x = clones(nn.Linear(24, 24), 4), torch.randn(1, 5, 24)

    def asymmetry():
        q, k = (split_heads(linears[i](x).detach(), 4) for i in (0, 1))
        scores = q @ k.transpose(-2, -1)
        return float((scores - scores.transpose(-2, -1)).abs().max() / scores.abs().max())

    assert asymmetry() < 1e-6
    for linear in linears:
        nn.init.xavier_uniform_(linear.weight)
    assert asymmetry() > 0.1


def test_a_layer_stacks_on_its_own_output_and_hooks_see_calls_alone():
    layer, x, seen = MultiHeadAttention(24, 4), torch.randn(2, 5, 24), []
    layer.register_forward_hook(lambda module, given, output: seen.append(tuple(output.shape)))
    once = layer(x, x, x)
    layer.forward(once, once, once)
    assert seen == [(2, 5, 24)]
