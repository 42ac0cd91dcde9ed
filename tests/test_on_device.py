"""The layer beside PyTorch's own, on the device that the course would use: MHA_DEVICE=cuda puts it on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mha_lib import MultiHeadAttention, attention, causal_mask, decoder_mask, get_device, padding_mask, spellings, to_torch_mask

D_MODEL, HEADS = 24, 4
TOKENS = [[5, 3, 2, 9, 4], [7, 1, 0, 0, 0], [2, 8, 6, 0, 0]]
CLOSE = {"atol": 5e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def device():
    return get_device()


def random(*shape, seed, device):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.fixture
def pair(device):
    """Our layer and PyTorch's, with the same weights, on the device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs, ours = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True), MultiHeadAttention(D_MODEL, HEADS)
    with torch.no_grad():
        for linear, weight, bias in zip((ours.w_q, ours.w_k, ours.w_v), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        ours.w_o.load_state_dict(theirs.out_proj.state_dict())
    return ours.to(device), theirs.to(device)


def masks(device):
    tokens = torch.tensor(TOKENS, device=device)
    return {"none": None, "causal": causal_mask(5, device), "padding": padding_mask(tokens, 0), "both": decoder_mask(tokens, 0)}


@pytest.mark.parametrize("name", ["none", "causal", "padding", "both"])
def test_outputs_weights_and_gradients_equal_pytorchs(pair, device, name):
    ours, theirs = pair
    mask = masks(device)[name]
    inputs = [random(3, 5, D_MODEL, seed=s, device=device).requires_grad_() for s in range(3)]
    theirs_mask = None if mask is None else to_torch_mask(mask, inputs[0], inputs[1], HEADS)
    expected, weights = theirs(*inputs, attn_mask=theirs_mask, average_attn_weights=False)
    output = ours(*inputs, mask)
    torch.testing.assert_close(output, expected, **CLOSE)
    torch.testing.assert_close(ours.attn, weights, **CLOSE)
    torch.testing.assert_close(ours(*inputs, mask, need_weights=False), expected, **CLOSE)
    upstream = random(3, 5, D_MODEL, seed=9, device=device)
    for mine, other in zip(torch.autograd.grad(output, inputs, upstream), torch.autograd.grad(expected, inputs, upstream)):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-4)


def test_attention_equals_the_fused_kernel(device):
    q, k, v = (random(2, 3, n, 8, seed=n, device=device) for n in (4, 6, 6))
    mask = random(4, 6, seed=1, device=device) > -0.5
    torch.testing.assert_close(attention(q, k, v, mask)[0], F.scaled_dot_product_attention(q, k, v, mask), **CLOSE)


def test_a_blocked_row_is_zero_and_nothing_is_nan(pair, device):
    ours, _ = pair
    x = random(1, 3, D_MODEL, seed=0, device=device).requires_grad_()
    mask = torch.tensor([[True, False, False], [False, False, False], [True, True, True]], device=device)
    ours(x, x, x, mask).sum().backward()
    assert bool((ours.attn[:, :, 1] == 0).all()) and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("make", [
    lambda: spellings.ClonedLinears(HEADS, D_MODEL), lambda: spellings.SplitCombine(D_MODEL, HEADS), lambda: spellings.BertStyle(D_MODEL, HEADS),
])
def test_every_spelling_gives_the_same(device, make):
    other, ours = make().to(device).eval(), MultiHeadAttention(D_MODEL, HEADS).to(device).eval()
    spellings.transfer(other, ours)
    x = random(2, 5, D_MODEL, seed=4, device=device)
    found = other(x) if isinstance(other, spellings.BertStyle) else other(x, x, x)
    torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, ours(x, x, x), **CLOSE)


def test_inference_mode_gives_the_same(pair, device):
    ours, _ = pair
    x = random(2, 5, D_MODEL, seed=6, device=device)
    for mask in (None, causal_mask(5, device)):
        expected, weights = ours(x, x, x, mask), ours.attn
        with torch.inference_mode():
            torch.testing.assert_close(ours(x, x, x, mask), expected, **CLOSE)
            torch.testing.assert_close(ours.attn, weights, **CLOSE)
